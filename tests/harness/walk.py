"""Walks through a story's states: every path must end with the same rows, and a restart must change nothing."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from fairlead.dataplane.interface import CompileInSteps, Dataplane
from fairlead.dataplane.rows import Rows
from fairlead.drivers.fake import FakeDriver, Fault
from fairlead.model.documents.owner import WITHOUT_DOCUMENTS, Kind, Owner, creation_order
from fairlead.model.documents.status import ProvisioningStatus, derive_provisioning_status
from fairlead.model.documents.unmanaged import UnmanagedObject, is_unmanaged
from fairlead.model.queries.unmanaged_updates import consistent_updates
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.registry.facts import (
    AGENTS_PROBE,
    CHASSIS,
    COUNT_REPLY_BYTES,
    DELEGATE_PORTS,
    OWN_ADDRESSES,
    PLUGGED,
    PROXIES,
    UNMANAGED,
    with_facts,
)
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.dataplanes import Central, Dataplanes, DataplaneState
from fairlead.reconciler.loop import Reconciler
from fairlead.runtime.steps import Steps
from harness.case import (
    EMPTY_SNAPSHOT,
    PRODUCT_DATAPLANES,
    Case,
    RowPlacement,
    State,
    places_of,
    render_state,
    view_of,
    with_down_members,
)

FAULT_PROBABILITY = 0.3
MAX_STEPS = 3_000
"""Maximum number of steps until all reconcilers are idle."""


def foreign_documents(snapshot: Snapshot) -> list[Owner]:
    """Unmanaged documents of the snapshot, which other programs wrote."""
    kinds = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)
    return [Owner(kind, each) for kind in kinds for each, it in snapshot.documents(kind).items() if is_unmanaged(it)]


@dataclass
class ReconciledDataplane:
    """A dataplane and its reconciler: central, or per node on one chassis."""

    where: RowPlacement
    dataplane: Dataplane
    driver: FakeDriver
    reconciler: Reconciler = field(init=False)


class CompileCache:
    """Cache of compiled rows per view.

    A compiler is a pure function, and every resync calls it with the same arguments.
    """

    def __init__(self, compile_in_steps: CompileInSteps) -> None:
        self._compile = compile_in_steps
        self._view: Snapshot | None = None
        self._known: dict[Owner, Rows] = {}

    def __call__(self, view: Snapshot, owner: Owner) -> Steps[Rows]:
        if view is not self._view:
            self._view, self._known = view, {}
        if owner not in self._known:
            self._known[owner] = yield from self._compile(view, owner)
        return self._known[owner]


class SimulatedDeployment:
    """A model, its dataplanes and a reconciler for each, with a clock that jumps to the next due time."""

    def __init__(
        self,
        seed: int | None = None,
        *,
        dataplanes: tuple[Dataplane, ...] = PRODUCT_DATAPLANES,
        places: Sequence[RowPlacement] = (),
        driver: type[FakeDriver] = FakeDriver,
    ) -> None:
        self._random = random.Random(seed)
        self._injects_faults = seed is not None
        self.snapshot = EMPTY_SNAPSHOT
        self.now = 0.0
        by_name = {
            each.name: replace(each, compile_in_steps=CompileCache(each.compile_in_steps)) for each in dataplanes
        }
        self.sites = [
            ReconciledDataplane(
                where, by_name[where.dataplane], driver(by_name[where.dataplane].references, self._choose_fault)
            )
            for where in places or places_of(dataplanes, ())
        ]
        self._start()

    @property
    def driver(self) -> FakeDriver:
        """Driver of the only site."""
        (site,) = self.sites
        return site.driver

    @property
    def reconciler(self) -> Reconciler:
        (site,) = self.sites
        return site.reconciler

    def site(self, where: RowPlacement) -> ReconciledDataplane:
        return next(site for site in self.sites if site.where == where)

    async def change_to(self, state: State) -> None:
        """Change the model to this state, as an API front end would, and run the reconcilers until they are idle."""
        self.mark(self._change(state))
        await self.run_until_idle()
        await self.check(state)

    async def crash(self, state: State, steps: int) -> None:
        """Change the model, run some steps of the reconcilers, and restart them before they have finished."""
        self.mark(self._change(state))
        for _ in range(steps):
            for site in self.sites:
                await site.reconciler.step()
        await self.restart()
        await self.check(state)

    async def restart(self) -> None:
        """Restart: new reconcilers without memory, with the same model and dataplanes."""
        self._start()
        for site in self.sites:
            await site.reconciler.resync(force=True)
        await self.run_until_idle()

    def mark(self, owners: Iterable[Owner]) -> None:
        dirty = list(owners)
        for site in self.sites:
            site.reconciler.mark(self._in_order(site.where, dirty) if site.where.chassis else dirty)

    def _in_order(self, where: RowPlacement, owners: Iterable[Owner]) -> list[Owner]:
        """Owners in the order in which a node receives them.

        Owners that left its slice are last, even if others have them.
        """
        view = view_of(self.snapshot, where)
        gone = {each for each in owners if each.kind not in WITHOUT_DOCUMENTS and view.find(each) is None}
        there = sorted({*owners} - gone, key=creation_order)
        return [*there, *sorted(gone, key=creation_order, reverse=True)]

    async def run_until_idle(self) -> None:
        for _ in range(MAX_STEPS):
            if any([await site.reconciler.step() for site in self.sites]):
                continue
            due = min((at for site in self.sites if (at := site.reconciler.next_due()) is not None), default=None)
            if due is None:
                return
            assert due > self.now, "a reconciler that spins"
            self.now = due
        raise AssertionError(f"not at rest after {MAX_STEPS} steps")

    async def check(self, state: State) -> None:
        """Assert that the rows are the story's, all is ACTIVE, and neither a restart nor a resync changes a row."""
        for site in self.sites:
            lines = [str(row) for rows in site.driver.rows.values() for row in rows.values()]
            assert (site.where, sorted(lines)) == (site.where, expected_rows(state, site.where))
            assert await self._make_reconciler(site).resync() == 0
            assert await self._make_reconciler(site).plan() == {}
        applies = [site.driver.applies for site in self.sites]
        self.mark(owners_with_rows(self.snapshot))
        await self.run_until_idle()
        assert [site.driver.applies for site in self.sites] == applies, "rewrote what was already right"
        for site in self.sites:
            failed = site.reconciler.statistics.failed
            assert self._injects_faults or failed == 0, "an apply failed that nothing made fail"
        self._check_status(state)

    def _check_status(self, state: State) -> None:
        refused = {
            line.split()[1].rstrip(":")
            for where, text in state.expected.items()
            for line in text.splitlines()
            if line.startswith("refused") and not where.chassis
        }
        kept = self.dataplanes()
        for owner, generation in self.snapshot.generations.items():
            status = derive_provisioning_status(generation, kept.applied(owner))
            wanted = ProvisioningStatus.ERROR if str(owner) in refused else ProvisioningStatus.ACTIVE
            assert (owner, wanted) == (owner, status)

    def dataplanes(self) -> Dataplanes:
        """Dataplanes of all sites, as a server sees them."""
        central = [
            Central(reconciler=site.reconciler, condition=_ready_condition)
            for site in self.sites
            if not site.where.chassis
        ]
        nodes = [site for site in self.sites if site.where.chassis]
        return Dataplanes(lambda: self.snapshot, central, [site.dataplane for site in nodes])

    def _change(self, state: State) -> Iterable[Owner]:
        news: dict[Owner, UnmanagedObject | None] = {
            owner: state.foreign.get(owner)
            for owner in {*state.foreign, *foreign_documents(self.snapshot)}
            if state.foreign.get(owner) != self.snapshot.find(owner)
        }
        old = self.snapshot
        seen = [owner for owner, _ in consistent_updates(old, news)]
        known = {owner: old.find(owner) for owner in old.generations}
        wanted = {owner: document for owner, document in state.documents.items() if not is_unmanaged(document)}
        puts = tuple(document for owner, document in wanted.items() if known.get(owner) != document)
        changes = Changes(puts=puts, deletes=tuple(owner for owner in known if owner not in wanted))
        self.snapshot = apply_changes(with_facts(old, UNMANAGED, news), changes, old.revision + 1)
        dirty = list(find_affected_owners(old, self.snapshot, (*seen, *changes.owners)))
        self.snapshot = with_down_members(state.with_facts(self.snapshot), state.down)
        told = {*old.down, *state.down}
        dirty += [Owner(kind, each) for kind in (Kind.LOAD_BALANCER, Kind.LOCAL_IP) for each in told]
        for fact in (PLUGGED, CHASSIS, PROXIES, DELEGATE_PORTS, OWN_ADDRESSES):
            before, after = getattr(old, fact.field), getattr(self.snapshot, fact.field)
            news = {key: after.get(key) for key in {*before, *after} if before.get(key) != after.get(key)}
            dirty += fact.affected_owners(old, self.snapshot, news)
        for wanted in (AGENTS_PROBE, COUNT_REPLY_BYTES):
            if getattr(old, wanted.field) != (now := getattr(self.snapshot, wanted.field)):
                dirty += wanted.affected_owners(old, self.snapshot, now)
        if any(site.where.chassis for site in self.sites):  # their rows depend on the ports bound there
            dirty += [Owner(Kind.LOAD_BALANCER, each) for each in self.snapshot.load_balancers]
            dirty += [Owner(Kind.NETWORK, each) for each in self.snapshot.networks]
            dirty += [Owner(Kind.HOST, each) for each in self.snapshot.hosts]
        return dirty

    def _start(self) -> None:
        for site in self.sites:
            site.reconciler = self._make_reconciler(site)

    def _make_reconciler(self, site: ReconciledDataplane) -> Reconciler:
        seen: dict[str, Snapshot] = {}

        def view() -> Snapshot:
            """Same view until the model changes, as on a node, because owners are applied together by view."""
            if seen.get("whole") is not self.snapshot:
                seen.update(whole=self.snapshot, view=view_of(self.snapshot, site.where))
            return seen["view"]

        return Reconciler(dataplane=site.dataplane, driver=site.driver, snapshot=view, clock=lambda: self.now)

    def _choose_fault(self) -> Fault:
        if not self._injects_faults or self._random.random() >= FAULT_PROBABILITY:
            return Fault.NONE
        return self._random.choice([Fault.REJECTED, Fault.ANSWER_LOST])


def expected_rows(state: State, where: RowPlacement) -> list[str]:
    return sorted(line for line in state.expected.get(where, "").splitlines() if not line.startswith("refused"))


def _ready_condition() -> DataplaneState:
    return DataplaneState(connected=True, is_leader=True)


EMPTY_STATE = State(name="nothing", model="", expected={}, documents={}, down={})


def paths(states: Sequence[State]) -> dict[str, list[State]]:
    """Orders in which the states are visited; each ends with everything deleted."""
    ways = {
        "forward": list(states),
        "backward": list(reversed(states)),
        "last only": [states[-1]],
        "there and back": [state for state in states for state in (state, EMPTY_STATE, state)],
        "to and fro": [state for pair in pairwise(states) for state in (*pair, pair[0], pair[1])],
    }
    ways |= {f"alone: {state.name}": [state] for state in states}
    return {name: [*way, EMPTY_STATE] for name, way in ways.items()}


async def walk(
    story: Case, way: Iterable[State], *, seed: int | None, restarting: bool, driver: type[FakeDriver]
) -> None:
    world = SimulatedDeployment(seed, dataplanes=story.dataplanes, places=story.places, driver=driver)
    for place, state in enumerate(way):
        if restarting:
            await world.crash(state, steps=place % 4)
        else:
            await world.change_to(state)
    assert all(site.driver.rows == {} for site in world.sites)


def walk_every_path(
    story: Case, *, seed: int | None = None, restarting: bool = False, driver: type[FakeDriver] = FakeDriver
) -> None:
    for way in paths(story.states).values():
        asyncio.run(walk(story, way, seed=seed, restarting=restarting, driver=driver))


def check_goldens(story: Case) -> None:
    for state in story.states:
        rendered = render_state(state, story.dataplanes, story.places)
        told = {where: text for where, text in rendered.items() if text}
        assert {where: text for where, text in state.expected.items() if text} == told
