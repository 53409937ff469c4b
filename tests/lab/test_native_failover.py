"""End to end on plain hosts: from when on new connections are served after something has died, and whose others break.

The moment of a fault is that at which it begins to be made. New connections are begun all the time, each from a port of
its own, and none is tried again: one that fails says when it was begun. A client that tries again has been served by
`RETRY` after the last of these.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from ipaddress import ip_address
from typing import Any

import pytest

from fairlead.dataplane.flow_slot import flow_slot
from fairlead.lab import Failure
from fairlead.lab.databases import until
from fairlead.lab.load import Broken, Load, LoadResult
from fairlead.lab.native import NativeLab
from harness.lab.kernel_slots import TRANSPORTS
from harness.lab.site import PATIENCE
from lab.test_native_agents import (
    CLIENTS,
    MEMBERS,
    Served,
    await_shares,
    balancer,
    held,
    served,
    targets,
)

pytestmark = pytest.mark.lab
__all__ = ["served"]

SOON = 1.0
"""Seconds within which new connections are served elsewhere: the goal for what breaks."""
RETRY = 0.1
NEW = Load(targets=(), rate=200, count=500, held=0, seconds=60, timeout=0.9)
"""Of each client; 17 a second of one protocol and IP version have a slot of one of three members. The time for which
each waits ends before TCP says its first word again."""
KEPT = Load(targets=(), rate=1, count=100, held=60, seconds=60, period=0.3, timeout=2)


@pytest.fixture(scope="module")
def made(served: Served) -> Iterator[Any]:
    with balancer(served, served.members(*MEMBERS)) as each:
        await_whole(served, each)
        yield each


def await_whole(served: Served, made: Any) -> None:
    served.lab.wait_routed()
    await_shares(served, made, **dict.fromkeys(MEMBERS, 1))


def fail(served: Served, made: Any, fault: Callable[[], None]) -> Mapping[str, LoadResult]:
    """What each client sees of it; when things failed are seconds after the fault."""
    with ExitStack() as stack:
        asked = replace(NEW, targets=targets(made))
        loads = {client: stack.enter_context(served.lab.load(client, asked)) for client in CLIENTS}
        began = time.time()
        fault()
        seen = {client: load.finish() for client, load in loads.items()}
    for result in seen.values():
        result.broken = [replace(each, at=each.at - began) for each in result.broken]
    return seen


def begun(failed: Broken) -> float:
    return failed.at - NEW.timeout if failed.kind == Failure.TIMEOUT else failed.at


def assert_served_soon(what: str, made: Any, seen: Mapping[str, LoadResult]) -> None:
    """Each client at each VIP by each protocol."""
    for client, result in seen.items():
        for target in targets(made):
            failed = [begun(each) for each in result.broken if each.target == target]
            after = max(failed, default=-RETRY) + RETRY
            print(f"{what}: {client} {target.to} {target.protocol} served after {after:.2f} s ({len(failed)} failed)")
            assert after <= SOON, (client, target)


@dataclass(frozen=True, kw_only=True)
class Fault:
    make: Callable[[NativeLab], None]
    mend: Callable[[NativeLab], None]
    losing: frozenset[str] = frozenset()
    """The members that nobody reaches meanwhile."""


FAULTS = {
    "host": Fault(
        make=lambda lab: lab.power_off("host3"), mend=lambda lab: lab.power_on("host3"), losing=frozenset({"n3"})
    ),
    "router": Fault(make=lambda lab: lab.power_off("router1"), mend=lambda lab: lab.power_on("router1")),
    "session": Fault(
        make=lambda lab: lab.end_session("router1", "host3"), mend=lambda lab: lab.begin_session("router1", "host3")
    ),
    "sessions": Fault(  # all that a host has: its kernel goes on, but nobody leads anything to it
        make=lambda lab: lab.stop_routing("host3"),
        mend=lambda lab: lab.start_routing("host3"),
        losing=frozenset({"n3"}),
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_new_connections_go_elsewhere_within_a_second_and_no_others_break(served: Served, made: Any, what: str) -> None:
    fault, slots = FAULTS[what], dict(zip(targets(made), served.slots(*targets(made)), strict=True))
    with served.lab.load("far", replace(KEPT, targets=targets(made))) as load:
        until(PATIENCE, "flows are held", lambda: held(served) >= KEPT.held // 2)
        seen = fail(served, made, lambda: fault.make(served.lab))
        kept = load.stop()
    fault.mend(served.lab)
    begin_agents(served)
    await_whole(served, made)
    assert_served_soon(what, made, seen)
    assert {each.member for each in kept.broken if each.member != "nobody"} == fault.losing
    assert set(kept.held) == MEMBERS.keys() - fault.losing
    for client, result in seen.items():
        theirs = {(whose(served, client, each, slots[each.target]), each.target) for each in result.broken}
        assert {(name, target) for name in fault.losing for target in targets(made)} <= theirs, "they had slots"


def begin_agents(served: Served) -> None:
    """Of hosts that have booted."""
    for host, agent in list(served.agents.items()):
        if agent.process.poll() is not None:
            served.start_agent(host)


def whose(served: Served, client: str, failed: Broken, slots: Sequence[str]) -> str:
    """By the slots of before."""
    to, own = failed.target, served.lab.workload(client).addresses[":" in failed.target.to]
    flow = (ip_address(own), failed.source_port), (ip_address(to.to), to.port)
    return slots[flow_slot(*flow, TRANSPORTS[to.protocol])]
