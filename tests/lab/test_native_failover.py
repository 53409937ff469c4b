"""End to end on plain hosts: new connections are served after a failure, and no other connections break.

Established connections to working members continue. The time until new ones are served again follows from the timers of
BFD, which `test_native_lab` reads from the daemons.
"""

from collections.abc import Callable, Iterator, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest

from fairlead.lab.load import Load, LoadResult
from fairlead.lab.native import NativeLab
from harness.lab.native_served import (
    CLIENTS,
    MEMBERS,
    NativeSite,
    await_slot_shares,
    balancer,
    hold_connections,
    served,
    targets,
)
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]
__all__ = ["served"]

NEW = Load(targets=(), rate=100, count=240, held=0, seconds=60, timeout=30)
"""Load of each client."""
KEPT = Load(targets=(), rate=1, count=100, held=60, seconds=60, period=0.3, timeout=10)


@pytest.fixture(scope="module")
def made(served: NativeSite) -> Iterator[Any]:
    with balancer(served, served.members(*MEMBERS)) as each:
        await_all_routes(served, each)
        yield each


def await_all_routes(served: NativeSite, made: Any) -> None:
    served.lab.wait_routed()
    await_slot_shares(served, made, **dict.fromkeys(MEMBERS, 1))


def start_load(served: NativeSite, made: Any) -> list[LoadResult]:
    """Open new connections from each client."""
    with ExitStack() as stack:
        asked = replace(NEW, targets=targets(made))
        loads = [stack.enter_context(served.lab.load(client, asked)) for client in CLIENTS]
        return [load.finish() for load in loads]


def await_answers(served: NativeSite, made: Any, names: Set[str]) -> None:
    """Wait until exactly these members answer each client at each VIP by each protocol, without failures."""
    for target in targets(made):
        for client in CLIENTS:
            wait_equal(partial(served.answers, client, target.to, target.protocol), frozenset(names))


@dataclass(frozen=True, kw_only=True)
class Fault:
    make: Callable[[NativeLab], None]
    mend: Callable[[NativeLab], None]
    losing: frozenset[str] = frozenset()
    """Members that are unreachable during the fault."""


FAULTS = {
    "host": Fault(
        make=lambda lab: lab.power_off("host3"), mend=lambda lab: lab.power_on("host3"), losing=frozenset({"n3"})
    ),
    "router": Fault(make=lambda lab: lab.power_off("router1"), mend=lambda lab: lab.power_on("router1")),
    "session": Fault(
        make=lambda lab: lab.end_session("router1", "host3"), mend=lambda lab: lab.begin_session("router1", "host3")
    ),
    "sessions": Fault(  # all of a host's sessions: its kernel works, and no router sends to it
        make=lambda lab: lab.stop_routing("host3"),
        mend=lambda lab: lab.start_routing("host3"),
        losing=frozenset({"n3"}),
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_new_connections_avoid_a_failure_and_other_connections_continue(
    served: NativeSite, made: Any, what: str
) -> None:
    fault = FAULTS[what]
    left = MEMBERS.keys() - fault.losing
    assert {frozenset(names) for names in served.slots(*targets(made))} == {frozenset(MEMBERS)}
    with served.lab.load("far", replace(KEPT, targets=targets(made))) as load:
        wait_until(lambda: hold_connections(served), "flows are held", is_enough=lambda found: found >= KEPT.held // 2)
        fault.make(served.lab)
        await_answers(served, made, left)
        new, kept = start_load(served, made), load.stop()
    fault.mend(served.lab)
    if what == "host":  # its kernel answers pings, and has no rows yet
        served.lab.wait_routed()
        assert [(each.failed, set(each.answers)) for each in start_load(served, made)] == [([], left)] * len(CLIENTS)
    begin_agents(served)
    await_all_routes(served, made)
    assert {each.member for each in kept.failed if each.member != "nobody"} == fault.losing
    assert set(kept.held) == left
    assert [(each.failed, set(each.answers)) for each in new] == [([], left)] * len(CLIENTS)


def begin_agents(served: NativeSite) -> None:
    """Start the agents of hosts that have booted."""
    for host, agent in list(served.agents.items()):
        if agent.process.poll() is not None:
            served.start_agent(host)
