"""The real application on a free port of this host, for clients that are separate programs."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from socket import socket
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fairlead.api.app import make_app
from fairlead.api.http.authentication import Authenticate, authenticate_as_admin
from fairlead.api.http.front_end import Services
from fairlead.api.network import make_front_end
from fairlead.dataplane.interface import Compile
from harness.api import InProcessServer, compile_owner, dataplanes_with, in_process_server


@contextmanager
def served(folder: Path, compile_owner: Compile = compile_owner) -> Iterator[str]:
    """URL of the running application. Its thread has ended when the context exits."""
    started: list[uvicorn.Server] = []
    ready = threading.Event()
    thread = threading.Thread(target=lambda: asyncio.run(_serve(folder, compile_owner, started, ready)))
    thread.start()
    try:
        while not ready.wait(0.1):
            assert thread.is_alive(), "it ended before it could be called"
        port = started[0].servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        for server in started:
            server.should_exit = True
        thread.join()


class ReadyServer(uvicorn.Server):
    """Server that sets an event as soon as it accepts connections."""

    def __init__(self, config: uvicorn.Config, ready: threading.Event) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready.set()


async def _serve(folder: Path, compile_owner: Compile, started: list[uvicorn.Server], ready: threading.Event) -> None:
    async with in_process_server(make_front_end, folder, "/network", compile_owner) as place:
        _, app = make_application(place, authenticate_as_admin)
        started.append(ReadyServer(uvicorn.Config(app, port=0, log_level="warning", lifespan="off"), ready))
        loop = asyncio.create_task(place.reconciler.run())
        await started[0].serve()
        loop.cancel()


def make_application(place: InProcessServer, authenticate: Authenticate, **own: Any) -> tuple[Services, ASGIApp]:
    """The whole application on the store and reconciler of `place`, with services of its own."""
    services = Services(
        model=place.model,
        applied=place.reconciler.applied,
        now=lambda: datetime.now(UTC),
        new_id=place.new_id,
        mtu=1442,
        external_mtu=1500,
        resync_owner=place.reconciler.read_again,
        wait_for_outcome=place.wait_applied,
        outcome=place.reconciler.outcome,
        on_applied_change=place.reconciler.subscribe,
        node_counts=place.node_counts,
        ports_of_chassis=lambda _: frozenset(),  # every chassis exists, without ports
        **own,
    )
    return services, make_app(services, dataplanes_with(place.reconciler, names=own.get("providers")), authenticate).all


def write_clouds(folder: Path, address: str) -> Path:
    """Write a clouds.yaml as a user would."""
    path = folder / "clouds.yaml"
    doors = {"network": "network", "load_balancer": "load-balancer"}
    lines = [f"    {service}_endpoint_override: {address}/{door}\n" for service, door in doors.items()]
    auth = f"    auth_type: none\n    auth:\n      endpoint: {address}\n"
    path.write_text(f"clouds:\n  fairlead:\n{auth}" + "".join(lines))
    return path
