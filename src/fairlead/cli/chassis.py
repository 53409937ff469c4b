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
COLUMNS = ("chassis", "host", "ports", "agent", "version", "alive since", "last heard", "identity", "not applied")


def add_parser(commands: Any, add_server_address: Callable[[Any], None], ask: SendRequest) -> None:
    chassis = commands.add_parser(
        "chassis",
        help="the nodes, their agents, and which agents may come in",
        epilog="`list` and `show` answer 3 when an agent is silent or starved, its certificate has expired, a node is "
        "dead, something could not be applied, or a proxy does not serve all of its listeners.",
    )
    mine = chassis.add_subparsers(metavar="COMMAND", required=True)
    mine.add_parser("list", help="every node")
    _add_hosts(mine, add_server_address, ask)
    for name, meaning in (
        ("show", "one node, with what it could not apply"),
        ("enroll", "a token by which its agent gets a certificate, once: `fairlead agent --enroll FILE` on the node"),
        ("revoke", "let its agent in no more, at once"),
        ("drain", "let members behind this plain host get nothing new as long as others serve: before maintenance"),
        ("undrain", "let them get their share again"),
    ):
        mine.add_parser(name, help=meaning).add_argument(
            "name", metavar="NAME", help="of the chassis: in OVN, or of a plain host"
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
    hosts = mine.add_parser("host", help="plain Linux hosts that serve announced VIPs: declared, shown, removed")
    each = hosts.add_subparsers(metavar="COMMAND", required=True)
    each.add_parser("list", help="every host that is declared")
    for name, meaning in (
        ("show", "one of them"),
        ("set", "declare a host, or change one: what is not said of it stays as it is"),
        ("remove", "declare it a host no more; while load balancers lead to members behind it, it stays"),
    ):
        each.add_parser(name, help=meaning).add_argument("name", metavar="NAME", help="that of its agent's chassis")
    told = each.choices["set"]
    told.add_argument(
        "--address",
        action="append",
        metavar="IP",
        help="where other hosts lead packets for members behind it: one of IPv4, one of IPv6, or both",
    )
    behind = told.add_mutually_exclusive_group()
    behind.add_argument(
        "--prefix",
        action="append",
        type=_prefix,
        metavar="CIDR[=PROJECT]",
        help="what is behind it: members are in such prefixes only; of this project alone, or of everybody",
    )
    behind.add_argument("--no-prefix", action="store_true", help="nothing is behind it: it has clients only")
    told.add_argument("--number", type=int, help="by which other hosts call it: a free one unless said")
    for name, act in (("list", _list_hosts), ("show", _show_host), ("set", _set_host), ("remove", _remove_host)):
        add_server_address(each.choices[name])
        each.choices[name].set_defaults(run=lambda arguments, act=act: act(arguments, ask))


def _prefix(text: str) -> Mapping[str, str | None]:
    cidr, says, project = text.partition("=")
    if says and not project:
        raise argparse.ArgumentTypeError(f"'{text}' is not CIDR=PROJECT: the project is missing")
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
        print_lines(f"{title:12} {text}")
    agent = found["agent"] or {"unapplied": []}
    if found["covered_for"]:
        print_lines(f"{'looks after':12} {found['covered_for']} places of silent nodes, or of none")
    for each in found["proxies"]:
        whose = f"of {each['at']} for project {each['project_id']}"
        print_lines(f"{'proxy':12} {whose}: serves {each['serving']} of {each['wanted']} listeners")
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
        print_lines(f"{arguments.name} is let in no more")
    return 0


def _drain(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "PUT", f"{_host_path(arguments)}/draining", None)
    if arguments.json:
        print_json(found, indent=2)
    else:
        print_lines(f"{arguments.name} is drained: others get what is new")
    return 0


def _undrain(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "DELETE", f"{_host_path(arguments)}/draining", None)
    if arguments.json:
        print_json(found, indent=2)
    else:
        print_lines(f"{arguments.name} gets its share again")
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
        print_lines(f"{arguments.name} is no host any more")
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
    silent = agent is not None and (_state(agent) != "heard" or bool(agent["unapplied"]))
    behind = any(each["serving"] < each["wanted"] for each in row["proxies"])
    expired = row["enrolled"] is not None and row["enrolled"]["expired"]
    return silent or behind or expired or (row["in_ovn"] and not row["alive"])


def _state(agent: Any) -> str:
    """Return the state of an agent. `starved`: it gets too little CPU time for its probes; older servers do not
    report it."""
    if agent is None:
        return "none"
    return "silent" if not agent["heard"] else "starved" if agent.get("starved") else "heard"


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
