"""`fairlead chassis ...`: the nodes that there are, and which of them are known, for operators."""

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

Ask = Callable[[argparse.Namespace, str, str, object], Any]
"""Ask the server: method, path and body; its answer. Ends the command with the server's own sentence."""
UNWELL = 3
PATH = "/operator/chassis"
COLUMNS = ("chassis", "host", "ports", "agent", "version", "alive since", "last heard", "identity", "not applied")


def add_parser(commands: Any, add_server_address: Callable[[Any], None], ask: Ask) -> None:
    chassis = commands.add_parser(
        "chassis",
        help="the nodes, their agents, and which agents may come in",
        epilog="`list` and `show` answer 3 when an agent is silent, a node is dead, something could not be applied, or "
        "a proxy does not serve all of its listeners.",
    )
    mine = chassis.add_subparsers(metavar="COMMAND", required=True)
    mine.add_parser("list", help="every node")
    for name, meaning in (
        ("show", "one node, with what it could not apply"),
        ("enroll", "a token by which its agent gets a certificate, once: `fairlead agent --enroll FILE` on the node"),
        ("revoke", "let its agent in no more, at once"),
    ):
        mine.add_parser(name, help=meaning).add_argument("name", metavar="NAME", help="of the chassis, in OVN")
    acts: Mapping[str, Callable[[argparse.Namespace, Ask], int]] = {
        "list": _list,
        "show": _show,
        "enroll": _enroll,
        "revoke": _revoke,
    }
    for name, act in acts.items():
        add_server_address(mine.choices[name])
        mine.choices[name].set_defaults(run=lambda arguments, act=act: act(arguments, ask))


def _path(arguments: argparse.Namespace) -> str:
    return f"{PATH}/{quote(arguments.name, safe='')}"


def _list(arguments: argparse.Namespace, ask: Ask) -> int:
    found = ask(arguments, "GET", PATH, None)["chassis"]
    if arguments.json:
        print(json.dumps(found, indent=2))
    elif found:
        print(_table([COLUMNS, *map(_columns, found)]))
    return UNWELL if any(map(_is_unwell, found)) else 0


def _show(arguments: argparse.Namespace, ask: Ask) -> int:
    found = ask(arguments, "GET", _path(arguments), None)
    if arguments.json:
        print(json.dumps(found, indent=2))
        return UNWELL if _is_unwell(found) else 0
    for title, text in zip(COLUMNS, _columns(found), strict=True):
        print(f"{title:12} {text}")
    agent = found["agent"] or {"unapplied": []}
    if found["covered_for"]:
        print(f"{'looks after':12} {found['covered_for']} places of silent nodes, or of none")
    for each in found["proxies"]:
        whose = f"of {each['at']} for project {each['project_id']}"
        print(f"{'proxy':12} {whose}: serves {each['serving']} of {each['wanted']} listeners")
    for each in agent["unapplied"]:
        print(f"  {each['dataplane']} {each['owner']}: {each['error']}")
    return UNWELL if _is_unwell(found) else 0


def _enroll(arguments: argparse.Namespace, ask: Ask) -> int:
    told = ask(arguments, "POST", f"{_path(arguments)}/token", None)
    print(json.dumps(told) if arguments.json else told["token"])
    return 0


def _revoke(arguments: argparse.Namespace, ask: Ask) -> int:
    ask(arguments, "DELETE", f"{_path(arguments)}/identity", None)
    print(json.dumps({"revoked": arguments.name}) if arguments.json else f"{arguments.name} is let in no more")
    return 0


def _is_unwell(row: Any) -> bool:
    agent = row["agent"]
    silent = agent is not None and (not agent["heard"] or bool(agent["unapplied"]))
    behind = any(each["serving"] < each["wanted"] for each in row["proxies"])
    return silent or behind or (row["in_ovn"] and not row["alive"])


def _columns(row: Any) -> tuple[str, ...]:
    agent = row["agent"]
    state = "none" if agent is None else "heard" if agent["heard"] else "silent"
    known = f"until {row['enrolled']['until']}" if row["enrolled"] else "none"
    if row["token_until"]:
        known = f"token until {row['token_until']}"
    dead = "" if row["alive"] else " (dead)" if row["in_ovn"] else " (not in OVN)"
    return (
        row["name"],
        row["host"],
        f"{row['ports']}{dead}",
        state,
        agent["version"] if agent else "",
        agent["since"] if agent else "",
        (agent["last_heard"] or "") if agent else "",
        known,
        str(len(agent["unapplied"])) if agent else "",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(f"{text:{width}}" for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(lines)
