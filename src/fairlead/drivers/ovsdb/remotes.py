"""Remotes in the syntax of ovsdb(7), their rotation, and liveness of the connected one. No I/O."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto


@dataclass(frozen=True, slots=True, kw_only=True)
class UnixRemote:
    path: str

    def __str__(self) -> str:
        return f"unix:{self.path}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TcpRemote:
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp:{_bracket(self.host)}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SslRemote:
    host: str
    port: int

    def __str__(self) -> str:
        return f"ssl:{_bracket(self.host)}:{self.port}"


Remote = UnixRemote | TcpRemote | SslRemote

_NET = re.compile(r"(tcp|ssl):(?:\[([0-9A-Fa-f:.%\w]+)\]|([^\[\]:]+)):(\d{1,5})")


def _bracket(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def parse_remotes(text: str) -> tuple[Remote, ...]:
    """Parse a comma-separated list of unix:PATH, tcp:HOST:PORT and ssl:HOST:PORT (ovsdb(7), Connection Methods)."""
    return tuple(_parse_remote(part.strip()) for part in text.split(","))


def _parse_remote(text: str) -> Remote:
    if text.startswith("unix:") and len(text) > len("unix:"):
        return UnixRemote(path=text.removeprefix("unix:"))
    found = _NET.fullmatch(text)
    if found is None or not 0 < int(found[4]) < 65536:
        raise ValueError(f"{text!r} is not an OVSDB remote (tcp:HOST:PORT, ssl:HOST:PORT or unix:PATH)")
    kind = TcpRemote if found[1] == "tcp" else SslRemote
    return kind(host=found[2] or found[3], port=int(found[4]))


class Rotation:
    """Next remote and pause. A round tries each remote without a pause; pauses between rounds double up to `cap`."""

    def __init__(self, remotes: Sequence[Remote], first: float, cap: float) -> None:
        if not remotes:
            raise ValueError("no remote")
        self._remotes = tuple(remotes)
        self._first = first
        self._cap = cap
        self._tries = 0
        self._index = 0

    @property
    def remote(self) -> Remote:
        return self._remotes[self._index]

    def failed(self, held: float) -> float:
        """Select the next remote and return the pause before it is tried.

        `held` is the seconds that the last one was in sync. Less than `cap` counts as a failure, so that a server that
        crashes during full reads is not read repeatedly without a pause.
        """
        self._tries = 1 if held >= self._cap else self._tries + 1
        self._index = (self._index + 1) % len(self._remotes)
        rounds, rest = divmod(self._tries, len(self._remotes))
        return 0.0 if rest else min(self._cap, self._first * 2.0 ** min(rounds - 1, 32))


class LivenessVerdict(Enum):
    WAIT = auto()
    PROBE = auto()
    DEAD = auto()


class Liveness:
    """Liveness of a connection: silence for one interval requires a probe, for another one means dead.

    A late tick shows that this process was delayed, and the probe gets another interval.
    """

    def __init__(self, interval: float, now: float) -> None:
        self._interval = interval
        self._since = now
        self._probing = False

    @property
    def due(self) -> float:
        """Time of the next tick."""
        return self._since + self._interval

    def record_activity(self, now: float) -> None:
        self._since = now
        self._probing = False

    def tick(self, now: float) -> LivenessVerdict:
        late = now - self.due
        if late < 0:
            return LivenessVerdict.WAIT
        if self._probing and late < self._interval / 2:
            return LivenessVerdict.DEAD
        self._since = now
        self._probing = True
        return LivenessVerdict.PROBE
