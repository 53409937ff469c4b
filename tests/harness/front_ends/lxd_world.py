"""The LXD front end for tests, based on `harness.api`, with callers of several projects."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette

from fairlead.api.http.authentication import ROLES
from fairlead.api.http.front_end import Services
from fairlead.api.lxd import make_front_end
from fairlead.api.lxd.events import EventBus
from fairlead.changes.identity import Identity
from fairlead.dataplane.interface import Compile
from fairlead.model.documents.network import Network
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON, compile_owner, in_process_server

ROOT = Identity(user="uid 0", project_id="default", roles=ROLES)
CALLERS = {
    "root": ROOT,
    "ann": Identity(
        user="ann", project_id="one", roles=frozenset({"member", "reader"}), projects=frozenset({"one", "more"})
    ),
    "bob": Identity(user="bob", project_id="two", roles=frozenset({"member", "reader"}), projects=frozenset({"two"})),
    "rita": Identity(user="rita", project_id="one", roles=frozenset({"reader"})),
    "stranger": Identity(user="", project_id="", roles=frozenset()),
}
"""Callers by name. `root` is unrestricted; restricted callers have `projects`."""


class LxdFrontEnd:
    """Client that waits after each call until the dataplane is idle. Paths are complete, such as /1.0/networks."""

    def __init__(self, folder: Path, compile_owner: Compile = compile_owner) -> None:
        self.callers = dict(CALLERS)
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.server = self.run(
            self._stack.enter_async_context(in_process_server(self._make, folder, "/1.0", compile_owner))
        )

    def _make(self, services: Services) -> Starlette:
        made = make_front_end(services)
        self.events: EventBus = made.state.events
        return made

    def run(self, work: Any) -> Any:
        async def wait() -> Any:
            return await work

        return self._runner.run(wait())

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()

    @property
    def snapshot(self) -> Snapshot:
        snapshot: Snapshot = self.server.model.snapshot
        return snapshot

    def write(self, *documents: Any) -> None:
        self.run(self.server.model.write(lambda _: Changes(puts=documents)))
        self.reconcile()

    def make_project(self, name: str) -> None:
        """Create a project, by creating a network in it."""
        identity = self.server.new_id()
        self.write(Network(id=identity, name=f"net-of-{name}", mtu=1442, project_id=name, created_at=NOON))

    def reconcile(self) -> None:
        self.run(self.server.reconcile())

    def use_certificate(self, certificate: bytes | None, address: str = "192.0.2.7") -> None:
        """Make later calls through HTTPS with this client certificate (DER)."""
        self.server.scope_attributes = {
            "scheme": "https",
            "client": (address, 5555),
            "extensions": {"fairlead.certificate": {"der": certificate}} if certificate else {},
        }

    def send(self, method: str, path: str, body: Any = None, *, by: str = "root", **headers: str) -> httpx.Response:
        """Send a request. Names of `headers` have an underscore for each hyphen, such as if_match."""
        assert path == "/1.0" or path.startswith("/1.0/"), path
        self.server.caller = self.callers[by]
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        below = path.removeprefix("/1.0") or "/"
        options = {} if body is None else {"json": body}
        answer: httpx.Response = self.run(self.server.client.request(method, below, headers=named, **options))
        self.reconcile()
        return answer

    def call_ok(self, method: str, path: str, body: Any = None, *, by: str = "root", **headers: str) -> Any:
        """Metadata of the response to a call that must succeed."""
        answer = self.send(method, path, body, by=by, **headers)
        assert answer.status_code < 300, answer.text
        return answer.json()["metadata"]

    def call_error(
        self, method: str, path: str, body: Any = None, *, by: str = "root", **headers: str
    ) -> tuple[int, str]:
        """Code and text of the error of a call that must fail without a write."""
        before = self.snapshot
        answer = self.send(method, path, body, by=by, **headers)
        assert answer.status_code >= 400, answer.text
        assert self.snapshot is before
        told = answer.json()
        assert told["error_code"] == answer.status_code
        return told["error_code"], told["error"]
