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
        help="manage certificates and tokens of clients of the LXD and Incus API",
        epilog="Clients connect to the address of option lxd.listen. A token is shown once and adds one certificate.",
    )
    mine = lxd.add_subparsers(metavar="COMMAND", required=True)
    token = mine.add_parser("token", help="issue a token with which one client adds its certificate")
    token.add_argument("name", metavar="NAME", help="name of the client's certificate")
    token.add_argument(
        "--restricted",
        action="store_true",
        help="restrict the client to the projects of --project; without --project, to no project",
    )
    token.add_argument(
        "--project", action="append", default=[], metavar="P", help="restrict the client to this project; repeatable"
    )
    mine.add_parser("tokens", help="list unused tokens, without their secrets")
    revoke = mine.add_parser("revoke", help="revoke a token")
    revoke.add_argument("name", metavar="NAME", help="name or id of the token")
    mine.add_parser("certificates", help="list certificates of trusted clients")
    forget = mine.add_parser("forget", help="remove a certificate from the trusted ones")
    forget.add_argument("name", metavar="NAME", help="name, fingerprint, or first characters of the fingerprint")
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
        which = f"{len(found)} certificates have the name '{name}'; give one of the fingerprints {', '.join(found)}"
        print_error(f"fairlead: {which}")
        return 1
    fingerprint = found[0] if found else name
    ask(arguments, "DELETE", f"{CERTIFICATES}/{quote(fingerprint, safe='')}", None)
    if arguments.json:
        print_json({"forgotten": fingerprint})
    return 0


def _rights(grant: Mapping[str, Any]) -> str:
    return f"restricted to {', '.join(grant['projects']) or 'no project'}" if grant["restricted"] else "administrator"
