"""Whole-store operations (`whole`) on a SQLite file. Documents keep their revisions."""

import os
from collections.abc import AsyncIterator, Callable, Sequence, Set
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Self

from fairlead.store.interface import Conflict, Document
from fairlead.store.migration_fence import Seal, decode_seal, encode_seal
from fairlead.store.sqlite import RANGE, SqliteStore, find_seal
from fairlead.store.whole import PAGE, Absent, Picture, State

SEAL = "CREATE TABLE IF NOT EXISTS seal (one INTEGER PRIMARY KEY CHECK (one = 1), value BLOB NOT NULL)"
TRIGGER = "CREATE TRIGGER sealed BEFORE UPDATE ON head BEGIN SELECT RAISE(ABORT, {words}); END"
"""Every transaction writes the head, so servers of earlier versions, which know no seal, are fenced too."""


class SqliteWhole(SqliteStore):
    """Whole store in a SQLite file. Use `await SqliteWhole.open(path)`, or `find` for an existing file."""

    @classmethod
    async def find(cls, path: Path) -> Self:
        """Open an existing file. Raises Absent and StoreUnavailable."""
        store = cls(path)
        await store._begin(store._open_there)
        return store

    async def state(self) -> State:
        return await self._run(self._state)

    @asynccontextmanager
    async def picture(self) -> AsyncIterator[Picture]:
        await self._run(lambda: self._sql.execute("BEGIN"))
        try:
            state = await self._run(self._state)
            gone = await self._run(self._deleted)
            yield Picture(revision=state.revision, documents=state.documents, gone=gone, pages=self._pages())
        finally:
            await self._run(lambda: self._sql.execute("ROLLBACK"))

    async def seal(self, seal: Seal | None, before: Seal | None, head: int | None = None) -> None:
        def change() -> None:
            self._expect(before, head)
            self._set_seal(seal)

        await self._run(lambda: self._do(change))

    async def begin(self, seal: Seal, revision: int, gone: Set[str]) -> None:
        def clear() -> None:
            self._expect(seal)
            for table in ("document", "change", "weight", "gone"):
                self._sql.execute(f"DELETE FROM {table}")  # noqa: S608 - constant names
            self._sql.executemany("INSERT INTO gone VALUES (?, ?)", [(revision, key) for key in gone])

        await self._run(lambda: self._do(clear))

    async def put(self, seal: Seal, documents: Sequence[Document]) -> None:
        def fill() -> None:
            self._expect(seal)
            rows = [(each.key, each.revision, each.value) for each in documents]
            self._sql.executemany("INSERT INTO document VALUES (?, ?, ?)", rows)

        await self._run(lambda: self._do(fill))

    async def finish(self, seal: Seal, revision: int) -> None:
        def end() -> None:
            self._expect(seal)
            self._set_seal(None)
            self._sql.execute("UPDATE head SET revision = ?", (revision,))

        await self._run(lambda: self._do(end))

    def _refuse_sealed(self) -> None:
        """Do nothing: whole-store operations check the seal themselves."""

    def _state(self) -> State:
        (revision,) = self._sql.execute("SELECT revision FROM head").fetchone()
        (documents,) = self._sql.execute("SELECT count(*) FROM document").fetchone()
        found = find_seal(self._sql)
        return State(revision=revision, documents=documents, seal=decode_seal(found) if found else None)

    async def _pages(self) -> AsyncIterator[Sequence[Document]]:
        after = ""
        while page := await self._run(partial(self._page, after)):
            yield page
            after = page[-1].key

    def _page(self, after: str) -> Sequence[Document]:
        rows = self._sql.execute(RANGE, (after, not after, after, "\U0010ffff", PAGE))
        return [Document(key=key, revision=revision, value=value) for key, revision, value in rows]

    def _expect(self, seal: Seal | None, head: int | None = None) -> None:
        """Check the seal and the head. Raises Conflict."""
        found = find_seal(self._sql)
        (revision,) = self._sql.execute("SELECT revision FROM head").fetchone()
        if found != (seal and encode_seal(seal)) or head not in (None, revision):
            raise Conflict("the store")

    def _set_seal(self, seal: Seal | None) -> None:
        self._sql.execute(SEAL)
        self._sql.execute("DELETE FROM seal")
        self._sql.execute("DROP TRIGGER IF EXISTS sealed")
        if seal:
            self._sql.execute("INSERT INTO seal VALUES (1, ?)", (encode_seal(seal),))
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

    def _open_there(self) -> None:
        """Open an existing file. Raises Absent."""
        if not self._path.is_file():
            raise Absent(f"{self._path}: there is no such file")
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
