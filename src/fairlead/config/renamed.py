"""Former names of options. Readers reject a former name and give the new one; `migrate` rewrites a file."""

import re
import tomllib
from collections.abc import Mapping

SECTIONS: Mapping[str, str] = {"probes": "health"}
"""Former section -> section; the options of `probes` are looked up in OPTIONS under the former name."""
OPTIONS: Mapping[str, str] = {
    "agent.haproxy": "agent.haproxy_binary",
    "agent.haproxy_memory": "agent.haproxy_memory_limit",
    "agent.identity": "agent.identity_file",
    "agent.most_connections": "agent.max_tracked_connections",
    "agent.proxies": "agent.proxy_directory",
    "agent.proxy_namespaces": "agent.proxy_namespace_prefix",
    "agent.renewal": "agent.secret_refresh_interval",
    "agent.state": "agent.state_file",
    "keystone.outage_seconds": "keystone.stale_token_grace",
    "keystone.token_cache_seconds": "keystone.token_cache_ttl",
    "log.audit": "log.audit_file",
    "lxd.addresses": "lxd.advertise_addresses",
    "lxd.token_seconds": "lxd.token_lifetime",
    "nodes.addresses": "nodes.advertise_addresses",
    "nodes.certificate_days": "nodes.certificate_lifetime_days",
    "nodes.connections": "nodes.max_connections",
    "nodes.token_seconds": "nodes.token_lifetime",
    "ovn.count_answers": "ovn.count_reply_bytes",
    "ovn.follow": "ovn.import_networks",
    "ovn.mark": "ovn.owner_tag",
    "ovn.parting": "ovn.drain_timeout",
    "probes.by": "health.prober",
    "probes.least_delay": "health.min_delay",
    "probes.per_second": "health.max_probes_per_second",
    "probes.per_second_of_port": "health.max_probes_per_second_per_port",
    "providers.guest_proxies": "providers.max_guest_proxies_per_network",
    "providers.proxies": "providers.max_proxies_per_network",
    "providers.proxy_servers": "providers.max_proxy_servers",
    "server.connections": "server.max_connections",
    "server.connections_per_address": "server.max_connections_per_address",
    "server.hosts": "server.allowed_hosts",
    "server.passwords_in_the_clear": "server.allow_insecure_auth",
    "server.proxies": "server.trusted_proxies",
}
"""Former name -> name, both as section.option."""
_HEADER = re.compile(r"^(\s*\[\s*)([\w-]+)(\s*\].*)$", re.DOTALL)
_ASSIGNMENT = re.compile(r"^(\s*#?\s*)([\w-]+)(\s*=\s*)(.*)$", re.DOTALL)
_BOOLEAN = re.compile(r"""^(["'])(yes|no)\1""")
FLAGS = frozenset({"ovn.count_reply_bytes", "ovn.import_networks", "server.allow_insecure_auth"})
"""Options that were yes or no and are booleans."""


def variable(name: str) -> str:
    """Environment variable of section.option."""
    return f"FAIRLEAD_{name.replace('.', '_')}".upper()


VARIABLES: Mapping[str, str] = {variable(old): variable(new) for old, new in OPTIONS.items()}
"""Former environment variable -> environment variable."""


def migrate(text: str) -> str:
    """Rewrites a configuration file: names and booleans change, comments and order stay. Raises ValueError if the text
    is not TOML, or has a former name in a form that is not rewritten (a dotted key, an inline table).
    """
    tomllib.loads(text)
    section, lines = "", []
    for line in text.splitlines(keepends=True):
        if header := _HEADER.match(line):
            section = header[2]
            lines.append(f"{header[1]}{SECTIONS.get(section, section)}{header[3]}")
        elif assignment := _ASSIGNMENT.match(line):
            lines.append(_migrated(section, assignment))
        else:
            lines.append(line)
    migrated = "".join(lines)
    left = [
        f"{section}.{option}"
        for section, options in tomllib.loads(migrated).items()
        if isinstance(options, dict)
        for option in options
        if f"{section}.{option}" in OPTIONS or section in SECTIONS
    ]
    if left:
        raise ValueError(f"{', '.join(left)}: write each option as a line of its own below its [section]")
    return migrated


def _migrated(section: str, assignment: re.Match[str]) -> str:
    name = f"{section}.{assignment[2]}"
    new = OPTIONS.get(name, name)
    value = assignment[4]
    if new in FLAGS:
        value = _BOOLEAN.sub(lambda found: str(found[2] == "yes").lower(), value)
    return f"{assignment[1]}{new.partition('.')[2]}{assignment[3]}{value}"
