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
DESCRIPTION = """Compare load balancers of the provider fairlead in Octavia's database with those in Fairlead,
and repair differences: statuses are updated in Octavia, attributes in Fairlead. octavia-driver-agent
does the same continuously. The command also lists ports that Octavia left in Neutron: Octavia creates
the port of a VIP before it calls the provider, and does not delete the port if the provider rejects the
load balancer or is unavailable.

  fairlead octavia sync --dry-run            list differences; writes nothing to either side
  fairlead octavia sync                      list and repair differences
  fairlead octavia sync web 3fc8f0a2-...     only these load balancers, and no ports
  fairlead octavia sync --delete-ports       also delete ports whose load balancer is not in Octavia
"""
EPILOG = """A difference may be a request in flight, so it counts after `patience` seconds ([fairlead] in
octavia.conf). Run the command as a user with read access to octavia.conf, where octavia-driver-agent
runs. Exit codes: 0 no difference is left, 1 failed, or a difference cannot be repaired, 2 wrong usage,
3 differences found (--dry-run)."""


class OctaviaCommandError(Exception):
    """The command failed; the message gives the reason."""


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="fairlead octavia", description="Commands for operators of an Octavia with the provider Fairlead."
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
        help="compare Octavia's load balancers with Fairlead's, and repair differences",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=DESCRIPTION,
        epilog=EPILOG,
    )
    sync.add_argument("balancers", metavar="LB", nargs="*", help="name or id in Octavia; default: all")
    sync.add_argument("--dry-run", action="store_true", help="list differences; writes nothing")
    sync.add_argument("--json", action="store_true", help="print JSON")
    sync.add_argument(
        "--at-once", action="store_true", help="do not wait for requests in flight; only while Octavia's API is stopped"
    )
    sync.add_argument(
        "--delete-old",
        action="store_true",
        help="delete objects that are not in Octavia even if they are older than an hour; only if Octavia's database is"
        " not an outdated copy",
    )
    sync.add_argument(
        "--delete-ports",
        action="store_true",
        help="delete ports in Neutron that Octavia created for VIPs of load balancers that are not in Octavia",
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
        help="path of octavia.conf, if it is not one of Octavia's default paths; repeatable",
    )


def read_octavia(arguments: argparse.Namespace) -> Any:
    """Read Octavia's configuration and return the section [fairlead]. Raises Failure."""
    try:
        from octavia.common import config
        from oslo_config import cfg
    except ModuleNotFoundError as error:
        raise OctaviaCommandError(
            f"Python module {error.name} not found; run the command in Octavia's Python environment"
        ) from None
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
        raise OctaviaCommandError("--delete-ports applies to all load balancers; give no load balancer")
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
    seen = f"{looked} load balancer{'' if looked == 1 else 's'} compared: "
    if not differ:
        return f"{seen}no differences"
    if is_dry:
        return f"{seen}{differ} found, none repaired (dry run)"
    return f"{seen}{differ} found, {left} not repaired" if left else f"{seen}{differ} found and repaired"
