"""End to end on plain hosts: distribution of slots among members in the kernels, and its effect on clients."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from ipaddress import ip_address
from itertools import product
from math import ceil, sqrt
from typing import Any

import pytest

from fairlead.dataplane.flow_slot import flow_slot
from fairlead.lab import Protocol, Traffic
from fairlead.lab.load import LoadTarget
from fairlead.model.documents.apportionment import MAX_SLOTS
from harness.lab.kernel_slots import TRANSPORTS
from harness.lab.native_hosts import HOSTS, machine
from harness.lab.native_served import (
    CLIENTS,
    MEMBER_PORT,
    MEMBERS,
    PORT,
    NativeSite,
    await_announced,
    await_slots,
    balancer,
    served,
    vips,
)

pytestmark = [pytest.mark.lab, pytest.mark.extended]
__all__ = ["served"]

ASKED = {"concurrency": 10, "size": 1}
"""A line instead of HTTP, because thousands of connections must end quickly."""


def send(
    served: NativeSite, client: str, vip: str, protocol: Protocol, count: int, slots: Sequence[str]
) -> Sequence[str]:
    """Member of each connection. Asserts that it has the connection's slot, and that none is refused."""
    found = served.lab.traffic(client, Traffic(to=vip, port=PORT, protocol=protocol, count=count, **ASKED))
    assert (found.errors, len(found.keys)) == ({}, count), (client, vip, protocol)
    own = served.lab.workload(client).addresses[":" in vip]
    assert found.keys == {port: slots[slot_of(own, port, vip, protocol)] for port in found.keys}
    return list(found.keys.values())


def slot_of(client: str, port: int, vip: str, protocol: Protocol) -> int:
    return flow_slot((ip_address(client), port), (ip_address(vip), PORT), TRANSPORTS[protocol])


SIGMAS, WITHIN = 4, 0.1
HEAVY = 3 / 4
"""Share of a member with three times the weight of the only other one."""
ENOUGH = ceil((SIGMAS / WITHIN) ** 2 / (HEAVY * (1 - HEAVY)))
"""Number of connections for which the ratio is within a tenth of the weights' ratio.

Of n random connections, a share of p to one of two members, the ratio has a relative standard deviation of 1/sqrt(n p
(1 - p)): for 8,534 it is 0.025, a quarter of a tenth. One count in 10,000 is outside.
"""


def test_connection_ratio_matches_weights_within_ten_percent(served: NativeSite) -> None:
    """Counted over all connections of a client, a protocol, or an IP version.

    Combinations of all three have a quarter of the connections, so their limit is twice as wide.
    """
    bodies = [{**body, "weight": 3 if body["name"] == "n1" else 1} for body in served.members("n1", "n2")]
    counted = dict[tuple[str, str, Protocol], Counter[str]]()
    with balancer(served, bodies) as made:
        await_announced(served, made, "host1", "host2")
        for vip, protocol in product(vips(made), Protocol):
            slots = await_slots(served, LoadTarget(to=vip, port=PORT, protocol=protocol))
            assert Counter(slots) == {"n1": MAX_SLOTS * HEAVY, "n2": MAX_SLOTS * (1 - HEAVY)}
            for client in CLIENTS:
                answered = send(served, client, vip, protocol, ceil(ENOUGH / 4), slots)
                counted[client, vip, protocol] = Counter(answered)
                assert_weighed(counted[client, vip, protocol], 2 * WITHIN)
    for common in {part for way in counted for part in way}:
        together = sum((counts for way, counts in counted.items() if common in way), Counter[str]())
        print(f"{common}: {together['n1']} and {together['n2']}, {together['n1'] / together['n2']:.2f}")
        assert together.total() >= ENOUGH
        assert_weighed(together, WITHIN)


def assert_weighed(counts: Mapping[str, int], within: float) -> None:
    assert counts["n1"] / counts["n2"] == pytest.approx(3, rel=within), counts


TEN = 10
EACH = 1000
"""Connections of a client to one VIP by one protocol: about a hundred per member, with a deviation of ten."""
RARE = 5
"""Standard deviations; of eighty counts one is outside in 20,000 runs."""


@contextmanager
def ten(served: NativeSite) -> Iterator[list[dict[str, Any]]]:
    """Members: the existing machines, and additional ones."""
    others = [f"more{number}" for number in range(len(MEMBERS), TEN)]
    with ExitStack() as stack:
        for number, name in enumerate(others):
            added = machine(served.lab, name, HOSTS[number % len(HOSTS)], 41 + number, MEMBER_PORT)
            served.lab.add_workload(added)
            stack.callback(served.lab.remove_workload, name)
        yield served.members(*MEMBERS, *others)


def test_ten_members_differ_by_one_slot_and_connections_follow_the_slots(served: NativeSite) -> None:
    with ten(served) as members, balancer(served, members) as made:
        await_announced(served, made, *HOSTS)
        for vip, protocol in product(vips(made), Protocol):
            slots = await_slots(served, LoadTarget(to=vip, port=PORT, protocol=protocol))
            assert sorted(Counter(slots).values()) == [25] * 4 + [26] * 6, (vip, protocol)
            for client in CLIENTS:
                answered = send(served, client, vip, protocol, EACH, slots)
                assert_spread(Counter(answered), {name: n / MAX_SLOTS for name, n in Counter(slots).items()})


def assert_spread(counts: Mapping[str, int], shares: Mapping[str, float]) -> None:
    """Assert that each member has its share within statistical limits."""
    for name, share in shares.items():
        deviation = sqrt(EACH * share * (1 - share))
        assert abs(counts[name] - EACH * share) < RARE * deviation, (name, counts)
