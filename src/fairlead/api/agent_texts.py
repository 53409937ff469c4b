"""Documents of slices as text: each is written once, whoever hears of it, and lists of many are shared."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count

from fairlead.api.agent_lines import health_line, put_line
from fairlead.model.owner import Owner
from fairlead.model.slices import owners_at_any
from fairlead.model.snapshot import Aggregate, Snapshot

LARGEST_CACHE = 32 * 2**20
"""Bytes of documents as text."""
PIECE = 2**16
"""Bytes of a list that are sent at once."""
MOST_SHARED = 8
"""Lists of documents that are kept while nothing changes."""


@dataclass(eq=False, slots=True)
class _Shared:
    """Pieces that are made when the first one asks for them."""

    rest: Iterator[bytes]
    made: list[bytes] = field(default_factory=list)

    def read(self) -> Iterator[bytes]:
        for index in count():
            if index == len(self.made):
                piece = next(self.rest, None)
                if piece is None:
                    return
                self.made.append(piece)
            yield self.made[index]


def _pieces(lines: Iterable[bytes]) -> Iterator[bytes]:
    piece, size = list[bytes](), 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size > PIECE:
            yield b"".join(piece)
            piece, size = [], 0
    if piece:
        yield b"".join(piece)


class Texts:
    def __init__(self) -> None:
        self._texts: dict[Owner, tuple[Aggregate, int | None, bytes]] = {}
        """Owner -> its document, the generation of that, and both as a line."""
        self._cached = 0
        self._shared_of: Snapshot | None = None
        self._shared: dict[frozenset[str], _Shared] = {}
        """What is reached -> the documents there as that snapshot has them."""

    def documents_at(self, snapshot: Snapshot, reach: frozenset[str]) -> Iterator[bytes]:
        """Chassis that reach the same share the pieces: after a server's restart all of them ask at once."""
        if self._shared_of is not snapshot:
            self._shared_of, self._shared = snapshot, {}
        if reach not in self._shared and len(self._shared) >= MOST_SHARED:
            self._shared.pop(next(iter(self._shared)))
        shared = self._shared.setdefault(reach, _Shared(_pieces(self._lines(snapshot, reach))))
        return shared.read()

    def _lines(self, snapshot: Snapshot, reach: Iterable[str]) -> Iterator[bytes]:
        for owner in owners_at_any(snapshot, reach):
            yield from self.document(snapshot, owner)

    def document(self, snapshot: Snapshot, owner: Owner) -> Iterator[bytes]:
        yield self.text(snapshot, owner)
        if has_health(snapshot, owner):
            yield health_line(snapshot, owner)

    def text(self, snapshot: Snapshot, owner: Owner) -> bytes:
        document = snapshot.documents(owner.kind)[owner.id]
        generation = snapshot.generations.get(owner)
        known = self._texts.get(owner)
        if known is not None and known[0] is document and known[1] == generation:
            return known[2]
        line = put_line(owner, generation, document)
        self._cached += len(line) - (len(known[2]) if known else 0)
        self._texts.pop(owner, None)
        self._texts[owner] = document, generation, line
        while self._cached > LARGEST_CACHE:
            self._cached -= len(self._texts.pop(next(iter(self._texts)))[2])
        return line


def has_health(snapshot: Snapshot, owner: Owner) -> bool:
    return owner.id in snapshot.down or owner.id in snapshot.online
