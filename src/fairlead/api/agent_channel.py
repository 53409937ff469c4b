"""The channel: each agent that listens is told how its slice changes, as soon as it does.

What a change costs does not grow with what agents have. A document is written as text once, whoever hears of it; the
places of a document (`model/slices.py`) lead to the chassis that reach them, and to no other one; chassis that are told
the same share one message. What a chassis reaches is looked at again when it may have changed, beside all else.

A chassis that comes again says up to where it was told (`cursor`). If that is known here it hears what came after, or
else all of its slice.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from time import perf_counter

from fairlead.api.agent_lines import at_line, chassis_line, covered_line, delete_line, health_line, list_line
from fairlead.api.agent_listener import Watch
from fairlead.api.agent_texts import PIECE, Texts, has_health
from fairlead.model.chassis import Chassis
from fairlead.model.facts import AGENTS, CHASSIS, COVERED, FOREIGN, OWN_ADDRESSES, PROXIES
from fairlead.model.foreign_news import admitted
from fairlead.model.owner import Kind, Owner
from fairlead.model.slices import HOSTS, joined_places, owners_at_any, places_of, reached_places
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps
from fairlead.resting import in_steps
from fairlead.store.model import Model, Published


def as_chunk(message: bytes) -> bytes:
    """Of an answer without a length (RFC 9112, section 7.1): made once, however many hear it."""
    return b"%x\r\n%b\r\n" % (len(message), message)


MOST_FOLLOWED = 10_000
"""Chassis that are followed at once; the one that has been away longest is forgotten first."""
MOST_LOGGED, LARGEST_LOG = 2_000, 16 * 2**20
"""Messages, and their bytes, that are kept for who comes again."""
HOLD = 0.01
"""Seconds for which messages are written without a rest."""
BEAT = 5.0
"""Seconds after which who has heard nothing hears the cursor again: so it knows that the server lives."""


@dataclass(eq=False, slots=True)
class _Followed:
    reach: frozenset[str] = frozenset()
    watch: Watch | None = None
    since: int = 0
    """The first message that was kept for it."""


class Channel:
    def __init__(self, model: Model, epoch: str, frame: Callable[[bytes], bytes] = as_chunk) -> None:
        """`epoch` tells this server's cursors from those of others, and of its earlier lives. `frame` is how a message
        is put on the wire."""
        self.epoch = epoch
        self._frame = frame
        self._model = model
        self._number = 0
        self._followed: dict[str, _Followed] = {}
        """In the order in which they came last."""
        self._at: dict[str, set[str]] = {}
        """Place -> the chassis that reach it."""
        self._log: deque[tuple[int, frozenset[str], bytes]] = deque()
        self._logged = 0
        self._forgotten = 0
        """The last message of which something is kept no more."""
        self._texts = Texts(lambda: model.snapshot)
        self._moved: set[str] = set()
        """Chassis of which it has to be looked up again what they reach."""
        self._wanted = asyncio.Event()
        self._outbox: deque[tuple[list[Watch], bytes]] = deque()
        self.writing = False
        """Whether there is something that could not be written without a rest."""
        model.watch(self._take)

    @property
    def cursor(self) -> str:
        return f"{self.epoch}:{self._number}"

    @property
    def listening(self) -> int:
        return sum(1 for each in self._followed.values() if each.watch is not None)

    def listens(self, chassis: str) -> bool:
        followed = self._followed.get(chassis)
        return followed is not None and followed.watch is not None

    def near(self, network_id: str) -> frozenset[str]:
        """The chassis that reach a network, of those that are followed."""
        return frozenset(self._at.get(network_id, ()))

    def follow(self, chassis: str) -> Watch:
        """Who listened for the chassis before listens no more: one does."""
        followed = self._followed.pop(chassis, None)
        if followed is None:
            followed = _Followed(since=self._number + 1)
            self._reach(chassis, followed, reached_places(self._model.snapshot, chassis))
        elif followed.watch is not None:
            followed.watch.end()
        followed.watch = watch = Watch(chassis)
        self._followed[chassis] = followed
        self._forget()
        return watch

    def leave(self, watch: Watch) -> None:
        watch.let_go()
        followed = self._followed.get(watch.chassis)
        if followed is not None and followed.watch is watch:
            followed.watch = None

    def end(self, chassis: str) -> None:
        """It may listen no more, and is forgotten."""
        followed = self._followed.pop(chassis, None)
        if followed is not None:
            self._reach(chassis, followed, frozenset())
            if followed.watch is not None:
                followed.watch.end()

    def missed(self, chassis: str, cursor: str) -> bytes | None:
        """What was told since the cursor; None if that is not known here."""
        epoch, _, text = cursor.rpartition(":")
        followed = self._followed[chassis]
        if epoch != self.epoch or not text.isdecimal() or not followed.since - 1 <= int(text) <= self._number:
            return None
        after = int(text)
        if after < self._forgotten:
            return None
        found = [message for number, chassis_told, message in self._log if number > after and chassis in chassis_told]
        return b"".join([*found, at_line(self.cursor, self._model.snapshot.revision)])

    def whole(self, chassis: str) -> Iterator[bytes]:
        """The slice as it is when the first piece is asked for, in pieces; what changes later is told to the watch."""
        snapshot, reach, cursor = self._model.snapshot, self._followed[chassis].reach, self.cursor
        yield list_line(snapshot) + self._own(snapshot, chassis)
        yield from self._texts.documents_at(snapshot, reach)
        if HOSTS in reach:
            yield from self._texts.host_proxies(snapshot, snapshot.hosts)
            yield from self._texts.own_addresses(snapshot, snapshot.hosts)
        yield at_line(cursor, snapshot.revision)

    def _own(self, snapshot: Snapshot, chassis: str) -> bytes:
        covered = {place: True for place, who in snapshot.covered.items() if who == chassis}
        own = chassis_line(snapshot.chassis.get(chassis, Chassis(name=chassis)))
        return own + (covered_line(covered) if covered else b"")

    # what changes

    def _take(self, news: Published) -> None:
        self._texts.forget(news.news if news.fact is FOREIGN else news.documents)
        if not self._followed:
            return
        lines: list[tuple[frozenset[str], bytes]] = []
        if news.fact is CHASSIS:
            lines += self._chassis_lines(news)
        elif news.fact is COVERED:
            lines += self._covered_lines(news)
        elif news.fact is PROXIES:
            lines += self._proxies_lines(news.after, {each.rpartition("/")[2] for each in news.news})
        elif news.fact is AGENTS:
            lines += self._proxies_lines(news.after, {each for each in news.news if each not in news.before.agents})
        elif news.fact is OWN_ADDRESSES:
            told = self._who((HOSTS,))
            lines += ((told, each) for each in self._texts.own_addresses(news.after, news.news))
        elif news.fact is FOREIGN:
            lines += self._document_lines(replace(news, documents=tuple(dict(admitted(news.before, news.news)))))
        lines += self._document_lines(news)
        lines += self._health_lines(news)
        self._tell(lines)

    def _document_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        for owner in news.documents:
            before, after = places_of(news.before, owner), places_of(news.after, owner)
            had, have = self._who(before), self._who(after)
            if have:
                line = self._texts.text(news.after, owner)
                yield have, line
                if has_health(news.before, owner) or has_health(news.after, owner):
                    yield have, health_line(news.after, owner)
            if had - have:
                yield had - have, delete_line(owner)
            self._note_topology(news, owner, had | have)

    def _note_topology(self, news: Published, owner: Owner, told: frozenset[str]) -> None:
        """Which chassis may reach something else after it."""
        if owner.kind is Kind.ROUTER:
            self._look_again(told)
        elif owner.kind is Kind.HOST:
            self._look_again({owner.id} & self._followed.keys())
        elif owner.kind is Kind.NETWORK:
            if (owner.id in news.before.announced) != (owner.id in news.after.announced):
                self._look_again(self._who((HOSTS,)))
        elif owner.kind is Kind.PORT:
            for each in (news.before, news.after):
                self._look_again(self._who(joined_places(each, owner)))
            if places_of(news.before, owner) != places_of(news.after, owner):
                known = ((name, news.after.chassis.get(name)) for name in self._followed)
                self._look_again(name for name, node in known if node is not None and owner.id in node.ports)

    def _health_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        before, after = news.before, news.after
        for owner in news.derived:
            same = all(
                old.get(owner.id) == new.get(owner.id)
                for old, new in ((before.down, after.down), (before.online, after.online))
            )
            if not same and owner not in news.documents:
                told = self._who(places_of(after, owner))
                if told:
                    yield told, health_line(after, owner)

    def _chassis_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        for name in news.news:
            if name in self._followed:
                yield frozenset({name}), chassis_line(news.after.chassis.get(name, Chassis(name=name)))
                self._look_again((name,))

    def _covered_lines(self, news: Published) -> Iterator[tuple[frozenset[str], bytes]]:
        found: dict[str, dict[str, bool]] = {}
        for place in news.news:
            before, after = news.before.covered.get(place), news.after.covered.get(place)
            if before != after:
                for who, covers in ((before, False), (after, True)):
                    if who in self._followed:
                        found.setdefault(who, {})[place] = covers
        for who, places in found.items():
            yield frozenset({who}), covered_line(places)

    def _proxies_lines(self, snapshot: Snapshot, hosts: Iterable[str]) -> Iterator[tuple[frozenset[str], bytes]]:
        told = self._who((HOSTS,))
        return ((told, lines) for lines in self._texts.host_proxies(snapshot, hosts if told else ()))

    def _who(self, places: Iterable[str]) -> frozenset[str]:
        return frozenset().union(*(self._at.get(place, ()) for place in places))

    # what chassis reach

    def _look_again(self, chassis: Iterable[str]) -> None:
        self._moved.update(chassis)
        if self._moved:
            self._wanted.set()

    async def run(self) -> None:
        """Until it is cancelled: look again what chassis reach, and tell who hears nothing that the server lives."""
        beat = asyncio.ensure_future(self._beat())
        try:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                await in_steps(self.looking())
        finally:
            beat.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await beat

    def looking(self) -> Steps[None]:
        """At what has moved."""
        while self._moved:
            yield from self._look(self._moved.pop())
            yield

    def _look(self, chassis: str) -> Steps[None]:
        """What it reaches now is told as it is when it is told: ten thousand documents may be, and others change them
        between two steps. So nothing is kept back over a rest: news of it would be told before it."""
        followed = self._followed.get(chassis)
        if followed is None:
            return
        before, after = followed.reach, reached_places(self._model.snapshot, chassis)
        if after == before:
            return
        self._reach(chassis, followed, after)
        piece, size = list[bytes](), 0
        for line in self._differences(after - before, before - after, after):
            if self._followed.get(chassis) is not followed:
                return
            piece.append(line)
            size += len(line)
            if size > PIECE:
                self._tell([(frozenset({chassis}), b"".join(piece))])
                piece, size = [], 0
                yield
        if piece:
            self._tell([(frozenset({chassis}), b"".join(piece))])

    def _differences(self, gained: frozenset[str], lost: frozenset[str], reach: frozenset[str]) -> Iterator[bytes]:
        """What is lost is found before anything rests: from then on nobody tells the chassis what becomes of it."""
        snapshot = self._model.snapshot
        for owner in list(owners_at_any(snapshot, lost)):
            if not reach.intersection(places_of(self._model.snapshot, owner)):
                yield delete_line(owner)
        for owner in owners_at_any(snapshot, gained):
            if reach.intersection(places_of(self._model.snapshot, owner)):
                yield b"".join(self._texts.document(self._model.snapshot, owner))
        for host in snapshot.hosts if HOSTS in gained else ():
            yield from self._texts.host_proxies(self._model.snapshot, (host,))
            yield from self._texts.own_addresses(self._model.snapshot, (host,))

    def _reach(self, chassis: str, followed: _Followed, after: frozenset[str]) -> None:
        for place in followed.reach - after:
            self._at[place].discard(chassis)
            if not self._at[place]:
                del self._at[place]
        for place in after - followed.reach:
            self._at.setdefault(place, set()).add(chassis)
        followed.reach = after

    def _forget(self) -> None:
        while len(self._followed) > MOST_FOLLOWED:
            away = (name for name, each in self._followed.items() if each.watch is None)
            self.end(next(away, next(iter(self._followed))))

    # how it is told

    def _tell(self, lines: Iterable[tuple[frozenset[str], bytes]]) -> None:
        """Chassis that are told the same share one message."""
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
            self._keep(frozenset(names), message)
            watches = [watch for name in names if (watch := self._followed[name].watch) is not None]
            if watches:
                self._outbox.append((watches, self._frame(message)))
        if not self.writing:
            self._write()

    def _keep(self, chassis: frozenset[str], message: bytes) -> None:
        self._log.append((self._number, chassis, message))
        self._logged += len(message)
        while len(self._log) > MOST_LOGGED or self._logged > LARGEST_LOG:
            self._forgotten, _, message = self._log.popleft()
            self._logged -= len(message)

    def _write(self) -> None:
        """For a while; the rest when others were served."""
        until = perf_counter() + HOLD
        self.writing = False
        while self._outbox:
            watches, message = self._outbox[0]
            while watches:
                watches.pop().tell(message)
                if perf_counter() > until:
                    self.writing = True
                    asyncio.get_running_loop().call_soon(self._write)
                    return
            self._outbox.popleft()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(BEAT)
            at = at_line(self.cursor, self._model.snapshot.revision)
            listening = [each.watch for each in self._followed.values() if each.watch is not None and each.watch.write]
            self._outbox.append((listening, self._frame(at)))
            if not self.writing:
                self._write()
