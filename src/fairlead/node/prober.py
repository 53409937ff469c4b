"""Probes: opens sockets, lets the dialogs speak, and tells the tracker what came of it. One event loop does it all.

* **Nothing waits for anything.** Every socket is non-blocking, and one that says nothing costs a place among
  `MOST_AT_ONCE` until its time is over.
* **An answer counts if it comes in time, and a silence only if this process was listening.** When it was not given the
  processor, the time that it lost is added to the time in which members may answer. If it was more than a quarter of
  that, the attempt is void: the machines of this node were not given the processor either. It is repeated immediately,
  each time with twice the time, `MOST_DOUBTS` times. If the longest attempt is void too, this agent is *starved*: it
  says so, members keep their last status, and it probes on in their usual rhythm.
* **A slow node is not starved.** While members that answer take longer than usual by as much, a silence is put down to
  the node as well, but not more than `MOST_DOUBTS` times in a row.
* **What this node cannot do** (no device yet, no socket left) says nothing of the member.
* **Connections end with a reset**: a thousand probes a second would leave sixty thousand sockets that wait for their
  end.
"""

import asyncio
import contextlib
import errno
import heapq
import os
import secrets
import socket
import struct
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from fairlead.model.addresses import parse_address
from fairlead.model.checks import PlainCheck, Target
from fairlead.model.health import Endpoint
from fairlead.model.loadbalancer import MonitorType
from fairlead.node.dialogs import RIGHT, Dialog, Judgement, Last, Reply, Right, Wrong, dialog
from fairlead.node.proxy_header import proxy_header
from fairlead.node.tracker import PENDING, Answered, Failed, Missed, Outcome, Tracker

MOST_AT_ONCE = 2_000
"""Sockets that are open: of what is probed each second, or of silent members for as long as they are waited for."""
MOST_LAUNCHED = 50
"""Probes that are begun before what has arrived is looked at."""
LONGEST_SLEEP = 0.02
"""Seconds, while anything is in flight: how well it is known what time was lost."""
TOLERATED = 0.025
"""Seconds, or a quarter of the time in which an answer may come: if more was lost meanwhile, silence says nothing."""
MOST_DOUBTS = 3
"""Silences in a row after each of which a member is asked again immediately, with twice the time to answer."""
STARVED = "this node's agent was not given the processor in time: what was seen last holds"
BUSY = "this node was too busy to see whether it answers"
"""Why an attempt is void."""
RECENT, FEWEST, MOST_RECENT = 2.0, 5, 50
"""Seconds for which an answer says how busy the node is; how many there have to be; and how many are looked at."""
CREEP = 1.05
"""By what an answer may take longer than the one before, and be as usual."""
LATE = 0.01
"""Seconds by which a sleep may be too long before time counts as lost."""
MOST_READ = 4096
"""Octets at once."""
IPPROTO_SCTP = 132
OURS = frozenset(
    {
        *(errno.ENODEV, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EMFILE),
        *(errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES, errno.EPROTONOSUPPORT),
        *(errno.EAFNOSUPPORT, errno.ESOCKTNOSUPPORT, errno.ENXIO),
    }
)
"""Errors that this node has by itself."""
WORDS = {
    errno.ECONNREFUSED: "it refuses",
    errno.ECONNRESET: "it resets the connection",
    errno.EPIPE: "it resets the connection",
    errno.EHOSTUNREACH: "nobody has the address",
    errno.ETIMEDOUT: "no answer",
    errno.ENOPROTOOPT: "its machine does not have the protocol",
    errno.EPERM: "this node's agent may not ask so",
    errno.ENETUNREACH: "there is no way to it",
    errno.ENODEV: "this node has no device for the network yet",
}
_RESET = struct.pack("ii", 1, 0)
"""struct linger: a close does not wait, and resets (socket(7))."""
OVERSLEPT = 3.0
"""Seconds: if this process was not given the processor for longer, what it knew is not known any more."""
Device: TypeAlias = Callable[[Target], str]
"""By which device of the node somebody is reached."""


@dataclass(slots=True, eq=False)
class _Flight:
    target: Target
    socket: socket.socket
    dialog: Dialog
    began: float
    lost: float
    """How much time had been lost by then."""
    patience: float
    """Seconds in which an answer may come: more than the monitor says after attempts that said nothing."""
    unsent: bytes = b""
    is_connected: bool = False
    is_refused: bool = False

    @property
    def is_heard(self) -> bool:
        """Whether anything came back, however wrong it was."""
        return self.is_refused or (self.is_connected and self.socket.type == socket.SOCK_STREAM)


@dataclass(slots=True)
class Prober:
    """`change`, and `run` in a task. `told` is called with those whose verdict is another one."""

    device: Device
    told: Callable[[Collection[Endpoint]], None]
    tracker: Tracker = field(default_factory=Tracker)
    most_at_once: int = MOST_AT_ONCE
    new_devices: dict[str, float] = field(default_factory=dict)
    """Until when a failure by a device says nothing: the switch does not know it yet."""
    overslept: Callable[[], None] = lambda: None
    """Is called when all that was known has been forgotten."""
    starved: Callable[[bool], None] = lambda _: None
    """Is called when this agent begins to be starved, and when it ends."""
    probes: int = 0
    """That were concluded."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Probes that ended in silence and say nothing of the member, by why."""
    lost: float = 0.0
    """Seconds for which this process had something to do and was not given the processor."""
    _starving: set[Endpoint] = field(default_factory=set)
    """Whose longest attempt was void, and none since then was not."""
    _awake: float | None = None
    """When it slept last."""
    _usual: dict[Endpoint, float] = field(default_factory=dict)
    """Seconds that an answer takes while the node is at rest."""
    _delays: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    """When the last answers came, and by how much later than usual."""
    _flights: dict[Endpoint, _Flight] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, _Flight]] = field(default_factory=list)
    _numbers: Iterable[int] = field(default_factory=count)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_starved(self) -> bool:
        return bool(self._starving)

    def change(self, gone: Collection[Endpoint], targets: Iterable[Target]) -> None:
        """Who is not probed any more, and who is; the others stay."""
        self.tracker.change(gone, targets, self._now())
        for endpoint in gone:
            self._usual.pop(endpoint, None)
            self._note(endpoint, starves=False)
            if endpoint in self._flights:
                self._close(self._flights[endpoint])
        self._woken.set()

    async def run(self) -> None:
        """Until it is cancelled."""
        try:
            while True:
                now = self._now()
                self._launch(now)
                self._expire(now)
                if self.tracker.changed:
                    changed, self.tracker.changed = self.tracker.changed, set()
                    self.told(changed)
                await self._sleep()
        finally:
            for flight in list(self._flights.values()):
                self._close(flight)

    async def _sleep(self) -> None:
        """Until something is to be done. What it takes longer is lost."""
        until = self._next()
        began = self._now()
        worked = 0.0 if self._awake is None else began - self._awake
        self.lost += worked if worked > LATE else 0.0
        seconds = None if until is None else max(0.0, until - began)
        if seconds is not None and self._flights:
            seconds = min(seconds, LONGEST_SLEEP)
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
            self._woken.clear()
        except TimeoutError:
            pass
        self._awake = self._now()
        late = 0.0 if seconds is None else self._awake - began - seconds
        self.lost += late if late > LATE else 0.0
        if max(late, worked) > OVERSLEPT:
            self.tracker.forget()
            self.overslept()

    def _next(self) -> float | None:
        due = self.tracker.next_due() if len(self._flights) < self.most_at_once else None
        times = [each for each in (due, self._deadlines[0][0] if self._deadlines else None) if each is not None]
        return min(times, default=None)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _launch(self, now: float) -> None:
        for target in self.tracker.take_due(now, MOST_LAUNCHED, self.most_at_once - len(self._flights)):
            try:
                made = self._open(target)
            except OSError as error:
                self.probes += 1
                self.tracker.conclude(target, self._failure(target, error), now)
            else:
                raw = made.type == socket.SOCK_RAW
                header = _header(target, made)
                said = dialog(target.check, target.endpoint, secrets.randbits(48), by_raw_socket=raw, header=header)
                # the moment in which it is asked: this process may have been stopped since `now`
                self._begin(_Flight(target, made, said, self._now(), self.lost, self._patience(target)))

    def _open(self, target: Target) -> socket.socket:
        """Raises OSError."""
        endpoint = target.endpoint
        six = endpoint.address.version == 6
        made = _socket(target, six)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.device(target).encode())
            number = 0 if made.type == socket.SOCK_RAW else endpoint.number  # ports are the dialog's then
            found = made.connect_ex((str(endpoint.address), number))
            if found not in (0, errno.EINPROGRESS):
                raise OSError(found, os.strerror(found))
        except OSError:
            made.close()
            raise
        return made

    def _begin(self, flight: _Flight) -> None:
        self._flights[flight.target.endpoint] = flight
        heapq.heappush(self._deadlines, (flight.began + flight.patience, next(iter(self._numbers)), flight))
        loop = asyncio.get_running_loop()
        loop.add_writer(flight.socket, self._write, flight)

    def _write(self, flight: _Flight) -> None:
        """The socket is connected, or is not to be, or takes more."""
        error = flight.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._break(flight, OSError(error, os.strerror(error)))
            return
        loop = asyncio.get_running_loop()
        if not flight.is_connected:
            flight.is_connected = True
            self._go_on(flight, flight.dialog.connected(), first=True)
        elif flight.unsent:
            self._send(flight)
        if flight.target.endpoint in self._flights and not flight.unsent:
            loop.remove_writer(flight.socket)
            loop.add_reader(flight.socket, self._read, flight)

    def _read(self, flight: _Flight) -> None:
        try:
            heard = flight.socket.recv(MOST_READ)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(flight, error)
            return
        if not heard and flight.socket.type == socket.SOCK_STREAM:
            self._judge(flight, flight.dialog.ended())
        else:
            self._go_on(flight, flight.dialog.heard(heard))

    def _go_on(self, flight: _Flight, reply: Reply, *, first: bool = False) -> None:
        if isinstance(reply, bytes):
            flight.unsent = reply
            if reply or first:
                self._send(flight)
        elif isinstance(reply, Last):
            with contextlib.suppress(OSError):  # a connection that has just been opened has room for it
                flight.socket.send(reply.octets)
            self._judge(flight, RIGHT)
        else:
            self._judge(flight, reply)

    def _send(self, flight: _Flight) -> None:
        """What the socket does not take now it takes later; the first datagram may be empty."""
        try:
            sent = flight.socket.send(flight.unsent)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._break(flight, error)
            return
        flight.unsent = flight.unsent[sent:]
        if flight.unsent:
            asyncio.get_running_loop().add_writer(flight.socket, self._write, flight)

    def _break(self, flight: _Flight, error: OSError) -> None:
        flight.is_refused = error.errno == errno.ECONNREFUSED
        self._conclude(flight, self._failure(flight.target, error))

    def _failure(self, target: Target, error: OSError) -> Outcome:
        """Where somebody is reached as the host reaches them, no way there is as good as no answer."""
        number = error.errno or 0
        words = WORDS.get(number, error.strerror or str(error))
        ours = number in OURS and (number != errno.ENETUNREACH or bool(self.device(target)))
        return Missed(words) if ours else Failed(words)

    def _judge(self, flight: _Flight, judgement: Judgement) -> None:
        took = self._now() - flight.began
        if isinstance(judgement, Right):
            usual = self._usual.get(flight.target.endpoint, took)
            self._delays.append((flight.began + took, took - usual))
            self._usual[flight.target.endpoint] = min(took, usual * CREEP)
        self._conclude(flight, Answered(took) if isinstance(judgement, Right) else Failed(judgement.why))

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, flight = heapq.heappop(self._deadlines)
            if self._flights.get(flight.target.endpoint) is not flight:
                continue
            patience, lost = flight.patience, self.lost - flight.lost
            until = flight.began + patience + min(lost, patience)
            if until > now:
                heapq.heappush(self._deadlines, (until, number, flight))
            else:
                outcome = self._meaning_of_silence(flight, lost, now)
                if isinstance(outcome, Missed) and outcome.why in (STARVED, BUSY):
                    self.discarded[outcome.why] += 1
                self._conclude(flight, outcome)

    def _meaning_of_silence(self, flight: _Flight, lost: float, now: float) -> Outcome:
        tolerated = max(TOLERATED, flight.patience / 4)
        again = self._doubts(flight.target) < MOST_DOUBTS
        if lost > tolerated:
            return Missed(STARVED, at_once=again)
        if again and self._slowness(now) > tolerated:
            return Missed(BUSY, at_once=True)
        return _silence(flight, flight.patience)

    def _doubts(self, target: Target) -> int:
        return self.tracker.standings.get(target.endpoint, PENDING).doubts

    def _patience(self, target: Target) -> float:
        return float(target.rhythm.patience * 2 ** min(self._doubts(target), MOST_DOUBTS))

    def _note(self, endpoint: Endpoint, *, starves: bool) -> None:
        """Whether the last attempt was void, and the longest one."""
        before = bool(self._starving)
        (self._starving.add if starves else self._starving.discard)(endpoint)
        if bool(self._starving) is not before:
            self.starved(not before)

    def _slowness(self, now: float) -> float:
        """By how many seconds those who answer take longer than usual: half of them longer, half of them less."""
        found = [late for at, late in self._delays if now - at < RECENT]
        return sorted(found)[len(found) // 2] if len(found) >= FEWEST else 0.0

    def _conclude(self, flight: _Flight, outcome: Outcome) -> None:
        self._close(flight)
        self.probes += 1
        now = self._now()
        if self.new_devices:
            outcome = self._by_new_device(flight, outcome, now)
        self.tracker.conclude(flight.target, outcome, now)
        self._note(flight.target.endpoint, starves=outcome == Missed(STARVED))
        if self.tracker.changed:
            self._woken.set()

    def _by_new_device(self, flight: _Flight, outcome: Outcome, now: float) -> Outcome:
        """Who has an answer by it knows that it works, be it a wrong one."""
        name = self.device(flight.target)
        if isinstance(outcome, Answered) or flight.is_heard or self.new_devices.get(name, 0.0) <= now:
            self.new_devices.pop(name, None)
            return outcome
        return Missed("this node's device for the network is new") if isinstance(outcome, Failed) else outcome

    def _close(self, flight: _Flight) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(flight.socket)
        loop.remove_reader(flight.socket)
        if flight.is_connected and flight.socket.type == socket.SOCK_STREAM:
            flight.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        flight.socket.close()
        del self._flights[flight.target.endpoint]


def _socket(target: Target, six: bool) -> socket.socket:
    """Raises OSError."""
    family, (kind, protocol) = socket.AF_INET6 if six else socket.AF_INET, _kind(target, six)
    try:
        return socket.socket(family, kind, protocol)
    except PermissionError:
        if protocol not in {socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6}:
            raise
        return socket.socket(family, socket.SOCK_RAW, protocol)


def _header(target: Target, made: socket.socket) -> bytes:
    """What the check sends first; nothing if it begins with its question."""
    version, endpoint = target.check.header, target.endpoint
    if version is None:
        return b""
    address, port, *_ = made.getsockname()  # the kernel has chosen both (connect(2))
    source = parse_address(address.partition("%")[0]), port
    return proxy_header(version, source, (endpoint.address, endpoint.number))


def _kind(target: Target, six: bool) -> tuple[int, int]:
    """Type and protocol of the socket."""
    match target.check:
        case PlainCheck(type=MonitorType.PING):
            return socket.SOCK_DGRAM, socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
        case PlainCheck(type=MonitorType.UDP_CONNECT):
            return socket.SOCK_DGRAM, 0
        case PlainCheck(type=MonitorType.SCTP):
            return socket.SOCK_RAW, IPPROTO_SCTP
        case _:
            return socket.SOCK_STREAM, 0


def _silence(flight: _Flight, patience: float) -> Outcome:
    meaning = flight.dialog.silence if flight.is_connected else None
    match meaning:
        case Right() if flight.target.covers:
            return Missed("its node is silent, and so is it: that may be as well as not")
        case Right():
            return Answered(None)
        case Wrong(why):
            return Failed(why)
        case _:
            return Failed(f"no answer in {patience:g} s")
