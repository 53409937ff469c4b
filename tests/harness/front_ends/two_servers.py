"""Two servers with one store, in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import httpx

from fairlead.api.app import make_app
from fairlead.api.http.authentication import authenticate_as_admin
from fairlead.api.network import make_front_end
from harness.api import InProcessServer, dataplanes_with, in_process_server

LBS = "/load-balancer/v2.0/lbaas/loadbalancers"


@dataclass
class ApplicationServer:
    """The whole application of one server, and a client of its main listener."""

    server: InProcessServer
    client: httpx.AsyncClient
    follow_task: "asyncio.Task[None]"

    async def request(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self.client.request(method, path, json=body)

    async def readiness(self) -> int:
        """HTTP status of /readyz, as monitoring reads it."""
        return (await self.request("GET", "/readyz")).status_code

    async def create(self, path: str, root: str, **body: Any) -> Any:
        answer = await self.request("POST", path, {root: body})
        assert answer.status_code == 201, answer.text
        return answer.json()[root]

    async def build(self, cidr: str = "10.0.0.0/24", **balancer: Any) -> Any:
        """Create a network and a load balancer on it."""
        network = (await self.create("/network/v2.0/networks", "network", name="net"))["id"]
        subnet = await self.create("/network/v2.0/subnets", "subnet", network_id=network, cidr=cidr, ip_version=4)
        return await self.create(LBS, "loadbalancer", vip_subnet_id=subnet["id"], **balancer)


@asynccontextmanager
async def serving(url: str, number: int) -> AsyncIterator[ApplicationServer]:
    async with in_process_server(make_front_end, Path("/nonexistent"), "", url=url) as place:
        place.ids = count(1000 * (number + 1))
        app = make_app(place.services, dataplanes_with(place.reconciler), authenticate_as_admin).all
        transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            following = asyncio.create_task(place.model.follow())
            yield ApplicationServer(place, client, following)
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


@asynccontextmanager
async def two_servers(url: str) -> AsyncIterator[tuple[ApplicationServer, ApplicationServer]]:
    """Run two servers. `url` is that of their store."""
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(serving(url, number)) for number in range(2)]
        yield one, two
