"""Indexes of a snapshot: maps that are functions of its documents, updated incrementally.

An index declares its contribution of one document. The change of the map when a document is created, updated or deleted
follows from that, so after any order of puts and deletes the map equals the one built from all documents.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, overload

from immutables import Map, MapMutation

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.allocations import Allocations, with_addresses, without_addresses

Ids: TypeAlias = Map[str, int]
"""Set of ids, each with the number of documents that name it. The ids are keys of a persistent map, so adding one to
ten thousand copies none of them."""
NO_IDS: Ids = Map()


class Index(Protocol):
    @property
    def name(self) -> str:
        """Field of the snapshot."""

    def extract(self, document: Any) -> Any:
        """Return the contribution of one document: a comparable value, false if there is none."""

    def change(self, index: Any, identity: str, before: Any, after: Any) -> Any:
        """Return the map after the document's contribution changed from `before` to `after`;
        None is no contribution."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """Key -> the one document with this key."""

    name: str
    keys: Callable[[Any], Iterable[Hashable]]

    def extract(self, document: Any) -> tuple[Hashable, ...]:
        return tuple(self.keys(document))

    def change(
        self,
        index: Map[Any, str],
        identity: str,
        before: tuple[Hashable, ...] | None,
        after: tuple[Hashable, ...] | None,
    ) -> Map[Any, str]:
        """Update the map. A key that another document
        of the same write has already taken over keeps its new document."""
        with index.mutate() as mutation:
            for key in before or ():
                if mutation.get(key) == identity:
                    del mutation[key]
            for key in after or ():
                mutation[key] = identity
        return mutation.finish()


@dataclass(frozen=True, slots=True)
class SharedKeys:
    """Key -> the document with this key; the one with the lowest id if several have it."""

    lowest: Map[Any, str] = Map()
    others: Map[Any, tuple[str, ...]] = Map()
    """Key of several documents -> all of them except the one in `least`, sorted."""

    def __len__(self) -> int:
        return len(self.lowest)

    def __contains__(self, key: Hashable) -> bool:
        return key in self.lowest

    def __getitem__(self, key: Hashable) -> str:
        return self.lowest[key]

    @overload
    def get(self, key: Hashable) -> str | None: ...

    @overload
    def get(self, key: Hashable, default: str) -> str: ...

    def get(self, key: Hashable, default: str | None = None) -> str | None:
        return self.lowest.get(key, default)


NO_SHARED_KEYS = SharedKeys()


@dataclass(frozen=True, slots=True)
class SharedKeyIndex:
    """Key -> a document with this key. Unmanaged objects may share a key,
    which exists as long as one of them has it."""

    name: str
    keys: Callable[[Any], Iterable[Hashable]]

    def extract(self, document: Any) -> frozenset[Hashable]:
        return frozenset(self.keys(document))

    def change(
        self, index: SharedKeys, identity: str, before: frozenset[Hashable] | None, after: frozenset[Hashable] | None
    ) -> SharedKeys:
        old, new = before or frozenset(), after or frozenset()
        with index.lowest.mutate() as least, index.others.mutate() as others:
            for key in old - new:
                _set_ids_with_key(least, others, key, {*_ids_with_key(least, others, key)} - {identity})
            for key in new - old:
                _set_ids_with_key(least, others, key, {*_ids_with_key(least, others, key), identity})
        return SharedKeys(least.finish(), others.finish())


_LowestMutation: TypeAlias = MapMutation[Any, str]
_OthersMutation: TypeAlias = MapMutation[Any, tuple[str, ...]]


def _ids_with_key(least: _LowestMutation, others: _OthersMutation, key: Hashable) -> tuple[str, ...]:
    return () if key not in least else (least[key], *others.get(key, ()))


def _set_ids_with_key(least: _LowestMutation, others: _OthersMutation, key: Hashable, holders: Iterable[str]) -> None:
    ordered = tuple(sorted(holders))
    if ordered:
        least[key] = ordered[0]
    else:
        least.pop(key, None)
    if ordered[1:]:
        others[key] = ordered[1:]
    else:
        others.pop(key, None)


@dataclass(frozen=True, slots=True)
class GroupedIndex:
    """Key -> ids of the documents with this key, or of the objects that `what` returns for them. None is not a key.

    Several documents may contribute the same id to a key; it remains as long as one of them does.
    """

    name: str
    keys: Callable[[Any], Iterable[Hashable | None]]
    member_id: Callable[[Any], str] | None = None
    """Returns the id to index; the document's own id if absent."""

    def extract(self, document: Any) -> tuple[tuple[Hashable, ...], str]:
        keys = tuple(key for key in self.keys(document) if key is not None)
        return keys, self.member_id(document) if self.member_id else ""

    def change(
        self,
        index: Map[Any, Ids],
        identity: str,
        before: tuple[tuple[Hashable, ...], str] | None,
        after: tuple[tuple[Hashable, ...], str] | None,
    ) -> Map[Any, Ids]:
        with index.mutate() as mutation:
            for taken, number in ((before, -1), (after, 1)):
                keys, named = taken or ((), "")
                for key in keys:
                    _change_group(mutation, key, named or identity, number)
        return mutation.finish()


def _change_group(mutation: MapMutation[Any, Ids], key: Hashable, name: str, number: int) -> None:
    group = mutation.get(key, NO_IDS)
    count = group.get(name, 0) + number
    group = group.set(name, count) if count else group.delete(name)
    if group:
        mutation[key] = group
    else:
        del mutation[key]


@dataclass(frozen=True, slots=True)
class SumIndex:
    """Key -> sum of the numbers of all documents; zero sums are omitted."""

    name: str
    numbers: Callable[[Any], Mapping[Any, int]]

    def extract(self, document: Any) -> Mapping[Any, int]:
        return self.numbers(document)

    def change(
        self, index: Map[Any, int], identity: str, before: Mapping[Any, int] | None, after: Mapping[Any, int] | None
    ) -> Map[Any, int]:
        with index.mutate() as mutation:
            for numbers, sign in ((before, -1), (after, 1)):
                for key, number in (numbers or {}).items():
                    total = mutation.get(key, 0) + sign * number
                    if total:
                        mutation[key] = total
                    else:
                        mutation.pop(key, None)
        return mutation.finish()


@dataclass(frozen=True, slots=True)
class AllocationIndex:
    """Allocated addresses of networks, for finding a free one (`taken`)."""

    name: str
    addresses: Callable[[Any], tuple[str, frozenset[IPAddress]]]
    """Returns a network's id and the document's addresses on it."""

    def extract(self, document: Any) -> tuple[str, frozenset[IPAddress]]:
        return self.addresses(document)

    def change(
        self,
        index: Allocations,
        identity: str,
        before: tuple[str, frozenset[IPAddress]] | None,
        after: tuple[str, frozenset[IPAddress]] | None,
    ) -> Allocations:
        if before is not None:
            index = without_addresses(index, *before)
        return index if after is None else with_addresses(index, *after)
