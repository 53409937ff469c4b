"""Interface of a driver: three calls, and two more for drivers that apply several owners faster together.

A driver makes no load balancing decisions. It recognises managed rows by their mark and keeps no other state, so a new
process reads the same rows as the previous one.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from fairlead.dataplane.rows import Diff, Rows
from fairlead.model.documents.owner import Owner


class DriverError(Exception):
    """A change was not applied. Its effect is unknown until the owner is read again."""


class MissingReference(DriverError):
    """A row refers to a missing row. Nothing was changed; retry after the other owner has been applied."""


class Unavailable(DriverError):
    """The dataplane is unreachable. Nothing was changed, or the result is unknown."""


class Unreachable(Unavailable):
    """Not connected, and nothing was sent. The driver reconnects and signals when it has."""


class Standby(Unavailable):
    """Another server holds the lock. It will apply the change, and this server will receive the result."""


class NotSynced(Unavailable):
    """The process has not yet received observed state (facts, such as port bindings) that the rows of this owner depend
    on. Nothing was changed."""


class Requeue(DriverError):
    """The change is partly deferred. Urgent parts were applied, and the rest may be superseded before the retry.

    The owner is applied again even without a difference, because the deferred part may be obsolete by then.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.1f} s")
        self.seconds = seconds


class Driver(Protocol):
    async def read_all(self) -> Mapping[Owner, Rows]:
        """Return all managed rows by owner. For a resync only. Raises DriverError."""

    async def read(self, owner: Owner) -> Rows:
        """Return the rows of one owner, without listing others. Raises DriverError."""

    async def apply(self, owner: Owner, diff: Diff) -> None:
        """Apply the diff in one transaction. Raises DriverError."""


@runtime_checkable
class BulkDriver(Driver, Protocol):
    """Driver that applies several owners together, for dataplanes with slow transactions."""

    async def read_some(self, owners: Collection[Owner]) -> Mapping[Owner, Rows]:
        """Return the rows of each of these owners. Raises DriverError."""

    async def apply_all(self, diffs: Mapping[Owner, Diff]) -> None:
        """Apply the diffs in one transaction. Raises DriverError, which does not identify the owner at fault."""
