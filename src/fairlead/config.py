"""Configuration: one TOML file, overridden by environment variables. `options` declares every option.

`fairlead config` prints all options with meaning and default as a valid file. The environment variable of an option is
FAIRLEAD_<SECTION>_<OPTION>. Unknown options are errors, so that typing mistakes are noticed.
"""

import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fairlead.client import is_url
from fairlead.compilers.providers import parse_names
from fairlead.drivers.ovsdb.remotes import Remote, SslRemote, parse_remotes
from fairlead.logs import FORMATS
from fairlead.model.agent import LONGEST_HEARTBEAT
from fairlead.model.parting import LONGEST_PARTING
from fairlead.model.port_ranges import LAST, PROXY_PORTS, PortRange
from fairlead.model.quota import LARGEST_QUOTA, UNLIMITED
from fairlead.model.statistics import LONGEST_INTERVAL
from fairlead.options import (
    LONGEST_CERTIFICATE_DAYS,
    LONGEST_CHASSIS_TIMEOUT,
    LONGEST_OUTAGE,
    LONGEST_TOKEN,
    LONGEST_TOKEN_CACHE,
    PROBERS,
    SECRET_KINDS,
    SECTIONS,
    SHORTEST_TOKEN,
    AgentOptions,
    Configuration,
    KeystoneOptions,
    LxdOptions,
    NodesOptions,
    OvnOptions,
    ProbeOptions,
    QuotaOptions,
    ServerOptions,
)
from fairlead.store.opening import check_url

DEFAULT_FILE = Path("/etc/fairlead/fairlead.toml")
AUTHENTICATIONS = ("none", "http_basic", "keystone")
LONGEST_DELAY = LONGEST_PROBE_INTERVAL = LONGEST_RENEWAL = 3600
MOST_CONNECTIONS = 100_000
MIN_HAPROXY_MEMORY, MAX_HAPROXY_MEMORY = 64, 65_536  # megabytes
OTHERS = 0o007
"""Mode bits of world access. A group may read a key, like Debian's ssl-cert."""
LEVELS = ("debug", "info", "warning", "error")


class BadConfiguration(Exception):
    """Invalid configuration. The message names the option, its source and the valid form."""


def read_configuration(path: Path | None, environment: Mapping[str, str]) -> Configuration:
    """Read the file (the default one if it exists), then the environment. Raises BadConfiguration."""
    given: dict[str, dict[str, Any]] = {}
    if path is not None or DEFAULT_FILE.exists():
        given = _read_file(path or DEFAULT_FILE)
    for section, option, variable in _variables():
        if variable in environment:
            given.setdefault(section, {})[option] = _parse(section, option, environment[variable], variable)
    unknown = [name for name in environment if name.startswith("FAIRLEAD_") and not _is_known(name)]
    if unknown:
        raise BadConfiguration(f"environment: {', '.join(sorted(unknown))}: no such option")
    parts = {name: make(**given.get(name, {})) for name, make in SECTIONS.items()}
    configuration = Configuration(**parts)
    _check(configuration)
    return configuration


def render_template() -> str:
    """Render every option with its meaning and default as TOML."""
    lines = ["# Fairlead's configuration. Every option, with its default. Environment: FAIRLEAD_<SECTION>_<OPTION>."]
    for name, section in SECTIONS.items():
        lines += ["", f"[{name}]"]
        for option in fields(section):
            default = option.default if isinstance(option.default, int) else f'"{option.default}"'
            lines += [f"# {option.metadata['meaning']}", f"{option.name} = {default}"]
    return "\n".join(lines)


def is_local(listen: str) -> bool:
    """Whether the address is reachable only from this machine."""
    if listen.startswith("unix:"):
        return True
    host, _ = split_listen(listen)
    return host == "localhost" or _is_loopback(host)


def check_secrets(configuration: Configuration) -> None:
    """Reject world-accessible secret files and a world-writable key directory. Raises BadConfiguration."""
    for name, path in _secret_files(configuration):
        if path and (mode := _mode(path)) & OTHERS:
            raise BadConfiguration(
                f"{name}: {path}: everybody on this machine can open it (mode {mode:04o}); chmod 600"
            )
    folder = configuration.keys.directory
    if folder and not Path(folder).is_dir():
        raise BadConfiguration(f"keys.directory: {folder}: no such folder")
    if folder and (mode := _mode(folder)) & stat.S_IWOTH:
        raise BadConfiguration(f"keys.directory: {folder}: everybody can write into it (mode {mode:04o}); chmod 750")


def _secret_files(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Yield option and path of the secret files in use."""
    unread = "server.password_file" if configuration.server.authentication == "none" else ""
    for section in SECTIONS:
        options = getattr(configuration, section)
        for option in fields(options):
            name = f"{section}.{option.name}"
            if option.metadata.get("kind") in SECRET_KINDS and name != unread:
                yield name, getattr(options, option.name)


def _mode(path: str) -> int:
    """Return the mode bits; 0 for a missing file, which is reported when it is opened."""
    try:
        return stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return 0


def split_listen(listen: str, option: str = "server.listen") -> tuple[str, int]:
    """Split HOST:PORT. Raises BadConfiguration."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        unix = " or unix:PATH" if option == "server.listen" else ""
        raise BadConfiguration(f"{option}: '{listen}' is not HOST:PORT, [IPv6]:PORT{unix}")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfiguration(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path}: {error}") from None
    for section, options in given.items():
        if section not in SECTIONS or not isinstance(options, dict):
            raise BadConfiguration(f"{path}: no section '{section}'; there are {', '.join(SECTIONS)}")
        known = {option.name for option in fields(SECTIONS[section])}
        for option, value in options.items():
            if option not in known:
                raise BadConfiguration(f"{path}: no option {section}.{option}; there are {', '.join(sorted(known))}")
            options[option] = _parse(section, option, value, str(path))
    return given


def _parse(section: str, option: str, value: object, source: str) -> str | int:
    default = next(each.default for each in fields(SECTIONS[section]) if each.name == option)
    if isinstance(default, int):
        if not re.fullmatch("-?[0-9]{1,18}", str(value)):
            raise BadConfiguration(f"{source}: {section}.{option}: '{value}' is not a number")
        return int(str(value))
    if not isinstance(value, str):
        raise BadConfiguration(f"{source}: {section}.{option}: {value!r} is not a text")
    return value


def _variables() -> Iterator[tuple[str, str, str]]:
    for name, section in SECTIONS.items():
        for option in fields(section):
            yield name, option.name, f"FAIRLEAD_{name}_{option.name}".upper()


def _is_known(variable: str) -> bool:
    """Whether the variable is an option's, or one of the command line."""
    own = (
        "FAIRLEAD_DEMO_LAB",
        "FAIRLEAD_DEMO_LISTEN",
        "FAIRLEAD_URL",
        "FAIRLEAD_USER",
        "FAIRLEAD_PASSWORD",
        "FAIRLEAD_CONFIG",
        "FAIRLEAD_LAB",
        "FAIRLEAD_LAB_DIR",
        "FAIRLEAD_LAB_FRR",
        "FAIRLEAD_LAB_ROOT",
    )
    return variable in own or any(variable == known for _, _, known in _variables())


def _check(configuration: Configuration) -> None:
    server = configuration.server
    if server.authentication not in AUTHENTICATIONS:
        raise BadConfiguration(
            f"server.authentication: '{server.authentication}' is not one of {', '.join(AUTHENTICATIONS)}"
        )
    if server.authentication == "none" and not is_local(server.listen):
        raise BadConfiguration(
            f"server.listen: {server.listen} can be reached from elsewhere, and server.authentication is none;"
            " set it to http_basic or keystone, or listen on loopback or a unix socket"
        )
    if server.authentication == "http_basic" and not server.password_file:
        raise BadConfiguration("server.password_file: http_basic needs one")
    if bool(server.tls_certificate) != bool(server.tls_key):
        raise BadConfiguration("server.tls_certificate and server.tls_key go together")
    if server.client_ca and not (server.tls_certificate and server.password_file):
        raise BadConfiguration("server.client_ca needs server.tls_certificate, server.tls_key and server.password_file")
    _check_callers(server)
    if server.authentication == "keystone":
        _check_keystone(configuration.keystone, server.passwords_in_the_clear == "yes")
    _check_barbican(configuration)
    _check_lxd(configuration.lxd)
    _check_nodes(configuration.nodes)
    _check_ovn(configuration.ovn)
    for name in ("mtu", "external_mtu"):
        if not 1280 <= getattr(configuration.network, name) <= 65535:
            raise BadConfiguration(f"network.{name}: from 1280 (IPv6 needs it) to 65535")
    for option in fields(QuotaOptions):
        if not UNLIMITED <= getattr(configuration.quota, option.name) <= LARGEST_QUOTA:
            raise BadConfiguration(f"quota.{option.name}: from {UNLIMITED} (any number) to {LARGEST_QUOTA}")
    _check_probes(configuration.probes)
    try:
        parse_names(configuration.providers.names, configuration.providers.default)
    except ValueError as error:
        raise BadConfiguration(f"providers: {error}") from None
    _check_providers(configuration)
    _check_agent(configuration.agent)
    try:
        check_url(configuration.store.where, configuration.store.access)
    except ValueError as error:
        raise BadConfiguration(f"store.url: {error}") from None
    if configuration.log.level not in LEVELS:
        raise BadConfiguration(f"log.level: '{configuration.log.level}' is not one of {', '.join(LEVELS)}")
    if configuration.log.format not in FORMATS:
        raise BadConfiguration(f"log.format: '{configuration.log.format}' is not {' or '.join(FORMATS)}")


def _check_probes(options: ProbeOptions) -> None:
    if options.by not in PROBERS:
        raise BadConfiguration(f"probes.by: '{options.by}' is not {' or '.join(PROBERS)}")
    if not 1 <= options.least_delay <= LONGEST_DELAY:
        raise BadConfiguration(f"probes.least_delay: from 1 to {LONGEST_DELAY} seconds")
    for name in ("per_second", "per_second_of_port"):
        if not UNLIMITED <= getattr(options, name) <= LARGEST_QUOTA:
            raise BadConfiguration(f"probes.{name}: from {UNLIMITED} (any number) to {LARGEST_QUOTA}")


def _check_providers(configuration: Configuration) -> None:
    if not UNLIMITED <= configuration.providers.proxy_servers <= LARGEST_QUOTA:
        raise BadConfiguration(f"providers.proxy_servers: from {UNLIMITED} (any number) to {LARGEST_QUOTA}")
    host_proxy_ports(configuration)


def _check_nodes(nodes: NodesOptions) -> None:
    if nodes.listen:
        split_listen(nodes.listen, "nodes.listen")
    if not all(each.startswith("https://") for each in nodes.reached_at):
        raise BadConfiguration(f"nodes.addresses: '{nodes.addresses}' is not https://HOST:PORT")
    if nodes.socket and not (nodes.socket.startswith("unix:/") and nodes.of_socket):
        raise BadConfiguration("nodes.socket: unix:PATH, of a path from the root; nodes.socket_chassis says for whom")
    if not SHORTEST_TOKEN <= nodes.token_seconds <= LONGEST_TOKEN:
        raise BadConfiguration(f"nodes.token_seconds: from {SHORTEST_TOKEN} to {LONGEST_TOKEN}")
    if not 1 <= nodes.certificate_days <= LONGEST_CERTIFICATE_DAYS:
        raise BadConfiguration(f"nodes.certificate_days: from 1 to {LONGEST_CERTIFICATE_DAYS}")
    if not 1 <= nodes.connections <= MOST_CONNECTIONS:
        raise BadConfiguration(f"nodes.connections: from 1 to {MOST_CONNECTIONS}")


def _check_lxd(lxd: LxdOptions) -> None:
    if lxd.socket and not lxd.socket.startswith("unix:/"):
        raise BadConfiguration(f"lxd.socket: '{lxd.socket}' is not unix:PATH, of a path from the root")
    try:
        mode = lxd.mode
    except ValueError:
        mode = OTHERS
    if mode & ~0o770:
        raise BadConfiguration(
            f"lxd.socket_mode: '{lxd.socket_mode}' is no mode such as 0660 that leaves out everybody: whoever may open"
            " the socket is administrator"
        )
    for name, where in (("listen", (lxd.listen,) if lxd.listen else ()), ("addresses", lxd.reached_at)):
        for each in where:
            split_listen(each, f"lxd.{name}")
    if bool(lxd.certificate) != bool(lxd.key):
        raise BadConfiguration("lxd.certificate and lxd.key go together")
    if not SHORTEST_TOKEN <= lxd.token_seconds <= LONGEST_TOKEN:
        raise BadConfiguration(f"lxd.token_seconds: from {SHORTEST_TOKEN} to {LONGEST_TOKEN}")


def _check_barbican(configuration: Configuration) -> None:
    url, in_the_clear = configuration.keys.barbican, configuration.server.passwords_in_the_clear == "yes"
    if not url:
        return
    _check_keystone(configuration.keystone, in_the_clear)
    if not _is_service_url(url):
        raise BadConfiguration(f"keys.barbican: '{url}' is not http://HOST:PORT or https://HOST:PORT/PATH")
    if _is_read_on_the_way(url) and not in_the_clear:
        raise BadConfiguration(
            f"keys.barbican: {url}: keys and tokens could be read on the way; let it be https, or set"
            " server.passwords_in_the_clear to yes"
        )
    if (path := configuration.keys.barbican_ca) and not Path(path).is_file():
        raise BadConfiguration(f"keys.barbican_ca: {path}: no such file")


def _is_read_on_the_way(url: str) -> bool:
    where = urlsplit(url)
    return where.scheme == "http" and not is_local(f"{where.hostname}:{where.port or 80}")


def _check_keystone(options: KeystoneOptions, in_the_clear: bool) -> None:
    for name in ("url", "public_url"):
        if not _is_service_url(url := getattr(options, name)) and (url or name == "url"):
            raise BadConfiguration(f"keystone.{name}: '{url}' is not http://HOST:PORT or https://HOST:PORT/PATH")
    if _is_read_on_the_way(options.url) and not in_the_clear:
        raise BadConfiguration(
            f"keystone.url: {options.url}: the password and all tokens could be read on the way; let it be https, or"
            " set server.passwords_in_the_clear to yes"
        )
    for name in ("user", "project", "user_domain", "project_domain", "password_file"):
        if not getattr(options, name):
            raise BadConfiguration(f"keystone.{name}: it is needed to ask Keystone about tokens")
    for name in ("password_file", "ca"):
        if (path := getattr(options, name)) and not Path(path).is_file():
            raise BadConfiguration(f"keystone.{name}: {path}: no such file")
    for name, most in (("token_cache_seconds", LONGEST_TOKEN_CACHE), ("outage_seconds", LONGEST_OUTAGE)):
        if not 0 <= getattr(options, name) <= most:
            raise BadConfiguration(f"keystone.{name}: from 0 to {most}")


def _is_service_url(url: str) -> bool:
    """Whether the text is a plain URL: no query, fragment or credentials."""
    try:
        where = urlsplit(url)
        port = where.port
        (where.hostname or "").encode("idna")
    except ValueError:
        return False
    plain = url.isascii() and url.isprintable() and " " not in url
    more = where.query or where.fragment or where.username or where.password
    return plain and is_url(url) and bool(where.hostname) and port != 0 and not more


def _check_callers(options: ServerOptions) -> None:
    if options.passwords_in_the_clear not in ("no", "yes"):
        raise BadConfiguration(f"server.passwords_in_the_clear: '{options.passwords_in_the_clear}' is not yes or no")
    readable = options.authentication != "none" and not options.tls_certificate and not is_local(options.listen)
    if readable and options.passwords_in_the_clear == "no":
        raise BadConfiguration(
            f"server.listen: {options.listen} can be reached from elsewhere, and passwords and tokens could be read on"
            " the way; set server.tls_certificate and server.tls_key, or server.passwords_in_the_clear to yes"
        )
    for name in ("connections", "connections_per_address"):
        if not 1 <= getattr(options, name) <= MOST_CONNECTIONS:
            raise BadConfiguration(f"server.{name}: from 1 to {MOST_CONNECTIONS}")
    for proxy in options.trusted_proxies:
        if proxy != "unix" and not _is_network(proxy):
            raise BadConfiguration(f"server.proxies: '{proxy}' is not an address, a network or unix")


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _check_agent(options: AgentOptions) -> None:
    if not options.server_urls or not all(map(is_url, options.server_urls)):
        raise BadConfiguration(f"agent.servers: '{options.servers}' is not http://HOST:PORT or https://HOST:PORT")
    if bool(options.user) != bool(options.password_file):
        raise BadConfiguration("agent.user and agent.password_file go together")
    if not 1 <= options.interval <= LONGEST_INTERVAL:
        raise BadConfiguration(f"agent.interval: from 1 to {LONGEST_INTERVAL} seconds")
    if not 1 <= options.heartbeat <= LONGEST_HEARTBEAT // 1000:
        raise BadConfiguration(f"agent.heartbeat: from 1 to {LONGEST_HEARTBEAT // 1000} seconds")
    if not 1 <= options.renewal <= LONGEST_RENEWAL:
        raise BadConfiguration(f"agent.renewal: from 1 to {LONGEST_RENEWAL} seconds")
    if not MIN_HAPROXY_MEMORY <= options.haproxy_memory <= MAX_HAPROXY_MEMORY:
        raise BadConfiguration(f"agent.haproxy_memory: from {MIN_HAPROXY_MEMORY} to {MAX_HAPROXY_MEMORY} MB")
    if options.most_connections < 0:
        raise BadConfiguration("agent.most_connections: 0 or more")
    for name in ("password_file", "ca"):
        path = getattr(options, name)
        if path and not Path(path).is_file():
            raise BadConfiguration(f"agent.{name}: {path}: no such file")


def _remotes(name: str, text: str) -> tuple[Remote, ...]:
    try:
        return parse_remotes(text)
    except ValueError as error:
        raise BadConfiguration(f"ovn.{name}: {error}") from None


def host_proxy_ports(configuration: Configuration) -> PortRange:
    """Parse the port range of proxies on plain hosts. Raises BadConfiguration."""
    said = configuration.providers.host_proxy_ports
    ends = [int(each) for each in said.split("-") if each.isascii() and each.isdigit()]
    if len(ends) == 2 and said.count("-") == 1 and PROXY_PORTS.first <= ends[0] <= ends[1] <= LAST:
        return PortRange(*ends)
    raise BadConfiguration(
        f"providers.host_proxy_ports: '{said}' is not FIRST-LAST, from {PROXY_PORTS.first} (who is not root) to {LAST}"
    )


def _check_ovn(options: OvnOptions) -> None:
    if not 0 <= options.parting <= LONGEST_PARTING:
        raise BadConfiguration(f"ovn.parting: from 0 to {LONGEST_PARTING} seconds")
    if not 1 <= options.probe_interval <= LONGEST_PROBE_INTERVAL:
        raise BadConfiguration(f"ovn.probe_interval: from 1 to {LONGEST_PROBE_INTERVAL} seconds")
    if options.count_answers not in ("yes", "no"):
        raise BadConfiguration(f"ovn.count_answers: '{options.count_answers}' is not yes or no")
    remotes = {name: _remotes(name, getattr(options, name)) for name in ("northbound", "southbound")}
    if options.chassis_probe_interval and not (
        0 < options.chassis_probe_interval <= options.chassis_timeout / 2 <= LONGEST_CHASSIS_TIMEOUT / 2
    ):
        raise BadConfiguration(
            "ovn.chassis_probe_interval: 0, or from 1 to half of ovn.chassis_timeout, which is at most"
            f" {LONGEST_CHASSIS_TIMEOUT}: one answer that is lost kills nobody"
        )
    if options.follow not in ("no", "yes"):
        raise BadConfiguration(f"ovn.follow: '{options.follow}' is not yes or no")
    if not options.mark:
        raise BadConfiguration("ovn.mark: without a mark our rows could not be told from those of others")
    files = {name: getattr(options, name) for name in ("private_key", "certificate", "ca")}
    if any(files.values()) and not all(files.values()):
        raise BadConfiguration("ovn.private_key, ovn.certificate and ovn.ca go together")
    for name, some in remotes.items():
        if any(isinstance(remote, SslRemote) for remote in some) and not all(files.values()):
            raise BadConfiguration(f"ovn.{name}: ssl needs ovn.private_key, ovn.certificate and ovn.ca")
    for name, path in files.items():
        if path and not Path(path).is_file():
            raise BadConfiguration(f"ovn.{name}: {path}: no such file")
