"""Relations between unmanaged rows: parents and name references, independent of the order of events. No I/O."""

from collections.abc import Collection, Hashable, Iterable
from typing import TypeAlias

Key: TypeAlias = tuple[str, Hashable]
_NO_HOLDERS: tuple[str, ...] = ()


class Links:
    """Parent relations. A row may briefly have two parents; the first by UUID counts."""

    def __init__(self) -> None:
        self._holders: dict[str, tuple[str, ...]] = {}
        self._children: dict[str, set[str]] = {}

    def holder(self, child: str) -> str | None:
        return next(iter(self._holders.get(child, _NO_HOLDERS)), None)

    def children(self, holder: str) -> Collection[str]:
        return self._children.get(holder, _NO_HOLDERS)

    def toggle(self, holder: str, child: str) -> None:
        """Add the relation, or remove it if it exists."""
        children = self._children.setdefault(holder, set())
        others = tuple(each for each in self._holders.get(child, _NO_HOLDERS) if each != holder)
        if child in children:
            children.remove(child)
            self._hold(child, others)
        else:
            children.add(child)
            self._hold(child, (holder,) if not others else tuple(sorted((*others, holder))))
        if not children:
            del self._children[holder]

    def _hold(self, child: str, holders: tuple[str, ...]) -> None:
        if holders:
            self._holders[child] = holders
        else:
            self._holders.pop(child, None)


class RowIndex:
    """Key -> the rows with that key."""

    def __init__(self) -> None:
        self._found: dict[Key, set[str]] = {}

    def find(self, *key: str) -> Collection[str]:
        return self._found.get((key[0], key[1]), _NO_HOLDERS)

    def change(self, uuid: str, before: Iterable[Key], after: Iterable[Key]) -> None:
        for key in before:
            self._found[key].remove(uuid)
            if not self._found[key]:
                del self._found[key]
        for key in after:
            self._found.setdefault(key, set()).add(uuid)
