"""A server with the agents' listener as deployed: TLS by its own certificate authority, and nodes that enrol."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from immutables import Map

from fairlead.agent_protocol.enrolment import read_token
from fairlead.api.agents.authentication import issue
from fairlead.api.app import make_app
from fairlead.api.http.authentication import authenticate_as_admin
from fairlead.api.http.front_end import Services
from fairlead.api.network import make_front_end
from fairlead.config.options import Configuration, NodesOptions, ServerOptions, StoreOptions
from fairlead.model.documents.chassis import Chassis
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import CHASSIS, PLUGGED
from fairlead.model.snapshot import Snapshot
from fairlead.node.connection import Connection, Remote
from fairlead.node.identity import NodeIdentity, enrol
from fairlead.runtime.steps import run_to_completion
from fairlead.server.listening import Secrets, listen
from fairlead.server.lxd import LxdServer
from fairlead.server.nodes import NodesServer
from harness.api import dataplanes_with, in_process_server
from harness.language import parse_model
from harness.probes import MODEL
from harness.waiting import DEADLINE, eventually, run_ready_tasks

DOCUMENTS = tuple(parse_model(MODEL.strip(), {})[0].values())


@dataclass
class NodesDeployment:
    services: Services
    folder: Path
    url: str
    nodes: NodesServer

    @property
    def snapshot(self) -> Snapshot:
        return self.services.model.snapshot

    async def token(self, chassis: str) -> str:
        enrolment = self.nodes.enrolment()
        assert enrolment is not None
        return (await issue(self.services, enrolment, chassis))[0]

    async def enrol(self, chassis: str) -> NodeIdentity:
        return await enrol(read_token(await self.token(chassis)), self.folder / f"{chassis}.pem")

    def connection(self, identity: NodeIdentity) -> Connection:
        return Connection(self.remote(identity), 5.0)

    def remote(self, identity: NodeIdentity) -> Remote:
        return Remote(url=self.url, tls=identity.tls())

    def operator(self) -> Connection:
        return Connection(Remote(url=f"unix:{self.folder}/main.socket"), 5.0)

    def observe(self, fact: Any, news: Any) -> None:
        run_to_completion(self.services.model.observe(fact, news))


@asynccontextmanager
async def nodes_deployment(folder: Path) -> AsyncIterator[NodesDeployment]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        where = f"127.0.0.1:{probe.getsockname()[1]}"
    configuration = Configuration(
        server=ServerOptions(listen=f"unix:{folder}/main.socket"),
        store=StoreOptions(path=str(folder / "store.db")),
        nodes=NodesOptions(listen=where, socket=f"unix:{folder}/agent.socket", socket_chassis=("one",)),
    )
    nodes, lxd = NodesServer(configuration), LxdServer(configuration)
    async with in_process_server(make_front_end, folder, "/network", lambda snapshot, owner: {}) as place:
        own = {"enrolment": nodes.enrolment, "socket_chassis": nodes.options.socket_chassis}
        services = replace(place.services, now=lambda: datetime.now(UTC), **own)
        apps = make_app(services, dataplanes_with(place.reconciler), authenticate_as_admin)
        secrets = Secrets(authenticate=authenticate_as_admin, lxd=lxd, nodes=nodes, renew_store=place.store.renew)
        works = (listen(apps, configuration, secrets), services.nodes.channel.run(), services.nodes.find_stale_agents())
        tasks = [asyncio.create_task(work) for work in works]
        stage = NodesDeployment(services, folder, f"https://{where}", nodes)
        await eventually(lambda: _is_listening(where))
        await services.model.write(lambda _: Changes(puts=DOCUMENTS))
        chassis = {name: Chassis(name=name, host=name, ports=Map({port: True})) for name, port in PLACES.items()}
        stage.observe(CHASSIS, chassis)
        stage.observe(PLUGGED, {port: name for name, port in PLACES.items()})
        try:
            yield stage
        finally:
            await run_ready_tasks()  # connections closed by clients end here too
            for task in tasks:
                task.cancel()
            for task in tasks:
                with contextlib.suppress(asyncio.CancelledError):
                    await task


PLACES = {"one": "vm1", "two": "vm2"}
"""Machine of each chassis."""


def _is_listening(where: str) -> bool:
    host, _, port = where.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def play(folder: Path, story: Callable[[NodesDeployment], Awaitable[None]]) -> None:
    async def told() -> None:
        async with asyncio.timeout(DEADLINE), nodes_deployment(folder) as stage:
            await story(stage)

    asyncio.run(told())
