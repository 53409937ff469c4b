"""Counters of each listener, summed over the current process and the replaced ones that still have connections.

Each process counts from zero, and its runtime API socket passes to its successor. Therefore the agent opens a
connection to a process before its replacement (management guide, 9.3, `prompt`): the process still responds on it, and
does not end while it is open. The agent closes it when the last client connection has ended.

The counters are those of the listener's frontend. `errors` also includes the connections that no member of its backends
accepted. HAProxy counts these per backend; for a backend that listeners share, they are added to the first listener by
id, so the sum of a load balancer is exact. Bytes are TCP payload bytes in both directions. For HTTP, HAProxy's frontend
counters use its internal form of headers; HTTP/1 has separate byte counters, and a listener that has had HTTP/2
connections only has the former.
"""

import asyncio
import contextlib
import csv
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fairlead.dataplane.haproxy import EXPORTER_FRONTEND, METRICS
from fairlead.drivers.haproxy.process import RunningProcess
from fairlead.drivers.haproxy.runtime import COMMAND_TIMEOUT
from fairlead.drivers.interface import Unavailable
from fairlead.model.documents.traffic_counters import TrafficCounters

STATS_COMMANDS = "show info;show stat -1 3 -1\n"
"""Statistics of frontends and backends, without servers."""
STATS_SESSION = f"prompt\n{STATS_COMMANDS}"
MIN_READ_INTERVAL, MAX_READ_INTERVAL = 0.2, 1.0
"""Seconds between two reads of a replaced process. An ended process still counts towards `MAX_REPLACED`."""
MAX_UNCHANGED_READS = 5
"""Reads after which a process that has not begun to stop is released, because its successor did not start."""
LINES_PER_YIELD = 100
"""Lines parsed before the parser yields to the event loop."""
OnCounters: TypeAlias = Callable[[RunningProcess, Mapping[str, TrafficCounters]], None]
"""Called with a process and its counters, by listener."""


def ignore_counters(_: RunningProcess, __: Mapping[str, TrafficCounters]) -> None:
    """Default callback, which ignores the counters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stats:
    info: Mapping[str, str]
    figures: Mapping[str, TrafficCounters]
    """Maps each listener to the counters of its frontend."""
    refused: Mapping[str, int]
    """Maps each backend to its connections that no member accepted."""

    @property
    def has_ended(self) -> bool:
        """Whether the process is stopping and has no connections left."""
        return self.is_stopping and not self.open_listeners

    @property
    def open_listeners(self) -> frozenset[str]:
        """Listeners with open connections."""
        return frozenset(name for name, figures in self.figures.items() if figures.active)

    @property
    def is_stopping(self) -> bool:
        return self.info.get("Stopping") == "1"


@dataclass(frozen=True, slots=True)
class _ReplacedProcess:
    """Replaced process with an open connection to its runtime API."""

    running: RunningProcess
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    counted_for: Mapping[str, str]
    busy: asyncio.Lock = field(default_factory=asyncio.Lock, compare=False)
    """Serialises commands on the connection."""


class ProxyCounters:
    def __init__(self, counted: OnCounters = ignore_counters) -> None:
        self._on_counters = counted
        self._drain_tasks = set["asyncio.Task[None]"]()
        self._replaced = dict[RunningProcess, _ReplacedProcess]()
        """Replaced processes that still have connections."""

    async def read(self, running: RunningProcess, control: Path, counted_for: Mapping[str, str]) -> int | None:
        """Read the counters of a process; one that does not answer is read the next time. `counted_for` maps each
        backend of this process to a listener (`network.counted_for`).

        Returns the number of failed allocations since the process started; None if it does not answer.
        """
        with contextlib.suppress(Unavailable):
            reader, writer = await _connect(control)
            try:
                answer = await _request(reader, writer, STATS_COMMANDS)
                self._report(running, answer, counted_for)
                return int(answer.info.get("PoolFailed", 0))
            finally:
                writer.close()
        return None

    @contextlib.asynccontextmanager
    async def follow_replaced(
        self, running: RunningProcess | None, control: Path, counted_for: Mapping[str, str]
    ) -> AsyncIterator[None]:
        """Continue to count a process while another one replaces it, until its last connection ends."""
        held = await self._connect_before_replacement(running, control, counted_for) if running is not None else None
        try:
            yield
        finally:
            self._start_draining(held)

    async def open_listeners(self, replaced: Iterable[RunningProcess]) -> Mapping[RunningProcess, frozenset[str]]:
        """Map replaced processes to the listeners with open connections, read now.

        Processes that do not respond or still accept connections are missing.
        """
        held = [self._replaced[each] for each in replaced if each in self._replaced]
        answers = await asyncio.gather(*map(self._read_or_none, held))
        return {
            each.running: answer.open_listeners
            for each, answer in zip(held, answers, strict=True)
            if answer is not None and answer.is_stopping
        }

    async def _read_or_none(self, held: _ReplacedProcess) -> _Stats | None:
        try:
            return await self._read(held)
        except Unavailable:
            return None

    async def _read(self, held: _ReplacedProcess) -> _Stats:
        """Read and report the counters of a replaced process. Raises Unavailable."""
        async with held.busy:
            answer = await _request(held.reader, held.writer, STATS_COMMANDS)
        self._report(held.running, answer, held.counted_for)
        return answer

    async def _connect_before_replacement(
        self, running: RunningProcess, control: Path, counted_for: Mapping[str, str]
    ) -> _ReplacedProcess | None:
        """Open a connection to a process before its replacement; None if it does not respond."""
        try:
            reader, writer = await _connect(control)
        except Unavailable:
            return None
        try:
            answer = await _request(reader, writer, STATS_SESSION)
        except Unavailable:
            writer.close()
            return None
        self._report(running, answer, counted_for)
        return _ReplacedProcess(running, reader, writer, counted_for)

    def _start_draining(self, held: _ReplacedProcess | None) -> None:
        if held is not None:
            self._replaced[held.running] = held
            task = asyncio.ensure_future(self._drain(held))
            self._drain_tasks.add(task)
            task.add_done_callback(self._drain_tasks.discard)

    async def close(self) -> None:
        tasks = list(self._drain_tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _drain(self, held: _ReplacedProcess) -> None:
        pause, unmoved = MIN_READ_INTERVAL, 0
        try:
            while unmoved < MAX_UNCHANGED_READS:
                await asyncio.sleep(pause)
                answer = await self._read(held)
                if answer.has_ended:
                    return
                if answer.is_stopping:
                    pause = min(2 * pause, MAX_READ_INTERVAL)
                else:
                    unmoved += 1
        except Unavailable:
            return  # the process has ended
        finally:
            held.writer.close()
            self._replaced.pop(held.running, None)

    def _report(self, running: RunningProcess, answer: _Stats, counted_for: Mapping[str, str]) -> None:
        """Reports an answer of this process; one of another process at the same socket is ignored."""
        if answer.info.get("Pid") == str(running.pid) and running.is_alive:
            figures = dict(answer.figures)
            for backend, errors in answer.refused.items():
                if (listener := counted_for.get(backend)) is not None:
                    figures[listener] = figures.get(listener, TrafficCounters()) + TrafficCounters(errors=errors)
            self._on_counters(running, figures)


async def _connect(control: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to a control socket. Raises Unavailable."""
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            return await asyncio.open_unix_connection(str(control))
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{control}: {error}") from None


async def _request(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, question: str) -> _Stats:
    """Send a command and parse the response. Raises Unavailable."""
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            writer.write(question.encode())
            await writer.drain()
            return await _read(reader)
    except (OSError, EOFError, ValueError, TimeoutError) as error:
        raise Unavailable(f"cannot read the counters of a proxy: {error}") from None


async def _read(reader: asyncio.StreamReader) -> _Stats:
    """Parse a response up to the empty line after the table. Raises OSError, EOFError, ValueError."""
    info, figures, refused = dict[str, str](), dict[str, TrafficCounters](), dict[str, int]()
    columns, number = list[str](), 0
    while line := (await reader.readline()).decode(errors="replace"):
        text, number = line.removeprefix("> ").rstrip("\r\n"), number + 1
        if text.startswith("# "):
            columns = text[2:].split(",")
        elif columns and not text:
            return _Stats(info=info, figures=figures, refused=refused)
        elif columns:
            row = dict(zip(columns, next(csv.reader([text])), strict=False))
            if row["pxname"] in {METRICS, EXPORTER_FRONTEND}:
                continue
            if row["svname"] == "FRONTEND":
                figures[row["pxname"]] = _figures(row)
            else:
                refused[row["pxname"]] = _value(row, "econ")
        elif ": " in text:
            name, _, value = text.partition(": ")
            info[name] = value
        if number % LINES_PER_YIELD == 0:
            await asyncio.sleep(0)
    raise EOFError("connection closed before the end of the response")


def _figures(row: Mapping[str, str]) -> TrafficCounters:
    """The counters of a frontend. Raises ValueError."""
    http2_connections = _value(row, "h2_total_connections")
    return TrafficCounters(
        connections=_value(row, "stot"),
        errors=_value(row, "ereq"),
        bytes_in=_bytes(_value(row, "bin"), _value(row, "h1_bytes_in"), http2_connections),
        bytes_out=_bytes(_value(row, "bout"), _value(row, "h1_bytes_out"), http2_connections),
        active=_value(row, "scur"),
    )


def _value(row: Mapping[str, str], column: str) -> int:
    """Return the value of a column, 0 if it is empty. Raises ValueError."""
    return int(row.get(column) or 0)


def _bytes(all_: int, of_http1: int, http2_connections: int) -> int:
    return of_http1 if of_http1 and not http2_connections else max(all_, of_http1)
