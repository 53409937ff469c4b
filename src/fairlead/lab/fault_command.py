"""`fairlead lab fault ...`: fault injection in a lab of plain hosts."""

import argparse

from fairlead.lab import agents, parsing, server
from fairlead.lab.native import NativeLab

FAULTS = {
    "power-off": (("place",), "a host or a router is dead, without a word to anybody"),
    "power-on": (("place",), "it boots: of a host nothing is left but what is on its disk"),
    "cut": (("router", "site"), "their link is silent; neither end loses its carrier"),
    "mend": (("router", "site"), "their link carries packets again"),
    "end-session": (("router", "site"), "the router ends their session of BGP, and takes no other one"),
    "begin-session": (("router", "site"), "the router takes a session again"),
    "stop-routing": (("place",), "the routing daemons of a host or router are killed; its kernel goes on"),
    "start-routing": (("place",), "they are started again"),
    "rehash": (("router", "seed"), "the router spreads flows over its ways anew, by this seed"),
}
"""Fault -> arguments and summary, in the order of the methods' parameters in `NativeLab`."""
EXAMPLES = """examples:
  fairlead lab fault power-off host2
  fairlead lab fault cut router1 host1
  fairlead lab fault rehash router1 7
"""


def add_parser(commands: "parsing.Subparsers") -> None:
    parser = parsing.add(commands, "fault", "break what breaks in a fabric of plain hosts, and mend it", EXAMPLES)
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
