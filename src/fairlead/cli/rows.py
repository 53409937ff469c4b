"""`fairlead plan` and `fairlead show`: print desired, actual and changed rows of a dataplane, as text or JSON."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from fairlead.runtime.terminal import print_error, print_json, print_lines

SendRequest = Callable[[argparse.Namespace, str, str, object], Any]
"""Send a request (method, path, body) and return the decoded answer. Exits with the server's error message."""
DIFFERENT = 3
SIGNS = {"create": "+", "delete": "-"}


def add_parsers(commands: Any, add_server_address: Callable[[Any], None], ask: SendRequest) -> None:
    differs = "Exit code 3: OVN differs from the desired rows"
    plan = commands.add_parser("plan", help="print pending changes of OVN; writes nothing", epilog=f"{differs}.")
    plan.add_argument(
        "--host",
        metavar="NAME",
        help="print all desired rows of this plain host instead; on the host, `fairlead agent --plan` compares them",
    )
    show = commands.add_parser(
        "show",
        help="compare the rows of one object with the rows in OVN, and print its desired rows of plain hosts",
        epilog=f"{differs}, or a plain host did not apply the object.",
    )
    show.add_argument(
        "owner",
        help="name or id of a load balancer, Local IP, network, router or port, or kind/id as in loadbalancer/3fc8...",
    )
    show.add_argument("--host", metavar="NAME", help="print rows of this plain host only")
    for command, run in ((plan, _plan), (show, _show)):
        command.set_defaults(run=lambda arguments, run=run: run(arguments, ask))
        add_server_address(command)


def _plan(arguments: argparse.Namespace, ask: SendRequest) -> int:
    if arguments.host is not None:
        return _list(arguments, ask)
    plan = ask(arguments, "GET", "/operator/plan", None)["plan"]
    return print_plan(plan, as_json=arguments.json)


def print_plan(plan: Mapping[str, Any], *, as_json: bool) -> int:
    """Print the changes by owner, and return the exit code."""
    if as_json:
        print_json(plan, indent=2)
    else:
        plans = ((owner, each.get("dataplanes", {"its dataplane": each})) for owner, each in plan.items())
        for owner, dataplane, change in ((owner, *item) for owner, each in plans for item in each.items()):
            print_lines(f"{owner} in {dataplane}")
            for word, sign in SIGNS.items():
                print_lines(*(f"  {sign} {row}" for row in change[word]))
            print_lines(*(line for before, after in change["update"] for line in (f"  ~ {before}", f"  > {after}")))
        print_error(f"{len(plan)} owners differ" if plan else "nothing to do")
    return DIFFERENT if plan else 0


def _list(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "GET", f"/operator/chassis/{quote(arguments.host, safe='')}/rows", None)["dataplanes"]
    if arguments.json:
        print_json(found, indent=2)
        return 0
    for dataplane, owners in found.items():
        for owner, rows in owners.items():
            print_lines(f"{owner} in {dataplane} on {arguments.host}")
            print_lines(*(f"    {row}" for row in rows.values()))
    return 0


def _show(arguments: argparse.Namespace, ask: SendRequest) -> int:
    query = f"?{urlencode({'chassis': arguments.host})}" if arguments.host is not None else ""
    shown = ask(arguments, "GET", f"/operator/owners/{quote(arguments.owner)}{query}", None)
    dataplanes = shown.get("dataplanes", {})
    failed = any(node["error"] for each in dataplanes.values() for node in each.get("nodes", {}).values())
    code = DIFFERENT if failed or shown["desired"] != shown["actual"] else 0
    if arguments.json:
        print_json(shown, indent=2)
        return code
    owner = f"{shown['owner']} '{shown['name']}'" if shown["name"] else shown["owner"]
    print_lines(f"{owner}  {shown['status']}  generation {shown['generation']}, applied {shown['applied']}")
    if shown["error"]:
        print_lines(f"  {shown['error']}")
    for member, why in shown["down"].items():
        print_lines(f"  down: member {member}: {why}")
    for member, why in shown.get("unknown", {}).items():  # absent in answers of older servers
        print_lines(f"  unknown: member {member}: {why}")
    for name, dataplane in dataplanes.items():
        _print_dataplane(name, dataplane)
    return code


def _print_dataplane(name: str, dataplane: Any) -> None:
    for chassis, node in dataplane.get("nodes", {}).items():
        life = "" if node["agent"] == "heard" else ", no agent" if node["agent"] == "none" else ", agent stale"
        print_lines(f"  {name} on {chassis}{life}{_why(node)}")
        print_lines(*(f"    {row}" for row in node["rows"].values()))
    if left := dataplane.get("left_out", 0):
        print_lines(f"  {name} on {left} more: --host NAME")
    if "applied" not in dataplane:
        return
    print_lines(f"  {name}: applied {dataplane['applied']}{_why(dataplane)}")
    desired, actual = dataplane["desired"], dataplane["actual"]
    for key in sorted({*desired, *actual}):
        if desired.get(key) == actual.get(key):
            print_lines(f"    {desired[key]}")
            continue
        signed = (("+", desired), ("-", actual))
        print_lines(*(f"  {sign} {rows[key]}" for sign, rows in signed if key in rows))


def _why(arrived: Any) -> str:
    return f", {arrived['error']}" if arrived["error"] else ""
