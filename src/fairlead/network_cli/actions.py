"""What each command does: read the load balancer, make another of it, and write it whole with the tag of what was read.

So of two callers who edit at once one is told, and nothing of the other's is lost.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote

from fairlead.network_cli import document, editor, edits, tables
from fairlead.network_cli.connection import Answer, Connection
from fairlead.network_cli.document import Backend, Description, LoadBalancer, Port
from fairlead.network_cli.failure import Failure
from fairlead.network_cli.words import Typed
from fairlead.terminal import say, say_text

EXTENSION = "network_load_balancer"
UNCHOSEN = {"ipv4": "0.0.0.0", "ipv6": "::"}  # noqa: S104 - the API's word for "whichever is free"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One command as it was typed, on its way to a server."""

    connection: Connection
    network: str
    typed: Typed
    words: tuple[str, ...]
    """Those behind the network, and behind the listen address if the command has one."""
    address: str = ""

    @property
    def base(self) -> str:
        return f"/1.0/networks/{self.network}/load-balancers"

    @property
    def path(self) -> str:
        return f"{self.base}/{self.address}"

    def word(self, place: int) -> str | None:
        return self.words[place] if len(self.words) > place else None

    def server(self) -> Any:
        """What it says of itself. Raises Failure when it has no load balancers."""
        said = self.connection.ask("GET", "/1.0").metadata or {}
        if EXTENSION not in said.get("api_extensions", ()):
            raise Failure(f'The server is missing the required "{EXTENSION}" API extension')
        return said

    def ask(self, method: str, path: str, body: object = None, *, etag: str = "", **query: str) -> Answer:
        """With the cluster member that was named, if one was; Fairlead has none, other servers may."""
        target = self.typed.text("target")
        asked = {**query, **({"target": target} if target else {})}
        return self.connection.ask(method, path, body, etag=etag, query=asked)

    def read(self) -> tuple[LoadBalancer, str]:
        """It, and the tag of this very version."""
        self.server()
        answer = self.ask("GET", self.path)
        return document.of_wire(answer.metadata), answer.etag

    def write(self, new: Description, etag: str = "") -> None:
        self.ask("PUT", self.path, document.to_wire(new), etag=etag)

    def change(self, edit: Callable[[Description], Description]) -> None:
        old, etag = self.read()
        self.write(edit(edits.description_of(old)), etag)

    def tell(self, what: str) -> None:
        if not self.typed.has("quiet"):
            say(what)


def show_list(call: Call) -> None:
    form, columns = call.typed.text("format", "table"), call.typed.text("columns", tables.DEFAULT_COLUMNS)
    tables.parse_format(form)
    tables.parse_columns(columns)
    clustered = (call.server().get("environment") or {}).get("server_clustered", False)
    if clustered and columns == tables.DEFAULT_COLUMNS:
        columns += "L"
    listed = call.ask("GET", call.base, recursion="1").metadata or ()
    say_text(tables.render([document.of_wire(each) for each in listed], form, columns))


def show(call: Call) -> None:
    say_text(document.render_yaml(document.to_wire(call.read()[0])))


def create(call: Call) -> None:
    """What is piped in is the whole description; words and `--description` come on top of it."""
    asked, pairs = Description(), edits.parse_new_pairs(call.words)
    if not sys.stdin.isatty():
        asked = document.parse_yaml(sys.stdin.read())
    asked = replace(asked, config={**asked.config, **pairs})
    if "description" in call.typed.given:
        asked = replace(asked, description=call.typed.text("description"))
    call.server()
    body = {**document.to_wire(asked), "listen_address": call.address}
    location = call.ask("POST", call.base, body).location
    made = unquote(location.partition("?")[0].rpartition("/")[2]) or call.address
    call.tell(f"Network load balancer {made} created")


def delete(call: Call) -> None:
    call.server()
    call.ask("DELETE", call.path)
    call.tell(f"Network load balancer {call.address} deleted")


def get(call: Call) -> None:
    balancer, name = call.read()[0], call.words[0]
    if call.typed.has("property"):
        say_text(edits.property_of(balancer, call.network, name) + "\n")
    elif name in balancer.config:
        say_text(balancer.config[name] + "\n")


def set_pairs(call: Call) -> None:
    pairs = edits.parse_pairs(call.words)
    edit = edits.set_properties if call.typed.has("property") else edits.set_config
    call.change(lambda old: edit(old, pairs))


def unset(call: Call) -> None:
    (name,) = call.words
    if call.typed.has("property"):
        call.change(lambda old: edits.unset_property(old, name))
    else:
        call.change(lambda old: edits.set_config(old, {name: ""}))


def edit(call: Call) -> None:
    """Piped in, it is written as it is; in an editor only if nobody else changed it meanwhile."""
    if not sys.stdin.isatty():
        new = document.parse_yaml(sys.stdin.read(), document.SHOWN_ONLY)
        call.server()
        call.write(new)
        return
    old, etag = call.read()
    text = editor.HELP + document.render_yaml(document.to_wire(old))
    editor.edit(text, lambda written: call.write(document.parse_yaml(written, document.SHOWN_ONLY), etag))


def info(call: Call) -> None:
    call.server()
    state = call.ask("GET", f"{call.path}/state").metadata or {}
    health = state.get("backend_health")
    if health is None:
        raise Failure("No load-balancer health information available")
    say("Backend health:")
    for name, backend in health.items():
        say(f"  {name} ({backend.get('address', '')}):")
        for port in backend.get("ports") or ():
            say(f"    - {port.get('protocol')}/{port.get('port')}: {port.get('status')}")
        say("")


def add_backend(call: Call) -> None:
    backend = Backend(
        name=call.words[0],
        target_address=call.words[1],
        target_port=call.word(2) or "",
        description=call.typed.text("description"),
    )
    call.change(lambda old: edits.add_backend(old, backend))


def remove_backend(call: Call) -> None:
    call.change(lambda old: edits.remove_backend(old, call.words[0]))


def add_port(call: Call) -> None:
    port = Port(
        protocol=call.words[0],
        listen_port=call.words[1],
        target_backend=tuple(call.words[2].split(",")),
        description=call.typed.text("description"),
    )
    call.change(lambda old: edits.add_port(old, port))


def remove_port(call: Call) -> None:
    force = call.typed.has("force")
    call.change(lambda old: edits.remove_ports(old, call.word(0), call.word(1), force=force))
