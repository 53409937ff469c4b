"""`fairlead lab trace`: the path of a workload's packet through OVN."""

import argparse
from ipaddress import ip_address

from fairlead.lab import parsing, trace
from fairlead.lab.errors import LabError, UnknownNode
from fairlead.lab.lab import Lab
from fairlead.lab.trace import Address, Packet
from fairlead.lab.workload import Workload

EXAMPLES = """examples:
  fairlead lab trace client web1
  fairlead lab trace client 10.0.0.100 --tcp 80
  fairlead lab trace client fd00::100 --udp 53
"""


def add_parser(commands: "parsing.Subparsers") -> None:
    parser = parsing.add_command(commands, "trace", "trace a packet of a workload through OVN", _trace, EXAMPLES)
    parser.add_argument("source", metavar="FROM", help="workload")
    parser.add_argument("target", metavar="TO", help="address or workload")
    packet = parser.add_mutually_exclusive_group()
    packet.add_argument("--tcp", type=int, metavar="PORT")
    packet.add_argument("--udp", type=int, metavar="PORT")
    packet.add_argument("--sctp", type=int, metavar="PORT")
    packet.add_argument("--icmp", action="store_true", help="echo request (default)")


def _trace(arguments: argparse.Namespace) -> None:
    lab = parsing.open_ovn(arguments)
    source = lab.workload(arguments.source)
    destination = _destination(lab, source, arguments.target)
    next_hop = trace.choose_next_hop(source, destination)
    mac = trace.choose_mac(trace.read_neighbours(lab.layout, source), next_hop)
    microflow = trace.compose_microflow(source, destination, _packet(arguments), mac)
    parsing.progress(f"# ovn-trace {' '.join(trace.OPTIONS)} '{microflow}'")
    print(lab.trace("", microflow, *trace.OPTIONS), end="")


def _destination(lab: Lab, source: Workload, target: str) -> Address:
    try:
        return ip_address(target)
    except ValueError:
        pass
    try:
        return trace.choose_destination(source, lab.workload(target))
    except UnknownNode as error:
        raise LabError(f"{error}; TO must be one of these, or an address") from None


def _packet(arguments: argparse.Namespace) -> Packet:
    if arguments.tcp is not None:
        return trace.Tcp(port=arguments.tcp)
    if arguments.udp is not None:
        return trace.Udp(port=arguments.udp)
    if arguments.sctp is not None:
        return trace.Sctp(port=arguments.sctp)
    return trace.IcmpEcho()
