"""Whole-store operations (`whole`) on a SQLite file. Documents keep their revisions."""

import os
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

from fairlead.store.bulk import PAGE_SIZE, StoreMissing, StoreSnapshot, StoreState
from fairlead.store.interface import Conflict, Document
from fairlead.store.migration_fence import Fence, decode_fence, encode_fence
from fairlead.store.sqlite import RANGE, SqliteStore, find_fence

FENCE_SCHEMA = "CREATE TABLE IF NOT EXISTS seal (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL)"
TRIGGER = "CREATE TRIGGER sealed BEFORE UPDATE ON head BEGIN SELECT RAISE(ABORT, {words}); END"
"""Every transaction writes the head, so servers of earlier versions, which know no seal, are fenced too."""


class SqliteBulkStore(SqliteStore):
    """Whole store in a SQLite file. Use `await SqliteWhole.open(path)`, or `find` for an existing file."""

    @classmethod
    async def find(cls, path: Path) -> Self:
        """Open an existing file. Raises Absent and StoreUnavailable."""
        store = cls(path)
        await store._begin(store._open_existing)
        return store

    async def state(self) -> StoreState:
        return await self._run(self._state)

    @asynccontextmanager
    async def snapshot(self) -> AsyncIterator[StoreSnapshot]:
        await self._run(lambda: self._sql.execute("BEGIN"))
        try:
            state = await self._run(self._state)
            gone = await self._run(self._deleted)
            yield StoreSnapshot(
                revision=state.revision, documents=state.documents, deleted_keys=gone, pages=self._pages()
            )
        finally:
            await self._run(lambda: self._sql.execute("ROLLBACK"))

    async def set_fence(self, seal: Fence | None, before: Fence | None, head: int | None = None) -> None:
        def change() -> None:
            self._check_fence(before, head)
            self._write_fence(seal)

        await self._run(lambda: self._do(change))

    async def begin(self, seal: Fence, revision: int, gone: Set[str]) -> None:
        def clear() -> None:
            self._check_fence(seal)
            for table in ("document", "change", "weight", "gone"):
                self._sql.execute(f"DELETE FROM {table}")  # noqa: S608 - constant names
            self._sql.executemany("INSERT INTO gone VALUES (?, ?)", [(revision, key) for key in gone])

        await self._run(lambda: self._do(clear))

    async def put(self, seal: Fence, documents: Sequence[Document]) -> None:
        def fill() -> None:
            self._check_fence(seal)
            rows = [(each.key, each.revision, each.value) for each in documents]
            self._sql.executemany("INSERT INTO document VALUES (?, ?, ?)", rows)

        await self._run(lambda: self._do(fill))

    async def finish(self, seal: Fence, revision: int) -> None:
        def end() -> None:
            self._check_fence(seal)
            self._write_fence(None)
            self._sql.execute("UPDATE head SET revision = ?", (revision,))

        await self._run(lambda: self._do(end))

    def _check_not_fenced(self) -> None:
        """Allow everything: bulk operations check the fence themselves."""

    def _state(self) -> StoreState:
        (revision,) = self._sql.execute("SELECT revision FROM head").fetchone()
        (documents,) = self._sql.execute("SELECT count(*) FROM document").fetchone()
        found = find_fence(self._sql)
        return StoreState(revision=revision, documents=documents, fence=decode_fence(found) if found else None)

    async def _pages(self) -> AsyncIterator[Sequence[Document]]:
        after = ""
        while page := await self._run(partial(self._page, after)):
            yield page
            after = page[-1].key

    def _page(self, after: str) -> Sequence[Document]:
        rows = self._sql.execute(RANGE, (after, not after, after, "\U0010ffff", PAGE_SIZE))
        return [Document(key=key, revision=revision, value=value) for key, revision, value in rows]

    def _check_fence(self, seal: Fence | None, head: int | None = None) -> None:
        """Check the seal and the head. Raises Conflict."""
        found = find_fence(self._sql)
        (revision,) = self._sql.execute("SELECT revision FROM head").fetchone()
        if found != (seal and encode_fence(seal)) or head not in (None, revision):
            raise Conflict("the store")

    def _write_fence(self, seal: Fence | None) -> None:
        self._sql.execute(FENCE_SCHEMA)
        self._sql.execute("DELETE FROM seal")
        self._sql.execute("DROP TRIGGER IF EXISTS sealed")
        if seal:
            self._sql.execute("INSERT INTO seal VALUES (1, ?)", (encode_fence(seal),))
            quoted = seal.words.replace("'", "''")
            self._sql.execute(TRIGGER.format(words=f"'{quoted}'"))

    def _do(self, work: Callable[[], None]) -> None:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            work()
            self._check_files()
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise

    def _open_existing(self) -> None:
        """Open an existing file. Raises Absent."""
        if not self._path.is_file():
            raise StoreMissing(f"{self._path}: no such file or directory")
        self._open()

    def _open(self) -> None:
        """Open the file. A file created by root is given to the owner of its directory, the user of the servers."""
        is_new = not self._path.exists()
        super()._open()
        if is_new and os.geteuid() == 0:
            self._give_away()

    def _give_away(self) -> None:
        owner = self._path.parent.stat()
        for each in (self._path, *map(Path, (f"{self._path}-wal", f"{self._path}-shm"))):
            if each.exists():
                os.chown(each, owner.st_uid, owner.st_gid)
