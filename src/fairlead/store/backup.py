"""Backup of a deployment in one file: gzip-compressed lines of JSON.

The first line is the header, the last has the number of documents and a SHA-256 checksum, so truncation is detected.
The file has all documents with their revisions, claims, and the keys of deleted documents. It does not have state
outside the store: the CA of the nodes, the LXD certificate, the configuration. The file mode is 0600, because documents
may hold secrets.
"""

import gzip
import hashlib
import os
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence, Set
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fairlead.store.bulk import PAGE_SIZE, StoreSnapshot
from fairlead.store.codec import decode_stored
from fairlead.store.full_read import CLAIM
from fairlead.store.interface import Document, StoreError

VERSION = 1
MAX_LINE_BYTES = 2**26
KEYS_PER_LINE = 5_000
"""Maximum keys of deleted documents in one line."""
LEVEL = 6


class BadBackup(StoreError):
    """The file is no backup, or is truncated or damaged. The message names the reason."""


class BackupHeader(msgspec.Struct, kw_only=True, frozen=True):
    backup: int
    """Version of the backup format."""
    made: str
    fairlead: str
    store: str
    revision: int
    documents: int


class BackupLine(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A document, keys of deleted documents, or the end of the file."""

    key: str = ""
    revision: int = 0
    value: str = ""
    gone: tuple[str, ...] = ()
    documents: int = -1
    sha256: str = ""


async def write_backup(path: Path, header: BackupHeader, picture: StoreSnapshot, tell: Callable[[int], None]) -> int:
    """Write a new file atomically and return its size in bytes. Raises OSError, also if the file exists."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            with gzip.GzipFile(filename="", fileobj=file, mode="wb", compresslevel=LEVEL, mtime=0) as packed:
                await _write(_Hashed(packed.write), header, picture, tell)
            file.flush()
            os.fsync(file.fileno())
        os.link(new, path)
        return os.stat(path).st_size
    finally:
        with suppress(OSError):
            new.unlink()


@dataclass
class _Hashed:
    write: Callable[[bytes], Any]
    digest: Any = field(default_factory=hashlib.sha256)

    def line(self, value: object) -> None:
        octets = msgspec.json.encode(value) + b"\n"
        self.digest.update(octets)
        self.write(octets)


async def _write(out: _Hashed, header: BackupHeader, picture: StoreSnapshot, tell: Callable[[int], None]) -> None:
    out.line(header)
    names = sorted(picture.deleted_keys)
    for first in range(0, len(names), KEYS_PER_LINE):
        out.line(BackupLine(gone=tuple(names[first : first + KEYS_PER_LINE])))
    done = 0
    async for page in picture.pages:
        for each in page:
            out.line(BackupLine(key=each.key, revision=each.revision, value=each.value.decode()))
        done += len(page)
        tell(done)
    out.line(BackupLine(documents=done, sha256=out.digest.hexdigest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedBackup:
    header: BackupHeader
    gone: Set[str]
    octets: int


def check_backup(path: Path) -> CheckedBackup:
    """Read the whole file and check the checksum, the counts, and that this version can decode each document.

    Raises BadBackup.
    """
    gone: set[str] = set()
    octets = 0
    unreadable = ""
    for line in _read(path, header := read_header(path)):
        gone.update(line.gone)
        octets += len(line.value)
        unreadable = unreadable or _decode_error(line)
    if unreadable:  # only after the checksum, so the file is known to be undamaged
        raise BadBackup(f"{path}: this version of Fairlead cannot read a document of the backup: {unreadable}")
    return CheckedBackup(header=header, gone=gone, octets=octets)


def read_header(path: Path) -> BackupHeader:
    """Read and return the first line. Raises BadBackup."""
    first = next(_lines(path), b"")
    try:
        header = msgspec.json.decode(first, type=BackupHeader)
    except msgspec.DecodeError:
        raise BadBackup(f"{path} is not a backup of Fairlead") from None
    if header.backup > VERSION:
        raise BadBackup(f"{path} was written by a newer version of Fairlead ({header.fairlead})")
    return header


@asynccontextmanager
async def open_snapshot(path: Path, checked: CheckedBackup) -> AsyncIterator[StoreSnapshot]:
    header = checked.header
    yield StoreSnapshot(
        revision=header.revision, documents=header.documents, deleted_keys=checked.gone, pages=_pages(path, header)
    )


async def _pages(path: Path, header: BackupHeader) -> AsyncIterator[Sequence[Document]]:
    page: list[Document] = []
    for line in _read(path, header):
        if line.key:
            page.append(Document(key=line.key, revision=line.revision, value=line.value.encode()))
        if len(page) == PAGE_SIZE:
            yield page
            page = []
    if page:
        yield page


def _read(path: Path, header: BackupHeader) -> Iterator[BackupLine]:
    """Yield the lines between the header and the end. Raises BadBackup if the file is damaged or truncated."""
    digest = hashlib.sha256()
    documents = 0
    lines = _lines(path)
    digest.update(next(lines))
    for octets in lines:
        try:
            line = msgspec.json.decode(octets, type=BackupLine)
        except msgspec.DecodeError:
            raise BadBackup(f"{path} is damaged: a line is unreadable") from None
        if line.sha256:
            if line.sha256 != digest.hexdigest() or not line.documents == documents == header.documents:
                raise BadBackup(f"{path} is damaged: the checksum does not match")
            if next(lines, None) is not None:
                raise BadBackup(f"{path} is damaged: data follows the end line")
            return
        digest.update(octets)
        documents += bool(line.key)
        yield line
    raise BadBackup(f"{path} is truncated: the end line is missing")


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the uncompressed lines. Raises BadBackup and OSError."""
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(MAX_LINE_BYTES):
                yield line
    except EOFError:
        raise BadBackup(f"{path} is truncated: the end line is missing") from None
    except (gzip.BadGzipFile, zlib.error):
        raise BadBackup(f"{path} is not a backup of Fairlead, or is damaged") from None


def _decode_error(line: BackupLine) -> str:
    """Return why this version cannot read the document in this line; "" if it can."""
    if not line.key or line.key.startswith(CLAIM):
        return ""
    try:
        decode_stored(line.key, line.value.encode())
    except StoreError as error:
        return str(error)
    return ""
