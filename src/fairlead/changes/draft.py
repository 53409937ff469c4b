"""Drafts: several changes as one write, where each rule sees the changes before it."""

from collections.abc import Callable
from typing import TypeAlias

from fairlead.changes.caller import ChangeContext
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot

NewId: TypeAlias = Callable[[], str]


def _reject_new_id() -> str:
    raise AssertionError("this change creates no objects")


class Draft:
    """Accumulated changes. `snapshot` is the model with them applied;
    nothing is written until the caller writes `changes`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._before = snapshot
        self._puts = dict[Owner, Aggregate]()
        self._deletes = dict[Owner, None]()
        self._reads = dict[Owner, None]()
        self._requires_unchanged_model = False

    def add(self, changes: Changes) -> None:
        self.snapshot = apply_changes(self.snapshot, changes, self._before.revision + 1)
        for owner in changes.deletes:
            self._puts.pop(owner, None)
            if self._before.find(owner) is not None:
                self._deletes[owner] = None
        for aggregate in changes.puts:
            owner = owner_of(aggregate)
            self._deletes.pop(owner, None)
            self._puts[owner] = aggregate
        self._reads.update(dict.fromkeys(changes.reads))
        self._requires_unchanged_model |= changes.requires_unchanged_model

    def put(self, *documents: Aggregate) -> None:
        self.add(Changes(puts=documents))

    def require_unchanged_model(self) -> None:
        """Record that the decision depends on absent documents."""
        self._requires_unchanged_model = True

    def changes(self) -> Changes:
        """Return the accumulated changes, without documents that end as they started."""
        puts = tuple(each for owner, each in self._puts.items() if self._before.find(owner) != each)
        deletes = tuple(self._deletes)
        touched = {*map(owner_of, puts), *deletes}
        return Changes(
            puts=puts,
            deletes=deletes,
            reads=tuple(
                owner for owner in self._reads if owner not in touched and self._before.find(owner) is not None
            ),
            requires_unchanged_model=self._requires_unchanged_model,
        )


class NetworkDraft(Draft):
    """Draft for a network and the objects created with it."""

    def __init__(
        self, snapshot: Snapshot, asker: ChangeContext, network_id: str, new_id: NewId = _reject_new_id
    ) -> None:
        super().__init__(snapshot)
        self.identity = asker.identity
        self.now = asker.now
        self.new_id = new_id
        self._network_id = network_id

    @property
    def network(self) -> Network:
        """Network with the changes so far."""
        return self.snapshot.networks[self._network_id]
