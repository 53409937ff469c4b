"""Embedded store: one SQLite file, for the server processes of one host.

- Durable: `synchronous=FULL` with a write-ahead log, so an acknowledged transaction survives power loss (sqlite.org,
  "Write-Ahead Logging" and PRAGMA synchronous). One thread owns the connection, so the event loop never waits for a
  disk.
- The change feed is a table with the newest transactions, at most `MAX_FEED_TRANSACTIONS` of them and `MAX_FEED_BYTES`.
  A follower further behind reads the whole store again. Keys of deleted documents are kept in a table of their own,
  because they are small.
- If the file has been removed, writes are rejected: SQLite would go on writing to the unlinked file, and the next start
  would not find the data.
- A full disk can still be read, and a start on it writes nothing.
"""

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from fairlead.store.interface import NO_REVISION, Batch, Compacted, Conflict, Document, StoreUnavailable
from fairlead.store.migration_fence import fenced_error

MAX_FEED_TRANSACTIONS = 10_000
MAX_FEED_BYTES = 32 * 2**20
"""Maximum bytes of documents in the feed. A document has 1.25 MiB at most, and a follower polls 20 times a second."""
MAX_TRIMMED_TRANSACTIONS = 32
"""Maximum transactions that one write removes from the feed, which may have grown large under an earlier version."""
MAX_FREE_BYTES = 16 * 2**20
"""Free bytes that a file may keep. With more free than this, and than in use, a start vacuums it."""
POLL_INTERVAL = 0.05
"""Seconds between polls for writes of other processes. Own writes wake the feed immediately."""
MAX_WAL_BYTES = 4 * 2**20
"""Size in bytes of the write-ahead log, when it is truncated after a long reader has finished."""
MIN_FREE_DISK_BYTES = 2**16
"""Free bytes on the disk below which SQLite cannot open: the index of the log (-shm) alone takes 32 KiB."""
LOCK_TIMEOUT = 5.0
"""Seconds that a write waits for another process that holds the file lock. A stopped process may hold it forever."""
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
"""`weight` has the cumulative bytes of the feed up to each transaction. Earlier versions have neither table, and ignore
them in a file that has them."""
MISSED = (
    "SELECT revision, key FROM change WHERE value IS NULL"
    " AND NOT EXISTS (SELECT 1 FROM gone WHERE gone.revision = change.revision AND gone.key = change.key)"
)
"""Deletions by an earlier version that are missing in `gone`."""
RANGE = "SELECT key, revision, value FROM document WHERE key >= ? AND (? OR key <> ?) AND key < ? ORDER BY key LIMIT ?"
"""One lower bound: with two, SQLite would seek the first, and scan all previous pages again for each page."""
_T = TypeVar("_T")


class SqliteStore:
    """Store in a SQLite file. Use `await SqliteStore.open(path)`. The file mode is 0600: documents may hold secrets."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._connection: sqlite3.Connection | None = None
        self._read_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="looking")
        self._read_connection: sqlite3.Connection | None = None
        """Read-only connection for the feed. It does not wait for own writes; SQLite readers never block."""
        self._files: tuple[tuple[int, int], ...] = ()
        self._written = asyncio.Event()

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Open the file. Raises StoreUnavailable if that fails or a newer version wrote it."""
        store = cls(path)
        await store._begin(store._open)
        return store

    async def _begin(self, work: Callable[[], None]) -> None:
        """Run the opening work, and close everything if it fails."""
        try:
            await self._run(work)
        except BaseException:
            await self.close()
            raise

    async def head(self) -> int:
        return await self._run_read(lambda looker: int(looker.execute("SELECT revision FROM head").fetchone()[0]))

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
        return await self._run_read(lambda looker: _feed(looker, after))

    async def watch(self, after: int) -> AsyncIterator[Batch]:
        while True:
            self._written.clear()
            for batch in await self.changes(after) if await self.head() != after else ():
                yield batch
                after = batch.revision
            try:
                async with asyncio.timeout(POLL_INTERVAL):
                    await self._written.wait()
            except TimeoutError:
                pass

    async def renew(self) -> None:
        """Do nothing: a file needs no credentials."""

    async def close(self) -> None:
        if self._read_connection is not None:
            await self._in_thread(self._read_thread, self._read_connection.close)
        if self._connection is not None:
            await self._run(self._connection.close)
        self._read_thread.shutdown()
        self._thread.shutdown()

    async def _run(self, work: Callable[[], _T]) -> _T:
        """Run in the store's thread. Raises StoreUnavailable with SQLite's reason."""
        return await self._in_thread(self._thread, work)

    async def _run_read(self, work: Callable[[sqlite3.Connection], _T]) -> _T:
        """Run on the read-only connection. Raises StoreUnavailable with SQLite's reason."""

        looker = self._read_connection
        if looker is None:
            raise StoreUnavailable(f"{self._path} is not open")
        return await self._in_thread(self._read_thread, lambda: work(looker))

    async def _in_thread(self, thread: ThreadPoolExecutor, work: Callable[[], _T]) -> _T:
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, work)
        except sqlite3.Error as error:
            raise StoreUnavailable(f"{self._path}: {error}{self._explain()}") from error

    def _explain(self) -> str:
        """Return a hint if the disk is full; SQLite only reports "disk I/O error" or "unable to open" then."""
        try:
            return " (disk is full)" if shutil.disk_usage(self._path.parent).free < MIN_FREE_DISK_BYTES else ""
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
        connection.execute(f"PRAGMA journal_size_limit={MAX_WAL_BYTES}")
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
        self._check_not_fenced()
        _shrink(connection)
        self._read_connection = self._connect()
        self._read_connection.execute("PRAGMA query_only=1")
        self._files = self._identify_files()

    def _check_not_fenced(self) -> None:
        if value := find_fence(self._sql):
            raise fenced_error(self._path, value)

    def _connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path, isolation_level=None, check_same_thread=False, timeout=LOCK_TIMEOUT)

    def _identify_files(self) -> tuple[tuple[int, int], ...]:
        """Return device and inode of the database and its log. Raises StoreUnavailable if one is missing."""
        found = []
        for path in (self._path, Path(f"{self._path}-wal")):
            try:
                status = path.stat()
            except OSError as error:
                raise StoreUnavailable(
                    f"{path}: {error.strerror}; restore the file, or restart with another store"
                ) from error
            found.append((status.st_dev, status.st_ino))
        return tuple(found)

    def _check_files(self) -> None:
        if self._identify_files() != self._files:
            raise StoreUnavailable(
                f"{self._path} or its log was replaced while the server ran; restart the server to use it"
            )

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
                if (found.revision if found else NO_REVISION) != wanted:
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
        oldest = self._sql.execute(
            "SELECT revision, total FROM weight ORDER BY revision LIMIT ?", (MAX_TRIMMED_TRANSACTIONS,)
        )
        out = [
            each
            for each, bytes_then in oldest
            if each <= revision - MAX_FEED_TRANSACTIONS or bytes_then <= total - MAX_FEED_BYTES
        ]
        if out:
            for table in ("change", "weight"):
                self._sql.execute(f"DELETE FROM {table} WHERE revision <= ?", (out[-1],))  # noqa: S608 - constant names
        self._sql.execute("DELETE FROM gone WHERE revision <= ?", (revision - MAX_FEED_TRANSACTIONS,))

    def _deleted(self) -> set[str]:
        gone = "SELECT DISTINCT key FROM gone WHERE key NOT IN (SELECT key FROM document)"
        return {key for (key,) in self._sql.execute(gone)}


def _feed(connection: sqlite3.Connection, after: int) -> list[Batch]:
    connection.execute("BEGIN")  # the feed and its head, from one snapshot
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


def find_fence(connection: sqlite3.Connection) -> bytes | None:
    """Return the encoded seal, if any. The table is created with the first seal."""
    if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'seal'").fetchone():
        return None
    found = connection.execute("SELECT value FROM seal").fetchone()
    return bytes(found[0]) if found else None


def _shrink(connection: sqlite3.Connection) -> None:
    """Vacuum a file with much free space, unless another process has it locked or the disk is full."""
    size, free, used = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_size", "freelist_count", "page_count")
    )
    if free * size > MAX_FREE_BYTES and free > used / 2:
        with contextlib.suppress(sqlite3.OperationalError):
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
