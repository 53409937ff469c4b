"""`fairlead chassis ...`: nodes, their agents and identities, for operators."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from fairlead.runtime.terminal import print_json, print_lines, table

SendRequest = Callable[[argparse.Namespace, str, str, object], Any]
"""Send a request (method, path, body) and return the decoded answer. Exits with the server's error message."""
EXIT_UNHEALTHY = 3
PATH = "/operator/chassis"
HOSTS_PATH = "/operator/hosts"
HOST_COLUMNS = ("host", "number", "addresses", "prefixes", "state")
COLUMNS = ("chassis", "host", "ports", "agent", "version", "alive since", "last heartbeat", "identity", "not applied")


def add_parser(commands: Any, add_server_address: Callable[[Any], None], ask: SendRequest) -> None:
    chassis = commands.add_parser(
        "chassis",
        help="list nodes and their agents, and enroll or revoke agents",
        epilog="Exit code 3 of `list` and `show`: an agent is stale or starved, its certificate has expired, a node is "
        "dead, an object is not applied, or a proxy does not serve all of its listeners.",
    )
    mine = chassis.add_subparsers(metavar="COMMAND", required=True)
    mine.add_parser("list", help="list all nodes")
    _add_hosts(mine, add_server_address, ask)
    for name, meaning in (
        ("show", "show one node, with the objects that it did not apply"),
        ("enroll", "print a single-use token with which `fairlead agent --enroll FILE` gets the node's certificate"),
        ("revoke", "revoke the agent's certificate and tokens, and close its connections"),
        ("drain", "send new connections to members on other hosts while any of them serves, before maintenance"),
        ("undrain", "end the draining of a plain host"),
    ):
        mine.add_parser(name, help=meaning).add_argument(
            "name", metavar="NAME", help="name of a chassis in OVN, or of a plain host"
        )
    acts: Mapping[str, Callable[[argparse.Namespace, SendRequest], int]] = {
        "list": _list,
        "show": _show,
        "enroll": _enroll,
        "revoke": _revoke,
        "drain": _drain,
        "undrain": _undrain,
    }
    for name, act in acts.items():
        add_server_address(mine.choices[name])
        mine.choices[name].set_defaults(run=lambda arguments, act=act: act(arguments, ask))


def _add_hosts(mine: Any, add_server_address: Callable[[Any], None], ask: SendRequest) -> None:
    hosts = mine.add_parser("host", help="declare, show and remove plain Linux hosts, which serve announced VIPs")
    each = hosts.add_subparsers(metavar="COMMAND", required=True)
    each.add_parser("list", help="list all declared hosts")
    for name, meaning in (
        ("show", "show one host"),
        ("set", "declare a host, or change one; attributes without an option keep their values"),
        ("remove", "remove a host; rejected while load balancers have members that it routes"),
    ):
        each.add_parser(name, help=meaning).add_argument(
            "name", metavar="NAME", help="name of the host: the chassis of its agent"
        )
    told = each.choices["set"]
    told.add_argument(
        "--address",
        action="append",
        metavar="IP",
        help="address to which other hosts forward packets for members of this host: one IPv4, one IPv6, or both",
    )
    behind = told.add_mutually_exclusive_group()
    behind.add_argument(
        "--prefix",
        action="append",
        type=_prefix,
        metavar="CIDR[=PROJECT]",
        help="prefix that the host routes; members must be in such a prefix. With PROJECT: for members of that project"
        " only",
    )
    behind.add_argument("--no-prefix", action="store_true", help="the host routes no members, only clients")
    told.add_argument("--number", type=int, help="unique number of the host, 1 to 4095; default: a free number")
    for name, act in (("list", _list_hosts), ("show", _show_host), ("set", _set_host), ("remove", _remove_host)):
        add_server_address(each.choices[name])
        each.choices[name].set_defaults(run=lambda arguments, act=act: act(arguments, ask))


def _prefix(text: str) -> Mapping[str, str | None]:
    cidr, says, project = text.partition("=")
    if says and not project:
        raise argparse.ArgumentTypeError(f"expected CIDR or CIDR=PROJECT, got '{text}': the project is missing")
    return {"cidr": cidr, "project_id": project or None}


def _path(arguments: argparse.Namespace) -> str:
    return f"{PATH}/{quote(arguments.name, safe='')}"


def _list(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "GET", PATH, None)["chassis"]
    if arguments.json:
        print_json(found, indent=2)
    elif found:
        print_lines(*table([COLUMNS, *map(_columns, found)]))
    return EXIT_UNHEALTHY if any(map(_is_unhealthy, found)) else 0


def _show(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "GET", _path(arguments), None)
    if arguments.json:
        print_json(found, indent=2)
        return EXIT_UNHEALTHY if _is_unhealthy(found) else 0
    for title, text in zip(COLUMNS, _columns(found), strict=True):
        print_lines(f"{title:14} {text}")
    agent = found["agent"] or {"unapplied": []}
    if found["covered_for"]:
        print_lines(f"{'probes for':14} {found['covered_for']} chassis without a responsive agent")
    for each in found["proxies"]:
        whose = f"on {each['at']} of project {each['project_id']}"
        print_lines(f"{'proxy':14} {whose}: serves {each['serving']} of {each['wanted']} listeners")
    for each in agent["unapplied"]:
        print_lines(f"  {each['dataplane']} {each['owner']}: {each['error']}")
    return EXIT_UNHEALTHY if _is_unhealthy(found) else 0


def _enroll(arguments: argparse.Namespace, ask: SendRequest) -> int:
    told = ask(arguments, "POST", f"{_path(arguments)}/token", None)
    if arguments.json:
        print_json(told)
    else:
        print_lines(told["token"])
    return 0


def _revoke(arguments: argparse.Namespace, ask: SendRequest) -> int:
    ask(arguments, "DELETE", f"{_path(arguments)}/identity", None)
    if arguments.json:
        print_json({"revoked": arguments.name})
    else:
        print_lines(f"{arguments.name}: certificate and tokens revoked")
    return 0


def _drain(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "PUT", f"{_host_path(arguments)}/draining", None)
    if arguments.json:
        print_json(found, indent=2)
    else:
        print_lines(f"{arguments.name}: draining; new connections go to members on other hosts")
    return 0


def _undrain(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "DELETE", f"{_host_path(arguments)}/draining", None)
    if arguments.json:
        print_json(found, indent=2)
    else:
        print_lines(f"{arguments.name}: draining ended")
    return 0


def _host_path(arguments: argparse.Namespace) -> str:
    return f"{HOSTS_PATH}/{quote(arguments.name, safe='')}"


def _list_hosts(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "GET", HOSTS_PATH, None)["hosts"]
    if arguments.json:
        print_json(found, indent=2)
    elif found:
        print_lines(*table([HOST_COLUMNS, *map(_host_columns, found)]))
    return 0


def _show_host(arguments: argparse.Namespace, ask: SendRequest) -> int:
    return _tell_host(arguments, ask(arguments, "GET", _host_path(arguments), None))


def _set_host(arguments: argparse.Namespace, ask: SendRequest) -> int:
    """Send only the given options."""
    said = {"number": arguments.number, "addresses": arguments.address, "prefixes": arguments.prefix}
    body: dict[str, object] = {name: value for name, value in said.items() if value is not None}
    if arguments.no_prefix:
        body["prefixes"] = []
    return _tell_host(arguments, ask(arguments, "PUT", _host_path(arguments), body))


def _remove_host(arguments: argparse.Namespace, ask: SendRequest) -> int:
    ask(arguments, "DELETE", _host_path(arguments), None)
    if arguments.json:
        print_json({"removed": arguments.name})
    else:
        print_lines(f"{arguments.name}: host removed")
    return 0


def _tell_host(arguments: argparse.Namespace, found: Any) -> int:
    if arguments.json:
        print_json(found, indent=2)
        return 0
    for title, text in zip(HOST_COLUMNS, _host_columns(found), strict=True):
        print_lines(f"{title:12} {text}")
    return 0


def _host_columns(row: Any) -> tuple[str, ...]:
    whose = (f"={each['project_id']}" if each["project_id"] else "" for each in row["prefixes"])
    prefixes = (f"{each['cidr']}{project}" for each, project in zip(row["prefixes"], whose, strict=True))
    drained = "drained" if row["draining"] else "serves"
    return row["name"], str(row["number"]), " ".join(row["addresses"]), " ".join(prefixes), drained


def _is_unhealthy(row: Any) -> bool:
    agent = row["agent"]
    is_stale = agent is not None and (_state(agent) != "connected" or bool(agent["unapplied"]))
    behind = any(each["serving"] < each["wanted"] for each in row["proxies"])
    expired = row["enrolled"] is not None and row["enrolled"]["expired"]
    return is_stale or behind or expired or (row["in_ovn"] and not row["alive"])


def _state(agent: Any) -> str:
    """Return the state of an agent. `starved`: it gets too little CPU time for its probes; older servers do not
    report it."""
    if agent is None:
        return "none"
    return "stale" if not agent["heard"] else "starved" if agent.get("starved") else "connected"


def _columns(row: Any) -> tuple[str, ...]:
    agent = row["agent"]
    known = "none"
    if enrolled := row["enrolled"]:
        known = f"{'expired' if enrolled['expired'] else 'until'} {enrolled['until']}"
    if row["token_until"]:
        known = f"token until {row['token_until']}"
    plain = " (plain host, drained)" if (row.get("declared") or {}).get("draining") else " (plain host)"
    absent = plain if row.get("declared") else " (not in OVN)"
    dead = "" if row["alive"] else " (dead)" if row["in_ovn"] else absent
    return (
        row["name"],
        row["host"],
        f"{row['ports']}{dead}",
        _state(agent),
        agent["version"] if agent else "",
        agent["since"] if agent else "",
        (agent["last_heard"] or "") if agent else "",
        known,
        str(len(agent["unapplied"])) if agent else "",
    )
