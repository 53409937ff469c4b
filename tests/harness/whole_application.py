"""The whole application in this process, for tests that send malformed input."""

import asyncio
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from fairlead.api import lxd, network, octavia
from fairlead.api.http.authentication import Authenticate, authenticate_as_admin
from fairlead.api.http.openapi import DOCUMENT
from fairlead.api.operator import routes
from fairlead.dataplane.interface import Compile
from harness.api import PLAIN, Deployment, compile_owner, dataplanes_with, in_process_server
from harness.openapi_validation import ResponseValidator, make_validator
from harness.served import make_application


class Caller:
    """Client of the whole application that checks each response.

    Every response must match the OpenAPI document, an error must be short, and a status of 500 fails the test.
    """

    def __init__(
        self,
        folder: Path,
        authenticate: Authenticate = authenticate_as_admin,
        url: str = "",
        compile_owner: Compile = compile_owner,
        deployment: Deployment = PLAIN,
    ) -> None:
        self._deployed = {"compile_owner": compile_owner, "deployment": deployment, "url": url}
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        self._documents: dict[str, ResponseValidator] = {}
        self._runner.run(self._open(folder, authenticate))

    async def _open(self, folder: Path, authenticate: Authenticate) -> None:
        place = await self._stack.enter_async_context(
            in_process_server(octavia.make_front_end, folder, "", **self._deployed)
        )
        services, whole = make_application(place, authenticate, providers=place.services.providers)
        transport = httpx.ASGITransport(app=whole, raise_app_exceptions=False)
        self.client = await self._stack.enter_async_context(
            httpx.AsyncClient(transport=transport, base_url="http://door")
        )
        doors = {
            "/network": network.make_front_end,
            "/load-balancer": octavia.make_front_end,
            "/1.0": lxd.make_front_end,
            "/operator": partial(
                routes.make_front_end, dataplanes=dataplanes_with(place.reconciler, names=place.services.providers)
            ),
        }
        for path, make_door in doors.items():
            self._documents[path] = await make_validator(make_door(services), self.client, f"{path}{DOCUMENT}")

    def close(self) -> None:
        self._runner.run(self._stack.aclose())
        self._runner.close()

    def send(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def request() -> httpx.Response:
            return await self.client.request(method, path, **options)

        answer: httpx.Response = self._runner.run(request())
        assert answer.status_code < 500 or answer.status_code == 501, answer.text
        assert answer.status_code < 300 or len(answer.content) < 10_000, "an error is to be read"
        door = next(known for known in self._documents if path.startswith(known))
        where = answer.request.url.path.removeprefix(door)
        self._documents[door].check(method, where, answer.status_code, answer.content)
        return answer

    def make(self, path: str, root: str, **attributes: Any) -> Any:
        return self.send("POST", path, json={root: attributes}).json()[root]
