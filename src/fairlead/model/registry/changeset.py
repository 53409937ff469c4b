"""Changes of one write, and the snapshot after it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from immutables import Map

from fairlead.model.documents.balancer_status import PartHistories
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.unmanaged_updates import UnmanagedUpdate, consistent_updates
from fairlead.model.registry.kinds import COMMON_INDEXES, KINDS, has_rows, owner_of
from fairlead.model.snapshot import Aggregate, Snapshot, map_name, per_chassis_owners, vip_owners


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Documents to put and owners to delete in one write.

    `reads` are owners whose documents must not change before the commit. `requires_unchanged_model` is set if the
    decision depends on absent documents (a network can be deleted because it is empty): then no document may change
    before the commit.
    """

    puts: tuple[Aggregate, ...] = ()
    deletes: tuple[Owner, ...] = ()
    reads: tuple[Owner, ...] = ()
    requires_unchanged_model: bool = False

    @property
    def owners(self) -> tuple[Owner, ...]:
        return (*(owner_of(aggregate) for aggregate in self.puts), *self.deletes)


def apply_changes(snapshot: Snapshot, changes: Changes, revision: int) -> Snapshot:
    """Return the snapshot after these changes, written by the store at `revision`."""
    draft = _Draft(snapshot)
    for owner in changes.deletes:
        draft.put(owner, None, revision)
    for aggregate in changes.puts:
        draft.put(owner_of(aggregate), aggregate, revision)
    return draft.finish(revision)


def load_documents(snapshot: Snapshot, documents: Iterable[tuple[Aggregate, int | None]], revision: int) -> Snapshot:
    """Return the snapshot with these documents added. Each has the revision of its last write; None for unmanaged
    objects, which are not stored."""
    draft = _Draft(snapshot)
    for aggregate, written in documents:
        draft.put(owner_of(aggregate), aggregate, written)
    return draft.finish(revision)


def with_unmanaged(snapshot: Snapshot, news: UnmanagedUpdate) -> Snapshot:
    """Return the snapshot with news of unmanaged objects applied.
    Its revision is unchanged, because nothing was stored."""
    draft = _Draft(snapshot)
    for owner, document in consistent_updates(snapshot, news):
        draft.put(owner, document, None)
    return draft.finish(snapshot.revision)


class _Draft:
    """Snapshot under construction: changes are collected, and the snapshot is created once."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._changed: dict[str, Any] = {}

    def finish(self, revision: int) -> Snapshot:
        return replace(self._snapshot, revision=revision, **self._changed)

    def put(self, owner: Owner, new: Aggregate | None, revision: int | None) -> None:
        """Set the owner's document, or delete it with None.
        Without a revision the document is not stored, and gets no generations."""
        name = map_name(owner.kind)
        documents = self._get(name)
        old = documents.get(owner.id)
        if old is None and new is None:
            return
        self._changed[name] = documents.delete(owner.id) if new is None else documents.set(owner.id, new)
        if revision is not None:
            self._record_generation(owner, old, new, revision)
        for index in KINDS[owner.kind].all_indexes:
            before = None if old is None else index.extract(old)
            after = None if new is None else index.extract(new)
            if before != after:
                self._changed[index.name] = index.change(self._get(index.name), owner.id, before, after)

    def _record_generation(self, owner: Owner, old: Aggregate | None, new: Aggregate | None, revision: int) -> None:
        generations = self._get("generations")
        self._changed["generations"] = generations.delete(owner) if new is None else generations.set(owner, revision)
        if old is not None:
            self._changed["part_histories"] = _update_histories(self._get("part_histories"), owner, old, new, revision)

    def _get(self, name: str) -> Any:
        found = self._changed.get(name)
        return getattr(self._snapshot, name) if found is None else found


def _update_histories(
    histories: Map[str, PartHistories], owner: Owner, old: Aggregate, new: Aggregate | None, revision: int
) -> Map[str, PartHistories]:
    touch = KINDS[owner.kind].touch
    if touch is None:
        return histories
    if new is None:
        return histories.delete(owner.id) if owner.id in histories else histories
    return histories.set(owner.id, touch(old, new, histories.get(owner.id, Map()), revision))


def owners_with_rows(snapshot: Snapshot) -> list[Owner]:
    """Return every owner that can have rows; referenced owners come first."""
    owners: list[Owner] = []
    for kind in filter(has_rows, Kind):
        if kind is Kind.VIP_NETWORK:
            owners += (owner for identity in snapshot.vip_projects for owner in vip_owners(snapshot, identity))
        elif kind is Kind.VIP_GATEWAY:
            owners += (Owner(kind, identity) for identity in snapshot.router_vips)
        elif kind is Kind.PER_CHASSIS_GATEWAY:
            owners += (Owner(kind, identity) for identity in snapshot.near_gateways)
        elif kind is Kind.PER_CHASSIS_NETWORK:
            owners += (owner for identity in snapshot.near_projects for owner in per_chassis_owners(snapshot, identity))
        else:
            documents = snapshot.documents(kind).items()
            owners += (Owner(kind, identity) for identity, document in documents if not is_unmanaged(document))
            if kind is Kind.NETWORK:  # unmanaged networks have rows of proxies only
                found = (each for each in snapshot.network_proxies if is_unmanaged(snapshot.networks.get(each)))
                owners += (Owner(kind, each) for each in found)
    return owners


def index_names() -> frozenset[str]:
    """Return the fields of a snapshot that are derived from its documents."""
    declared = (index for kind in KINDS.values() for index in kind.indexes)
    return frozenset(index.name for index in (*COMMON_INDEXES, *declared))
