"""Maps an owner to the project that it is queued under."""

from collections.abc import Callable

from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot


class Tenants:
    """Projects of owners, including owners that were just deleted."""

    def __init__(self, snapshot: Callable[[], Snapshot]) -> None:
        self._snapshot = snapshot
        self._known: dict[Owner, str] = {}

    def project_of(self, owner: Owner) -> str:
        """Return the project of the owner's document; for a deleted document the last known project, once, or ""."""
        project: str | None = getattr(self._snapshot().find(owner), "project_id", None)
        if project is None:
            return self._known.pop(owner, "")
        self._known[owner] = project
        return project
