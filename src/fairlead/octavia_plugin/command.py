"""`fairlead octavia ...`: commands for operators of an Octavia with Fairlead as a provider, in Octavia's environment.

`sync` runs the agent's checks (`agent.py`) once and prints the findings. `adopt` has its own module.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adopt_command import add_adopt
from fairlead.octavia_plugin.api_client import PluginApi
from fairlead.runtime.terminal import print_error, print_json, print_lines

FAILED, DIFFERENT = 1, 3
DESCRIPTION = """Compare what Octavia's database has of its load balancers of the provider fairlead with what
Fairlead has, statuses and values, and put right what differs: Octavia is told statuses, and
Fairlead is told all else. octavia-driver-agent does the same all the time. Besides, name ports
that Octavia has left in Neutron: it makes the port of a VIP before it calls the provider, and
does not delete it if the provider refuses the load balancer or cannot be reached.

  fairlead octavia sync --dry-run            what differs; nothing is written on either side
  fairlead octavia sync                      the same, and put it right
  fairlead octavia sync web 3fc8f0a2-...     these load balancers alone, and no ports
  fairlead octavia sync --delete-ports       and delete ports whose load balancer Octavia does not have
"""
EPILOG = """What differs may be a request on its way, so it has to last for `patience` seconds ([fairlead] in
octavia.conf) before it counts. Run it as a user who may read octavia.conf, where octavia-driver-agent
runs. Exit codes: 0 nothing differs any more, 1 failed, or something cannot be put right, 2 wrong usage,
3 something differs (--dry-run)."""


class OctaviaCommandError(Exception):
    """The command failed; the message gives the reason."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="fairlead octavia", description="For operators of an Octavia that has Fairlead as a provider."
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    _add_sync(commands)
    add_configuration_files(add_adopt(commands, _open_door))
    arguments = parser.parse_args(words)
    try:
        code: int = arguments.run(arguments)
    except (OctaviaCommandError, ServerError) as error:
        print_error(f"fairlead octavia: {error}")
        return FAILED
    except KeyboardInterrupt:
        return FAILED
    return code


def _add_sync(commands: Any) -> None:
    sync = commands.add_parser(
        "sync",
        help="compare Octavia's load balancers with Fairlead's, and put right what differs",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    sync.add_argument("balancers", metavar="LB", nargs="*", help="name or id in Octavia; all without any")
    sync.add_argument("--dry-run", action="store_true", help="only say what differs")
    sync.add_argument("--json", action="store_true", help="for programs")
    sync.add_argument(
        "--at-once", action="store_true", help="while Octavia's API is stopped: no request can be on its way"
    )
    sync.add_argument(
        "--delete-old",
        action="store_true",
        help="delete what Octavia does not know though it is older than an hour: its database is no old copy",
    )
    sync.add_argument(
        "--delete-ports",
        action="store_true",
        help="delete ports in Neutron that Octavia made for VIPs of load balancers that it does not have",
    )
    add_configuration_files(sync)
    sync.set_defaults(run=_sync)


def add_configuration_files(command: Any) -> None:
    """Add the option for every command that needs Octavia's database."""
    command.add_argument(
        "--config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="octavia.conf, if it is not where Octavia looks for it; repeatable",
    )


def read_octavia(arguments: argparse.Namespace) -> Any:
    """Read Octavia's configuration and return the section [fairlead]. Raises Failure."""
    try:
        from octavia.common import config
        from oslo_config import cfg
    except ModuleNotFoundError as error:
        raise OctaviaCommandError(f"there is no {error.name} here: this runs in Octavia's environment") from None
    from fairlead.octavia_plugin.options import read

    files = [word for file in arguments.config_file for word in ("--config-file", file)]
    try:
        config.init(files)
        section = read(cfg.CONF)
        cfg.CONF.fairlead.servers  # noqa: B018 - reading validates it
    except cfg.Error as error:
        raise OctaviaCommandError(str(error)) from None
    return section


def _open_door(arguments: argparse.Namespace) -> PluginApi:
    """Create the API client. Raises Failure."""
    section = read_octavia(arguments)
    from fairlead.octavia_plugin.options import make_plugin_api

    return make_plugin_api(section)


def _sync(arguments: argparse.Namespace) -> int:
    """Run `sync` and return the exit code. Raises Failure."""
    if arguments.delete_ports and arguments.balancers:
        raise OctaviaCommandError("--delete-ports is about all ports that Octavia has left: name no load balancer")
    section = read_octavia(arguments)
    from fairlead.octavia_plugin import sync
    from fairlead.octavia_plugin.agent import AgentSettings
    from fairlead.octavia_plugin.findings import Finding, FindingType, sentence

    heard = list[Finding]()

    def hear(finding: Finding) -> None:
        if finding in heard:  # found again, because a dry run repairs nothing
            return
        heard.append(finding)
        if not arguments.json:
            print_lines(sentence(finding))

    doubt = 0.0 if arguments.at_once else float(section.patience)
    conduct = AgentSettings(
        settle_seconds=doubt, on_finding=hear, is_dry=arguments.dry_run, deletes_old=arguments.delete_old
    )
    try:
        looked = sync.sync(section, arguments.balancers, conduct, deletes_ports=arguments.delete_ports)
    except sync.SyncFailed as error:
        raise OctaviaCommandError(str(error)) from None
    left = [
        each for each in heard if each.what in (FindingType.REFUSED, FindingType.OLD_UNKNOWN, FindingType.KEPT_ORPHAN)
    ]
    if arguments.json:
        records = [each.record for each in heard]
        print_json({"load_balancers": looked, "dry_run": arguments.dry_run, "differences": records})
    else:
        print_lines(_summary(looked, len(heard), len(left), is_dry=arguments.dry_run))
    if heard and arguments.dry_run:
        return DIFFERENT
    return FAILED if left else 0


def _summary(looked: int, differ: int, left: int, *, is_dry: bool) -> str:
    seen = f"{looked} load balancer{'' if looked == 1 else 's'} looked at: "
    if not differ:
        return f"{seen}nothing differs"
    if is_dry:
        return f"{seen}{differ} found, nothing done"
    return f"{seen}{differ} found, {left} not put right" if left else f"{seen}{differ} found and put right"
