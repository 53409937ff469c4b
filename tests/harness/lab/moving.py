"""A replica moves from chassis to chassis while clients on both of them ask: what it costs them.

A connection that begins on the replica's chassis while it is being unplugged may still be led to it, and stays so: the
tracker keeps its translation. The replica answers it from where it is then, as soon as a first segment that is sent
again (after 1, 2, 3 and 4 seconds: `tcp_syn_linear_timeouts`) finds it plugged in. So the replica moves on only when
all that began before are told. If it moved at once, and a machine that is slow takes a second for that, each of these
segments could meet the next move: of 1,500 connections one was lost so, and its five segments met five moves.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from math import inf
from time import time

from harness.lab.holder import holding
from harness.lab.local_ips import OWNER, LocalIPs, Wood
from harness.lab.site import PORT
from harness.lab.ticker import Tick, Ticker, ticking
from harness.waiting import wait_until

HERE = {"oak1": "chassis1", "oak2": "chassis2", "fir1": "chassis1", "fir2": "chassis2"}
HELD = 5
"""Connections of each client to each address that are there from the beginning."""
SLOW = 0.9
"""Seconds. A first segment that is lost is sent again after one (RFC 6298)."""

Tickers = Mapping[tuple[str, str], Ticker]
"""By client and address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """What became of the new connections that began after the replica was unplugged, and before it was again."""

    asked: int
    lost: int
    slow: int
    """Answered after a segment had been sent again."""
    away: float
    """Seconds from unplugged to plugged in elsewhere: the lab's own work."""
    there: float
    """Seconds from plugged in until every client there has begun a connection that the replica answered at once; 0 if
    that was before the switch's database said that it is plugged in."""
    here: float
    """Seconds from unplugged until every client here has begun one that the owner answered at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    chassis: str
    unplugged: float
    plugged: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    each: Sequence[Move]
    held: int
    broken: int
    """Of the connections that were there from the beginning, half with the replica and half with the owner."""
    unanswered: Sequence[str]
    """Each that was lost: who asked, when, and what came of it."""

    def total(self, figure: str) -> int:
        return sum(getattr(move, figure) for move in self.each)


def moved_under_load(wood: Wood, local_ips: LocalIPs, places: Sequence[str]) -> Moves:
    """The replica `one` goes to each of the places in turn."""
    keys = [(client, address) for client in HERE for address in local_ips.addresses]
    with ExitStack() as stack:
        holders = [stack.enter_context(holding(wood.lab, *key, PORT)) for key in keys]
        held = [holder.open(HELD) for holder in holders]
        tickers = {key: stack.enter_context(ticking(wood.lab, *key, PORT)) for key in keys}
        wait_until(lambda: all(ticker.ticks for ticker in tickers.values()), "all of them ask")
        times, now = list[Times](), held
        for place in places:
            times.append(_move(wood, tickers, place))
            now = [holder.ask() for holder in holders]  # one that has failed never answers again
        for ticker in tickers.values():
            ticker.stop()
    ends = [*(move.unplugged for move in times[1:]), time()]
    return Moves(
        each=[_count(tickers, move, end) for move, end in zip(times, ends, strict=True)],
        held=len(keys) * HELD,
        unanswered=_told(tickers, times),
        broken=sum(after.get(port) != name for old, after in zip(held, now, strict=True) for port, name in old.items()),
    )


def _move(wood: Wood, tickers: Tickers, chassis: str) -> Times:
    """Returns when clients are led as they should be from now on, and all that began before have an answer or none."""
    unplugged = time()
    wood.lab.move_workload("one", chassis)
    move = Times(chassis=chassis, unplugged=unplugged, plugged=time())
    wait_until(lambda: None not in _firsts(tickers, move).values(), "clients are led there, and to the owner")
    led = time()
    wait_until(lambda: all(each.has_told_of_all(led) for each in tickers.values()), "who began before is told")
    return move


def _firsts(tickers: Tickers, move: Times, end: float = inf) -> dict[tuple[str, str], float | None]:
    """When each began the first connection that who is due answered at once."""
    due = {client: "one" if HERE[client] == move.chassis else OWNER for client in HERE}
    return {
        key: min((tick.at for tick in _during(ticker, move, end) if _is_good(tick, due[key[0]])), default=None)
        for key, ticker in tickers.items()
    }


def _told(tickers: Tickers, times: Sequence[Times]) -> Sequence[str]:
    return [
        f"{client} to {address} from port {tick.source}, {tick.at - move.unplugged:.3f} s after the replica left for"
        f" {move.chassis}: {tick.kind} after {tick.took:.3f} s"
        for move, end in zip(times, [*(move.unplugged for move in times[1:]), inf], strict=True)
        for (client, address), ticker in tickers.items()
        for tick in _during(ticker, move, end)
        if not tick.name
    ]


def _during(ticker: Ticker, move: Times, end: float) -> Sequence[Tick]:
    return [tick for tick in ticker.ticks if move.unplugged <= tick.at < end]


def _is_good(tick: Tick, name: str) -> bool:
    return tick.name == name and tick.took < SLOW


def _count(tickers: Tickers, move: Times, end: float) -> Move:
    every = [tick for ticker in tickers.values() for tick in _during(ticker, move, end)]
    firsts = {key: at for key, at in _firsts(tickers, move, end).items() if at is not None}
    return Move(
        asked=len(every),
        lost=sum(not tick.name for tick in every),
        slow=sum(bool(tick.name) and tick.took >= SLOW for tick in every),
        away=move.plugged - move.unplugged,
        there=max(0, max(at for (client, _), at in firsts.items() if HERE[client] == move.chassis) - move.plugged),
        here=max(at for (client, _), at in firsts.items() if HERE[client] != move.chassis) - move.unplugged,
    )


def table(moves: Moves) -> str:
    """Markdown."""
    names = [field.name for field in fields(Move)]
    rows = [[f"{getattr(move, name):.2f}".removesuffix(".00") for name in names] for move in moves.each]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(words)} |" for words in lines)
