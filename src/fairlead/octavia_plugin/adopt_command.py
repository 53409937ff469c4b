"""`fairlead octavia adopt`: take over load balancers of Octavia's stock provider.

Results go to standard output, errors to standard error.
"""

import argparse
from collections.abc import Callable
from typing import Any

from fairlead.octavia_plugin.adoption import Adoption, AdoptionOutcome, AdoptionReport
from fairlead.octavia_plugin.api_client import PluginApi
from fairlead.runtime.terminal import print_error, print_json, print_lines

UNFINISHED, REFUSED = 1, 3
GOOD = (AdoptionOutcome.ADOPTED, AdoptionOutcome.ALREADY, AdoptionOutcome.POSSIBLE)
DESCRIPTION = """Take over load balancers of Octavia's stock provider, `ovn`.

Their rows in OVN go in the very transaction that brings Fairlead's: no moment without. What cannot be taken over is
said before anything is changed. Whoever is interrupted runs it again.

Where the stock provider serves clients and Fairlead would not (networks and routers of other projects, and networks
that nothing connects with the VIP's) is refused too, with their ids; --leave ID says of each that it is given up."""
EPILOG = """Run it where octavia-api or octavia-driver-agent runs: it needs their configuration, database and Neutron.
The provider `fairlead` has to be enabled, and its agent has to run in octavia-driver-agent.
Exit codes: 0 done (or possible, with --dry-run), 1 something did not answer or is left to do: run it again,
2 wrong usage, 3 at least one cannot be taken over; nothing of it was changed."""


def add_adopt(commands: Any, open_door: Callable[[argparse.Namespace], PluginApi]) -> Any:
    """Add the command. `open_door` reads Octavia's configuration."""
    form = argparse.RawDescriptionHelpFormatter
    help_text = "take over load balancers of Octavia's stock provider"
    adopt = commands.add_parser("adopt", help=help_text, description=DESCRIPTION, epilog=EPILOG, formatter_class=form)
    adopt.add_argument("load_balancers", nargs="+", metavar="LB", help="its id, or its name if only one has it")
    adopt.add_argument(
        "--leave",
        action="append",
        default=[],
        metavar="ID",
        help="a network or router where the stock provider serves clients, and Fairlead need not; several times",
    )
    adopt.add_argument("--dry-run", action="store_true", help="only say whether it can be; nothing is written")
    adopt.add_argument("--json", action="store_true", help="a list with an object for each")
    adopt.set_defaults(run=lambda arguments: _adopt(arguments, open_door(arguments)))
    return adopt


def _adopt(arguments: argparse.Namespace, door: PluginApi) -> int:
    from fairlead.octavia_plugin.handover import Handover, VipPorts
    from fairlead.octavia_plugin.options import PROVIDER

    adoption = Adoption(api=door, octavia=Handover(PROVIDER), ports=VipPorts(), leaves=tuple(arguments.leave))
    do = adoption.dry_run if arguments.dry_run else adoption.adopt
    reports = list[AdoptionReport]()
    for name in arguments.load_balancers:
        report = do(name)
        reports.append(report)
        if not arguments.json:
            (print_lines if report.outcome in GOOD else print_error)(str(report))
    if arguments.json:
        print_json([report.as_json() for report in reports], indent=2)
    outcomes = {report.outcome for report in reports}
    if outcomes & {AdoptionOutcome.FAILED, AdoptionOutcome.UNFINISHED}:
        return UNFINISHED
    return REFUSED if AdoptionOutcome.REFUSED in outcomes else 0
