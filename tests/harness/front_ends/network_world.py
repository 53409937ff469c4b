"""The network front end for tests, based on `harness.api`, with callers of several projects."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx

from fairlead.api.network import make_front_end
from fairlead.changes.identity import Identity
from fairlead.dataplane.interface import Compile
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.api import compile_owner, in_process_server


def _caller(name: str, project: str, *roles: str) -> Identity:
    return Identity(user=name, project_id=project, roles=frozenset(roles))


CALLERS = {
    "admin": _caller("admin", "one", "admin", "member", "reader"),
    "ann": _caller("ann", "one", "member", "reader"),
    "rita": _caller("rita", "one", "reader"),
    "bob": _caller("bob", "two", "member", "reader"),
    "sam": replace(_caller("sam", "", "member", "reader"), system=True),
    "root": replace(_caller("root", "", "admin", "member", "reader"), system=True),
}


class NetworkFrontEnd:
    """Client that waits after each call until the dataplane is idle; a response is a status and a body."""

    def __init__(self, folder: Path, compile_owner: Compile = compile_owner) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self.server = self.run(
            self._stack.enter_async_context(in_process_server(make_front_end, folder, "/network", compile_owner))
        )

    def run(self, work: Any) -> Any:
        async def wait() -> Any:
            return await work

        return self._runner.run(wait())

    @property
    def snapshot(self) -> Snapshot:
        snapshot: Snapshot = self.server.model.snapshot
        return snapshot

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()

    def write(self, *documents: Any) -> None:
        self.run(self.server.model.write(lambda _: Changes(puts=documents)))
        self.reconcile()

    def reconcile(self) -> None:
        self.run(self.server.reconcile())

    def send(self, method: str, path: str, caller: str = "admin", **options: Any) -> httpx.Response:
        self.server.caller = CALLERS[caller]
        answer: httpx.Response = self.run(self.server.client.request(method, path, **options))
        self.reconcile()
        return answer

    def call(self, method: str, path: str, body: Any = None, caller: str = "admin") -> tuple[int, Any]:
        options = {} if body is None else {"json": body}
        answer = self.send(method, f"/v2.0{path}", caller, **options)
        return answer.status_code, answer.json() if answer.content else None

    def call_ok(self, method: str, path: str, body: Any = None, caller: str = "admin") -> Any:
        status, answer = self.call(method, path, body, caller)
        assert status < 300, answer
        return answer

    def create(self, singular: str, caller: str = "admin", **attributes: Any) -> dict[str, Any]:
        made: dict[str, Any] = self.call_ok("POST", f"/{singular}s", {singular: attributes}, caller)[singular]
        return made

    def update(self, singular: str, made: dict[str, Any], caller: str = "admin", **attributes: Any) -> dict[str, Any]:
        path = f"/{singular}s/{made['id']}"
        changed: dict[str, Any] = self.call_ok("PUT", path, {singular: attributes}, caller)[singular]
        return changed

    def call_error(self, method: str, path: str, body: Any = None, caller: str = "admin") -> tuple[int, str, str]:
        """Error of a call that must fail without a write: status, type, message."""
        before = self.snapshot
        status, answer = self.call(method, path, body, caller)
        assert status >= 400, answer
        assert self.snapshot is before
        error = answer["NeutronError"]
        assert error["detail"] == ""
        return status, error["type"], error["message"]
