"""A Fairlead server that counts its reads and writes, for the benchmark of the cost of one change.

    COUNTS_FILE=FILE python benchmarks/counting_server.py      otherwise like `fairlead server`

The counts are in a file mapped into memory, so reading them does not disturb the server. Counted calls of Python
functions reveal unexpected loops; counting is slow, and starts with the first write.
"""

import mmap
import os
import struct
import sys
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

from fairlead.cli.main import main
from fairlead.dataplane.rows import Rows
from fairlead.drivers.ovn.northbound import driver as ovn
from fairlead.drivers.ovn.northbound.replica import Replica
from fairlead.drivers.ovsdb import client as ovsdb
from fairlead.drivers.ovsdb.client import ContentChanges, Event
from fairlead.model.documents.owner import Owner
from fairlead.runtime.steps import Steps
from fairlead.server import ovn as server
from fairlead.store import opening
from fairlead.store.interface import Batch, Document
from fairlead.store.sqlite import SqliteStore

NAMES = (
    "documents read from the store",
    "keys written to or checked in the store",
    "rows read by the reconciler",
    "rows that the database told of",
    "places of the replica looked at",
    "operations sent to the database",
    "calls of Python functions",
)
COUNTS_VARIABLE = "COUNTS_FILE"
_READ, _WRITTEN, _ROWS, _NOTIFIED, _PLACES, _OPERATIONS, _CALLS = range(len(NAMES))
_SIZE = 8 * len(NAMES)


def make_counts(path: Path) -> None:
    path.write_bytes(bytes(_SIZE))


def read_counts(path: Path) -> dict[str, int]:
    return dict(zip(NAMES, struct.unpack(f"={len(NAMES)}q", path.read_bytes()), strict=True))


def count_all(counts: memoryview) -> None:
    """Replace the server's classes by counting ones."""

    class CountedStore(SqliteStore):
        async def get(self, key: str) -> Document | None:
            counts[_READ] += 1
            return await super().get(key)

        async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
            documents, revision = await super().range(prefix, after=after, limit=limit)
            counts[_READ] += len(documents)
            return documents, revision

        async def transact(
            self,
            *,
            guards: Mapping[str, int],
            puts: Mapping[str, bytes],
            deletes: Iterable[str],
            head: int | None = None,
        ) -> int:
            if sys.getprofile() is None:
                sys.setprofile(count_call)
            deletes = list(deletes)
            counts[_WRITTEN] += len({*guards, *puts, *deletes})
            return await super().transact(guards=guards, puts=puts, deletes=deletes, head=head)

        async def watch(self, after: int) -> AsyncIterator[Batch]:
            async for batch in super().watch(after):
                counts[_READ] += len(batch.documents)
                yield batch

    class CountedReplica(Replica):
        def _derive(self, place: tuple[str, str, str]) -> Any:
            counts[_PLACES] += 1
            return super()._derive(place)

    class CountedClient(ovsdb.Client):
        async def transact(self, operations: Any, timeout: float | None = None) -> Any:  # noqa: ASYNC109
            counts[_OPERATIONS] += len(operations)
            return await super().transact(operations, timeout)

    class CountedDriver(ovn.OvnDriver):
        async def read(self, owner: Owner) -> Rows:
            rows = await super().read(owner)
            counts[_ROWS] += len(rows)
            return rows

        def _see(self, event: Event) -> Steps[None] | None:
            if isinstance(event, ContentChanges):
                counts[_NOTIFIED] += sum(map(len, event.tables.values()))
            return super()._handle_event(event)

    def count_call(_: object, event: str, __: object) -> None:
        if event == "call":
            counts[_CALLS] += 1

    for module, name, counted in (
        (opening, "SqliteStore", CountedStore),
        (server, "OvnDriver", CountedDriver),
        (ovn, "Replica", CountedReplica),
        (ovn, "Client", CountedClient),
    ):
        assert hasattr(module, name), f"{module.__name__} takes no {name} any more"
        setattr(module, name, counted)


if __name__ == "__main__":
    with open(os.environ[COUNTS_VARIABLE], "r+b") as file:
        count_all(memoryview(mmap.mmap(file.fileno(), _SIZE)).cast("q"))
        sys.exit(main(["server"]))
