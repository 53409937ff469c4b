"""The embedded store: one SQLite file, several server processes of one host at most.

Durable: `synchronous=FULL` with a write-ahead log, so a transaction that was answered survives power loss (sqlite.org,
"Write-Ahead Logging" and PRAGMA synchronous). One thread owns the connection, so the event loop never waits for a disk.
The feed of changes is a table that keeps the newest transactions, `FEED` of them and `FEED_BYTES` at most: who falls
further behind reads everything again. What was deleted is remembered apart, because it takes no room.

A file that was taken away acknowledges nothing: SQLite would go on writing to it, and the next start would not find it.
A disk that is full can be read: a start on it writes nothing.
"""

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from fairlead.store.interface import ABSENT, Batch, Compacted, Conflict, Document, StoreUnavailable
from fairlead.store.seal import sealed

FEED = 10_000
FEED_BYTES = 32 * 2**20
"""Of documents in the feed. A document has 1.25 MiB at most, and a follower looks twenty times a second."""
TRIMMED = 32
"""Transactions that one write takes out of the feed: it may have grown large under an earlier version."""
SPARE = 16 * 2**20
"""Bytes that a file may have free for what comes; with more, and more than it uses, a start gives them back."""
POLL = 0.05
"""Seconds between two looks for the writes of another process; our own writes wake the feed at once."""
LARGEST_LOG = 4 * 2**20
"""Bytes that the write-ahead log keeps once a reader that held it up has gone."""
NO_ROOM = 2**16
"""With fewer bytes left on its disk SQLite cannot begin: its index of the log alone has 32 KiB."""
PATIENCE = 5.0
"""Seconds that a write waits for another process that holds the file: one that was stopped may hold it for ever."""
VERSION = 1
SCHEMA = """
CREATE TABLE IF NOT EXISTS document (key TEXT PRIMARY KEY, revision INTEGER NOT NULL, value BLOB NOT NULL)
  WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS change (revision INTEGER, key TEXT, value BLOB, PRIMARY KEY (revision, key)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS head (one INTEGER PRIMARY KEY CHECK (one = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO head VALUES (1, 0);
"""
FEED_SCHEMA = """
CREATE TABLE IF NOT EXISTS weight (revision INTEGER PRIMARY KEY, total INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS gone (revision INTEGER, key TEXT, PRIMARY KEY (revision, key)) WITHOUT ROWID;
INSERT OR IGNORE INTO weight SELECT revision, sum(sum(ifnull(length(value), 0))) OVER (ORDER BY revision)
  FROM change GROUP BY revision;
INSERT OR IGNORE INTO gone SELECT revision, key FROM change WHERE value IS NULL;
"""
"""`weight` has the bytes of the feed up to each transaction, since the first. Earlier versions have neither table, and
can go on with a file that has them."""
MISSED = (
    "SELECT revision, key FROM change WHERE value IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM gone WHERE gone.revision = change.revision AND gone.key = change.key)"
)
"""What an earlier version has deleted from a file that has the table already."""
RANGE = "SELECT key, revision, value FROM document WHERE key >= ? AND (? OR key <> ?) AND key < ? ORDER BY key LIMIT ?"
"""One lower bound: of two SQLite would seek the first, and read all pages before once more for each page."""
_T = TypeVar("_T")


class SqliteStore:
    """Use `await SqliteStore.open(path)`. The file is readable by its owner only: documents may hold secrets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None
        self._looking = ThreadPoolExecutor(max_workers=1, thread_name_prefix="looking")
        self._looker: sqlite3.Connection | None = None
        """For what was written by others: it waits for no write of ours, and SQLite lets nobody wait who reads."""
        self._files: tuple[tuple[int, int], ...] = ()
        self._written = asyncio.Event()

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Raises StoreUnavailable when the file cannot be opened or was written by a newer version."""
        store = cls(path)
        await store._begin(store._open)
        return store

    async def _begin(self, work: Callable[[], None]) -> None:
        """Who cannot begin leaves nothing open."""
        try:
            await self._run(work)
        except BaseException:
            await self.close()
            raise

    async def head(self) -> int:
        return await self._look(lambda looker: int(looker.execute("SELECT revision FROM head").fetchone()[0]))

    async def get(self, key: str) -> Document | None:
        return await self._run(lambda: self._get(key))

    async def range(self, prefix: str, *, after: str = "", limit: int | None = None) -> tuple[list[Document], int]:
        return await self._run(lambda: self._range(prefix, after, limit))

    async def transact(
        self, *, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: Iterable[str], head: int | None = None
    ) -> int:
        keys = list(deletes)
        revision = await self._run(lambda: self._transact(guards, puts, keys, head))
        self._written.set()
        return revision

    async def deleted(self) -> set[str]:
        return await self._run(self._deleted)

    async def changes(self, after: int) -> list[Batch]:
        return await self._look(lambda looker: _feed(looker, after))

    async def watch(self, after: int) -> AsyncIterator[Batch]:
        while True:
            self._written.clear()
            for batch in await self.changes(after) if await self.head() != after else ():
                yield batch
                after = batch.revision
            try:
                async with asyncio.timeout(POLL):
                    await self._written.wait()
            except TimeoutError:
                pass

    async def renew(self) -> None:
        """A file needs none."""

    async def close(self) -> None:
        if self._looker is not None:
            await self._in_thread(self._looking, self._looker.close)
        if self._connection is not None:
            await self._run(self._connection.close)
        self._looking.shutdown()
        self._thread.shutdown()

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Do it in the store's thread. Raises StoreUnavailable with SQLite's reason."""
        return await self._in_thread(self._thread, work)

    async def _look(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Raises StoreUnavailable with SQLite's reason."""

        looker = self._looker
        if looker is None:
            raise StoreUnavailable(f"{self._path} is not open")
        return await self._in_thread(self._looking, lambda: work(looker))

    async def _in_thread(self, thread: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {error}{self._explain()}") from error

    def _explain(self) -> str:
        """SQLite says "disk I/O error" and "unable to open" too when it finds no room for a file beside its own."""
        try:
            return " (disk is full)" if shutil.disk_usage(self._path.parent).free < NO_ROOM else ""
        except OSError:
            return ""

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._path.touch(mode=0o600, exist_ok=True)
            for each in (self._path, *map(Path, (f"{self._path}-wal", f"{self._path}-shm"))):
                if each.exists() and each.stat().st_mode & 0o077:
                    each.chmod(0o600)
        except OSError as error:
            raise StoreUnavailable(f"{self._path}: {error.strerror}") from error
        connection = self._connection = self._connect()
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={LARGEST_LOG}")
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise StoreUnavailable(f"{self._path} was written by a newer version of Fairlead")
        if version < VERSION:
            connection.executescript(SCHEMA)
            connection.execute(f"PRAGMA user_version={VERSION}")
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'weight'").fetchone():
            connection.executescript(f"BEGIN IMMEDIATE;{FEED_SCHEMA}COMMIT;")
        elif connection.execute(f"{MISSED} LIMIT 1").fetchone():
            connection.execute(f"INSERT INTO gone {MISSED}")
        self._refuse_sealed()
        _shrink(connection)
        self._looker = self._connect()
        self._looker.execute("PRAGMA query_only=1")
        self._files = self._identify_files()

    def _refuse_sealed(self) -> None:
        if value := find_seal(self._sql):
            raise sealed(self._path, value)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=PATIENCE)

    def _identify_files(self) -> tuple[tuple[int, int], ...]:
        """Which files have the names of the database and of its log. Raises StoreUnavailable when one has none."""
        found = []
        for path in (self._path, Path(f"{self._path}-wal")):
            try:
                status = path.stat()
            except OSError as error:
                raise StoreUnavailable(f"{path}: {error.strerror}; put it back, or start again with another") from error
            found.append((status.st_dev, status.st_ino))
        return tuple(found)

    def _check_files(self) -> None:
        if self._identify_files() != self._files:
            raise StoreUnavailable(f"{self._path} or its log is another file than at the start; start again to use it")

    @property
    def _sql(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StoreUnavailable(f"{self._path} is not open")
        return self._connection

    def _get(self, key: str) -> Document | None:
        row = self._sql.execute("SELECT revision, value FROM document WHERE key = ?", (key,)).fetchone()
        return None if row is None else Document(key=key, revision=row[0], value=row[1])

    def _range(self, prefix: str, after: str, limit: int | None) -> tuple[list[Document], int]:
        self._sql.execute("BEGIN")
        try:
            (revision,) = self._sql.execute("SELECT revision FROM head").fetchone()
            behind = max(prefix, after)
            rows = self._sql.execute(
                RANGE, (behind, behind != after, behind, prefix + "\U0010ffff", -1 if limit is None else limit)
            )
            return [Document(key=key, revision=written, value=value) for key, written, value in rows], revision
        finally:
            self._sql.execute("ROLLBACK")

    def _transact(
        self, guards: Mapping[str, int], puts: Mapping[str, bytes], deletes: list[str], head: int | None
    ) -> int:
        self._sql.execute("BEGIN IMMEDIATE")
        try:
            if head is not None and self._sql.execute("SELECT revision FROM head").fetchone() != (head,):
                raise Conflict("the store")
            for key, wanted in guards.items():
                found = self._get(key)
                if (found.revision if found else ABSENT) != wanted:
                    raise Conflict(key)
            revision = self._write(puts, deletes)
            self._check_files()
            self._sql.execute("COMMIT")
        except BaseException:
            if self._sql.in_transaction:
                self._sql.execute("ROLLBACK")
            raise
        return revision

    def _write(self, puts: Mapping[str, bytes], deletes: list[str]) -> int:
        (revision,) = self._sql.execute("UPDATE head SET revision = revision + 1 RETURNING revision").fetchone()
        self._sql.executemany(
            "INSERT INTO document VALUES (?, ?, ?) ON CONFLICT (key) DO UPDATE SET revision=excluded.revision,"
            " value=excluded.value",
            [(key, revision, value) for key, value in puts.items()],
        )
        self._sql.executemany("DELETE FROM document WHERE key = ?", [(key,) for key in deletes])
        changes = {**dict.fromkeys(deletes), **puts}
        self._sql.executemany(
            "INSERT INTO change VALUES (?, ?, ?)", [(revision, key, value) for key, value in changes.items()]
        )
        self._sql.executemany("INSERT OR IGNORE INTO gone VALUES (?, ?)", [(revision, key) for key in deletes])
        self._trim_feed(revision, sum(map(len, puts.values())))
        return int(revision)

    def _trim_feed(self, revision: int, added: int) -> None:
        newest = self._sql.execute("SELECT total FROM weight ORDER BY revision DESC LIMIT 1").fetchone()
        total = (newest[0] if newest else 0) + added
        self._sql.execute("INSERT INTO weight VALUES (?, ?)", (revision, total))
        oldest = self._sql.execute("SELECT revision, total FROM weight ORDER BY revision LIMIT ?", (TRIMMED,))
        out = [each for each, bytes_then in oldest if each <= revision - FEED or bytes_then <= total - FEED_BYTES]
        if out:
            for table in ("change", "weight"):
                self._sql.execute(f"DELETE FROM {table} WHERE revision <= ?", (out[-1],))  # noqa: S608 - ours
        self._sql.execute("DELETE FROM gone WHERE revision <= ?", (revision - FEED,))

    def _deleted(self) -> set[str]:
        gone = "SELECT DISTINCT key FROM gone WHERE key NOT IN (SELECT key FROM document)"
        return {key for (key,) in self._sql.execute(gone)}


def _feed(connection: sqlite3.Connection, after: int) -> list[Batch]:
    connection.execute("BEGIN")  # the feed and its end, as of one moment
    try:
        rows = connection.execute(
            "SELECT revision, key, value FROM change WHERE revision > ? ORDER BY revision", (after,)
        ).fetchall()
        (head,) = connection.execute("SELECT revision FROM head").fetchone()
    finally:
        connection.execute("ROLLBACK")
    batches: dict[int, dict[str, bytes | None]] = {}
    for revision, key, value in rows:
        batches.setdefault(revision, {})[key] = value
    if head > after and min(batches, default=head + 1) != after + 1:
        raise Compacted(f"the feed starts after revision {after}")
    return [Batch(revision=revision, documents=documents) for revision, documents in batches.items()]


def find_seal(connection: sqlite3.Connection) -> bytes | None:
    """Its table is made with the first one."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone():
        return None
    found = connection.execute("SELECT value FROM seal").fetchone()
    return bytes(found[0]) if found else None


def _shrink(connection: sqlite3.Connection) -> None:
    """Give back what the file has free, if that is much. Not while another process has it, or the disk is full."""
    size, free, used = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count", "page_count")
    )
    if free * size > SPARE and free > used / 2:
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
