"""Cache of serialised documents: each document is serialised once for all agents, and agents with the same reach share
a list."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from immutables import Map

from fairlead.agent_protocol.slice_lines import addresses_line, health_line, proxies_line, put_line
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.host_proxies import proxies_by_host
from fairlead.model.registry.slices import owners_at_any
from fairlead.model.snapshot import Aggregate, Snapshot

MAX_CACHE_BYTES = 32 * 2**20
"""Maximum bytes of cached documents."""
PIECE = 2**16
"""Bytes of a list that are sent in one piece."""
MAX_SHARED_LISTS = 8
"""Maximum lists cached for the current snapshot."""


@dataclass(eq=False, slots=True)
class _Shared:
    """Iterator with pieces that are produced on first use and kept for later readers."""

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


class DocumentCache:
    """Cache of document lines. `newest` returns the current snapshot; only its documents are cached. `forget` must be
    called for every changed owner."""

    def __init__(self, newest: Callable[[], Snapshot]) -> None:
        self._newest = newest
        self._texts: dict[Owner, tuple[Aggregate, int | None, bytes]] = {}
        """Owner -> (document, its generation, the line of both)."""
        self._cached = 0
        self._shared_of: Snapshot | None = None
        self._shared: dict[frozenset[str], _Shared] = {}
        """Reach -> list of the documents there, as of `_shared_of`."""
        self._proxies_of: Map[str, Proxy] = Map()
        self._proxies: Mapping[str, Mapping[str, Proxy]] = {}
        """Proxies of `_proxies_of` by host."""
        self._proxies_lines: dict[str, tuple[Mapping[str, Proxy], bytes]] = {}
        """Host -> (its proxies, their line)."""

    def __len__(self) -> int:
        """Return the number of cached documents."""
        return len(self._texts)

    def invalidate(self, changed: Iterable[Owner]) -> None:
        """Drop the lines of changed or deleted documents, and lists of older snapshots."""
        if self._shared_of is not self._newest():
            self._shared_of, self._shared = None, {}
        for owner in changed:
            self._drop(owner)
            if owner.kind is Kind.HOST:
                self._proxies_lines.pop(owner.id, None)

    def _is_newest(self, owner: Owner, document: Aggregate) -> bool:
        """Return whether the document is current; a list sent in pieces may contain documents that have since
        changed."""
        return self._newest().documents(owner.kind).get(owner.id) is document

    def _drop(self, owner: Owner) -> None:
        known = self._texts.pop(owner, None)
        if known is not None:
            self._cached -= len(known[2])

    def documents_at(self, snapshot: Snapshot, reach: frozenset[str]) -> Iterator[bytes]:
        """Yield the documents of a reach in pieces. Chassis with the same reach share them, because all agents request
        their list after a server restart."""
        if self._shared_of is not snapshot:
            self._shared_of, self._shared = snapshot, {}
        if reach not in self._shared and len(self._shared) >= MAX_SHARED_LISTS:
            self._shared.pop(next(iter(self._shared)))
        shared = self._shared.setdefault(reach, _Shared(_pieces(self._lines(snapshot, reach))))
        return shared.read()

    def host_proxies(self, snapshot: Snapshot, hosts: Iterable[str]) -> Iterator[bytes]:
        """Yield proxy lines, in pieces, of declared hosts with agents that have reported to this server."""
        known = [each for each in sorted(hosts) if each in snapshot.hosts and each in snapshot.agents]
        proxies = self._by_host(snapshot) if known else {}
        return _pieces(self._proxies_line(each, proxies.get(each, {})) for each in known)

    def own_addresses(self, snapshot: Snapshot, hosts: Iterable[str]) -> Iterator[bytes]:
        """Yield own-address lines, in pieces, of declared hosts with addresses that this server knows."""
        known = ((each, snapshot.own_addresses.get(each)) for each in sorted(hosts) if each in snapshot.hosts)
        return _pieces(addresses_line(host, addresses) for host, addresses in known if addresses is not None)

    def _by_host(self, snapshot: Snapshot) -> Mapping[str, Mapping[str, Proxy]]:
        if snapshot.proxies is not self._proxies_of:
            self._proxies_of, self._proxies = snapshot.proxies, proxies_by_host(snapshot)
            self._proxies_lines = {each: line for each, line in self._proxies_lines.items() if each in self._proxies}
        return self._proxies

    def _proxies_line(self, host: str, proxies: Mapping[str, Proxy]) -> bytes:
        known = self._proxies_lines.get(host)
        if known is None or known[0] != proxies:
            known = self._proxies_lines[host] = proxies, proxies_line(host, proxies)
        return known[1]

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
        if self._is_newest(owner, document):
            self._drop(owner)
            self._cached += len(line)
            self._texts[owner] = document, generation, line
            while self._cached > MAX_CACHE_BYTES:
                self._drop(next(iter(self._texts)))
        return line


def has_health(snapshot: Snapshot, owner: Owner) -> bool:
    return owner.id in snapshot.down or owner.id in snapshot.online
