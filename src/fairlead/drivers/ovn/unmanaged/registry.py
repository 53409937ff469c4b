"""Documents built from unmanaged rows, and those with possibly unreported changes. No I/O."""

from collections import Counter

from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedObject, Writer


class Registry:
    """Documents by owner. A row has at most one; a row may replace another with the same id."""

    def __init__(self) -> None:
        self.documents: dict[Owner, UnmanagedObject] = {}
        self.changed: set[Owner] = set()
        self.counts: Counter[tuple[Writer, Kind]] = Counter()
        self._owners: dict[str, Owner] = {}
        """UUID of a row -> owner of its document."""
        self._sources: dict[Owner, str] = {}

    def find(self, uuid: str) -> UnmanagedObject | None:
        owner = self._owners.get(uuid)
        return None if owner is None or self._sources[owner] != uuid else self.documents[owner]

    def drop(self, uuid: str) -> None:
        """Drop a row's document, before documents of the same transaction are added."""
        owner = self._owners.pop(uuid, None)
        if owner is not None and self._sources.get(owner) == uuid:
            old = self.documents.pop(owner)
            del self._sources[owner]
            self.counts[old.writer, owner.kind] -= 1
            self.changed.add(owner)

    def put(self, uuid: str, owner: Owner, new: UnmanagedObject) -> None:
        old = self.documents.get(owner)
        if old is not None:
            self.counts[old.writer, owner.kind] -= 1
        self.documents[owner], self._owners[uuid], self._sources[owner] = new, owner, uuid
        self.counts[new.writer, owner.kind] += 1
        self.changed.add(owner)
