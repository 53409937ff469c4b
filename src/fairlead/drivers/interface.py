"""What a reconciler asks of a dataplane. Three calls, and two more where several owners are quicker together; a driver
decides nothing about load balancing.

A driver finds its own rows by their mark, without memory: a fresh process reads the same as the old one.
"""

from collections.abc import Collection, Mapping
from typing import Protocol, runtime_checkable

from fairlead.dataplane.rows import Diff, Rows
from fairlead.model.owner import Owner


class DriverError(Exception):
    """Something kept a change from the dataplane. What of it happened is unknown until the owner is read again."""


class MissingReference(DriverError):
    """A row refers to one that is not there (yet): try again once its owner was applied. Nothing was changed."""


class Unavailable(DriverError):
    """The dataplane cannot be reached. Nothing was changed, or it is unknown."""


class Unreachable(Unavailable):
    """There is no connection, and nothing was sent. The driver goes on trying, and says when there is one."""


class Standby(Unavailable):
    """Another server is the one that writes: it will do what is to be done, and this one will see it."""


class Unheard(Unavailable):
    """What the owner's rows depend on was not heard since the start. Nothing was changed."""


class Later(DriverError):
    """It is not the time for it yet. What cannot wait of it was done, and the rest may come before it is asked again.

    So the owner is applied again, even where nothing is left to change by then: what waits is no longer wanted."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"in {seconds:.1f} s")
        self.seconds = seconds


class Driver(Protocol):
    async def read_all(self) -> Mapping[Owner, Rows]:
        """Every row of ours, by owner: for a resync, never on the path of one change. Raises DriverError."""

    async def read(self, owner: Owner) -> Rows:
        """What the dataplane holds for one owner, without listing the others. Raises DriverError."""

    async def apply(self, owner: Owner, diff: Diff) -> None:
        """All of the diff in one transaction, or none of it. Raises DriverError."""


@runtime_checkable
class BulkDriver(Driver, Protocol):
    """One that takes several owners together, for which a transaction of its own for each would take long."""

    async def read_some(self, owners: Collection[Owner]) -> Mapping[Owner, Rows]:
        """What the dataplane holds for each of these. Raises DriverError."""

    async def apply_all(self, diffs: Mapping[Owner, Diff]) -> None:
        """Those of several owners in one transaction, or none of them. Raises DriverError, which says nothing of whose
        fault it is."""
