"""The slice of a node, set by a test."""

from pathlib import Path

from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import Slice


class Given(Slice):
    """Slice that a test replaces directly, without a server."""

    def __init__(self, name: str, path: Path, told: Snapshot) -> None:
        super().__init__(name, path)
        self.now = told
        self.ready.set()

    @property
    def snapshot(self) -> Snapshot:
        return self.now

    def become(self, told: Snapshot, *concerned: Owner) -> None:
        self.now = told
        for call in self._subscribers:
            call(concerned)
