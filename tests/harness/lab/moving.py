"""Moves a replica between chassis while clients on both send requests, and measures lost and slow connections.

A connection that begins on the replica's chassis during the unbinding may still be translated to the replica, and
remains so, because conntrack keeps the translation. The replica answers it from its new chassis as soon as a
retransmitted SYN (after 1, 2, 3 and 4 seconds: `tcp_syn_linear_timeouts`) finds it bound. So the replica moves on only
when all earlier connections have ended. If it moved immediately on a slow machine, each retransmission could coincide
with a later move: of 1,500 connections one was lost because its five SYNs met five moves.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields
from math import inf
from time import time

from harness.lab.holder import holding
from harness.lab.local_ips import OWNER, LocalIPs, LocalIPSite
from harness.lab.periodic_connections import ConnectionResult, PeriodicConnections, periodic_connections
from harness.lab.site import PORT
from harness.waiting import wait_until

CLIENT_CHASSIS = {"oak1": "chassis1", "oak2": "chassis2", "fir1": "chassis1", "fir2": "chassis2"}
HELD_CONNECTIONS = 5
"""Connections of each client to each address that are open from the beginning."""
SLOW_SECONDS = 0.9
"""Seconds. A lost SYN is sent again after one second (RFC 6298)."""

Tickers = Mapping[tuple[str, str], PeriodicConnections]
"""Tickers by client and address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResult:
    """Results of the new connections that began between the unbinding of the replica and the next unbinding."""

    asked: int
    lost: int
    slow: int
    """Connections answered after a retransmission."""
    away: float
    """Seconds from the unbinding to the binding on the other chassis, which is work of the lab."""
    there: float
    """Seconds from the binding until every client there has begun a connection that the replica answered immediately.

    It is 0 if that was before the switch's database had the interface.
    """
    here: float
    """Seconds from the unbinding until every client here has begun a connection that the owner answered immediately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveTimes:
    chassis: str
    unplugged: float
    plugged: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MoveResults:
    results: Sequence[MoveResult]
    held: int
    broken: int
    """Broken connections of those open from the beginning, half to the replica and half to the owner."""
    unanswered: Sequence[str]
    """Each lost connection: client, time and result."""

    def total(self, figure: str) -> int:
        return sum(getattr(move, figure) for move in self.results)


def move_under_load(wood: LocalIPSite, local_ips: LocalIPs, places: Sequence[str]) -> MoveResults:
    """Move the replica `one` to each of the places in turn."""
    keys = [(client, address) for client in CLIENT_CHASSIS for address in local_ips.addresses]
    with ExitStack() as stack:
        holders = [stack.enter_context(holding(wood.lab, *key, PORT)) for key in keys]
        held = [holder.open(HELD_CONNECTIONS) for holder in holders]
        tickers = {key: stack.enter_context(periodic_connections(wood.lab, *key, PORT)) for key in keys}
        wait_until(lambda: all(ticker.results for ticker in tickers.values()), "all of them ask")
        times, now = list[MoveTimes](), held
        for place in places:
            times.append(_move(wood, tickers, place))
            now = [holder.exchange_all() for holder in holders]  # a broken connection never answers again
        for ticker in tickers.values():
            ticker.stop()
    ends = [*(move.unplugged for move in times[1:]), time()]
    return MoveResults(
        results=[_count(tickers, move, end) for move, end in zip(times, ends, strict=True)],
        held=len(keys) * HELD_CONNECTIONS,
        unanswered=_is_all_reported(tickers, times),
        broken=sum(after.get(port) != name for old, after in zip(held, now, strict=True) for port, name in old.items()),
    )


def _move(wood: LocalIPSite, tickers: Tickers, chassis: str) -> MoveTimes:
    """Move the replica. Returns when clients reach the right machine and all earlier connections have a result."""
    unplugged = time()
    wood.lab.move_workload("one", chassis)
    move = MoveTimes(chassis=chassis, unplugged=unplugged, plugged=time())
    wait_until(lambda: None not in _first_successes(tickers, move).values(), "clients are led there, and to the owner")
    led = time()
    wait_until(lambda: all(each.has_all_results(led) for each in tickers.values()), "who began before is told")
    return move


def _first_successes(tickers: Tickers, move: MoveTimes, end: float = inf) -> dict[tuple[str, str], float | None]:
    """Time at which each client began its first connection that the right machine answered immediately."""
    due = {client: "one" if CLIENT_CHASSIS[client] == move.chassis else OWNER for client in CLIENT_CHASSIS}
    return {
        key: min((tick.started_at for tick in _during(ticker, move, end) if _is_good(tick, due[key[0]])), default=None)
        for key, ticker in tickers.items()
    }


def _is_all_reported(tickers: Tickers, times: Sequence[MoveTimes]) -> Sequence[str]:
    return [
        f"{client} to {address} from port {tick.source}, {tick.started_at - move.unplugged:.3f} s after the replica"
        " left for"
        f" {move.chassis}: {tick.kind} after {tick.seconds:.3f} s"
        for move, end in zip(times, [*(move.unplugged for move in times[1:]), inf], strict=True)
        for (client, address), ticker in tickers.items()
        for tick in _during(ticker, move, end)
        if not tick.name
    ]


def _during(ticker: PeriodicConnections, move: MoveTimes, end: float) -> Sequence[ConnectionResult]:
    return [tick for tick in ticker.results if move.unplugged <= tick.started_at < end]


def _is_good(tick: ConnectionResult, name: str) -> bool:
    return tick.name == name and tick.seconds < SLOW_SECONDS


def _count(tickers: Tickers, move: MoveTimes, end: float) -> MoveResult:
    every = [tick for ticker in tickers.values() for tick in _during(ticker, move, end)]
    firsts = {key: at for key, at in _first_successes(tickers, move, end).items() if at is not None}
    return MoveResult(
        asked=len(every),
        lost=sum(not tick.name for tick in every),
        slow=sum(bool(tick.name) and tick.seconds >= SLOW_SECONDS for tick in every),
        away=move.plugged - move.unplugged,
        there=max(
            0, max(at for (client, _), at in firsts.items() if CLIENT_CHASSIS[client] == move.chassis) - move.plugged
        ),
        here=max(at for (client, _), at in firsts.items() if CLIENT_CHASSIS[client] != move.chassis) - move.unplugged,
    )


def table(moves: MoveResults) -> str:
    """Results as a Markdown table."""
    names = [field.name for field in fields(MoveResult)]
    rows = [[f"{getattr(move, name):.2f}".removesuffix(".00") for name in names] for move in moves.results]
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(words)} |" for words in lines)
