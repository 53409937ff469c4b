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
_HEADER = re.compile(r"""^(\s*)(\#?)(\s*\[\s*["']?)([\w-]+)(["']?\s*\].*)$""", re.DOTALL)
_ASSIGNMENT = re.compile(r"^(\s*)(\#?)(\s*)([\w-]+)(\s*=\s*)(.*)$", re.DOTALL)
_BOOLEAN = re.compile(r"""^(["'])(yes|no)\1""")
FLAGS = frozenset({"ovn.count_reply_bytes", "ovn.import_networks", "server.allow_insecure_auth"})
"""Options that were yes or no and are booleans."""


def variable(name: str) -> str:
    """Environment variable of section.option."""
    return f"FAIRLEAD_{name.replace('.', '_')}".upper()


VARIABLES: Mapping[str, str] = {variable(old): variable(new) for old, new in OPTIONS.items()}
"""Former environment variable -> environment variable."""


REMOVED = frozenset({"FAIRLEAD_CLIENT", "FAIRLEAD_PROJECT", "FAIRLEAD_REMOTE"})
"""Environment variables of the former command `fairlead network`."""


def migrate(text: str) -> str:
    """Rewrites a configuration file: names and booleans change, also in commented lines; comments and order stay.

    Raises ValueError if the text is not TOML, or has former names in a form that is not rewritten (dotted keys, inline
    tables).
    """
    wanted = {OPTIONS.get(name, name) for name in _names(text)}
    live = commented = ""
    lines = []
    for line in text.splitlines(keepends=True):
        if header := _HEADER.match(line):
            commented = header[4]
            live = live if header[2] else commented
            lines.append("".join((*header.groups()[:3], SECTIONS.get(commented, commented), header[5])))
        elif assignment := _ASSIGNMENT.match(line):
            lines.append(_migrated(commented if assignment[2] else live, assignment))
        else:
            lines.append(line)
    migrated = "".join(lines)
    if (found := _names(migrated)) != wanted:
        left = ", ".join(sorted(found ^ wanted))
        raise ValueError(f"{left}: write each option as a line of its own below its [section]")
    return migrated


def _names(text: str) -> set[str]:
    """section.option of each option of a file. Raises ValueError."""
    sections = tomllib.loads(text)
    return {f"{name}.{option}" for name, its in sections.items() if isinstance(its, dict) for option in its}


def _migrated(section: str, assignment: re.Match[str]) -> str:
    *before, option, equals, value = assignment.groups()
    name = OPTIONS.get(f"{section}.{option}", f"{section}.{option}")
    if name in FLAGS:
        value = _BOOLEAN.sub(lambda found: str(found[2] == "yes").lower(), value)
    return "".join((*before, name.partition(".")[2], equals, value))
