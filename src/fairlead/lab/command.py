"""`fairlead lab ...`: the lab on the command line.

Results go to standard output, progress and complaints to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from ipaddress import ip_address
from typing import TYPE_CHECKING

import msgspec

from fairlead.lab import agents, databases, programs, service, trace
from fairlead.lab.errors import InvalidWorkload, LabError, UnknownNode
from fairlead.lab.lab import CHASSIS, Lab, names, take_down
from fairlead.lab.ports import Placement, workload_of_port
from fairlead.lab.status import LabStatus
from fairlead.lab.trace import Address, Packet
from fairlead.lab.workload import GENEVE_MTU, Workload

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]  # noqa: SLF001 argparse has no public name for it

EXAMPLES = {
    "lab": """examples:
  fairlead lab up --chassis 3
  fairlead lab exec central -- ovn-nbctl show
  fairlead lab up --serve && openstack port create --network net1 web1
  fairlead lab workload add web1 --chassis chassis1 --port web1 --answer 8080
  fairlead lab trace client 10.0.0.100 --tcp 80
  fairlead lab down
""",
    "up": """examples:
  fairlead lab up
  fairlead lab up --serve        (then: source the file that it names, and use openstack)
  fairlead lab up --name second --chassis 4
  fairlead lab up --zones a,a,b        (three chassis: two in zone a, one in zone b)
  debootstrap --variant=minbase --include=ovn-central,ovn-host,openvswitch-switch trixie /var/tmp/trixie
  fairlead lab up --root /var/tmp/trixie        (with the OVN and Open vSwitch of Debian 13)
External networks are flat on the physical network `physnet`. A host outside, the place `outside`, is there as
203.0.113.1 and 2001:db8::1:
  openstack network create public --external --provider-network-type flat --provider-physical-network physnet
  openstack subnet create public4 --network public --subnet-range 203.0.113.0/24 --gateway 203.0.113.1
""",
    "status": """examples:
  fairlead lab status
  fairlead lab status --json
""",
    "exec": """The place is a workload, a chassis (chassis1, ...), central or fabric.
examples:
  fairlead lab exec central -- ovn-nbctl show
  fairlead lab exec chassis1 -- ovs-ofctl dump-flows br-int
  fairlead lab exec web1 -- ping -c 3 10.0.0.12
""",
    "workload add": """A port of Fairlead's network API is named by name or id; what it says need not be said again.
A port that only OVN knows is said in full.
examples:
  fairlead lab workload add web1 --chassis chassis1 --port web1 --answer 8080
  fairlead lab workload add web1 --chassis chassis1 --port PORT-ID --mac 02:00:00:00:00:11 \\
      --address 10.0.0.11/24 --address fd00::11/64 --gateway 10.0.0.1 --gateway fd00::1 --answer 8080
""",
    "trace": """examples:
  fairlead lab trace client web1
  fairlead lab trace client 10.0.0.100 --tcp 80
  fairlead lab trace client fd00::100 --udp 53
""",
}


def add_parser(subparsers: "Subparsers") -> None:
    """Mount `lab`; the main program calls `arguments.run(arguments)` and exits with what it gives."""
    parser = _add(subparsers, "lab", "several OVN compute nodes on this machine, for demos and tests")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_up(commands)
    _add_status(commands)
    _add_exec(commands)
    _add_workload(commands)
    _add_trace(commands)
    _add_command(commands, "down", "end the lab and remove all of it; fine if there is none", _down)


def _add(subparsers: "Subparsers", name: str, summary: str, examples: str = "") -> argparse.ArgumentParser:
    return subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=EXAMPLES.get(examples or name),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def _add_command(
    subparsers: "Subparsers", name: str, summary: str, act: Callable[[argparse.Namespace], None], examples: str = ""
) -> argparse.ArgumentParser:
    parser = _add(subparsers, name, summary, examples)
    lab = os.environ.get("FAIRLEAD_LAB", "lab")
    parser.add_argument("--name", default=lab, help=f"the lab (environment FAIRLEAD_LAB; {lab})")
    parser.set_defaults(run=_run, act=act)
    return parser


def _run(arguments: argparse.Namespace) -> int:
    try:
        arguments.act(arguments)
    except InvalidWorkload as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 1
    except PermissionError as error:
        print(f"error: {error}; the lab is root's", file=sys.stderr)
        return 1
    return 0


def _progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


# up, down, status


def _add_up(commands: "Subparsers") -> None:
    summary = "start a lab, leave it as it is if it is up and well, make it anew (empty) if it is not"
    parser = _add_command(commands, "up", summary, _up)
    parser.add_argument(
        "--chassis", type=int, metavar="N", help=f"number of compute nodes ({CHASSIS}; a lab that runs: what it has)"
    )
    parser.add_argument(
        "--zones",
        type=_zones,
        default=(),
        metavar="Z,Z,...",
        help="the availability zone that each chassis says, in order; a:b is two, nothing is none",
    )
    parser.add_argument(
        "--serve",
        nargs="?",
        const=service.DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"start a Fairlead server and agents too ({service.DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help=f"OVN and Open vSwitch of another system's tree (environment {programs.ROOT_VARIABLE}; this machine's)",
    )


def _zones(text: str) -> tuple[tuple[str, ...], ...]:
    """Those of each chassis."""
    if not re.fullmatch(r"[\w.:,-]+", text):
        raise argparse.ArgumentTypeError("letters, digits, - _ and dots; commas between chassis, colons between zones")
    return tuple(tuple(filter(None, each.split(":"))) for each in text.split(","))


def _up(arguments: argparse.Namespace) -> None:
    count = arguments.chassis or len(arguments.zones) or None
    lab = Lab.up(arguments.name, chassis=count, progress=_progress, root=arguments.root)
    for node, zones in zip(lab.record.chassis, arguments.zones, strict=False):
        lab.set_zones(node.name, *zones)
    if arguments.serve:
        serving = service.start(lab.layout, arguments.serve)
        _progress(f"Fairlead serves on {serving.url}; log: {serving.log}")
        agents.start(lab.layout, serving.url)
        _progress(f"for the openstack client: source {serving.openrc}")
    print(lab.northbound)


def _down(arguments: argparse.Namespace) -> None:
    found = take_down(arguments.name)
    _progress(f"lab {arguments.name}: {'removed' if found else 'was not there'}")


def _add_status(commands: "Subparsers") -> None:
    parser = _add_command(commands, "status", "what runs, who is registered, which workloads are bound", _status)
    parser.add_argument("--json", action="store_true", help="for programs")


def _status(arguments: argparse.Namespace) -> None:
    status = _open(arguments).status()
    print(_to_json(status) if arguments.json else "\n".join(render_status(status)))
    if not status.is_healthy:
        raise LabError(f"the lab is not well; `fairlead lab up --name {status.name}` makes it anew, with nothing in it")


def _to_json(value: LabStatus | tuple[Workload, ...]) -> str:
    return msgspec.json.format(msgspec.json.encode(value)).decode()


def render_status(status: LabStatus) -> list[str]:
    lines = [f"lab {status.name}: {'well' if status.is_healthy else 'NOT WELL'}, datapath {status.datapath}"]
    lines += [f"  programs    of {status.root}"] if status.root else []
    lines += [f"  northbound  {status.northbound}", f"  southbound  {status.southbound}"]
    lines += [f"  fairlead    {line}" for line in status.service]
    for node in status.chassis:
        lines.append(f"  {node.name:<11} {node.tunnel_address:<15} {_say(node.registered, 'registered')}")
    for process in status.processes:
        lines.append(f"  {process.node:<11} {process.program:<15} {_say(process.alive, f'runs as {process.pid}')}")
    lines += [f"  namespace {each.name} is missing" for each in status.namespaces if not each.exists]
    for each in status.workloads:
        where = f"{each.chassis} port {each.port_id} {' '.join(each.addresses)}"
        lines.append(f"  {each.name:<11} {_say(each.bound, 'bound')} on {where}")
    return lines


def _say(holds: bool, what: str) -> str:
    return what if holds else f"NOT {what}"


def _open(arguments: argparse.Namespace) -> Lab:
    """Say which labs there are if it is not this one."""
    try:
        return Lab.open(arguments.name)
    except LabError as error:
        if others := names():
            raise LabError(f"{error}; these run: {', '.join(others)}") from None
        raise


# exec


def _add_exec(commands: "Subparsers") -> None:
    parser = _add_command(commands, "exec", "run a command in a node or workload", _exec)
    parser.add_argument("place", metavar="PLACE", help="workload, chassis, central or fabric")
    parser.add_argument("argv", metavar="-- CMD", nargs=argparse.REMAINDER, help="command with its arguments")


def _exec(arguments: argparse.Namespace) -> None:
    """The command takes our place: its terminal, signals and exit code are its own."""
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    command = _open(arguments).command(arguments.place, argv or [os.environ.get("SHELL", "/bin/sh")])
    os.execvpe(command.argv[0], command.argv, command.full_environment())


# workloads


def _add_workload(commands: "Subparsers") -> None:
    parser = _add(commands, "workload", "namespaces that are plugged in as virtual machines would be")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_workload_add(actions)
    remove = _add_command(actions, "remove", "unplug a workload", _workload_remove)
    remove.add_argument("workload", metavar="NAME")
    listing = _add_command(actions, "list", "the workloads of the lab", _workload_list)
    listing.add_argument("--json", action="store_true", help="for programs")


def _add_workload_add(actions: "Subparsers") -> None:
    add = _add_command(actions, "add", "plug a workload into a chassis", _workload_add, "workload add")
    add.add_argument("workload", metavar="NAME")
    add.add_argument("--chassis", required=True, metavar="C")
    add.add_argument("--port", required=True, help="name or id of the port")
    add.add_argument("--answer", metavar="PORT", type=int, action="append", default=[], help="answer on TCP and UDP")
    add.add_argument(
        "--url",
        default=os.environ.get("FAIRLEAD_URL", f"http://{service.DEFAULT_LISTEN}"),
        help="Fairlead's server, to ask about the port (environment FAIRLEAD_URL; %(default)s)",
    )
    own = add.add_argument_group("a port that only OVN knows")
    own.add_argument("--mac", help="with this the API is not asked")
    own.add_argument("--address", metavar="CIDR", action="append", default=[], help="repeat for more")
    own.add_argument("--gateway", metavar="A", action="append", default=[], help="default router; one a family")
    own.add_argument("--mtu", type=int, default=GENEVE_MTU, help=f"{GENEVE_MTU} leaves room for geneve")


def _workload_add(arguments: argparse.Namespace) -> None:
    placement = Placement(name=arguments.workload, chassis=arguments.chassis, serve=tuple(arguments.answer))
    if arguments.mac is None:
        workload = workload_of_port(arguments.url, arguments.port, placement)
    else:
        workload = Workload(
            name=placement.name,
            chassis=placement.chassis,
            port_id=arguments.port,
            mac=arguments.mac.lower(),
            addresses=tuple(arguments.address),
            gateways=tuple(arguments.gateway),
            mtu=arguments.mtu,
            serve=placement.serve,
        )
    add_workload(_open(arguments), workload)


def add_workload(lab: Lab, workload: Workload) -> None:
    """Plug it in and, if OVN knows its port, await that OVN has bound it."""
    lab.add_workload(workload)
    client = databases.northbound(lab.layout)
    if databases.find(client, "Logical_Switch_Port", ("name",), f'name="{workload.port_id}"'):
        lab.wait_bound(workload.name)
        _progress(f"workload {workload.name}: plugged into {workload.chassis} and bound")
    else:
        _progress(f"workload {workload.name}: plugged into {workload.chassis}; OVN has no port {workload.port_id} yet")


def _workload_remove(arguments: argparse.Namespace) -> None:
    _open(arguments).remove_workload(arguments.workload)
    _progress(f"workload {arguments.workload}: removed")


def _workload_list(arguments: argparse.Namespace) -> None:
    workloads = _open(arguments).workloads()
    if arguments.json:
        print(_to_json(workloads))
        return
    for each in workloads:
        serves = f" serves {' '.join(map(str, each.serve))}" if each.serve else ""
        print(f"{each.name:<15} {each.chassis:<10} {each.mac} {' '.join(each.addresses)} port {each.port_id}{serves}")


# trace


def _add_trace(commands: "Subparsers") -> None:
    parser = _add_command(commands, "trace", "what OVN would do with a packet of a workload", _trace)
    parser.add_argument("source", metavar="FROM", help="workload")
    parser.add_argument("target", metavar="TO", help="address or workload")
    packet = parser.add_mutually_exclusive_group()
    packet.add_argument("--tcp", type=int, metavar="PORT")
    packet.add_argument("--udp", type=int, metavar="PORT")
    packet.add_argument("--sctp", type=int, metavar="PORT")
    packet.add_argument("--icmp", action="store_true", help="an echo request (this is the default)")


def _trace(arguments: argparse.Namespace) -> None:
    lab = _open(arguments)
    source = lab.workload(arguments.source)
    destination = _destination(lab, source, arguments.target)
    next_hop = trace.choose_next_hop(source, destination)
    mac = trace.choose_mac(trace.read_neighbours(lab.layout, source), next_hop)
    microflow = trace.compose_microflow(source, destination, _packet(arguments), mac)
    _progress(f"# ovn-trace {' '.join(trace.OPTIONS)} '{microflow}'")
    print(lab.trace("", microflow, *trace.OPTIONS), end="")


def _destination(lab: Lab, source: Workload, target: str) -> Address:
    try:
        return ip_address(target)
    except ValueError:
        pass
    try:
        return trace.choose_destination(source, lab.workload(target))
    except UnknownNode as error:
        raise LabError(f"{error}; TO is one of these or an address") from None


def _packet(arguments: argparse.Namespace) -> Packet:
    if arguments.tcp is not None:
        return trace.Tcp(port=arguments.tcp)
    if arguments.udp is not None:
        return trace.Udp(port=arguments.udp)
    if arguments.sctp is not None:
        return trace.Sctp(port=arguments.sctp)
    return trace.Echo()


def main(argv: Sequence[str] | None = None) -> int:
    """The lab without the rest of Fairlead: `python -m fairlead.lab up`."""
    parser = argparse.ArgumentParser(prog="fairlead")
    add_parser(parser.add_subparsers(metavar="COMMAND", required=True))
    arguments = parser.parse_args(["lab", *(sys.argv[1:] if argv is None else argv)])
    code: int = arguments.run(arguments)
    return code
