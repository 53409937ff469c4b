"""`fairlead lab workload ...`: machines of a lab, whatever its dataplane is."""

import argparse
import os
from dataclasses import replace
from typing import assert_never

import msgspec

from fairlead.lab import databases, parsing, server
from fairlead.lab.errors import InvalidWorkload
from fairlead.lab.lab import Lab
from fairlead.lab.native import Machine, NativeLab
from fairlead.lab.port_workloads import Placement, workload_of_port
from fairlead.lab.workload import GENEVE_MTU, Link, Workload

EXAMPLES = """A port of Fairlead's network API is named by name or id; what it says need not be said again.
A port that only OVN knows is said in full.
examples:
  fairlead lab workload add web1 --chassis chassis1 --port web1 --answer 8080
  fairlead lab workload add web1 --chassis chassis1 --port PORT-ID --mac 02:00:00:00:00:11 \\
      --address 10.0.0.11/24 --address fd00::11/64 --gateway 10.0.0.1 --gateway fd00::1 --answer 8080
Behind plain hosts it needs no port:
  fairlead lab workload add web1 --chassis host1 --number 11 --answer 8080
  fairlead lab workload add client --chassis outside --number 10
"""


def add_parser(commands: "parsing.Subparsers") -> None:
    parser = parsing.add(commands, "workload", "namespaces that are plugged in as virtual machines would be")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_workload_add(actions)
    remove = parsing.add_command(actions, "remove", "unplug a workload", _workload_remove)
    remove.add_argument("workload", metavar="NAME")
    listing = parsing.add_command(actions, "list", "the workloads of the lab", _workload_list)
    listing.add_argument("--json", action="store_true", help="for programs")


def _add_workload_add(actions: "parsing.Subparsers") -> None:
    add = parsing.add_command(actions, "add", "plug a workload into a chassis", _workload_add, EXAMPLES)
    add.add_argument("workload", metavar="NAME")
    add.add_argument("--chassis", required=True, metavar="C", help="a chassis; of plain hosts a host, or outside")
    add.add_argument("--port", help="with OVN: name or id of the port")
    add.add_argument("--number", type=int, metavar="N", help="of plain hosts: those addresses that end in N")
    add.add_argument("--answer", metavar="PORT", type=int, action="append", default=[], help="answer on TCP and UDP")
    add.add_argument(
        "--link",
        type=Link,
        choices=list(Link),
        default=Link.VETH,
        help="with OVN: plugged in as a container, or by a tap device as a virtual machine (%(default)s)",
    )
    add.add_argument(
        "--url",
        default=os.environ.get("FAIRLEAD_URL", f"http://{server.DEFAULT_LISTEN}"),
        help="Fairlead's server, to ask about the port (environment FAIRLEAD_URL; %(default)s)",
    )
    own = add.add_argument_group("a port that only OVN knows")
    own.add_argument("--mac", help="with this the API is not asked")
    own.add_argument("--address", metavar="CIDR", action="append", default=[], help="repeat for more")
    own.add_argument("--gateway", metavar="A", action="append", default=[], help="default router; one a family")
    own.add_argument("--mtu", type=int, default=GENEVE_MTU, help=f"{GENEVE_MTU} leaves room for geneve")


def _workload_add(arguments: argparse.Namespace) -> None:
    match lab := parsing.open_lab(arguments):
        case Lab():
            add_workload(lab, _workload(arguments))
        case NativeLab():
            lab.add_workload(_machine(lab, arguments))
            parsing.progress(f"workload {arguments.workload}: behind {arguments.chassis}")
        case _:
            assert_never(lab)


def _workload(arguments: argparse.Namespace) -> Workload:
    placement = Placement(name=arguments.workload, chassis=arguments.chassis, serve=tuple(arguments.answer))
    if arguments.port is None:
        raise InvalidWorkload(f"workload {placement.name!r}: which port? --port is missing")
    if arguments.mac is None:
        return replace(workload_of_port(arguments.url, arguments.port, placement), link=arguments.link)
    return Workload(
        name=placement.name,
        chassis=placement.chassis,
        port_id=arguments.port,
        mac=arguments.mac.lower(),
        addresses=tuple(arguments.address),
        gateways=tuple(arguments.gateway),
        mtu=arguments.mtu,
        serve=placement.serve,
        link=arguments.link,
    )


def _machine(lab: NativeLab, arguments: argparse.Namespace) -> Machine:
    numbered = () if arguments.number is None else lab.chassis(arguments.chassis).addresses(arguments.number)
    return Machine(
        name=arguments.workload,
        chassis=arguments.chassis,
        addresses=(*numbered, *arguments.address),
        serve=tuple(arguments.answer),
    )


def add_workload(lab: Lab, workload: Workload) -> None:
    """Plug it in and, if OVN knows its port, await that OVN has bound it."""
    lab.add_workload(workload)
    client = databases.northbound(lab.layout)
    if databases.find(client, "Logical_Switch_Port", ("name",), f'name="{workload.port_id}"'):
        lab.wait_bound(workload.name)
        parsing.progress(f"workload {workload.name}: plugged into {workload.chassis} and bound")
    else:
        unknown = f"OVN has no port {workload.port_id} yet"
        parsing.progress(f"workload {workload.name}: plugged into {workload.chassis}; {unknown}")


def _workload_remove(arguments: argparse.Namespace) -> None:
    parsing.open_lab(arguments).remove_workload(arguments.workload)
    parsing.progress(f"workload {arguments.workload}: removed")


def _workload_list(arguments: argparse.Namespace) -> None:
    workloads = parsing.open_lab(arguments).workloads()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(workloads)).decode())
        return
    for each in workloads:
        print(_render(each))


def _render(workload: Workload | Machine) -> str:
    serves = f" serves {' '.join(map(str, workload.serve))}" if workload.serve else ""
    where = f"{workload.name:<15} {workload.chassis:<10}"
    addresses = " ".join(workload.addresses)
    if isinstance(workload, Machine):
        return f"{where} {addresses}{serves}"
    return f"{where} {workload.mac} {addresses} port {workload.port_id}{serves}"
