"""`fairlead lab ...`: the lab on the command line.

Results go to standard output, progress and complaints to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage.
"""

import argparse
import os
import re
import sys
from collections.abc import Sequence

import msgspec

from fairlead.lab import agents, fault_command, parsing, programs, records, server, trace_command, workload_command
from fairlead.lab.errors import LabError
from fairlead.lab.lab import DEFAULT_CHASSIS_COUNT, Lab, take_down
from fairlead.lab.layout import Layout
from fairlead.lab.native import NativeLab
from fairlead.lab.native.host_declaration import declare
from fairlead.lab.native.lab import DEFAULT_HOST_COUNT
from fairlead.lab.native.status import NativeStatus
from fairlead.lab.records import LabDataplane
from fairlead.lab.status import LabStatus
from fairlead.lab.vm import kernels as vm_kernels
from fairlead.lab.vm.up import up as up_in_vm

EXAMPLES = {
    "lab": """examples:
  fairlead lab up --chassis 3
  fairlead lab exec central -- ovn-nbctl show
  fairlead lab up --serve && openstack port create --network net1 web1
  fairlead lab workload add web1 --chassis chassis1 --port web1 --answer 8080
  fairlead lab trace client 10.0.0.100 --tcp 80
  fairlead lab fault power-off host2
  fairlead lab down
""",
    "up": """examples:
  fairlead lab up
  fairlead lab up --serve        (then source the printed file to use openstack)
  fairlead lab up --name second --chassis 4
  fairlead lab up --zones a,a,b        (three chassis: two in zone a, one in zone b)
  debootstrap --variant=minbase --include=ovn-central,ovn-host,openvswitch-switch trixie /var/tmp/trixie
  fairlead lab up --root /var/tmp/trixie        (with the OVN and Open vSwitch of Debian 13)
  fairlead lab up --dataplane native --chassis 3        (three plain Linux hosts behind two routers, and no OVN)
  fairlead lab up --vm        (in a virtual machine whose kernel has Open vSwitch; then a shell in it)
  fairlead lab up --vm bookworm -- fairlead lab status        (on the kernel of Debian 12; one command, no shell)
With OVN, external networks are flat on the physical network `physnet`. The external host, place `outside`, has the
addresses 203.0.113.1 and 2001:db8::1:
  openstack network create public --external --provider-network-type flat --provider-physical-network physnet
  openstack subnet create public4 --network public --subnet-range 203.0.113.0/24 --gateway 203.0.113.1
""",
    "status": """examples:
  fairlead lab status
  fairlead lab status --json
""",
    "exec": """With OVN, the place is a workload, a chassis (chassis1, ...), central, fabric or outside. With plain
hosts, it is a machine, a host (host1, ...), a router (router1, router2) or outside.
examples:
  fairlead lab exec central -- ovn-nbctl show
  fairlead lab exec chassis1 -- ovs-ofctl dump-flows br-int
  fairlead lab exec web1 -- ping -c 3 10.0.0.12
  fairlead lab exec router1 -- vtysh -c 'show bgp summary'
""",
}


def add_parser(subparsers: "parsing.Subparsers") -> None:
    """Mount `lab`; the main program calls `arguments.run(arguments)` and exits with what it gives."""
    summary = "several OVN compute nodes, or plain Linux hosts, on this machine, for demos and tests"
    parser = parsing.add(subparsers, "lab", summary, EXAMPLES["lab"])
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_up(commands)
    _add_status(commands)
    _add_exec(commands)
    workload_command.add_parser(commands)
    trace_command.add_parser(commands)
    fault_command.add_parser(commands)
    parsing.add_command(commands, "down", "stop the lab and remove it; succeeds if there is none", _down)


# up, down, status


def _add_up(commands: "parsing.Subparsers") -> None:
    summary = "start a lab; keep a healthy one, and replace an unhealthy one by a new, empty lab"
    parser = parsing.add_command(commands, "up", summary, _up, EXAMPLES["up"])
    parser.add_argument(
        "--dataplane",
        type=LabDataplane,
        choices=list(LabDataplane),
        help="OVN compute nodes, or plain Linux hosts (default: ovn, or the dataplane of the running lab)",
    )
    parser.add_argument(
        "--chassis",
        type=int,
        metavar="N",
        help=f"number of compute nodes or hosts (default: {DEFAULT_CHASSIS_COUNT} compute nodes, {DEFAULT_HOST_COUNT}"
        " hosts, or the number of the running lab)",
    )
    parser.add_argument(
        "--zones",
        type=_parse_zones,
        default=(),
        metavar="Z,Z,...",
        help="availability zones of each chassis, in order; a:b are two zones of one chassis, an empty item is none",
    )
    parser.add_argument(
        "--serve",
        nargs="?",
        const=server.DEFAULT_LISTEN,
        metavar="HOST:PORT",
        help=f"also start a Fairlead server and agents (default: {server.DEFAULT_LISTEN})",
    )
    parser.add_argument(
        "--root",
        metavar="DIR",
        help="root directory of another system with OVN and Open vSwitch (environment"
        f" {programs.ROOT_VARIABLE}; default: this machine)",
    )
    parser.add_argument(
        "--vm",
        nargs="?",
        const=vm_kernels.DEFAULT_KERNEL,
        choices=vm_kernels.NAMES,
        metavar="KERNEL",
        help="run the lab in a virtual machine with this machine's files and a distribution's kernel: "
        f"{', '.join(vm_kernels.NAMES)} (default: {vm_kernels.DEFAULT_KERNEL}); needs QEMU and busybox, and no root"
        " with KVM",
    )
    parser.add_argument("argv", metavar="-- CMD", nargs="*", help="with --vm: command to run instead of a shell")


def _parse_zones(text: str) -> tuple[tuple[str, ...], ...]:
    """Those of each chassis."""
    if not re.fullmatch(r"[\w.:,-]+", text):
        raise argparse.ArgumentTypeError(
            f"expected zone names of letters, digits, - _ and dots, with commas between chassis and colons between"
            f" zones, got '{text}'"
        )
    return tuple(tuple(filter(None, each.split(":"))) for each in text.split(","))


def _up(arguments: argparse.Namespace) -> None:
    if arguments.vm is not None:
        up_in_vm(arguments.vm, arguments.name, _up_options(arguments), arguments.argv, parsing.progress)
        return
    if arguments.argv:
        raise LabError(f"'{' '.join(arguments.argv)}': a command requires --vm")
    found = records.find_dataplane(Layout(name=arguments.name))
    if (arguments.dataplane or found) is LabDataplane.NATIVE:
        _up_native(arguments)
    else:
        _up_ovn(arguments)


def _up_options(arguments: argparse.Namespace) -> list[str]:
    """The options that the lab in the virtual machine gets."""
    zones = ",".join(":".join(each) for each in arguments.zones)
    given = {
        "--dataplane": arguments.dataplane,
        "--chassis": arguments.chassis,
        "--zones": zones,
        "--serve": arguments.serve,
        "--root": arguments.root,
    }
    return [f"{option}={value}" for option, value in given.items() if value]


def _up_ovn(arguments: argparse.Namespace) -> None:
    count = arguments.chassis or len(arguments.zones) or None
    lab = Lab.up(arguments.name, chassis=count, progress=parsing.progress, root=arguments.root)
    for node, zones in zip(lab.record.chassis, arguments.zones, strict=False):
        lab.set_zones(node.name, *zones)
    if arguments.serve:
        serving = server.start(lab.layout, arguments.serve)
        parsing.progress(f"Fairlead listens on {serving.url}; log: {serving.log}")
        agents.start(lab.layout, serving.url)
        parsing.progress(f"for the openstack client: source {serving.openrc}")
    print(lab.northbound)


def _up_native(arguments: argparse.Namespace) -> None:
    if asked := [option for option in ("zones", "root") if getattr(arguments, option)]:
        raise LabError(f"--{asked[0]} is not supported with --dataplane native")
    lab = NativeLab.up(arguments.name, chassis=arguments.chassis, progress=parsing.progress)
    if arguments.serve:
        serving = server.start(lab.layout, arguments.serve)
        lab.forward_port(arguments.serve)
        declare(serving.url, lab.record.chassis)
        agents.start(lab.layout, serving.url)
        parsing.progress(f"Fairlead listens on {serving.url}, with an agent on each host; log: {serving.log}")
        parsing.progress(f"for the openstack client: source {serving.openrc}")
    print(" ".join(host.name for host in lab.record.chassis))


def _down(arguments: argparse.Namespace) -> None:
    found = take_down(arguments.name)
    parsing.progress(f"lab {arguments.name}: {'removed' if found else 'not found'}")


def _add_status(commands: "parsing.Subparsers") -> None:
    summary = "print processes, registered chassis and bound workloads"
    parser = parsing.add_command(commands, "status", summary, _status, EXAMPLES["status"])
    parser.add_argument("--json", action="store_true", help="print JSON")


def _status(arguments: argparse.Namespace) -> None:
    status = parsing.open_lab(arguments).status()
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(status)).decode())
    else:
        print(*(render_status(status) if isinstance(status, LabStatus) else render_native(status)), sep="\n")
    if not status.is_healthy:
        raise LabError(
            f"lab {status.name!r} is unhealthy; `fairlead lab up --name {status.name}` replaces it by a new, empty lab"
        )


def render_status(status: LabStatus) -> list[str]:
    lines = [f"lab {status.name}: {'healthy' if status.is_healthy else 'NOT HEALTHY'}, datapath {status.datapath}"]
    lines += [f"  programs    from {status.root}"] if status.root else []
    lines += [f"  northbound  {status.northbound}", f"  southbound  {status.southbound}"]
    lines += [f"  fairlead    {line}" for line in status.service]
    for node in status.chassis:
        lines.append(f"  {node.name:<11} {node.tunnel_address:<15} {_render_flag(node.registered, 'registered')}")
    lines += _render_parts(status)
    for each in status.workloads:
        where = f"{each.chassis} port {each.port_id} {' '.join(each.addresses)}"
        lines.append(f"  {each.name:<11} {_render_flag(each.bound, 'bound')} on {where}")
    return lines


def render_native(status: NativeStatus) -> list[str]:
    lines = [f"lab {status.name}: {'healthy' if status.is_healthy else 'NOT HEALTHY'}, plain hosts"]
    lines += [f"  fairlead    {line}" for line in status.service]
    lines += [
        f"  {host.name:<11} {' '.join(host.loopback_addresses)}, machines {' '.join(host.prefixes)}"
        for host in status.chassis
    ]
    lines += _render_parts(status)
    lines += [f"  {each.name:<11} on {each.chassis} {' '.join(each.addresses)}" for each in status.workloads]
    return lines


def _render_parts(status: LabStatus | NativeStatus) -> list[str]:
    lines = [
        f"  {process.node:<11} {process.program:<15} {_render_flag(process.alive, f'runs as {process.pid}')}"
        for process in status.processes
    ]
    return lines + [f"  namespace {each.name} is missing" for each in status.namespaces if not each.exists]


def _render_flag(holds: bool, what: str) -> str:
    return what if holds else f"NOT {what}"


# exec


def _add_exec(commands: "parsing.Subparsers") -> None:
    parser = parsing.add_command(commands, "exec", "run a command in a node or workload", _exec, EXAMPLES["exec"])
    parser.add_argument("place", metavar="PLACE", help="workload, chassis, central or fabric")
    parser.add_argument("argv", metavar="-- CMD", nargs=argparse.REMAINDER, help="command with its arguments")


def _exec(arguments: argparse.Namespace) -> None:
    """The command takes our place: its terminal, signals and exit code are its own."""
    argv = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    command = parsing.open_lab(arguments).command(arguments.place, argv or [os.environ.get("SHELL", "/bin/sh")])
    os.execvpe(command.argv[0], command.argv, command.full_environment())


def main(argv: Sequence[str] | None = None) -> int:
    """The lab without the rest of Fairlead: `python -m fairlead.lab up`."""
    parser = argparse.ArgumentParser(prog="fairlead")
    add_parser(parser.add_subparsers(metavar="COMMAND", required=True))
    arguments = parser.parse_args(["lab", *(sys.argv[1:] if argv is None else argv)])
    code: int = arguments.run(arguments)
    return code
