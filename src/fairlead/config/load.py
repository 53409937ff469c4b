"""Reads the configuration: one TOML file, overridden by environment variables, checked as a whole.

Options are declared in `fairlead.config.options`; the environment variable of an option is FAIRLEAD_<SECTION>_<OPTION>.
Unknown and renamed options are errors, so that a misspelled option cannot be ignored silently.
"""

import difflib
import stat
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, fields
from ipaddress import ip_address, ip_network
from pathlib import Path
from textwrap import wrap
from typing import Any
from urllib.parse import urlsplit

from fairlead.compilers.providers import parse_names
from fairlead.config import renamed
from fairlead.config.errors import BadConfiguration
from fairlead.config.option_fields import SECRET_KINDS
from fairlead.config.options import (
    SECTIONS,
    AgentOptions,
    Configuration,
    KeystoneOptions,
    LxdOptions,
    NodesOptions,
    OvnOptions,
    ServerOptions,
)
from fairlead.config.types import Text, render
from fairlead.drivers.ovsdb.remotes import Remote, SslRemote, parse_remotes
from fairlead.http.server_client import is_url
from fairlead.model.documents.port_ranges import LAST_PORT, PROXY_PORTS, PortRange
from fairlead.store.opening import check_url

DEFAULT_FILE = Path("/etc/fairlead/fairlead.toml")
WORLD_ACCESS = 0o007
"""Bits of a file's mode for others. Access of the group is accepted, for example of Debian's group ssl-cert."""
COMMAND_VARIABLES = frozenset(
    {
        "FAIRLEAD_DEMO_LAB",
        "FAIRLEAD_DEMO_LISTEN",
        "FAIRLEAD_URL",
        "FAIRLEAD_USER",
        "FAIRLEAD_PASSWORD",
        "FAIRLEAD_CONFIG",
        "FAIRLEAD_LAB",
        "FAIRLEAD_LAB_DIR",
        "FAIRLEAD_LAB_FRR",
        "FAIRLEAD_LAB_PATIENCE",
        "FAIRLEAD_LAB_ROOT",
    }
)
"""Environment variables of the command line, the lab and the demo: not options."""
_WIDTH = 118  # columns of a comment in the template


def read_configuration(path: Path | None, environment: Mapping[str, str]) -> Configuration:
    """Reads the file (the default one only if it exists), then the environment. Raises BadConfiguration."""
    given = read_file(path or DEFAULT_FILE) if path is not None or DEFAULT_FILE.exists() else {}
    for section, option in _options():
        variable = renamed.variable(f"{section}.{option.name}")
        if variable in environment:
            given.setdefault(section, {})[option.name] = _parse(section, option, environment[variable], variable)
    _check_variables(environment)
    parts = {name: make(**given.get(name, {})) for name, make in SECTIONS.items()}
    configuration = Configuration(**parts)
    _check(configuration)
    return configuration


def read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Parsed options of a file, by section. Raises BadConfiguration."""
    try:
        given = tomllib.loads(path.read_text())
    except OSError as error:
        raise BadConfiguration(f"{path}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadConfiguration(f"{path}: {error}") from None
    for section, options in given.items():
        for name in options if isinstance(options, dict) else ():
            if new := renamed.OPTIONS.get(f"{section}.{name}"):
                raise BadConfiguration(
                    f"{path}: {section}.{name} was renamed to {new}; `fairlead config migrate {path}` prints the file"
                    " with the new names"
                )
        if section in renamed.SECTIONS:
            raise BadConfiguration(
                f"{path}: section {section} was renamed to {renamed.SECTIONS[section]};"
                f" `fairlead config migrate {path}` prints the file with the new names"
            )
        if section not in SECTIONS or not isinstance(options, dict):
            raise BadConfiguration(f"{path}: no section '{section}'{_suggest(section, SECTIONS)}")
        known = {option.name: option for option in fields(SECTIONS[section])}
        for name, value in options.items():
            if name not in known:
                raise BadConfiguration(f"{path}: no option {section}.{name}{_suggest(name, known)}")
            options[name] = _parse(section, known[name], value, str(path))
    return given


def _suggest(name: str, known: Iterable[str]) -> str:
    similar = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {similar[0]}?" if similar else f"; expected one of {', '.join(sorted(known))}"


def _parse(section: str, option: "Field[Any]", value: object, source: str) -> Any:
    try:
        return option.metadata["type"].parse(value)
    except ValueError as error:
        raise BadConfiguration(f"{source}: {section}.{option.name}: {error}") from None


def _check_variables(environment: Mapping[str, str]) -> None:
    known = {renamed.variable(f"{section}.{option.name}") for section, option in _options()} | COMMAND_VARIABLES
    for name in sorted(name for name in environment if name.startswith("FAIRLEAD_") and name not in known):
        if name in renamed.REMOVED:
            raise BadConfiguration(f"environment: {name} was removed with `fairlead network`; unset it")
        if name in renamed.VARIABLES:
            raise BadConfiguration(f"environment: {name} was renamed to {renamed.VARIABLES[name]}")
        raise BadConfiguration(f"environment: {name}: no such option{_suggest(name, known)}")


def _options() -> Iterator[tuple[str, "Field[Any]"]]:
    """Section and declaration of each option."""
    for name, section in SECTIONS.items():
        for option in fields(section):
            yield name, option


def render_template() -> str:
    """TOML with each option's description, type and default."""
    lines = ["# Fairlead's configuration: every option with its default. Environment: FAIRLEAD_<SECTION>_<OPTION>."]
    for name, section in SECTIONS.items():
        lines += ["", f"[{name}]"]
        for option in fields(section):
            lines += [f"# {line}" for line in wrap(_comment(option), _WIDTH)]
            lines.append(f"{option.name} = {render(option.default)}")
    return "\n".join(lines)


def _comment(option: "Field[Any]") -> str:
    """Description of an option, and its type unless it is any string."""
    description: str = option.metadata["description"]
    kind = option.metadata["type"]
    return description if isinstance(kind, Text) else f"{description} Type: {kind.description}."


def render_configuration(configuration: Configuration) -> str:
    """Render the options with values other than the default as TOML. Options are paths of secrets, never secrets."""
    lines: list[str] = []
    for name, section in SECTIONS.items():
        values = getattr(configuration, name)
        changed = [each for each in fields(section) if getattr(values, each.name) != each.default]
        if changed:
            lines += ["", f"[{name}]", *(f"{each.name} = {render(getattr(values, each.name))}" for each in changed)]
    return "\n".join(lines[1:])


def is_local(listen: str) -> bool:
    """Whether only this machine can connect to the address."""
    if listen.startswith("unix:"):
        return True
    host, _ = split_listen(listen)
    return host == "localhost" or _is_loopback(host)


def check_secrets(configuration: Configuration) -> None:
    """Checks the file modes of secrets and of the folder of keys. Raises BadConfiguration."""
    for name, path in _secret_files(configuration):
        if path and (mode := _mode(path)) & WORLD_ACCESS:
            raise BadConfiguration(f"{name}: {path}: accessible to other users (mode {mode:04o}); chmod 600")
    folder = configuration.keys.directory
    if folder and not Path(folder).is_dir():
        raise BadConfiguration(f"keys.directory: {folder}: no such folder")
    if folder and (mode := _mode(folder)) & stat.S_IWOTH:
        raise BadConfiguration(f"keys.directory: {folder}: writable for other users (mode {mode:04o}); chmod 750")


def _secret_files(configuration: Configuration) -> Iterator[tuple[str, str]]:
    """Option and path of each secret file that is read."""
    unread = "server.password_file" if configuration.server.authentication == "none" else ""
    for section, option in _options():
        name = f"{section}.{option.name}"
        if option.metadata.get("kind") in SECRET_KINDS and name != unread:
            yield name, getattr(getattr(configuration, section), option.name)


def _mode(path: str) -> int:
    """File mode; 0 if the file is absent, because its reader reports that."""
    try:
        return stat.S_IMODE(Path(path).stat().st_mode)
    except OSError:
        return 0


def split_listen(listen: str, option: str = "server.listen") -> tuple[str, int]:
    """Host and port of HOST:PORT. Raises BadConfiguration."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        unix = " or unix:PATH" if option == "server.listen" else ""
        raise BadConfiguration(f"{option}: expected HOST:PORT, [IPv6]:PORT{unix}, got {render(listen)}")
    return host.strip("[]"), int(port)


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _check(configuration: Configuration) -> None:
    """Checks options that depend on each other, and the forms of addresses and URLs."""
    server = configuration.server
    if server.authentication == "none" and not is_local(server.listen):
        raise BadConfiguration(
            f"server.listen: {server.listen} is reachable from other hosts, and server.authentication is none; set it"
            " to http_basic or keystone, or listen on loopback or a unix socket"
        )
    if server.authentication == "http_basic" and not server.password_file:
        raise BadConfiguration("server.password_file: required by server.authentication http_basic")
    if server.client_ca and not (server.tls_certificate and server.password_file):
        raise BadConfiguration(
            "server.client_ca: requires server.tls_certificate, server.tls_key and server.password_file"
        )
    _check_callers(server)
    if server.authentication == "keystone":
        _check_keystone(configuration.keystone, server.allow_insecure_auth)
    _check_barbican(configuration)
    _check_lxd(configuration.lxd)
    _check_nodes(configuration.nodes)
    _check_ovn(configuration.ovn)
    _check_together("server", server, "tls_certificate", "tls_key")
    try:
        parse_names(",".join(configuration.providers.names), configuration.providers.default)
    except ValueError as error:
        raise BadConfiguration(f"providers: {error}") from None
    host_proxy_ports(configuration)
    _check_agent(configuration.agent)
    try:
        check_url(configuration.store.where, configuration.store.access)
    except ValueError as error:
        raise BadConfiguration(f"store.url: {error}") from None


def _check_together(section: str, options: Any, *names: str) -> None:
    """Options that are all set or all empty."""
    given = [name for name in names if getattr(options, name)]
    missing = [f"{section}.{name}" for name in names if name not in given]
    if given and missing:
        raise BadConfiguration(f"{section}.{given[0]}: requires {' and '.join(missing)}")


def _check_files(section: str, options: Any, *names: str) -> None:
    for name in names:
        if (path := getattr(options, name)) and not Path(path).is_file():
            raise BadConfiguration(f"{section}.{name}: {path}: no such file")


def _check_nodes(nodes: NodesOptions) -> None:
    if nodes.listen:
        split_listen(nodes.listen, "nodes.listen")
    for url in nodes.urls:
        if not url.startswith("https://"):
            raise BadConfiguration(f"nodes.advertise_addresses: expected https://HOST:PORT, got {render(url)}")
    if nodes.socket and not nodes.socket.startswith("unix:/"):
        raise BadConfiguration(f"nodes.socket: expected unix:PATH with an absolute path, got {render(nodes.socket)}")
    if nodes.socket and not nodes.socket_chassis:
        raise BadConfiguration("nodes.socket: requires nodes.socket_chassis")


def _check_lxd(lxd: LxdOptions) -> None:
    if lxd.socket and not lxd.socket.startswith("unix:/"):
        raise BadConfiguration(f"lxd.socket: expected unix:PATH with an absolute path, got {render(lxd.socket)}")
    try:
        mode = lxd.mode
    except ValueError:
        mode = WORLD_ACCESS
    if mode & ~0o770:
        raise BadConfiguration(
            f"lxd.socket_mode: expected an octal mode without access for others, such as 0660, got"
            f" {render(lxd.socket_mode)}; users that can open the socket are administrators"
        )
    for name, addresses in (
        ("listen", (lxd.listen,) if lxd.listen else ()),
        ("advertise_addresses", lxd.advertise_addresses),
    ):
        for each in addresses:
            split_listen(each, f"lxd.{name}")
    _check_together("lxd", lxd, "certificate", "key")


def _check_barbican(configuration: Configuration) -> None:
    url, is_insecure_allowed = configuration.keys.barbican, configuration.server.allow_insecure_auth
    if not url:
        return
    _check_keystone(configuration.keystone, is_insecure_allowed)
    if not _is_service_url(url):
        raise BadConfiguration(f"keys.barbican: expected http://HOST:PORT or https://HOST:PORT/PATH, got {render(url)}")
    if _is_clear_text(url) and not is_insecure_allowed:
        raise BadConfiguration(
            f"keys.barbican: {url}: private keys and tokens would be sent in clear text; use https, or set"
            " server.allow_insecure_auth to true"
        )
    _check_files("keys", configuration.keys, "barbican_ca")


def _is_clear_text(url: str) -> bool:
    where = urlsplit(url)
    return where.scheme == "http" and not is_local(f"{where.hostname}:{where.port or 80}")


def _check_keystone(options: KeystoneOptions, is_insecure_allowed: bool) -> None:
    for name in ("url", "public_url"):
        if not _is_service_url(url := getattr(options, name)) and (url or name == "url"):
            raise BadConfiguration(
                f"keystone.{name}: expected http://HOST:PORT or https://HOST:PORT/PATH, got {render(url)}"
            )
    if _is_clear_text(options.url) and not is_insecure_allowed:
        raise BadConfiguration(
            f"keystone.url: {options.url}: the password and all tokens would be sent in clear text; use https, or set"
            " server.allow_insecure_auth to true"
        )
    for name in ("user", "project", "user_domain", "project_domain", "password_file"):
        if not getattr(options, name):
            raise BadConfiguration(f"keystone.{name}: required for the validation of tokens")
    _check_files("keystone", options, "password_file", "ca")


def _is_service_url(url: str) -> bool:
    """Whether the text is an http or https URL without query, fragment and credentials."""
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
    is_clear_text = options.authentication != "none" and not options.tls_certificate and not is_local(options.listen)
    if is_clear_text and not options.allow_insecure_auth:
        raise BadConfiguration(
            f"server.listen: {options.listen} is reachable from other hosts, and passwords and tokens would be sent in"
            " clear text; set server.tls_certificate and server.tls_key, or server.allow_insecure_auth to true"
        )
    for proxy in options.trusted_proxies:
        if proxy != "unix" and not _is_network(proxy):
            raise BadConfiguration(f"server.trusted_proxies: expected addresses, networks or unix, got {render(proxy)}")


def _is_network(text: str) -> bool:
    try:
        ip_network(text)
    except ValueError:
        return False
    return True


def _check_agent(options: AgentOptions) -> None:
    if not options.servers:
        raise BadConfiguration("agent.servers: expected at least one URL, got none")
    for url in options.servers:
        if not is_url(url):
            raise BadConfiguration(f"agent.servers: expected http://HOST:PORT or https://HOST:PORT, got {render(url)}")
    _check_together("agent", options, "user", "password_file")
    _check_files("agent", options, "password_file", "ca")


def _remotes(name: str, text: str) -> tuple[Remote, ...]:
    try:
        return parse_remotes(text)
    except ValueError as error:
        raise BadConfiguration(f"ovn.{name}: {error}") from None


def host_proxy_ports(configuration: Configuration) -> PortRange:
    """Ports of HAProxy on plain hosts. Raises BadConfiguration."""
    text = configuration.providers.host_proxy_ports
    ends = [int(each) for each in text.split("-") if each.isascii() and each.isdigit()]
    if len(ends) == 2 and text.count("-") == 1 and PROXY_PORTS.first <= ends[0] <= ends[1] <= LAST_PORT:
        return PortRange(*ends)
    raise BadConfiguration(
        f"providers.host_proxy_ports: expected FIRST-LAST from {PROXY_PORTS.first} (unprivileged ports) to"
        f" {LAST_PORT}, got"
        f" {render(text)}"
    )


def _check_ovn(options: OvnOptions) -> None:
    remotes = {name: _remotes(name, getattr(options, name)) for name in ("northbound", "southbound")}
    if options.chassis_probe_interval > options.chassis_timeout / 2:
        raise BadConfiguration(
            f"ovn.chassis_probe_interval: expected at most half of ovn.chassis_timeout ({options.chassis_timeout}), so"
            f" that one lost response does not declare a chassis dead, got {options.chassis_probe_interval}"
        )
    if not options.owner_tag:
        raise BadConfiguration("ovn.owner_tag: must not be empty; it distinguishes Fairlead's rows from others")
    _check_together("ovn", options, "private_key", "certificate", "ca")
    for name, some in remotes.items():
        if any(isinstance(remote, SslRemote) for remote in some) and not options.private_key:
            raise BadConfiguration(f"ovn.{name}: ssl requires ovn.private_key, ovn.certificate and ovn.ca")
    _check_files("ovn", options, "private_key", "certificate", "ca")
