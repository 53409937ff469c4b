"""Push channel to agents: sends each connected agent the changes of its slice as soon as they are published.

The cost of a change does not grow with the size of the slices. A document is serialised once for all receivers; the
places of a document (`model/registry/slices.py`) are indexed to the chassis that reach them; chassis that receive the
same lines share one message. The places that a chassis reaches are recomputed in the background when they may have
changed.

An agent that reconnects sends its last `cursor`. If this server knows the cursor, it sends the messages after it;
otherwise it sends the whole slice.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from fairlead.agent_protocol.slice_lines import at_line, chassis_line, covered_line, delete_line, health_line, list_line
from fairlead.api.agents.document_cache import PIECE, DocumentCache, has_health
from fairlead.api.agents.watch_buffer import Watch
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.unmanaged_updates import consistent_updates
from fairlead.model.registry.facts import AGENTS, CHASSIS, DELEGATES, OWN_ADDRESSES, PROXIES, UNMANAGED
from fairlead.model.registry.slices import ALL_HOSTS_PLACE, joined_places, owners_at_any, places_of, reached_places
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.store.model import Model, Published


def as_chunk(message: bytes) -> bytes:
    """Encode a chunk of an HTTP response without a length (RFC 9112, section 7.1), once for all receivers."""
    return b"%x\r\n%b\r\n" % (len(message), message)


MAX_TRACKED = 10_000
"""Maximum chassis that are tracked. Above it, a chassis without a connection is evicted first, least recently connected
first."""
MAX_LOGGED_MESSAGES, MAX_LOG_BYTES = 2_000, 16 * 2**20
"""Replay log for agents that reconnect: maximum messages, and maximum bytes."""
MAX_WRITE_SECONDS = 0.01
"""Maximum seconds of writing before other tasks run."""
HEARTBEAT_INTERVAL = 5.0
"""Heartbeat interval in seconds: connected agents receive the cursor, which shows that the server is alive."""


@dataclass(eq=False, slots=True)
class _TrackedChassis:
    reach: frozenset[str] = frozenset()
    watch: Watch | None = None
    first_message: int = 0
    """Number of the first message that is logged for this chassis."""


class PushChannel:
    def __init__(self, model: Model, epoch: str, frame: Callable[[bytes], bytes] = as_chunk) -> None:
        """`epoch` distinguishes cursors of this server process from those of other servers and earlier processes.
        `frame` encodes a message for the wire."""
        self.epoch = epoch
        self._frame = frame
        self._model = model
        self._number = 0
        self._tracked: dict[str, _TrackedChassis] = {}
        """Tracked chassis, least recently connected first."""
        self._chassis_by_place: dict[str, set[str]] = {}
        """Index: place -> chassis that reach it."""
        self._log: deque[tuple[int, frozenset[str], bytes]] = deque()
        self._logged = 0
        self._forgotten = 0
        """Number of the newest message that was evicted from the log."""
        self._texts = DocumentCache(lambda: model.snapshot)
        self._stale_reaches: set[str] = set()
        """Chassis whose reach must be recomputed."""
        self._reaches_stale = asyncio.Event()
        self._outbox: deque[tuple[list[Watch], bytes]] = deque()
        self.writing = False
        """True if messages are left in the outbox for a later event-loop turn."""
        model.watch(self._on_published)

    @property
    def cursor(self) -> str:
        return f"{self.epoch}:{self._number}"

    @property
    def connected_count(self) -> int:
        return sum(1 for each in self._tracked.values() if each.watch is not None)

    def is_connected(self, chassis: str) -> bool:
        followed = self._tracked.get(chassis)
        return followed is not None and followed.watch is not None

    def chassis_reaching(self, network_id: str) -> frozenset[str]:
        """Return the tracked chassis that reach a network."""
        return frozenset(self._chassis_by_place.get(network_id, ()))

    def open_watch(self, chassis: str) -> Watch:
        """Open a watch for the chassis. An earlier watch of the same chassis is ended: each chassis has at most one."""
        followed = self._tracked.pop(chassis, None)
        if followed is None:
            followed = _TrackedChassis(first_message=self._number + 1)
            self._reach(chassis, followed, reached_places(self._model.snapshot, chassis))
        elif followed.watch is not None:
            followed.watch.end()
        followed.watch = watch = Watch(chassis)
        self._tracked[chassis] = followed
        self._forget()
        return watch

    def close_watch(self, watch: Watch) -> None:
        watch.detach()
        followed = self._tracked.get(watch.chassis)
        if followed is not None and followed.watch is watch:
            followed.watch = None

    def remove(self, chassis: str) -> None:
        """Close the watch of a chassis and forget the chassis."""
        followed = self._tracked.pop(chassis, None)
        if followed is not None:
            self._reach(chassis, followed, frozenset())
            if followed.watch is not None:
                followed.watch.end()

    def messages_after(self, chassis: str, cursor: str) -> bytes | None:
        """Return the messages sent after the cursor; None if the cursor is unknown or evicted here."""
        epoch, _, text = cursor.rpartition(":")
        followed = self._tracked[chassis]
        if epoch != self.epoch or not text.isdecimal() or not followed.first_message - 1 <= int(text) <= self._number:
            return None
        after = int(text)
        if after < self._forgotten:
            return None
        found = [message for number, chassis_told, message in self._log if number > after and chassis in chassis_told]
        return b"".join([*found, at_line(self.cursor, self._model.snapshot.revision)])

    def full_slice(self, chassis: str) -> Iterator[bytes]:
        """Yield the slice in pieces, as of the first piece; later changes go to the watch."""
        snapshot, reach, cursor = self._model.snapshot, self._tracked[chassis].reach, self.cursor
        yield list_line(snapshot) + self._own(snapshot, chassis)
        yield from self._texts.documents_at(snapshot, reach)
        if ALL_HOSTS_PLACE in reach:
            yield from self._texts.host_proxies(snapshot, snapshot.hosts)
            yield from self._texts.own_addresses(snapshot, snapshot.hosts)
        yield at_line(cursor, snapshot.revision)

    def _own(self, snapshot: Snapshot, chassis: str) -> bytes:
        covered = {place: True for place, who in snapshot.covered.items() if who == chassis}
        own = chassis_line(snapshot.chassis.get(chassis, Chassis(name=chassis)))
        return own + (covered_line(covered) if covered else b"")

    # published changes

    def _on_published(self, news: Published) -> None:
        self._texts.invalidate(news.update if news.fact is UNMANAGED else news.documents)
        if not self._tracked:
            return
        lines: list[tuple[frozenset[str], bytes]] = []
        if news.fact is CHASSIS:
            lines += self._chassis_lines(news)
        elif news.fact is DELEGATES:
            lines += self._covered_lines(news)
        elif news.fact is PROXIES:
            lines += self._proxies_lines(news.after, {each.rpartition("/")[2] for each in news.update})
        elif news.fact is AGENTS:
            lines += self._proxies_lines(news.after, {each for each in news.update if each not in news.before.agents})
        elif news.fact is OWN_ADDRESSES:
            told = self._chassis_at((ALL_HOSTS_PLACE,))
            lines += ((told, each) for each in self._texts.own_addresses(news.after, news.update))
        elif news.fact is UNMANAGED:
            lines += self._document_lines(
                replace(news, documents=tuple(dict(consistent_updates(news.before, news.update))))
            )
        lines += self._document_lines(news)
        lines += self._health_lines(news)
        self._send(lines)

    def _document_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        for owner in news.documents:
            before, after = places_of(news.before, owner), places_of(news.after, owner)
            had, have = self._chassis_at(before), self._chassis_at(after)
            if have:
                line = self._texts.text(news.after, owner)
                yield have, line
                if has_health(news.before, owner) or has_health(news.after, owner):
                    yield have, health_line(news.after, owner)
            if had - have:
                yield had - have, delete_line(owner)
            self._note_topology(news, owner, had | have)

    def _note_topology(self, news: Published, owner: Owner, told: frozenset[str]) -> None:
        """Mark the chassis that may reach other places after a change of the topology."""
        if owner.kind is Kind.ROUTER:
            self._mark_reach_stale(told)
        elif owner.kind is Kind.HOST:
            self._mark_reach_stale({owner.id} & self._tracked.keys())
        elif owner.kind is Kind.NETWORK:
            if (owner.id in news.before.announced) != (owner.id in news.after.announced):
                self._mark_reach_stale(self._chassis_at((ALL_HOSTS_PLACE,)))
        elif owner.kind is Kind.PORT:
            for each in (news.before, news.after):
                self._mark_reach_stale(self._chassis_at(joined_places(each, owner)))
            if places_of(news.before, owner) != places_of(news.after, owner):
                known = ((name, news.after.chassis.get(name)) for name in self._tracked)
                self._mark_reach_stale(name for name, node in known if node is not None and owner.id in node.ports)

    def _health_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        before, after = news.before, news.after
        for owner in news.derived:
            same = all(
                old.get(owner.id) == new.get(owner.id)
                for old, new in ((before.down, after.down), (before.online, after.online))
            )
            if not same and owner not in news.documents:
                told = self._chassis_at(places_of(after, owner))
                if told:
                    yield told, health_line(after, owner)

    def _chassis_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        for name in news.update:
            if name in self._tracked:
                yield frozenset({name}), chassis_line(news.after.chassis.get(name, Chassis(name=name)))
                self._mark_reach_stale((name,))

    def _covered_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        found: dict[str, dict[str, bool]] = {}
        for place in news.update:
            before, after = news.before.covered.get(place), news.after.covered.get(place)
            if before != after:
                for who, covers in ((before, False), (after, True)):
                    if who in self._tracked:
                        found.setdefault(who, {})[place] = covers
        for who, places in found.items():
            yield frozenset({who}), covered_line(places)

    def _proxies_lines(self, snapshot: Snapshot, hosts: Iterable[str]) -> Iterator[tuple[frozenset[str], bytes]]:
        told = self._chassis_at((ALL_HOSTS_PLACE,))
        return ((told, lines) for lines in self._texts.host_proxies(snapshot, hosts if told else ()))

    def _chassis_at(self, places: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(self._chassis_by_place.get(place, ()) for place in places))

    # reach of chassis

    def _mark_reach_stale(self, chassis: Iterable[str]) -> None:
        self._stale_reaches.update(chassis)
        if self._stale_reaches:
            self._reaches_stale.set()

    async def run(self) -> None:
        """Recompute the reach of marked chassis, and send heartbeats, until cancelled."""
        beat = asyncio.ensure_future(self._send_heartbeats())
        try:
            while True:
                await self._reaches_stale.wait()
                self._reaches_stale.clear()
                await run_in_steps(self.recompute_reaches())
        finally:
            beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beat

    def recompute_reaches(self) -> Steps[None]:
        """Recompute the reach of all marked chassis."""
        while self._stale_reaches:
            yield from self._recompute_reach(self._stale_reaches.pop())
            yield

    def _recompute_reach(self, chassis: str) -> Steps[None]:
        """Recompute the reach of one chassis and send the differences. Each document is read from the model at the
        moment it is sent, because there may be ten thousand and other tasks change them between two steps. No line is
        held across a yield; otherwise a newer change would be sent before it."""
        followed = self._tracked.get(chassis)
        if followed is None:
            return
        before, after = followed.reach, reached_places(self._model.snapshot, chassis)
        if after == before:
            return
        self._reach(chassis, followed, after)
        piece, size = list[bytes](), 0
        for line in self._differences(after - before, before - after, after):
            if self._tracked.get(chassis) is not followed:
                return
            piece.append(line)
            size += len(line)
            if size > PIECE:
                self._send([(frozenset({chassis}), b"".join(piece))])
                piece, size = [], 0
                yield
        if piece:
            self._send([(frozenset({chassis}), b"".join(piece))])

    def _differences(self, gained: frozenset[str], lost: frozenset[str], reach: frozenset[str]) -> Iterator[bytes]:
        """Yield lines for documents that left or entered the reach. The lost ones are listed before the first yield,
        because the index no longer routes their changes to this chassis."""
        snapshot = self._model.snapshot
        for owner in list(owners_at_any(snapshot, lost)):
            if not reach.intersection(places_of(self._model.snapshot, owner)):
                yield delete_line(owner)
        for owner in owners_at_any(snapshot, gained):
            if reach.intersection(places_of(self._model.snapshot, owner)):
                yield b"".join(self._texts.document(self._model.snapshot, owner))
        for host in snapshot.hosts if ALL_HOSTS_PLACE in gained else ():
            yield from self._texts.host_proxies(self._model.snapshot, (host,))
            yield from self._texts.own_addresses(self._model.snapshot, (host,))

    def _reach(self, chassis: str, followed: _TrackedChassis, after: frozenset[str]) -> None:
        for place in followed.reach - after:
            self._chassis_by_place[place].discard(chassis)
            if not self._chassis_by_place[place]:
                del self._chassis_by_place[place]
        for place in after - followed.reach:
            self._chassis_by_place.setdefault(place, set()).add(chassis)
        followed.reach = after

    def _forget(self) -> None:
        while len(self._tracked) > MAX_TRACKED:
            away = (name for name, each in self._tracked.items() if each.watch is None)
            self.remove(next(away, next(iter(self._tracked))))

    # sending

    def _send(self, lines: Iterable[tuple[frozenset[str], bytes]]) -> None:
        """Number and log the lines, group chassis that receive the same lines, and send one message per group."""
        told: dict[str, list[int]] = {}
        texts: list[bytes] = []
        groups: dict[tuple[int, ...], list[str]] = {}
        for index, (chassis, line) in enumerate(lines):
            texts.append(line)
            for name in chassis:
                told.setdefault(name, []).append(index)
        if not told:
            return
        self._number += 1
        at = at_line(self.cursor, self._model.snapshot.revision)
        for name, indexes in told.items():
            groups.setdefault(tuple(indexes), []).append(name)
        for alike, names in groups.items():
            message = b"".join([*(texts[index] for index in alike), at])
            self._append_log(frozenset(names), message)
            watches = [watch for name in names if (watch := self._tracked[name].watch) is not None]
            if watches:
                self._outbox.append((watches, self._frame(message)))
        if not self.writing:
            self._write()

    def _append_log(self, chassis: frozenset[str], message: bytes) -> None:
        self._log.append((self._number, chassis, message))
        self._logged += len(message)
        while len(self._log) > MAX_LOGGED_MESSAGES or self._logged > MAX_LOG_BYTES:
            self._forgotten, _, message = self._log.popleft()
            self._logged -= len(message)

    def _write(self) -> None:
        """Write the outbox for at most `MAX_WRITE_SECONDS` seconds, and schedule the rest for a later event-loop
        turn."""
        until = perf_counter() + MAX_WRITE_SECONDS
        self.writing = False
        while self._outbox:
            watches, message = self._outbox[0]
            while watches:
                watches.pop().send(message)
                if perf_counter() > until:
                    self.writing = True
                    asyncio.get_running_loop().call_soon(self._write)
                    return
            self._outbox.popleft()

    async def _send_heartbeats(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_INTERVAL)
            at = at_line(self.cursor, self._model.snapshot.revision)
            listening = [each.watch for each in self._tracked.values() if each.watch is not None and each.watch.write]
            self._outbox.append((listening, self._frame(at)))
            if not self.writing:
                self._write()
