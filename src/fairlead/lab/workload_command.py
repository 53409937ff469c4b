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

EXAMPLES = """A port of Fairlead's network API is given by name or id; its MAC and addresses are read from the API.
A port that exists only in OVN needs all options.
examples:
  fairlead lab workload add web1 --chassis chassis1 --port web1 --answer 8080
  fairlead lab workload add web1 --chassis chassis1 --port PORT-ID --mac 02:00:00:00:00:11 \\
      --address 10.0.0.11/24 --address fd00::11/64 --gateway 10.0.0.1 --gateway fd00::1 --answer 8080
With plain hosts, no port is needed:
  fairlead lab workload add web1 --chassis host1 --number 11 --answer 8080
  fairlead lab workload add client --chassis outside --number 10
"""


def add_parser(commands: "parsing.Subparsers") -> None:
    parser = parsing.add(
        commands, "workload", "add, remove and list workloads: namespaces that stand for virtual machines"
    )
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    _add_workload_add(actions)
    remove = parsing.add_command(actions, "remove", "unplug a workload", _workload_remove)
    remove.add_argument("workload", metavar="NAME")
    listing = parsing.add_command(actions, "list", "list the workloads of the lab", _workload_list)
    listing.add_argument("--json", action="store_true", help="print JSON")


def _add_workload_add(actions: "parsing.Subparsers") -> None:
    add = parsing.add_command(actions, "add", "plug a workload into a chassis", _workload_add, EXAMPLES)
    add.add_argument("workload", metavar="NAME")
    add.add_argument("--chassis", required=True, metavar="C", help="chassis; with plain hosts: host, or outside")
    add.add_argument("--port", help="with OVN: name or id of the port")
    add.add_argument("--number", type=int, metavar="N", help="with plain hosts: use the host's addresses that end in N")
    add.add_argument(
        "--answer",
        metavar="PORT",
        type=int,
        action="append",
        default=[],
        help="run an echo server on this TCP and UDP port; repeatable",
    )
    add.add_argument(
        "--link",
        type=Link,
        choices=list(Link),
        default=Link.VETH,
        help="with OVN: plug in by a veth pair like a container, or by a tap device like a virtual machine (default:"
        " %(default)s)",
    )
    add.add_argument(
        "--url",
        default=os.environ.get("FAIRLEAD_URL", f"http://{server.DEFAULT_LISTEN}"),
        help="URL of the Fairlead server that has the port (environment FAIRLEAD_URL; default: %(default)s)",
    )
    own = add.add_argument_group("options for a port that exists only in OVN")
    own.add_argument("--mac", help="MAC address; with this option, the API is not used")
    own.add_argument("--address", metavar="CIDR", action="append", default=[], help="address of the port; repeatable")
    own.add_argument(
        "--gateway", metavar="A", action="append", default=[], help="default router; one per address family"
    )
    own.add_argument(
        "--mtu", type=int, default=GENEVE_MTU, help=f"MTU (default: {GENEVE_MTU}, which leaves room for geneve headers)"
    )


def _workload_add(arguments: argparse.Namespace) -> None:
    match lab := parsing.open_lab(arguments):
        case Lab():
            add_workload(lab, _workload(arguments))
        case NativeLab():
            lab.add_workload(_machine(lab, arguments))
            parsing.progress(f"workload {arguments.workload}: added on {arguments.chassis}")
        case _:
            assert_never(lab)


def _workload(arguments: argparse.Namespace) -> Workload:
    placement = Placement(name=arguments.workload, chassis=arguments.chassis, serve=tuple(arguments.answer))
    if arguments.port is None:
        raise InvalidWorkload(f"workload {placement.name!r}: --port is required")
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
