"""The slice of a node, set by a test."""

from pathlib import Path

from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.channel import NodeSlice


class FixedSlice(NodeSlice):
    """Slice that a test replaces directly, without a server."""

    def __init__(self, name: str, path: Path, told: Snapshot) -> None:
        super().__init__(name, path)
        self.current = told
        self.ready.set()

    @property
    def snapshot(self) -> Snapshot:
        return self.current

    def replace(self, told: Snapshot, *concerned: Owner) -> None:
        self.current = told
        for call in self._subscribers:
            call(concerned)
