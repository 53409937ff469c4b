"""`fairlead lxd ...`: trusted clients of the LXD API, for operators.

`incus config trust` does the same for clients that have access to the socket or are trusted already.
"""

import argparse
import base64
import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from fairlead.runtime.terminal import print_error, print_json, print_lines

SendRequest = Callable[[argparse.Namespace, str, str, object], Any]
"""Send a request (method, path, body) and return the decoded answer. Exits with the server's error message."""
CERTIFICATES, OPERATIONS = "/1.0/certificates", "/1.0/operations"


def add_parser(commands: Any, add_server_address: Callable[[Any], None], ask: SendRequest) -> None:
    lxd = commands.add_parser(
        "lxd",
        help="who may come in by LXD's and Incus' API",
        epilog="Clients come in where lxd.listen says. A token is shown once, and is good for one certificate.",
    )
    mine = lxd.add_subparsers(metavar="COMMAND", required=True)
    token = mine.add_parser("token", help="issue a token, by which one client adds its certificate")
    token.add_argument("name", metavar="NAME", help="what the client's certificate will be called")
    token.add_argument("--restricted", action="store_true", help="to the projects that are named, even if none is")
    token.add_argument(
        "--project", action="append", default=[], metavar="P", help="restrict it to this one; repeatable"
    )
    mine.add_parser("tokens", help="those that nobody has used; not their secrets")
    revoke = mine.add_parser("revoke", help="take a token back")
    revoke.add_argument("name", metavar="NAME", help="its name, or its id")
    mine.add_parser("certificates", help="of clients that are trusted")
    forget = mine.add_parser("forget", help="trust a certificate no more")
    forget.add_argument("name", metavar="NAME", help="its name, or its fingerprint or the beginning of that")
    acts: Mapping[str, Callable[[argparse.Namespace, SendRequest], int]] = {
        "token": _token,
        "tokens": _tokens,
        "revoke": _revoke,
        "certificates": _certificates,
        "forget": _forget,
    }
    for name, act in acts.items():
        add_server_address(mine.choices[name])
        mine.choices[name].set_defaults(run=lambda arguments, act=act: act(arguments, ask))


def _token(arguments: argparse.Namespace, ask: SendRequest) -> int:
    restricted = arguments.restricted or bool(arguments.project)
    body = {"token": True, "type": "client", "name": arguments.name, "restricted": restricted}
    told = ask(arguments, "POST", CERTIFICATES, {**body, "projects": arguments.project})["metadata"]["metadata"]
    fields = {"secret": "secret", "fingerprint": "fingerprint", "addresses": "addresses", "expires_at": "expiresAt"}
    token = {"client_name": arguments.name, **{name: told[key] for name, key in fields.items()}}
    text = base64.b64encode(json.dumps(token, separators=(",", ":")).encode()).decode()
    if arguments.json:
        shown = {"name": arguments.name, "token": text, "expires_at": told["expiresAt"]}
        print_json({**shown, "addresses": told["addresses"], "fingerprint": told["fingerprint"]})
    else:
        print_lines(text)
    return 0


def _tokens(arguments: argparse.Namespace, ask: SendRequest) -> int:
    tokens = _unused(arguments, ask)
    if arguments.json:
        print_json(tokens, indent=2)
    for token in [] if arguments.json else tokens:
        print_lines(f"{token['id']}  {token['expires_at']}  {_rights(token)}  {token['name']}")
    return 0


def _unused(arguments: argparse.Namespace, ask: SendRequest) -> list[dict[str, Any]]:
    found = ask(arguments, "GET", f"{OPERATIONS}?recursion=1", None)["metadata"].get("running", [])
    return [
        {
            "id": each["id"],
            "name": each["metadata"]["request"]["name"],
            "expires_at": each["metadata"]["expiresAt"],
            "restricted": each["metadata"]["request"]["restricted"],
            "projects": each["metadata"]["request"]["projects"],
        }
        for each in found
    ]


def _revoke(arguments: argparse.Namespace, ask: SendRequest) -> int:
    """Revoke all tokens with this name."""
    found = [each["id"] for each in _unused(arguments, ask) if arguments.name in (each["name"], each["id"])]
    for each in found or [arguments.name]:
        ask(arguments, "DELETE", f"{OPERATIONS}/{quote(each, safe='')}", None)
    if arguments.json:
        print_json({"revoked": found})
    return 0


def _certificates(arguments: argparse.Namespace, ask: SendRequest) -> int:
    found = ask(arguments, "GET", f"{CERTIFICATES}?recursion=1", None)["metadata"]
    if arguments.json:
        print_json(found, indent=2)
    for each in [] if arguments.json else found:
        print_lines(f"{each['fingerprint']}  {_rights(each)}  {each['name']}")
    return 0


def _forget(arguments: argparse.Namespace, ask: SendRequest) -> int:
    """Remove the certificate with this name, or otherwise this fingerprint. Fails if several have the name."""
    name: str = arguments.name
    trusted = ask(arguments, "GET", f"{CERTIFICATES}?recursion=1", None)["metadata"]
    found = [each["fingerprint"] for each in trusted if each["name"] == name]
    if len(found) > 1:
        which = f"{len(found)} certificates are called '{name}'; name one by its fingerprint: {', '.join(found)}"
        print_error(f"fairlead: {which}")
        return 1
    fingerprint = found[0] if found else name
    ask(arguments, "DELETE", f"{CERTIFICATES}/{quote(fingerprint, safe='')}", None)
    if arguments.json:
        print_json({"forgotten": fingerprint})
    return 0


def _rights(grant: Mapping[str, Any]) -> str:
    return f"restricted to {', '.join(grant['projects']) or 'nothing'}" if grant["restricted"] else "administrator"
