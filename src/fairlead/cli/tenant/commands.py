"""Commands `fairlead pool`, `fairlead listener` and `fairlead local-ip`.

Results go to standard output, errors to standard error. Exit codes: 0 success, 1 rejected or no answer, 2 usage error.
"""

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any

from fairlead.cli.tenant import resources
from fairlead.cli.tenant.clouds import BadCloud, find_cloud
from fairlead.cli.tenant.resources import LISTENER, LOCAL_IP, POOL, ResourceType
from fairlead.http.server_client import ServerError
from fairlead.runtime.terminal import print_error, print_json, print_lines

LOCALITIES = ("none", "chassis", "zone")
DOWN_MEMBERS = ("keep", "reset")
FALLBACKS = ("forward", "drop", "reject")
MODES = ("translate", "passthrough")
NUMBERS = ("port", "delay", "timeout", "max-retries", "max-retries-down")
MONITOR = ("type", *NUMBERS)
"""Keys of a health monitor."""
WHERE = """The server is configured as for `openstack`: --os-cloud or OS_CLOUD names a cloud of clouds.yaml; or
OS_ENDPOINT=http://HOST:PORT, with OS_AUTH_TYPE=http_basic, OS_USERNAME, OS_PASSWORD and OS_CACERT
if it needs authentication; or OS_AUTH_URL, OS_USERNAME, OS_PASSWORD and OS_PROJECT_NAME with
Keystone."""
Act = Callable[[argparse.Namespace], Mapping[str, Any]]
"""Runs a command and returns the object to print."""


def add_parsers(commands: Any) -> None:
    _add_pool(commands)
    _add_listener(commands)
    _add_local_ip(commands)


def _add_pool(commands: Any) -> None:
    mine = _add_group(commands, "pool", "set attributes of pools that `openstack loadbalancer pool` lacks")
    change = _add(
        mine,
        "set",
        POOL,
        """Set the locality of a pool, or its action on connections of a member that goes down.

  fairlead pool set web-pool --locality chassis
  fairlead pool set web-pool --down-member reset
  fairlead pool set 3f0e7a64-0c0f-4a4b-8a34-5d1f6f1c4f0e --locality none --json
""",
        _pool_attributes,
    )
    change.add_argument(
        "--locality",
        choices=LOCALITIES,
        help="chassis: prefer members on the client's chassis, then members in its zone; zone: prefer members in the"
        " client's zone; none: use all members",
    )
    change.add_argument(
        "--down-member",
        choices=DOWN_MEMBERS,
        help="keep: leave connections of a down member alone; reset: reset them",
    )
    _add(mine, "show", POOL, "Show a pool.\n\n  fairlead pool show web-pool --json\n")


def _add_listener(commands: Any) -> None:
    mine = _add_group(commands, "listener", "set attributes of listeners that `openstack loadbalancer listener` lacks")
    change = _add(
        mine,
        "set",
        LISTENER,
        """Set the required first bytes of a listener's connections.

  fairlead listener set ssh --raw 0:5353482d    rejects connections that do not begin with SSH-
  fairlead listener set ssh --no-raw
""",
        _listener_attributes,
    )
    wanted = change.add_mutually_exclusive_group()
    wanted.add_argument(
        "--raw",
        type=parse_raw,
        metavar="LOCATION:VALUE",
        help="offset in bytes, and the required bytes in hexadecimal digits",
    )
    wanted.add_argument("--no-raw", action="store_true", help="accept connections with any first bytes")
    _add(mine, "show", LISTENER, "Show a listener.\n\n  fairlead listener show ssh --json\n")


def _add_local_ip(commands: Any) -> None:
    mine = _add_group(commands, "local-ip", "set attributes of Local IPs that `openstack local ip` lacks")
    change = _add(
        mine,
        "set",
        LOCAL_IP,
        """Set the fallback, translation or health monitor of a Local IP.

  fairlead local-ip set cache --fallback reject
  fairlead local-ip set cache --health-monitor type=tcp,port=80,delay=5,timeout=3,max-retries=3
  fairlead local-ip set cache --no-health-monitor --ip-mode translate
""",
        _local_ip_attributes,
    )
    change.add_argument(
        "--fallback",
        choices=FALLBACKS,
        help="action for clients without a replica on their chassis: forward to the port that has the address, drop, or"
        " reject",
    )
    change.add_argument(
        "--ip-mode",
        choices=MODES,
        help="translate: packets are sent to the replica's own address; passthrough: to the Local IP's address, which"
        " each replica must have configured",
    )
    monitors = change.add_mutually_exclusive_group()
    monitors.add_argument(
        "--health-monitor",
        type=parse_monitor,
        metavar="KEY=VALUE,...",
        help=f"probe the replicas: {', '.join(MONITOR)}; type is tcp or udp-connect, times are in seconds",
    )
    monitors.add_argument(
        "--no-health-monitor", action="store_true", help="end the probes; all replicas count as online"
    )
    _add(
        mine,
        "show",
        LOCAL_IP,
        "Show a Local IP, with the chassis and status of each replica.\n\n  fairlead local-ip show cache\n",
    )


def _add_group(commands: Any, name: str, summary: str) -> Any:
    group = commands.add_parser(name, help=summary, epilog=WHERE)
    return group.add_subparsers(metavar="COMMAND", required=True)


def _add(
    mine: Any,
    name: str,
    sort: ResourceType,
    description: str,
    attributes: Callable[[argparse.Namespace], Mapping[str, Any]] | None = None,
) -> argparse.ArgumentParser:
    """Add a command that changes `attributes`; without them it shows the object."""
    parser: argparse.ArgumentParser = mine.add_parser(
        name,
        help=description.partition("\n")[0],
        description=description,
        epilog=WHERE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("thing", metavar=sort.title.upper().replace(" ", "_"), help="id or name")
    parser.add_argument("--os-cloud", default="", metavar="CLOUD", help="name of a cloud in clouds.yaml")
    parser.add_argument("--json", action="store_true", help="print all attributes as JSON")

    def act(arguments: argparse.Namespace) -> Mapping[str, Any]:
        asked = attributes(arguments) if attributes is not None else None
        if asked is not None and not asked:
            parser.error("no option to set; see --help")
        door = find_cloud(arguments.os_cloud, os.environ).api_client(sort.service)
        if asked is None:
            return resources.show(door, sort, arguments.thing)
        return resources.change(door, sort, arguments.thing, asked)

    parser.set_defaults(run=lambda arguments: _run(arguments, sort, act))
    return parser


def _run(arguments: argparse.Namespace, sort: ResourceType, act: Act) -> int:
    try:
        thing = act(arguments)
    except (BadCloud, ServerError) as error:
        print_error(f"fairlead: {error}")
        return 2 if isinstance(error, BadCloud) else 1
    if arguments.json:
        print_json(thing, indent=2)
    else:
        print_lines(*resources.render(sort, thing))
    return 0


def _pool_attributes(arguments: argparse.Namespace) -> Mapping[str, Any]:
    said = {"locality": arguments.locality, "down_member": arguments.down_member}
    return {name: value.upper() for name, value in said.items() if value is not None}


def _listener_attributes(arguments: argparse.Namespace) -> Mapping[str, Any]:
    if arguments.no_raw:
        return {"raw": None}
    return {} if arguments.raw is None else {"raw": arguments.raw}


def _local_ip_attributes(arguments: argparse.Namespace) -> Mapping[str, Any]:
    said = {"fallback": arguments.fallback, "ip_mode": arguments.ip_mode, "health_monitor": arguments.health_monitor}
    found = {name: value for name, value in said.items() if value is not None}
    return {**found, "health_monitor": None} if arguments.no_health_monitor else found


def parse_raw(text: str) -> Mapping[str, Any]:
    """Parse OFFSET:HEX to the API's form, e.g. 0:5353482d. Raises ArgumentTypeError; the server checks the bytes."""
    location, colon, value = text.partition(":")
    if not (location.isascii() and location.isdecimal() and colon and value):
        raise argparse.ArgumentTypeError(
            f"expected LOCATION:VALUE, such as 0:5353482d for SSH- at the beginning, got '{text}'"
        )
    return {"location": int(location), "value": value}


def parse_monitor(text: str) -> Mapping[str, Any]:
    """Parse KEY=VALUE,... to the API's form. Raises ArgumentTypeError; the server checks for missing keys."""
    found: dict[str, Any] = {}
    for word in text.split(","):
        key, equals, value = word.partition("=")
        if key not in MONITOR or not equals:
            raise argparse.ArgumentTypeError(
                f"expected KEY=VALUE with one of the keys {', '.join(MONITOR)}, got '{word}'"
            )
        name = key.replace("-", "_")
        if name in found:
            raise argparse.ArgumentTypeError(f"{key} is given twice")
        try:
            found[name] = int(value) if key in NUMBERS else value.upper()
        except ValueError:
            raise argparse.ArgumentTypeError(f"{key}: expected an integer, got '{value}'") from None
    return found
