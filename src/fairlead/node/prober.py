"""Prober: opens sockets, runs probe protocols (`dialogs`), and passes outcomes to the tracker, in one event loop.

* **No probe waits for another.** All sockets are non-blocking. A silent member uses one of `MOST_AT_ONCE` sockets until
  its timeout.
* **A timeout counts only if this process had CPU time.** Time during which it did not run is added to the member's
  timeout. If that was more than a quarter of the timeout, the attempt is void, because the machines on this node may
  not have run either. It is repeated immediately with twice the timeout, up to `MOST_DOUBTS` times. The longest attempt
  is void only if this process did not run for more than half of it. Then the agent is *starved*: it reports this,
  members keep their last status, and probes continue at their usual interval.
* **A slow node is not starved.** While responses take longer than usual by the same margin, a timeout is attributed to
  the node as well, but at most `MOST_DOUBTS` times in a row.
* **Local errors** (no device yet, no free socket) do not count against the member.
* **Connections are closed with RST**, because a thousand probes a second would leave 60,000 sockets in TIME_WAIT.
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

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.checks import PlainCheck, Target
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.node.probe_protocols import RIGHT, Dialog, Judgement, Last, Reply, Right, Wrong, dialog
from fairlead.node.proxy_header import proxy_header
from fairlead.node.tracker import PENDING, Answered, Failed, Missed, Outcome, Tracker

MOST_AT_ONCE = 2_000
"""Maximum open sockets."""
MOST_LAUNCHED = 50
"""Maximum probes started before received data is read."""
LONGEST_SLEEP = 0.02
"""Seconds while probes are in progress: the resolution of the lost time."""
TOLERATED = 0.025
"""Tolerated lost time in seconds, or a quarter of the timeout if that is more; of the longest attempt, all of its
timeout. After more, a timeout does not count."""
MOST_DOUBTS = 3
"""Consecutive timeouts after which a member is probed again immediately, each with twice the timeout."""
STARVED = "this node's agent was not given the processor in time: what was seen last holds"
BUSY = "this node was too busy to see whether it answers"
"""Reasons why an attempt is void."""
RECENT, FEWEST, MOST_RECENT = 2.0, 5, 50
"""Maximum age in seconds of the responses that measure the slowness of the node; minimum and maximum number of these
responses."""
CREEP = 1.05
"""Maximum growth of the usual response time with each response, as a factor."""
LATE = 0.01
"""Seconds that a sleep may be late before the time counts as lost."""
MOST_READ = 4096
"""Bytes of one read."""
IPPROTO_SCTP = 132
OURS = frozenset(
    {
        *(errno.ENODEV, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EMFILE),
        *(errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES, errno.EPROTONOSUPPORT),
        *(errno.EAFNOSUPPORT, errno.ESOCKTNOSUPPORT, errno.ENXIO),
    }
)
"""Errors with a local cause."""
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
"""struct linger: close without waiting, and send RST (socket(7))."""
OVERSLEPT = 3.0
"""Seconds without CPU time after which all earlier results are dropped as stale."""
Device: TypeAlias = Callable[[Target], str]
"""Returns the device of this node for a target; empty for the host's own routing."""


@dataclass(slots=True, eq=False)
class _Flight:
    target: Target
    socket: socket.socket
    dialog: Dialog
    began: float
    lost: float
    """Total lost time when the probe began."""
    patience: float
    """Timeout in seconds; longer than the monitor's after void attempts."""
    unsent: bytes = b""
    is_connected: bool = False
    is_refused: bool = False

    @property
    def is_heard(self) -> bool:
        """Whether the member sent anything, even a wrong response."""
        return self.is_refused or (self.is_connected and self.socket.type == socket.SOCK_STREAM)


@dataclass(slots=True)
class Prober:
    """Prober of a node: call `change` for new targets, and `run` in a task. `told` is called with endpoints that
    have a new status."""

    device: Device
    told: Callable[[Collection[Endpoint]], None]
    tracker: Tracker = field(default_factory=Tracker)
    most_at_once: int = MOST_AT_ONCE
    new_devices: dict[str, float] = field(default_factory=dict)
    """Maps new devices to the time until which their failures do not count, because the switch may not have plugged
    them in."""
    overslept: Callable[[], None] = lambda: None
    """Called after all results were dropped because this process had no CPU time for `OVERSLEPT` seconds."""
    starved: Callable[[bool], None] = lambda _: None
    """Called when this agent becomes starved, and when that ends."""
    probes: int = 0
    """Number of concluded probes."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Probes that timed out and do not count against the member, by reason."""
    lost: float = 0.0
    """Total seconds that this process was runnable and got no CPU time."""
    _starving: set[Endpoint] = field(default_factory=set)
    """Endpoints with a longest attempt that was void, and no valid one since."""
    _awake: float | None = None
    """Time of the last wake-up."""
    _usual: dict[Endpoint, float] = field(default_factory=dict)
    """Seconds that a response usually takes."""
    _delays: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MOST_RECENT))
    """Time and delay (seconds above the usual) of the last responses."""
    _flights: dict[Endpoint, _Flight] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, _Flight]] = field(default_factory=list)
    _numbers: Iterable[int] = field(default_factory=count)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_starved(self) -> bool:
        return bool(self._starving)

    def change(self, gone: Collection[Endpoint], targets: Iterable[Target]) -> None:
        """Stop probing some endpoints and start probing others; all others are unchanged."""
        self.tracker.change(gone, targets, self._now())
        for endpoint in gone:
            self._usual.pop(endpoint, None)
            self._note(endpoint, starves=False)
            if endpoint in self._flights:
                self._close(self._flights[endpoint])
        self._woken.set()

    async def run(self) -> None:
        """Probe until cancelled."""
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
        """Sleep until the next event is due. Any excess counts as lost time."""
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
                # the time of the request: this process may have been stopped since `now`
                self._begin(_Flight(target, made, said, self._now(), self.lost, self._patience(target)))

    def _open(self, target: Target) -> socket.socket:
        """Open a connecting socket to the target. Raises OSError."""
        endpoint = target.endpoint
        six = endpoint.address.version == 6
        made = _socket(target, six)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.device(target).encode())
            number = 0 if made.type == socket.SOCK_RAW else endpoint.number  # the probe protocol has the ports then
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
        """Handle a writable socket: it is connected, has failed, or has room for more data."""
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
            with contextlib.suppress(OSError):  # the buffer of a new connection has room for it
                flight.socket.send(reply.octets)
            self._judge(flight, RIGHT)
        else:
            self._judge(flight, reply)

    def _send(self, flight: _Flight) -> None:
        """Send pending data; the rest is sent when the socket has room. The first datagram may be empty."""
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
        """Return the outcome of a socket error. Where the host's own routing is used, a missing route counts as a
        failure of the member."""
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
        again = self._doubts(flight.target) < MOST_DOUBTS
        tolerated = max(TOLERATED, flight.patience / 4 if again else flight.patience)
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
        """Record whether the last and longest attempt was void."""
        before = bool(self._starving)
        (self._starving.add if starves else self._starving.discard)(endpoint)
        if bool(self._starving) is not before:
            self.starved(not before)

    def _slowness(self, now: float) -> float:
        """Return the median of recent delays in seconds; 0 with too few responses."""
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
        """Discard a failure through a new device. Any response through the device, even a wrong one, ends this."""
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
    """Create the socket of a probe. Raises OSError."""
    family, (kind, protocol) = socket.AF_INET6 if six else socket.AF_INET, _kind(target, six)
    try:
        return socket.socket(family, kind, protocol)
    except PermissionError:
        if protocol not in {socket.IPPROTO_ICMP, socket.IPPROTO_ICMPV6}:
            raise
        return socket.socket(family, socket.SOCK_RAW, protocol)


def _header(target: Target, made: socket.socket) -> bytes:
    """Return the PROXY header that the check sends first; empty without one."""
    version, endpoint = target.check.header, target.endpoint
    if version is None:
        return b""
    address, port, *_ = made.getsockname()  # the kernel has chosen both (connect(2))
    source = parse_address(address.partition("%")[0]), port
    return proxy_header(version, source, (endpoint.address, endpoint.number))


def _kind(target: Target, six: bool) -> tuple[int, int]:
    """Return type and protocol of the socket."""
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
