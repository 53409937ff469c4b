"""Configuration: one TOML file, overridden by environment variables. Every option is declared here, once.

`fairlead config` prints them all with their meaning and default, as a file that works. The environment variable of an
option is FAIRLEAD_<SECTION>_<OPTION>. Options that do not exist are errors: a typing mistake must not be silent.
"""

import re
import stat
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

from fairlead.client import is_url
from fairlead.compilers.providers import DEFAULT_NAME, DEFAULT_NAMES, IMPLEMENTATIONS, parse_names
from fairlead.drivers.ovsdb_remotes import Remote, SslRemote, parse_remotes
from fairlead.logs import FORMATS
from fairlead.model.parting import LONGEST_PARTING
from fairlead.model.quota import LARGEST_QUOTA, PROBE_LIMITS, UNLIMITED
from fairlead.model.statistics import LONGEST_INTERVAL

DEFAULT_FILE = Path("/etc/fairlead/fairlead.toml")
AUTHENTICATIONS = ("none", "http_basic")
LONGEST_DELAY = 3600
MOST_CONNECTIONS = 100_000
OTHERS = 0o007
"""Bits of a file's mode that are about everybody; a group may have a key, as Debian's ssl-cert has."""
LEVELS = ("debug", "info", "warning", "error")


class BadConfiguration(Exception):
    """The message names the option, where it came from and what would be right."""


def _names(text: str) -> tuple[str, ...]:
    """Of a list with commas."""
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _option(default: Any, meaning: str) -> Any:
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the APIs listen and who may call."""

    listen: str = _option(
        "127.0.0.1:9876", "HOST:PORT, [IPv6]:PORT or unix:PATH. Other than loopback only with authentication."
    )
    authentication: str = _option(
        "none", "none (everybody is administrator; loopback and unix sockets only) or http_basic."
    )
    password_file: str = _option(
        "",
        "For http_basic: lines of user:bcrypt hash:project:role,role; roles are admin, member, reader, and for load"
        " balancers Octavia's own, such as load-balancer_observer. That of an agent ends in service:chassis,chassis.",
    )
    tls_certificate: str = _option("", "PEM file: serve https. Passwords of http_basic are readable without.")
    tls_key: str = _option("", "PEM file of its private key.")
    passwords_in_the_clear: str = _option(
        "no", "yes: serve passwords without TLS where others can reach it. Whoever is on the way reads them."
    )
    hosts: str = _option(
        "",
        "Without authentication: what Host may be besides the listen address, HOST:PORT with commas, as for a forwarded"
        " port. A web page whose own name is among them can do all that you can.",
    )
    connections: int = _option(800, "At once, of all callers; beyond, who has been silent longest is shown out.")
    connections_per_address: int = _option(
        200, "At once of one address (IPv6: of one /64; on a unix socket: of one user). Not for proxies."
    )
    proxies: str = _option(
        "",
        "Addresses or networks of proxies, with commas, that say in X-Forwarded-For and X-Forwarded-Proto for whom they"
        " ask, and are believed; `unix` for whoever is on the unix socket. Nobody else is.",
    )

    @property
    def more_hosts(self) -> tuple[str, ...]:
        return _names(self.hosts)

    @property
    def trusted_proxies(self) -> tuple[str, ...]:
        return _names(self.proxies)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Where the model is kept."""

    path: str = _option("/var/lib/fairlead/fairlead.db", "The SQLite file; made when it is not there.")


LONGEST_CHASSIS_TIMEOUT = 3600
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OvnOptions:
    """The databases of OVN: the Northbound is written, the Southbound is read."""

    northbound: str = _option(
        "unix:/var/run/ovn/ovnnb_db.sock",
        "unix:PATH, tcp:HOST:PORT or ssl:HOST:PORT; several, with commas, for a cluster.",
    )
    southbound: str = _option(
        "unix:/var/run/ovn/ovnsb_db.sock",
        "The same. What health monitors see, and which ports are plugged in, is read there; nothing is written.",
    )
    private_key: str = _option("", "For ssl: our private key, PEM.")
    certificate: str = _option("", "For ssl: our certificate, PEM.")
    ca: str = _option("", "For ssl: the certificate authority of the database, PEM.")
    mark: str = _option(
        "fairlead", "In external_ids of every row of ours. Two deployments on one OVN need two different ones."
    )
    gateway_chassis: str = _option(
        "",
        "Names of the chassis through which routers leave, with commas; each needs ovn-bridge-mappings for the physical"
        " networks, and three are needed for one to take over. Without any, external gateways are refused.",
    )
    parting: int = _option(
        3600,
        f"Seconds, 0 to {LONGEST_PARTING}, for which OVN goes on translating what a removed member answers to clients"
        " outside: then what is left of their connections ends.",
    )

    chassis_probe_interval: int = _option(
        15,
        "Seconds. While a health monitor watches, chassis are asked so often whether they live (NB_Global:nb_cfg, as"
        " Neutron does, and not while somebody else asks); each time costs ovn-northd a look at everything. 0: never.",
    )
    chassis_timeout: int = _option(
        45, "Seconds. A chassis that answers so much later than others is dead, and so are monitored members on it."
    )

    @property
    def gateways(self) -> tuple[str, ...]:
        return tuple(sorted({name for part in self.gateway_chassis.split(",") if (name := part.strip())}))


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkOptions:
    """Defaults of new networks."""

    mtu: int = _option(1442, "Bytes; 1500 of the underlay less 58 of geneve over IPv4.")
    external_mtu: int = _option(1500, "Bytes of external networks: what the wires carry that chassis map to bridges.")


def _quota(most: int, resource: str) -> Any:
    return _option(most, f"{resource} of a project that has no quota of its own; -1 is any number.")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaOptions:
    """How many of each a project may have. Those of the network are Neutron's defaults; Octavia has none."""

    load_balancer: int = _quota(100, "Load balancers")
    listener: int = _quota(500, "Listeners")
    pool: int = _quota(500, "Pools")
    member: int = _quota(5000, "Members")
    health_monitor: int = _quota(500, "Health monitors")
    l7policy: int = _quota(500, "L7 policies")
    l7rule: int = _quota(1000, "L7 rules")
    network: int = _quota(100, "Networks")
    subnet: int = _quota(100, "Subnets")
    port: int = _quota(500, "Ports, those of VIPs and of routers' interfaces too,")
    router: int = _quota(10, "Routers")
    floatingip: int = _quota(50, "Floating IPs")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What health monitors may ask: each member is probed once in its monitor's delay, by the node that has it."""

    least_delay: int = _option(PROBE_LIMITS.least_delay, "Seconds: the least delay of a health monitor.")
    per_second: int = _option(
        PROBE_LIMITS.per_second, "Probes a second of all members of a project together; -1 is any number."
    )
    per_second_of_port: int = _option(
        PROBE_LIMITS.per_second_of_port, "Probes a second that one port gets, of all its services; -1 is any number."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """What tenants choose by `--provider`. Some clients switch features by the name, so there may be several."""

    names: str = _option(
        DEFAULT_NAMES,
        f"NAME=IMPLEMENTATION, with commas; there is {', '.join(IMPLEMENTATIONS)}. A name that a load balancer has must"
        " stay.",
    )
    default: str = _option(DEFAULT_NAME, "The name that a load balancer gets if none is asked for.")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """`fairlead agent`, on a compute node: it counts for statistics. A server reads none of this."""

    servers: str = _option("http://127.0.0.1:9876", "http://HOST:PORT or https://HOST:PORT; several with commas.")
    user: str = _option(
        "",
        "Who tells, where a server asks; the role is service, for this node's chassis. Over http the password can be"
        " read on the way.",
    )
    password_file: str = _option("", "The file that has the password and nothing else.")
    ca: str = _option("", "PEM file that vouches for the servers' certificates; the system's own without.")
    interval: int = _option(10, "Seconds from look to look. What was counted between a look and a change is lost.")
    state: str = _option("/var/lib/fairlead/agent.json", "The file in which the sums outlive a restart.")
    bridge: str = _option("br-int", "The integration bridge.")
    run_dir: str = _option("/var/run/openvswitch", "Where the sockets of Open vSwitch are.")
    most_connections: int = _option(
        200_000, "With more tracked at once those open are not counted: the switch stands still while it lists them."
    )

    @property
    def server_urls(self) -> tuple[str, ...]:
        return tuple(url for part in self.servers.split(",") if (url := part.strip()))


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    level: str = _option("info", "debug, info, warning or error.")
    audit: str = _option(
        "",
        "File to which changes and failed log-ins are appended, a JSON object a line: who, from where, what, result."
        " They are in the log as well. Made anew after it was moved away; SIGHUP does that at once.",
    )
    format: str = _option("text", "text: a line for people; json: an object a line, for programs that collect logs.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    server: ServerOptions = ServerOptions()
    store: StoreOptions = StoreOptions()
    ovn: OvnOptions = OvnOptions()
    network: NetworkOptions = NetworkOptions()
    quota: QuotaOptions = QuotaOptions()
    probes: ProbeOptions = ProbeOptions()
    providers: ProviderOptions = ProviderOptions()
    agent: AgentOptions = AgentOptions()
    log: LogOptions = LogOptions()


SECTIONS: Mapping[str, Any] = {
    "server": ServerOptions,
    "store": StoreOptions,
    "ovn": OvnOptions,
    "network": NetworkOptions,
    "quota": QuotaOptions,
    "probes": ProbeOptions,
    "providers": ProviderOptions,
    "agent": AgentOptions,
    "log": LogOptions,
}


def read_configuration(path: Path | None, environment: Mapping[str, str]) -> Configuration:
    """The file (the default one only if it is there), then the environment. Raises BadConfiguration."""
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
    """Every option with its meaning and default, as TOML."""
    lines = ["# Fairlead's configuration. Every option, with its default. Environment: FAIRLEAD_<SECTION>_<OPTION>."]
    for name, section in SECTIONS.items():
        lines += ["", f"[{name}]"]
        for option in fields(section):
            default = option.default if isinstance(option.default, int) else f'"{option.default}"'
            lines += [f"# {option.metadata['meaning']}", f"{option.name} = {default}"]
    return "\n".join(lines)


def is_local(listen: str) -> bool:
    """Whether only this machine can reach the address."""
    if listen.startswith("unix:"):
        return True
    host, _ = split_listen(listen)
    return host == "localhost" or _is_loopback(host)


def check_secrets(configuration: Configuration) -> None:
    """What nobody but this program may read, and what only it may change. Raises BadConfiguration."""
    server, agent, ovn = configuration.server, configuration.agent, configuration.ovn
    for name, path in (
        ("server.password_file", server.password_file if server.authentication == "http_basic" else ""),
        ("server.tls_key", server.tls_key),
        ("ovn.private_key", ovn.private_key),
        ("agent.password_file", agent.password_file),
    ):
        if path and (mode := _mode(path)) & OTHERS:
            raise BadConfiguration(
                f"{name}: {path}: everybody on this machine can open it (mode {mode:04o}); chmod 600"
            )


def _mode(path: str) -> int:
    """None of its bits when there is no such file: who opens it says that better."""
    try:
        return stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return 0


def split_listen(listen: str) -> tuple[str, int]:
    """HOST:PORT in its parts. Raises BadConfiguration."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise BadConfiguration(f"server.listen: '{listen}' is not HOST:PORT, [IPv6]:PORT or unix:PATH")
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
    """Some are the command line's own."""
    own = (
        "FAIRLEAD_DEMO_LAB",
        "FAIRLEAD_DEMO_LISTEN",
        "FAIRLEAD_URL",
        "FAIRLEAD_USER",
        "FAIRLEAD_PASSWORD",
        "FAIRLEAD_CONFIG",
        "FAIRLEAD_LAB",
        "FAIRLEAD_LAB_DIR",
        "FAIRLEAD_LAB_ROOT",
    )
    return variable in own or any(variable == known for _, _, known in _variables())


def _check(configuration: Configuration) -> None:
    server = configuration.server
    if server.authentication not in AUTHENTICATIONS:
        raise BadConfiguration(
            f"server.authentication: '{server.authentication}' is not {' or '.join(AUTHENTICATIONS)}"
        )
    if server.authentication == "none" and not is_local(server.listen):
        raise BadConfiguration(
            f"server.listen: {server.listen} can be reached from elsewhere, and server.authentication is none;"
            " set it to http_basic, or listen on loopback or a unix socket"
        )
    if server.authentication == "http_basic" and not server.password_file:
        raise BadConfiguration("server.password_file: http_basic needs one")
    if bool(server.tls_certificate) != bool(server.tls_key):
        raise BadConfiguration("server.tls_certificate and server.tls_key go together")
    _check_callers(server)
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
    _check_agent(configuration.agent)
    if configuration.log.level not in LEVELS:
        raise BadConfiguration(f"log.level: '{configuration.log.level}' is not one of {', '.join(LEVELS)}")
    if configuration.log.format not in FORMATS:
        raise BadConfiguration(f"log.format: '{configuration.log.format}' is not {' or '.join(FORMATS)}")


def _check_probes(options: ProbeOptions) -> None:
    if not 1 <= options.least_delay <= LONGEST_DELAY:
        raise BadConfiguration(f"probes.least_delay: from 1 to {LONGEST_DELAY} seconds")
    for name in ("per_second", "per_second_of_port"):
        if not UNLIMITED <= getattr(options, name) <= LARGEST_QUOTA:
            raise BadConfiguration(f"probes.{name}: from {UNLIMITED} (any number) to {LARGEST_QUOTA}")


def _check_callers(options: ServerOptions) -> None:
    if options.passwords_in_the_clear not in ("no", "yes"):
        raise BadConfiguration(f"server.passwords_in_the_clear: '{options.passwords_in_the_clear}' is not yes or no")
    readable = options.authentication == "http_basic" and not options.tls_certificate and not is_local(options.listen)
    if readable and options.passwords_in_the_clear == "no":
        raise BadConfiguration(
            f"server.listen: {options.listen} can be reached from elsewhere, and passwords could be read on the way;"
            " set server.tls_certificate and server.tls_key, or server.passwords_in_the_clear to yes"
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


def _check_ovn(options: OvnOptions) -> None:
    if not 0 <= options.parting <= LONGEST_PARTING:
        raise BadConfiguration(f"ovn.parting: from 0 to {LONGEST_PARTING} seconds")
    remotes = {name: _remotes(name, getattr(options, name)) for name in ("northbound", "southbound")}
    if options.chassis_probe_interval and not (
        0 < options.chassis_probe_interval <= options.chassis_timeout / 2 <= LONGEST_CHASSIS_TIMEOUT / 2
    ):
        raise BadConfiguration(
            "ovn.chassis_probe_interval: 0, or from 1 to half of ovn.chassis_timeout, which is at most"
            f" {LONGEST_CHASSIS_TIMEOUT}: one answer that is lost kills nobody"
        )
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
