"""Walks: every way to come to a state must end with the same rows, and leave a fresh start nothing to do."""

import asyncio
import random
from collections.abc import Iterable, Sequence
from itertools import pairwise

from fairlead.compilers import providers
from fairlead.dataplane.ovn_tables import references
from fairlead.drivers.fake import FakeDriver, Fault
from fairlead.model.affected import affected
from fairlead.model.owner import Owner
from fairlead.model.status import ProvisioningStatus, derive_provisioning_status
from fairlead.model.writing import Changes, apply_changes, owners_with_rows
from fairlead.reconciler.loop import Reconciler
from harness.story import EMPTY, State, render_state, tell_health

FAILING = 0.3
PATIENCE = 3_000
"""Steps after which a world that is still not at rest never will be."""


class World:
    """A model, a dataplane and the reconciler between them, under a clock that jumps to what comes next."""

    def __init__(self, seed: int | None = None) -> None:
        self._random = random.Random(seed)
        self._failing = seed is not None
        self.driver = FakeDriver(references, self._fault)
        self.snapshot = EMPTY
        self.now = 0.0
        self.reconciler = self._fresh()

    async def go(self, state: State) -> None:
        """Change the model to this state, as a door would, and let the reconciler come to rest."""
        self.reconciler.mark(self._change(state))
        await self.rest()
        await self.check(state)

    async def crash(self, state: State, steps: int) -> None:
        """Change the model, let the reconciler begin, and kill it in the middle."""
        self.reconciler.mark(self._change(state))
        for _ in range(steps):
            await self.reconciler.step()
        await self.restart()
        await self.check(state)

    async def restart(self) -> None:
        """A new process: no memory, only the model and the dataplane."""
        self.reconciler = self._fresh()
        await self.reconciler.resync(force=True)
        await self.rest()

    async def rest(self) -> None:
        for _ in range(PATIENCE):
            if await self.reconciler.step():
                continue
            due = self.reconciler.next_due()
            if due is None:
                return
            assert due > self.now, "a reconciler that spins"
            self.now = due
        raise AssertionError(f"not at rest after {PATIENCE} steps")

    async def check(self, state: State) -> None:
        """The rows are the story's; all is ACTIVE; a fresh start and a second look find nothing to do."""
        lines = [str(row) for rows in self.driver.rows.values() for row in rows.values()]
        assert sorted(lines) == sorted(line for line in state.expected.splitlines() if not line.startswith("refused"))
        assert await self._fresh().resync() == 0
        assert await self._fresh().plan() == {}
        applies = self.driver.applies
        self.reconciler.mark(owners_with_rows(self.snapshot))
        await self.rest()
        assert self.driver.applies == applies, "rewrote what was already right"
        assert self._failing or self.reconciler.statistics.failed == 0, "an apply failed that nothing made fail"
        self._check_status(state)

    def _check_status(self, state: State) -> None:
        refused = {line.split()[1].rstrip(":") for line in state.expected.splitlines() if line.startswith("refused")}
        for owner, generation in self.snapshot.generations.items():
            status = derive_provisioning_status(generation, self.reconciler.applied(owner))
            wanted = ProvisioningStatus.ERROR if str(owner) in refused else ProvisioningStatus.ACTIVE
            assert (owner, wanted) == (owner, status)

    def _change(self, state: State) -> Iterable[Owner]:
        old = self.snapshot
        known = {owner: old.find(owner) for owner in old.generations}
        puts = tuple(document for owner, document in state.documents.items() if known.get(owner) != document)
        changes = Changes(puts=puts, deletes=tuple(owner for owner in known if owner not in state.documents))
        self.snapshot = apply_changes(old, changes, old.revision + 1)
        dirty = list(affected(old, self.snapshot, changes.owners))
        self.snapshot = tell_health(self.snapshot, state.down)
        dirty += [Owner.parse(f"loadbalancer/{balancer}") for balancer in {*old.down, *state.down}]
        return dirty

    def _fresh(self) -> Reconciler:
        return Reconciler(
            driver=self.driver,
            compile_owner=providers.compile_owner,
            snapshot=lambda: self.snapshot,
            clock=lambda: self.now,
        )

    def _fault(self) -> Fault:
        if not self._failing or self._random.random() >= FAILING:
            return Fault.NONE
        return self._random.choice([Fault.BEFORE, Fault.AFTER])


NOTHING = State(name="nothing", model="", expected="", documents={}, down={})


def walks(states: Sequence[State]) -> dict[str, list[State]]:
    """Every order in which the states are visited; each ends torn down."""
    ways = {
        "forward": list(states),
        "backward": list(reversed(states)),
        "last only": [states[-1]],
        "there and back": [state for state in states for state in (state, NOTHING, state)],
        "to and fro": [state for pair in pairwise(states) for state in (*pair, pair[0], pair[1])],
    }
    ways |= {f"alone: {state.name}": [state] for state in states}
    return {name: [*way, NOTHING] for name, way in ways.items()}


async def walk(way: Iterable[State], *, seed: int | None, restarting: bool) -> None:
    world = World(seed)
    for place, state in enumerate(way):
        if restarting:
            await world.crash(state, steps=place % 4)
        else:
            await world.go(state)
    assert world.driver.rows == {}


def run_walk(way: Iterable[State], *, seed: int | None = None, restarting: bool = False) -> None:
    asyncio.run(walk(way, seed=seed, restarting=restarting))


def check_goldens(state: State) -> None:
    assert state.expected == render_state(state.snapshot())
