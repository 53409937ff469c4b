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

One transaction deletes the stock provider's rows in OVN and inserts Fairlead's, so traffic is not interrupted. All
checks run before the first change. Run the command again after an interruption.

A load balancer is rejected, too, if the stock provider serves clients that Fairlead would not serve: in networks and
routers of other projects, and in networks without a route to the VIP's network. The error lists their ids; --leave ID
accepts that one of them is no longer served."""
EPILOG = """Run it where octavia-api or octavia-driver-agent runs: it needs their configuration, database and Neutron.
The provider `fairlead` must be enabled, and its agent must run in octavia-driver-agent.
Exit codes: 0 done (or possible, with --dry-run), 1 a service failed or the takeover is unfinished: run it again,
2 wrong usage, 3 at least one load balancer is rejected and unchanged."""


def add_adopt(commands: Any, open_door: Callable[[argparse.Namespace], PluginApi]) -> Any:
    """Add the command. `open_door` reads Octavia's configuration."""
    form = argparse.RawDescriptionHelpFormatter
    help_text = "take over load balancers of Octavia's stock provider"
    adopt = commands.add_parser("adopt", help=help_text, description=DESCRIPTION, epilog=EPILOG, formatter_class=form)
    adopt.add_argument("load_balancers", nargs="+", metavar="LB", help="id, or unambiguous name")
    adopt.add_argument(
        "--leave",
        action="append",
        default=[],
        metavar="ID",
        help="network or router whose clients need not be served by Fairlead; repeatable",
    )
    adopt.add_argument("--dry-run", action="store_true", help="check whether a takeover is possible; writes nothing")
    adopt.add_argument("--json", action="store_true", help="print a JSON list with one object for each load balancer")
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
