"""`fairlead lab fault ...`: fault injection in a lab of plain hosts."""

import argparse

from fairlead.lab import agents, parsing, server
from fairlead.lab.native import NativeLab

FAULTS = {
    "power-off": (("place",), "power off a host or router without a shutdown"),
    "power-on": (("place",), "boot a host or router; a host keeps only its disk"),
    "cut": (("router", "site"), "drop all packets on the link between router and site; both ends keep the carrier"),
    "mend": (("router", "site"), "end cut: the link carries packets again"),
    "end-session": (("router", "site"), "close the BGP session, and reject new ones on the router"),
    "begin-session": (("router", "site"), "end end-session: the router accepts a BGP session again"),
    "stop-routing": (("place",), "kill the routing daemons of a host or router; its kernel keeps forwarding"),
    "start-routing": (("place",), "start the routing daemons of a host or router"),
    "rehash": (("router", "seed"), "change the seed by which the router hashes flows to next hops"),
}
"""Fault -> arguments and summary, in the order of the methods' parameters in `NativeLab`."""
EXAMPLES = """examples:
  fairlead lab fault power-off host2
  fairlead lab fault cut router1 host1
  fairlead lab fault rehash router1 7
"""


def add_parser(commands: "parsing.Subparsers") -> None:
    parser = parsing.add(commands, "fault", "inject faults into a lab of plain hosts, and repair them", EXAMPLES)
    actions = parser.add_subparsers(metavar="FAULT", required=True)
    for name, (arguments, summary) in FAULTS.items():
        fault = parsing.add_command(actions, name, summary, _inject)
        fault.set_defaults(fault=name, arguments=arguments)
        for argument in arguments:
            fault.add_argument(argument, metavar=argument.upper(), type=int if argument == "seed" else str)


def _inject(arguments: argparse.Namespace) -> None:
    lab = parsing.open_native(arguments)
    inflict = getattr(lab, arguments.fault.replace("-", "_"))
    inflict(*(getattr(arguments, argument) for argument in arguments.arguments))
    if arguments.fault == "power-on" and (url := server.find_server_url(lab.layout)) is not None:
        _start_agent(lab, arguments.place, url)
    parsing.progress(f"lab {lab.name}: {arguments.fault} done")


def _start_agent(lab: NativeLab, place: str, url: str) -> None:
    """Start the agent of a host, as systemd does at boot; a router has none."""
    if any(place == host.name for host in lab.record.chassis):
        agents.start_one(lab.layout, url, place)
