"""`fairlead`: the command line. Configuration is read here and passed on as values.

Results go to standard output, errors to standard error. Exit codes: 0 success, 1 failure, 2 usage error; 3 from `plan`
and `show` if the dataplane differs, and from `trace` if the packet is not delivered.
"""

import argparse
import os
import sys
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlead import __version__
from fairlead.cli.rows import DIFFERENT, print_plan
from fairlead.config.errors import BadConfiguration
from fairlead.http.server_client import ApiClient, ServerError, is_url
from fairlead.runtime.terminal import print_error, print_json, print_lines

if TYPE_CHECKING:  # Octavia's environment lacks some of its dependencies
    from fairlead.config.options import Configuration

DESCRIPTION = """Fairlead: a natively distributed load balancer for OVN.

  fairlead server            run the server: serve the APIs, reconcile OVN
  fairlead agent             run the agent of a compute node or plain host
  fairlead alive             check whether the server on this machine responds
  fairlead plan              print pending changes of OVN; writes nothing
  fairlead show web          compare the rows of one object with the rows in OVN
  fairlead resync            re-read the dataplane and reconcile every object
  fairlead health            list probed members, their probers and probe results
  fairlead trace             trace a packet through OVN, and name the object that decides
  fairlead pool set web --locality chassis   set attributes that `openstack` lacks; also `listener`, `local-ip`
  fairlead octavia sync      compare Octavia's load balancers with Fairlead's, if Fairlead is an Octavia provider
  fairlead octavia adopt web   migrate a load balancer from Octavia's provider `ovn`
  fairlead chassis list      list nodes and their agents; also `enroll`, `revoke`, `host`
  fairlead lxd token laptop  issue a token for a client of the LXD and Incus API
  fairlead store copy        copy the store into another one; also `backup`, `restore`
  fairlead config template   print all options as a file; also `show`, `check`, `migrate`
  fairlead lab up            run several OVN compute nodes on this machine
"""


class CliError(Exception):
    """The command failed; the message gives the reason."""


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else argv
    try:
        return _run(words)
    except BadConfiguration as error:
        print_error(f"fairlead: {error}")
        return 2
    except CliError as error:
        print_error(f"fairlead: {error}")
        return 1
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 1


def _run(words: Sequence[str]) -> int:
    if words and words[0] in _LANGUAGES:
        return _LANGUAGES[words[0]](words[1:])
    arguments = _make_parser().parse_args(words)
    code: int = arguments.run(arguments)
    return code


def _make_parser() -> argparse.ArgumentParser:
    from fairlead.cli.chassis import add_parser as add_chassis
    from fairlead.cli.config import add_config
    from fairlead.cli.live import add_parser as add_alive
    from fairlead.cli.lxd import add_parser as add_lxd
    from fairlead.cli.rows import add_parsers as add_rows
    from fairlead.cli.store import add_parser as add_store
    from fairlead.cli.tenant import add_parsers as add_tenants

    parser = argparse.ArgumentParser(
        prog="fairlead", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=f"fairlead {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_server(commands)
    _add_agent(commands)
    add_alive(commands, _add_configuration_file)
    add_rows(commands, _add_server_address, _ask)
    _add_operator_commands(commands)
    _add_trace(commands)
    add_chassis(commands, _add_server_address, _ask)
    add_lxd(commands, _add_server_address, _ask)
    add_store(commands)
    add_tenants(commands)
    commands.add_parser(
        "octavia", help="commands for an Octavia with the provider Fairlead; see `fairlead octavia --help`"
    )
    add_config(commands, _add_configuration_file)
    commands.add_parser("lab", help="several OVN compute nodes, or plain Linux hosts, on this machine: `lab --help`")
    return parser


def _add_server(commands: Any) -> None:
    server = commands.add_parser("server", help="run the server: serve the APIs, reconcile OVN")
    _add_configuration(server)
    server.set_defaults(run=_server)


def _add_agent(commands: Any) -> None:
    agent = commands.add_parser(
        "agent",
        help="run the agent of a compute node (statistics, Local IPs, probes, proxies) or of a plain host",
        epilog="On compute nodes, load balancing without proxies works without the agent. Options: section [agent] of"
        " the configuration.",
    )
    _add_configuration(agent)
    agent.add_argument(
        "--enroll",
        metavar="FILE",
        help="get this node's certificate with the token of `fairlead chassis enroll` in FILE (- for standard input),"
        " and exit",
    )
    agent.add_argument(
        "--once", action="store_true", help="print this node's counters as JSON and exit; reports nothing to servers"
    )
    agent.add_argument(
        "--plan",
        action="store_true",
        help="on a plain host: print pending changes of the kernel, by the last configuration from a server; writes"
        " nothing. Exit code 3: there are changes",
    )
    agent.add_argument("--json", action="store_true", help="with --plan: print JSON")
    agent.add_argument(
        "--remove",
        action="store_true",
        help="on a plain host whose agent has stopped: remove all kernel state of the agent and, if agent.host is set,"
        " its proxies, and exit",
    )
    agent.set_defaults(run=_agent)


def _add_configuration(command: argparse.ArgumentParser) -> None:
    _add_configuration_file(command)
    command.add_argument(
        "--check", action="store_true", help="check the configuration, open every file that it names, and exit"
    )


def _add_configuration_file(command: Any) -> None:
    command.add_argument(
        "--config",
        type=Path,
        default=os.environ.get("FAIRLEAD_CONFIG"),
        metavar="FILE",
        help="TOML; `fairlead config template` prints all options (environment FAIRLEAD_CONFIG; default"
        " /etc/fairlead/fairlead.toml)",
    )


def _add_operator_commands(commands: Any) -> None:
    resync = commands.add_parser("resync", help="re-read the dataplane and reconcile every object")
    resync.add_argument(
        "--force", action="store_true", help="skip the mass-deletion guard: delete the rows of any number of objects"
    )
    resync.set_defaults(run=_resync)
    health = commands.add_parser("health", help="list probed members, their probers and probe results")
    health.set_defaults(run=_health)
    for command in (resync, health):
        _add_server_address(command)


def _add_server_address(command: Any) -> None:
    command.add_argument("--json", action="store_true", help="print JSON")
    command.add_argument(
        "--url",
        default=os.environ.get("FAIRLEAD_URL", "http://127.0.0.1:9876"),
        help="URL of the server (environment FAIRLEAD_URL; default %(default)s); environment variables FAIRLEAD_USER"
        " and FAIRLEAD_PASSWORD authenticate",
    )


def _add_trace(commands: Any) -> None:
    trace = commands.add_parser(
        "trace",
        help="trace a packet through OVN, and name the object that decides",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="""Trace a packet from a port through OVN. Prints ovn-trace's output and one line with the load
balancer, listener and members that receive the packet, or the object that rejects it.

  fairlead trace --from 3893f6a6-a9a3-4ccf-92d4-0f98a012c09f --to 10.0.0.10:80
  fairlead trace --from web-client --to [fd00::10]:53 --protocol udp --json
  fairlead trace --from 3893f6a6-a9a3-4ccf-92d4-0f98a012c09f --to 10.0.0.10 --protocol icmp

With two addresses: print the slot and member of a flow to a VIP that plain hosts announce. The server computes
them; no packet is traced.

  fairlead trace 10.0.0.9:40000 203.0.113.5:443
  fairlead trace [2001:db8::9]:40000 [2001:db8:f::5]:53 --protocol udp
""",
        epilog="Of several members, ovn-trace follows an arbitrary one; Open vSwitch selects by a hash of the packet."
        "\nExit code 3: the packet does not arrive. Requires ovn-trace (Debian: ovn-common) and OVN's databases.",
    )
    trace.add_argument(
        "flow", nargs="*", metavar="ADDRESS:PORT", help="endpoints of the client and of the announced VIP"
    )
    trace.add_argument("--from", dest="sender", metavar="PORT", help="name or OVN id of the sending port")
    trace.add_argument("--to", metavar="ADDRESS:PORT", help="destination; for icmp, an address without a port")
    trace.add_argument("--protocol", choices=("tcp", "udp", "sctp", "icmp"), default="tcp", help="default: tcp")
    trace.add_argument(
        "--source", metavar="ADDRESS", help="source address, if the port has several addresses or none in OVN"
    )
    trace.add_argument(
        "--via", metavar="ADDRESS", help="gateway of the sending port, if its switch has several routers"
    )
    trace.add_argument("--northbound", metavar="DB", help="default: ovn.northbound of the configuration")
    trace.add_argument("--southbound", "--db", metavar="DB", help="default: ovn.southbound of the configuration")
    _add_configuration_file(trace)
    _add_server_address(trace)
    trace.set_defaults(run=_trace)


def _server(arguments: argparse.Namespace) -> int:
    from fairlead.cli.config import check_all
    from fairlead.config.load import read_configuration
    from fairlead.config.option_files import SERVER_SECTIONS

    configuration = read_configuration(arguments.config, os.environ)
    if arguments.check:
        check_all(configuration, SERVER_SECTIONS)
        return 0
    return run_server(configuration)


def run_server(configuration: "Configuration") -> int:
    import asyncio

    import uvloop

    from fairlead.api.http.authentication import BadPasswordFile
    from fairlead.runtime.logging import start_logging
    from fairlead.server import serve
    from fairlead.store.interface import StoreError

    try:
        start_logging(configuration.log.level, configuration.log.format, configuration.log.audit_file)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(configuration))
    except (BadPasswordFile, StoreError, OSError) as error:
        raise CliError(str(error)) from None
    return 0


def _agent(arguments: argparse.Namespace) -> int:
    import asyncio

    from fairlead.cli.config import check_all
    from fairlead.config.load import check_secrets, read_configuration
    from fairlead.config.option_files import AGENT_SECTIONS
    from fairlead.drivers.interface import DriverError
    from fairlead.drivers.ovn.vswitch.database import SwitchError
    from fairlead.node import process
    from fairlead.node.identity import NoIdentity
    from fairlead.node.plan import SliceUnavailable, plan_host
    from fairlead.runtime.logging import start_logging

    configuration = read_configuration(arguments.config, os.environ)
    if arguments.check:
        check_all(configuration, AGENT_SECTIONS)
        return 0
    check_secrets(configuration)
    options = configuration.agent
    if arguments.enroll:
        return _enroll(arguments.enroll, Path(options.identity_file))
    start_logging(configuration.log.level, configuration.log.format)
    try:
        if arguments.remove:
            asyncio.run(process.remove(options))
        elif arguments.once:
            print_json(asyncio.run(process.read_once(options)), indent=2)
        elif arguments.plan:
            return print_plan(asyncio.run(plan_host(options)), as_json=arguments.json)
        else:
            asyncio.run(process.serve(options))
    except (SwitchError, NoIdentity, SliceUnavailable, DriverError, OSError) as error:
        raise CliError(str(error)) from None
    return 0


def _enroll(file: str, path: Path) -> int:
    """Get a certificate for this node with a token. Raises Failure."""
    import asyncio

    from fairlead.agent_protocol.enrolment import MAX_TOKEN_LENGTH, read_token
    from fairlead.node.identity import NoIdentity, enrol

    try:
        text = sys.stdin.read(MAX_TOKEN_LENGTH + 1) if file == "-" else Path(file).read_text()
        identity = asyncio.run(enrol(read_token(text), path))
    except (NoIdentity, ValueError, OSError) as error:
        raise CliError(str(error)) from None
    print_lines(f"{path}: chassis {identity.chassis}, until {identity.not_after:%Y-%m-%d}")
    return 0


def _network(_: Sequence[str]) -> int:
    """Reject the former command and name the stock client."""
    print_error("network: use the stock client, `incus network load-balancer ...` (package incus-client)")
    return 2  # wrong usage


def _octavia(words: Sequence[str]) -> int:
    """Run `fairlead octavia` in Octavia's environment, which lacks dependencies of other commands."""
    from fairlead.octavia_plugin import command

    return command.main(words)


def _lab(words: Sequence[str]) -> int:
    """Run `fairlead lab`, which other commands do not import."""
    from fairlead.lab import command

    return command.main(words)


_LANGUAGES: Mapping[str, Callable[[Sequence[str]], int]] = {"lab": _lab, "network": _network, "octavia": _octavia}
"""Commands that parse their own arguments."""


def _resync(arguments: argparse.Namespace) -> int:
    answer = _ask(arguments, "POST", f"/operator/resync{'?force=true' if arguments.force else ''}")
    where = ", ".join(f"{dataplane}: {changed}" for dataplane, changed in answer.get("dataplanes", {}).items())
    said = f"{answer['changed']} objects differed and are being reconciled ({where})"
    if arguments.json:
        print_json(answer)
    else:
        print_lines(said)
    return 0


def _health(arguments: argparse.Namespace) -> int:
    from fairlead.cli.members import render

    rows = _ask(arguments, "GET", "/operator/health")["health"]
    if arguments.json:
        print_json(rows, indent=2)
    else:
        print_lines(*render(rows, datetime.now(UTC)))
    return 0


def _trace(arguments: argparse.Namespace) -> int:
    if arguments.flow:
        return _trace_flow(arguments)
    if arguments.sender is None or arguments.to is None:
        raise CliError("expected --from PORT --to ADDRESS:PORT, or ADDRESS:PORT of the client and of the VIP")
    return _trace_packet(arguments)


def _trace_flow(arguments: argparse.Namespace) -> int:
    from fairlead.cli.trace import describe_flow_target

    if len(arguments.flow) != 2 or arguments.sender or arguments.to:
        raise CliError("expected ADDRESS:PORT of the client and of the VIP, without --from and --to")
    client, to = arguments.flow
    asked = urllib.parse.urlencode({"client": client, "to": to, "protocol": arguments.protocol})
    led = _ask(arguments, "GET", f"/operator/flow?{asked}")
    if arguments.json:
        print_json(led, indent=2)
    else:
        print_lines(describe_flow_target(led))
    return 0 if led["endpoint"] and led["admitted"] else DIFFERENT


def _trace_packet(arguments: argparse.Namespace) -> int:
    import asyncio

    from fairlead.cli import trace
    from fairlead.config.errors import BadConfiguration
    from fairlead.config.load import read_configuration
    from fairlead.dataplane.ovn_trace import IcmpEcho, Untraceable
    from fairlead.drivers.ovn.trace import tracer
    from fairlead.drivers.ovsdb.client import Tls
    from fairlead.drivers.ovsdb.errors import OvsdbError
    from fairlead.drivers.ovsdb.remotes import parse_remotes
    from fairlead.model.documents.addresses import parse_address

    options, server = read_configuration(arguments.config, os.environ).ovn, _server_of(arguments)
    try:
        destination, packet = trace.parse_target(arguments.to, arguments.protocol)
        source, via = (parse_address(text) if text else None for text in (arguments.source, arguments.via))
        settings = tracer.TracerSettings(
            northbound=parse_remotes(arguments.northbound or options.northbound),
            southbound=parse_remotes(arguments.southbound or options.southbound),
            tls=Tls(private_key=options.private_key, certificate=options.certificate, ca=options.ca)
            if options.private_key
            else None,
        )
    except ValueError as error:
        raise BadConfiguration(f"trace: {error}") from None
    question = tracer.TraceRequest(
        port=arguments.sender, destination=destination, packet=packet, source=source, via=via
    )
    try:
        answer = asyncio.run(tracer.trace(settings, question))
    except (Untraceable, OvsdbError, OSError) as error:
        raise CliError(str(error)) from None
    number = 0 if isinstance(packet, IcmpEcho) else packet.port
    names = trace.find_names(answer, number, arguments.protocol, server)
    if arguments.json:
        print_json(trace.encode(answer, names), indent=2)
    else:
        print_lines(*answer.trace.split("\n"))
        print_lines(f"{arguments.to} {arguments.protocol}: {trace.summarize(answer, names)}")
    return 0 if answer.verdict.outcome in trace.ARRIVING_OUTCOMES else DIFFERENT


def _server_of(arguments: argparse.Namespace) -> ApiClient:
    """Create the API client. Raises Failure."""
    if not is_url(arguments.url):
        raise CliError(f"--url: expected http://HOST:PORT or https://HOST:PORT, got '{arguments.url}'")
    user, password = os.environ.get("FAIRLEAD_USER", ""), os.environ.get("FAIRLEAD_PASSWORD", "")
    return ApiClient(url=arguments.url, user=user, password=password)


def _ask(arguments: argparse.Namespace, method: str, path: str, body: object = None) -> Any:
    """Send a request to the server. Raises Failure with the server's message."""
    try:
        return _server_of(arguments).request(method, path, body)
    except ServerError as error:
        hint = (
            "; set FAIRLEAD_USER and FAIRLEAD_PASSWORD to a user of server.password_file" if error.status == 401 else ""
        )
        raise CliError(f"{error}{hint}") from None


if __name__ == "__main__":
    sys.exit(main())
