"""A deployment in one file: lines of JSON, compressed. The first says what it is, the last that it is whole.

It has all documents with their revisions, names of claims and of what was deleted. What is kept beside the store is not
in it: the authority of nodes, LXD's certificate, the configuration. Documents may hold secrets, so its owner alone may
read it.
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

from fairlead.store.codec import decode_stored
from fairlead.store.interface import Document, StoreError
from fairlead.store.rereading import CLAIM
from fairlead.store.whole import PAGE, Picture

VERSION = 1
LONGEST_LINE = 2**26
GONE = 5_000
"""Names in a line."""
LEVEL = 6


class BadBackup(StoreError):
    """It is no backup, or not a whole one. The message says which."""


class Header(msgspec.Struct, kw_only=True, frozen=True):
    backup: int
    """Which version of the format."""
    made: str
    fairlead: str
    store: str
    revision: int
    documents: int


class Line(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A document, or names of deleted ones, or the end."""

    key: str = ""
    revision: int = 0
    value: str = ""
    gone: tuple[str, ...] = ()
    documents: int = -1
    sha256: str = ""


async def write_backup(path: Path, header: Header, picture: Picture, tell: Callable[[int], None]) -> int:
    """The file is there whole or not at all, and never in the place of another. Answers its size. Raises OSError."""
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


async def _write(out: _Hashed, header: Header, picture: Picture, tell: Callable[[int], None]) -> None:
    out.line(header)
    names = sorted(picture.gone)
    for first in range(0, len(names), GONE):
        out.line(Line(gone=tuple(names[first : first + GONE])))
    done = 0
    async for page in picture.pages:
        for each in page:
            out.line(Line(key=each.key, revision=each.revision, value=each.value.decode()))
        done += len(page)
        tell(done)
    out.line(Line(documents=done, sha256=out.digest.hexdigest()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    header: Header
    gone: Set[str]
    octets: int


def check_backup(path: Path) -> Checked:
    """All of it, to the end: checksum, number, and that this version can read each document. Raises BadBackup."""
    gone: set[str] = set()
    octets = 0
    unreadable = ""
    for line in _read(path, header := read_header(path)):
        gone.update(line.gone)
        octets += len(line.value)
        unreadable = unreadable or _complain(line)
    if unreadable:  # of a file that is as it was written
        raise BadBackup(f"{path}: this version of Fairlead cannot read a document of it: {unreadable}")
    return Checked(header=header, gone=gone, octets=octets)


def read_header(path: Path) -> Header:
    """Raises BadBackup."""
    first = next(_lines(path), b"")
    try:
        header = msgspec.json.decode(first, type=Header)
    except msgspec.DecodeError:
        raise BadBackup(f"{path} is no backup of Fairlead") from None
    if header.backup > VERSION:
        raise BadBackup(f"{path} was written by a newer version of Fairlead ({header.fairlead})")
    return header


@asynccontextmanager
async def picture_of(path: Path, checked: Checked) -> AsyncIterator[Picture]:
    header = checked.header
    yield Picture(revision=header.revision, documents=header.documents, gone=checked.gone, pages=_pages(path, header))


async def _pages(path: Path, header: Header) -> AsyncIterator[Sequence[Document]]:
    page: list[Document] = []
    for line in _read(path, header):
        if line.key:
            page.append(Document(key=line.key, revision=line.revision, value=line.value.encode()))
        if len(page) == PAGE:
            yield page
            page = []
    if page:
        yield page


def _read(path: Path, header: Header) -> Iterator[Line]:
    """What is between the first and the last line. Raises BadBackup where the file stops being what was written."""
    digest = hashlib.sha256()
    documents = 0
    lines = _lines(path)
    digest.update(next(lines))
    for octets in lines:
        try:
            line = msgspec.json.decode(octets, type=Line)
        except msgspec.DecodeError:
            raise BadBackup(f"{path} is damaged: a line of it cannot be read") from None
        if line.sha256:
            if line.sha256 != digest.hexdigest() or not line.documents == documents == header.documents:
                raise BadBackup(f"{path} is damaged: its checksum is another")
            if next(lines, None) is not None:
                raise BadBackup(f"{path} is damaged: something stands behind its end")
            return
        digest.update(octets)
        documents += bool(line.key)
        yield line
    raise BadBackup(f"{path} is not whole: its end is missing")


def _lines(path: Path) -> Iterator[bytes]:
    """Raises BadBackup, OSError."""
    try:
        with gzip.open(path, "rb") as file:
            while line := file.readline(LONGEST_LINE):
                yield line
    except EOFError:
        raise BadBackup(f"{path} is not whole: its end is missing") from None
    except (gzip.BadGzipFile, zlib.error):
        raise BadBackup(f"{path} is no backup of Fairlead, or damaged") from None


def _complain(line: Line) -> str:
    """Of a document that this version cannot read."""
    if not line.key or line.key.startswith(CLAIM):
        return ""
    try:
        decode_stored(line.key, line.value.encode())
    except StoreError as error:
        return str(error)
    return ""
