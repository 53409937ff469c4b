"""An API front end in this process, with a real store in a temporary file, a fixed clock and sequential ids."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, islice
from pathlib import Path
from typing import Any

import httpx
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.api.http.authentication import ROLES
from fairlead.api.http.front_end import ClientEndpoint, Services
from fairlead.api.keys import Keys
from fairlead.changes.identity import Identity
from fairlead.compilers import providers
from fairlead.compilers.ovn import OVN
from fairlead.dataplane.interface import Compile, CompileInSteps, DataplaneScope, in_one_step
from fairlead.dataplane.ovn import LogicalSwitch, by_key
from fairlead.dataplane.ovn_tables import references
from fairlead.dataplane.rows import NO_ROWS, Rows
from fairlead.drivers.fake import FakeDriver
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.quota import NO_LIMITS, Limits
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.reconciler.dataplanes import Central, Dataplanes, DataplaneState
from fairlead.reconciler.loop import Reconciler
from fairlead.runtime.steps import Steps, run_to_completion
from fairlead.store.interface import Store
from fairlead.store.model import Model
from fairlead.store.opening import open_store
from harness.openapi_validation import make_validator

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
REQUEST_TIMEOUT = 0.2
DOCUMENTS_PER_WRITE = 500  # documents
ADMIN = Identity(user="admin", project_id="demo", roles=ROLES)


def compile_owner(snapshot: Snapshot, owner: Owner) -> Rows:
    return run_to_completion(compile_in_steps(snapshot, owner))


def compile_in_steps(snapshot: Snapshot, owner: Owner) -> Steps[Rows]:
    (dataplane,) = providers.dataplanes_of(providers.DEFAULT)
    return (yield from dataplane.compile_in_steps(snapshot, owner))


def _as_steps(given: Compile) -> CompileInSteps:
    """Cooperative steps of the product's own compiler. A test double runs in one step."""
    return compile_in_steps if given is compile_owner else in_one_step(given)


def compile_anything(snapshot: Snapshot, owner: Owner) -> Rows:
    """Compile for a provider that supports the whole API: one row, with the owner's name and its generation."""
    if snapshot.find(owner) is None:
        return NO_ROWS
    return by_key([LogicalSwitch(name=f"{owner} {snapshot.generations[owner]}")])


@dataclass(frozen=True)
class Deployment:
    """Configuration of the server, as an operator would set it."""

    facts: Snapshot
    names: providers.ProviderNames
    keys: Keys = field(default_factory=Keys)
    limits: Limits = NO_LIMITS


PLAIN = Deployment(Snapshot(gateway_chassis=("gw1", "gw2")), providers.DEFAULT)
_NAMES = providers.parse_names("fairlead=fairlead,ovn=ovn", "fairlead")
WITH_PROXIES = Deployment(replace(PLAIN.facts, agents_probe=True, proxied_providers=frozenset({"fairlead"})), _NAMES)
"""Agents probe, and run proxies."""


def compile_with_proxies(snapshot: Snapshot, owner: Owner) -> Rows:
    """Rows of OVN for an owner that every dataplane must be able to compile."""
    central, *others = providers.dataplanes_of(_NAMES)
    for each in others:
        each.compile(snapshot, owner)
    return central.compile(snapshot, owner)


@dataclass
class InProcessServer:
    """A client of an API front end, with the server's parts."""

    client: httpx.AsyncClient
    model: Model
    store: Store
    reconciler: Reconciler
    driver: FakeDriver
    services: Services
    node_counts: NodeCounts = field(default_factory=NodeCounts)
    caller: Identity = ADMIN
    scope_attributes: dict[str, Any] = field(default_factory=dict)
    """Connection attributes that the listener adds to the ASGI scope."""
    reachable: ClientEndpoint | None = None
    app: ASGIApp | None = None
    """The front end as an ASGI application, for tests that read a streamed response."""
    is_reconciling: bool = True
    """Whether the reconciler runs while a request waits. If false, it runs only when a test calls it."""
    ids: Any = field(default_factory=lambda: count(1))

    def new_id(self) -> str:
        """Sequential UUIDs, equal in every run, so that values derived from ids, such as addresses, are stable."""
        return f"00000000-0000-4000-8000-{next(self.ids):012d}"

    async def reconcile(self) -> None:
        while await self.reconciler.step():
            pass

    async def wait_applied(self, owner: Owner, generation: int) -> None:
        if not self.is_reconciling:
            await self.reconciler.wait_for_outcome(owner, generation)
        while (
            self.is_reconciling and self.reconciler.outcome(owner, generation) is None and await self.reconciler.step()
        ):
            pass

    async def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        return await self.client.request(method, path, json=body)

    async def call_ok(self, method: str, path: str, body: object = None) -> Any:
        """Body of the response to a call that must succeed.

        Reconciles until nothing is left to do before it returns.
        """
        answer = await self.call(method, path, body)
        assert answer.status_code < 300, answer.text
        await self.reconcile()
        return answer.json() if answer.content else None


async def write_many(model: Model, documents: Iterable[Aggregate]) -> None:
    """Write the documents in several changes, none of which blocks the event loop for long."""
    remaining = iter(documents)
    while some := tuple(islice(remaining, DOCUMENTS_PER_WRITE)):
        await model.write(lambda _, some=some: Changes(puts=some))


def dataplanes_with(
    reconciler: Reconciler,
    condition: DataplaneState = DataplaneState(connected=True, is_leader=True),  # noqa: B008 - a value
    names: providers.ProviderNames | None = None,
) -> Dataplanes:
    """Dataplanes of a server with this central one, and the per-node dataplanes of these provider names."""
    known = providers.dataplanes_of(names) if names is not None else ()
    nodes = [each for each in known if each.scope is DataplaneScope.NODE]
    return Dataplanes(Snapshot, [Central(reconciler=reconciler, condition=lambda: condition)], nodes)


@asynccontextmanager
async def in_process_server(
    make_door: Callable[[Services], Starlette],
    folder: Path,
    door_path: str,
    compile_owner: Compile = compile_owner,
    deployment: Deployment = PLAIN,
    url: str = "",
):
    """Run a front end.

    `url` names the store, which other servers may share; the default is a SQLite file in `folder`.
    """
    store = await open_store(url or f"sqlite://{folder}/store.db")
    model = await Model.load(store, _as_steps(compile_owner), deployment.facts)
    driver = FakeDriver(references)
    dataplane = replace(OVN, compile_in_steps=_as_steps(compile_owner))
    reconciler = Reconciler(dataplane=dataplane, driver=driver, snapshot=lambda: model.snapshot, clock=lambda: 0.0)
    model.subscribe(reconciler.mark)
    place = InProcessServer(client=None, model=model, store=store, reconciler=reconciler, driver=driver, services=None)  # type: ignore[arg-type]
    place.node_counts = NodeCounts(asyncio.get_running_loop().time, stored=lambda: model.snapshot.unresponsive_nodes)
    place.services = services = Services(
        model=model,
        applied=reconciler.applied,
        now=lambda: NOON,
        new_id=place.new_id,
        mtu=1442,
        external_mtu=1500,
        resync_owner=reconciler.read_again,
        wait_for_outcome=place.wait_applied,
        outcome=reconciler.outcome,
        on_applied_change=reconciler.subscribe,
        node_counts=place.node_counts,
        client_endpoint=lambda: place.reachable,
        apply_timeout=REQUEST_TIMEOUT,
        providers=deployment.names,
        keys=deployment.keys,
        limits=deployment.limits,
    )
    door = make_door(services)

    async def identified(scope: Scope, receive: Receive, send: Send) -> None:
        await door({**scope, **place.scope_attributes, "identity": place.caller, "door_path": door_path}, receive, send)

    transport = httpx.ASGITransport(app=identified, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://door") as client:
        client.event_hooks = {"response": [(await make_validator(door, client)).check_response]}
        place.client, place.app = client, identified
        yield place
    await store.close()


def play(
    make_door: Callable[[Services], Starlette],
    folder: Path,
    story: Callable[[InProcessServer], Awaitable[None]],
    door_path: str = "",
    compile_owner: Compile = compile_owner,
) -> None:
    async def run() -> None:
        async with in_process_server(make_door, folder, door_path, compile_owner) as place:
            await story(place)

    asyncio.run(run())
