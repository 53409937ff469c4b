"""Servers for agents on loopback, with real connection limits, and agents connected to them."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from fairlead.api.http.acceptor import Acceptor, ClientConnections
from fairlead.api.http.authentication import Authenticate, authenticate_as_admin
from fairlead.api.http.front_end import Services
from fairlead.api.http.protocol import BoundedHttp
from fairlead.api.network import make_front_end
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import Changes
from fairlead.reconciler.loop import Reconciler
from fairlead.runtime.steps import run_to_completion
from fairlead.store.model import Model
from harness.api import in_process_server
from harness.served import make_application
from harness.waiting import eventually_equal


@dataclass
class AgentServer:
    """A running server that can stop and start again."""

    services: Services
    model: Model
    url: str
    acceptor: Acceptor | None
    reconciler: Reconciler

    async def put(self, *documents: object, deletes: tuple[Owner, ...] = ()) -> None:
        await self.model.write(lambda _: Changes(puts=documents, deletes=deletes))  # type: ignore[arg-type]

    def observe(self, fact: object, news: object) -> None:
        run_to_completion(self.model.observe(fact, news))  # type: ignore[arg-type]

    async def close_connections(self) -> None:
        """Close all connections. A client that reconnects is accepted."""
        for client in self.acceptor.clients.all():
            client.drop()
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    folder: Path, authenticate: Authenticate = authenticate_as_admin, url: str = "", port: int = 0, **own: Any
) -> AsyncIterator[AgentServer]:
    """Run a server for agents. `url` names a store, which other servers may share."""
    folder.mkdir(exist_ok=True)
    async with in_process_server(make_front_end, folder, "/network", lambda snapshot, owner: {}, url=url) as place:
        services, app = make_application(place, authenticate, **own)
        agents = services.nodes.agents
        agents._clock = asyncio.get_running_loop().time  # the loop's clock, which may be virtual
        agents._began = agents._clock()
        listener = socket.socket(proto=socket.IPPROTO_TCP)  # asyncio sets TCP_NODELAY only if the protocol is given
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # an earlier server may have had the port
        listener.bind(("127.0.0.1", port))
        settings = uvicorn.Config(app, lifespan="off", log_config=None, proxy_headers=False, ws="none")
        server = uvicorn.Server(settings)
        settings.load()
        acceptor = Acceptor(
            listener,
            lambda: BoundedHttp(settings, server.server_state, {}),
            ClientConnections(max_total=5000, max_per_address=5000),
        )
        acceptor.start()
        tasks = [
            asyncio.create_task(services.nodes.channel.run()),
            asyncio.create_task(services.nodes.find_stale_agents()),
        ]
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield AgentServer(services, place.model, address, acceptor, place.reconciler)
        finally:
            for task in tasks:
                task.cancel()
            acceptor.close()
            listener.close()
            await acceptor.wait_closed()
            await eventually_equal(lambda: _left_after_dropping(acceptor), 0)
            await asyncio.gather(*tasks, return_exceptions=True)


def _left_after_dropping(acceptor: Acceptor) -> int:
    """Number of clients left after all were dropped; one that connected while the acceptor closed is dropped too."""
    for client in acceptor.clients.all():
        client.drop()
    return acceptor.clients.count


@asynccontextmanager
async def running(*works: Callable[[], object]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(work()) for work in works]  # type: ignore[arg-type]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for task in tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
