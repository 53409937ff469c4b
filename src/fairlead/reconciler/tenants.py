"""Which project takes a turn for an owner."""

from collections.abc import Callable

from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot


class Tenants:
    """The projects of owners, also of those that have just been deleted."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._known: dict[Owner, str] = {}

    def find(self, owner: Owner) -> str:
        """Returns the project of the owner's document. For a deleted document it returns the last known project, once;
        empty if there was none."""
        project: str | None = getattr(self._snapshot().find(owner), "project_id", None)
        if project is None:
            return self._known.pop(owner, "")
        self._known[owner] = project
        return project
