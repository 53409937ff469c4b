"""Prober: opens sockets, runs probe protocols (`dialogs`), and passes outcomes to the tracker, in one event loop.

* **No probe waits for another.** All sockets are non-blocking. A silent member uses one of `MAX_SOCKETS` sockets until
  its timeout.
* **A timeout counts only if this process had CPU time.** Time during which it did not run is added to the member's
  timeout. If that was more than a quarter of the timeout, the attempt is void, because the machines on this node may
  not have run either. It is repeated immediately with twice the timeout, up to `MAX_RETRIES` times. The longest attempt
  is void only if this process did not run for more than half of it. Then the agent is *starved*: it reports this,
  members keep their last status, and probes continue at their usual interval.
* **A slow node is not starved.** While responses take longer than usual by the same margin, a timeout is attributed to
  the node as well, but at most `MAX_RETRIES` times in a row.
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
from fairlead.node.probe_protocols import (
    SUCCESS,
    ProbeProtocol,
    ProtocolFailure,
    ProtocolResult,
    ProtocolSuccess,
    Reply,
    SendAndSucceed,
    make_protocol,
)
from fairlead.node.proxy_header import proxy_header
from fairlead.node.tracker import PENDING, Outcome, ProbeFailed, ProbeSucceeded, ProbeVoid, Tracker

MAX_SOCKETS = 2_000
"""Maximum open sockets."""
MAX_STARTED_PER_TURN = 50
"""Maximum probes started before received data is read."""
MAX_SLEEP = 0.02
"""Seconds while probes are in progress: the resolution of the lost time."""
MAX_LOST_TIME = 0.025
"""Tolerated lost time in seconds, or a quarter of the timeout if that is more; of the longest attempt, all of its
timeout. After more, a timeout does not count."""
MAX_RETRIES = 3
"""Consecutive timeouts after which a member is probed again immediately, each with twice the timeout."""
STARVED_REASON = "the agent got no CPU time during the probe; the last result remains valid"
BUSY_REASON = "the node was too busy for a conclusive probe"
"""Reasons why an attempt is void."""
MAX_SAMPLE_AGE, MIN_SAMPLES, MAX_SAMPLES = 2.0, 5, 50
"""Maximum age in seconds of the responses that measure the slowness of the node; minimum and maximum number of these
responses."""
MAX_GROWTH = 1.05
"""Maximum growth of the usual response time with each response, as a factor."""
MAX_WAKEUP_DELAY = 0.01
"""Seconds that a sleep may be late before the time counts as lost."""
READ_BYTES = 4096
"""Bytes of one read."""
IPPROTO_SCTP = 132
LOCAL_ERRNOS = frozenset(
    {
        *(errno.ENODEV, errno.ENETUNREACH, errno.ENETDOWN, errno.EADDRNOTAVAIL, errno.EADDRINUSE, errno.EMFILE),
        *(errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES, errno.EPROTONOSUPPORT),
        *(errno.EAFNOSUPPORT, errno.ESOCKTNOSUPPORT, errno.ENXIO),
    }
)
"""Errors with a local cause."""
ERROR_TEXTS = {
    errno.ECONNREFUSED: "connection refused",
    errno.ECONNRESET: "connection reset by peer",
    errno.EPIPE: "connection reset by peer",
    errno.EHOSTUNREACH: "no route to host",
    errno.ETIMEDOUT: "connection timed out",
    errno.ENOPROTOOPT: "protocol not available",
    errno.EPERM: "operation not permitted",
    errno.ENETUNREACH: "network is unreachable",
    errno.ENODEV: "this node has no probe device for the network yet",
}
_RESET = struct.pack("ii", 1, 0)
"""struct linger: close without waiting, and send RST (socket(7))."""
MAX_CPU_STALL = 3.0
"""Seconds without CPU time after which all earlier results are dropped as stale."""
Device: TypeAlias = Callable[[Target], str]
"""Returns the device of this node for a target; empty for the host's own routing."""


@dataclass(slots=True, eq=False)
class _Probe:
    target: Target
    socket: socket.socket
    protocol: ProbeProtocol
    began: float
    lost_at_start: float
    """Total lost time when the probe began."""
    timeout: float
    """Timeout in seconds; longer than the monitor's after void attempts."""
    unsent: bytes = b""
    is_connected: bool = False
    is_refused: bool = False

    @property
    def has_response(self) -> bool:
        """Whether the member sent anything, even a wrong response."""
        return self.is_refused or (self.is_connected and self.socket.type == socket.SOCK_STREAM)


@dataclass(slots=True)
class Prober:
    """Prober of a node: call `change` for new targets, and `run` in a task. `told` is called with endpoints that
    have a new status."""

    device: Device
    on_change: Callable[[Collection[Endpoint]], None]
    tracker: Tracker = field(default_factory=Tracker)
    max_sockets: int = MAX_SOCKETS
    new_devices: dict[str, float] = field(default_factory=dict)
    """Maps new devices to the time until which their failures do not count, because the switch may not have plugged
    them in."""
    on_cpu_stall: Callable[[], None] = lambda: None
    """Called after all results were dropped because this process had no CPU time for `MAX_CPU_STALL` seconds."""
    on_starved: Callable[[bool], None] = lambda _: None
    """Called when this agent becomes starved, and when that ends."""
    probes: int = 0
    """Number of concluded probes."""
    discarded: Counter[str] = field(default_factory=Counter)
    """Probes that timed out and do not count against the member, by reason."""
    lost_time: float = 0.0
    """Total seconds that this process was runnable and got no CPU time."""
    _starved_endpoints: set[Endpoint] = field(default_factory=set)
    """Endpoints with a longest attempt that was void, and no valid one since."""
    _awake: float | None = None
    """Time of the last wake-up."""
    _usual: dict[Endpoint, float] = field(default_factory=dict)
    """Seconds that a response usually takes."""
    _delays: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    """Time and delay (seconds above the usual) of the last responses."""
    _in_flight: dict[Endpoint, _Probe] = field(default_factory=dict)
    _deadlines: list[tuple[float, int, _Probe]] = field(default_factory=list)
    _numbers: Iterable[int] = field(default_factory=count)
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def is_starved(self) -> bool:
        return bool(self._starved_endpoints)

    def change(self, gone: Collection[Endpoint], targets: Iterable[Target]) -> None:
        """Stop probing some endpoints and start probing others; all others are unchanged."""
        self.tracker.change(gone, targets, self._now())
        for endpoint in gone:
            self._usual.pop(endpoint, None)
            self._record_starvation(endpoint, starves=False)
            if endpoint in self._in_flight:
                self._close(self._in_flight[endpoint])
        self._wakeup.set()

    async def run(self) -> None:
        """Probe until cancelled."""
        try:
            while True:
                now = self._now()
                self._launch(now)
                self._expire(now)
                if self.tracker.changed:
                    changed, self.tracker.changed = self.tracker.changed, set()
                    self.on_change(changed)
                await self._sleep()
        finally:
            for flight in list(self._in_flight.values()):
                self._close(flight)

    async def _sleep(self) -> None:
        """Sleep until the next event is due. Any excess counts as lost time."""
        until = self._next()
        began = self._now()
        worked = 0.0 if self._awake is None else began - self._awake
        self.lost_time += worked if worked > MAX_WAKEUP_DELAY else 0.0
        seconds = None if until is None else max(0.0, until - began)
        if seconds is not None and self._in_flight:
            seconds = min(seconds, MAX_SLEEP)
        try:
            async with asyncio.timeout(seconds):
                await self._wakeup.wait()
            self._wakeup.clear()
        except TimeoutError:
            pass
        self._awake = self._now()
        late = 0.0 if seconds is None else self._awake - began - seconds
        self.lost_time += late if late > MAX_WAKEUP_DELAY else 0.0
        if max(late, worked) > MAX_CPU_STALL:
            self.tracker.clear_states()
            self.on_cpu_stall()

    def _next(self) -> float | None:
        due = self.tracker.next_due() if len(self._in_flight) < self.max_sockets else None
        times = [each for each in (due, self._deadlines[0][0] if self._deadlines else None) if each is not None]
        return min(times, default=None)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    def _launch(self, now: float) -> None:
        for target in self.tracker.take_due(now, MAX_STARTED_PER_TURN, self.max_sockets - len(self._in_flight)):
            try:
                made = self._open(target)
            except OSError as error:
                self.probes += 1
                self.tracker.conclude(target, self._failure(target, error), now)
            else:
                raw = made.type == socket.SOCK_RAW
                header = _header(target, made)
                said = make_protocol(
                    target.check, target.endpoint, secrets.randbits(48), by_raw_socket=raw, header=header
                )
                # the time of the request: this process may have been stopped since `now`
                self._begin(_Probe(target, made, said, self._now(), self.lost_time, self._timeout_of(target)))

    def _open(self, target: Target) -> socket.socket:
        """Open a connecting socket to the target. Raises OSError."""
        endpoint = target.endpoint
        six = endpoint.address.version == 6
        made = _socket(target, six)
        try:
            made.setblocking(False)
            made.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, self.device(target).encode())
            number = 0 if made.type == socket.SOCK_RAW else endpoint.port  # the probe protocol has the ports then
            found = made.connect_ex((str(endpoint.address), number))
            if found not in (0, errno.EINPROGRESS):
                raise OSError(found, os.strerror(found))
        except OSError:
            made.close()
            raise
        return made

    def _begin(self, flight: _Probe) -> None:
        self._in_flight[flight.target.endpoint] = flight
        heapq.heappush(self._deadlines, (flight.began + flight.timeout, next(iter(self._numbers)), flight))
        loop = asyncio.get_running_loop()
        loop.add_writer(flight.socket, self._write, flight)

    def _write(self, flight: _Probe) -> None:
        """Handle a writable socket: it is connected, has failed, or has room for more data."""
        error = flight.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if error:
            self._break(flight, OSError(error, os.strerror(error)))
            return
        loop = asyncio.get_running_loop()
        if not flight.is_connected:
            flight.is_connected = True
            self._continue(flight, flight.protocol.connected(), first=True)
        elif flight.unsent:
            self._send(flight)
        if flight.target.endpoint in self._in_flight and not flight.unsent:
            loop.remove_writer(flight.socket)
            loop.add_reader(flight.socket, self._read, flight)

    def _read(self, flight: _Probe) -> None:
        try:
            heard = flight.socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._break(flight, error)
            return
        if not heard and flight.socket.type == socket.SOCK_STREAM:
            self._evaluate(flight, flight.protocol.closed())
        else:
            self._continue(flight, flight.protocol.received(heard))

    def _continue(self, flight: _Probe, reply: Reply, *, first: bool = False) -> None:
        if isinstance(reply, bytes):
            flight.unsent = reply
            if reply or first:
                self._send(flight)
        elif isinstance(reply, SendAndSucceed):
            with contextlib.suppress(OSError):  # the buffer of a new connection has room for it
                flight.socket.send(reply.octets)
            self._evaluate(flight, SUCCESS)
        else:
            self._evaluate(flight, reply)

    def _send(self, flight: _Probe) -> None:
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

    def _break(self, flight: _Probe, error: OSError) -> None:
        flight.is_refused = error.errno == errno.ECONNREFUSED
        self._conclude(flight, self._failure(flight.target, error))

    def _failure(self, target: Target, error: OSError) -> Outcome:
        """Return the outcome of a socket error. Where the host's own routing is used, a missing route counts as a
        failure of the member."""
        number = error.errno or 0
        words = ERROR_TEXTS.get(number, error.strerror or str(error))
        ours = number in LOCAL_ERRNOS and (number != errno.ENETUNREACH or bool(self.device(target)))
        return ProbeVoid(words) if ours else ProbeFailed(words)

    def _evaluate(self, flight: _Probe, judgement: ProtocolResult) -> None:
        took = self._now() - flight.began
        if isinstance(judgement, ProtocolSuccess):
            usual = self._usual.get(flight.target.endpoint, took)
            self._delays.append((flight.began + took, took - usual))
            self._usual[flight.target.endpoint] = min(took, usual * MAX_GROWTH)
        self._conclude(
            flight, ProbeSucceeded(took) if isinstance(judgement, ProtocolSuccess) else ProbeFailed(judgement.reason)
        )

    def _expire(self, now: float) -> None:
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number, flight = heapq.heappop(self._deadlines)
            if self._in_flight.get(flight.target.endpoint) is not flight:
                continue
            patience, lost = flight.timeout, self.lost_time - flight.lost_at_start
            until = flight.began + patience + min(lost, patience)
            if until > now:
                heapq.heappush(self._deadlines, (until, number, flight))
            else:
                outcome = self._evaluate_timeout(flight, lost, now)
                if isinstance(outcome, ProbeVoid) and outcome.reason in (STARVED_REASON, BUSY_REASON):
                    self.discarded[outcome.reason] += 1
                self._conclude(flight, outcome)

    def _evaluate_timeout(self, flight: _Probe, lost: float, now: float) -> Outcome:
        again = self._count_void(flight.target) < MAX_RETRIES
        tolerated = max(MAX_LOST_TIME, flight.timeout / 4 if again else flight.timeout)
        if lost > tolerated:
            return ProbeVoid(STARVED_REASON, is_retried_immediately=again)
        if again and self._slowness(now) > tolerated:
            return ProbeVoid(BUSY_REASON, is_retried_immediately=True)
        return _timeout_outcome(flight, flight.timeout)

    def _count_void(self, target: Target) -> int:
        return self.tracker.states.get(target.endpoint, PENDING).void_probes

    def _timeout_of(self, target: Target) -> float:
        return float(target.schedule.effective_timeout * 2 ** min(self._count_void(target), MAX_RETRIES))

    def _record_starvation(self, endpoint: Endpoint, *, starves: bool) -> None:
        """Record whether the last and longest attempt was void."""
        before = bool(self._starved_endpoints)
        (self._starved_endpoints.add if starves else self._starved_endpoints.discard)(endpoint)
        if bool(self._starved_endpoints) is not before:
            self.on_starved(not before)

    def _slowness(self, now: float) -> float:
        """Return the median of recent delays in seconds; 0 with too few responses."""
        found = [late for at, late in self._delays if now - at < MAX_SAMPLE_AGE]
        return sorted(found)[len(found) // 2] if len(found) >= MIN_SAMPLES else 0.0

    def _conclude(self, flight: _Probe, outcome: Outcome) -> None:
        self._close(flight)
        self.probes += 1
        now = self._now()
        if self.new_devices:
            outcome = self._excuse_new_device(flight, outcome, now)
        self.tracker.conclude(flight.target, outcome, now)
        self._record_starvation(flight.target.endpoint, starves=outcome == ProbeVoid(STARVED_REASON))
        if self.tracker.changed:
            self._wakeup.set()

    def _excuse_new_device(self, flight: _Probe, outcome: Outcome, now: float) -> Outcome:
        """Discard a failure through a new device. Any response through the device, even a wrong one, ends this."""
        name = self.device(flight.target)
        if isinstance(outcome, ProbeSucceeded) or flight.has_response or self.new_devices.get(name, 0.0) <= now:
            self.new_devices.pop(name, None)
            return outcome
        return (
            ProbeVoid("this node's probe device for the network is new")
            if isinstance(outcome, ProbeFailed)
            else outcome
        )

    def _close(self, flight: _Probe) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_writer(flight.socket)
        loop.remove_reader(flight.socket)
        if flight.is_connected and flight.socket.type == socket.SOCK_STREAM:
            flight.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        flight.socket.close()
        del self._in_flight[flight.target.endpoint]


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
    return proxy_header(version, source, (endpoint.address, endpoint.port))


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


def _timeout_outcome(flight: _Probe, patience: float) -> Outcome:
    meaning = flight.protocol.timeout_result if flight.is_connected else None
    match meaning:
        case ProtocolSuccess() if flight.target.is_delegated:
            return ProbeVoid("inconclusive: no response to UDP, and the agent of its node is unresponsive")
        case ProtocolSuccess():
            return ProbeSucceeded(None)
        case ProtocolFailure(why):
            return ProbeFailed(why)
        case _:
            return ProbeFailed(f"no answer in {patience:g} s")
