"""Which fields a choice depends on, and how many buckets a group has: what `dp_hash` may not decide (ADR 90)."""

from dataclasses import replace

import pytest

from fairlead.compilers.ovn.selection import selection_fields
from fairlead.compilers.ovn.tables import Tables
from fairlead.dataplane.ovn import SOURCE_IPV6
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Listener,
    ListenerProtocol,
    Member,
    Pool,
    SourceIpPersistence,
)
from fairlead.model.documents.port_ranges import PortRange
from harness.slots import COMMON, make_member, make_pool

NEW_OVN = frozenset({SOURCE_IPV6})
KEPT = SourceIpPersistence(timeout=None)
LISTENER = Listener(id="l", protocol=ListenerProtocol.TCP, ports=(PortRange(80, 80),), default_pool_id="p", **COMMON)


def pool(*members: Member, algorithm: Algorithm) -> Pool:
    return replace(make_pool(*members), algorithm=algorithm)


@pytest.mark.parametrize(
    ("algorithm", "persistence", "version", "abilities", "fields"),
    [
        (Algorithm.ROUND_ROBIN, None, 4, NEW_OVN, ()),
        (Algorithm.ROUND_ROBIN, None, 6, NEW_OVN, ()),
        (Algorithm.ROUND_ROBIN, KEPT, 4, NEW_OVN, ("ip_src",)),
        (Algorithm.SOURCE_IP, None, 4, NEW_OVN, ("ip_src",)),
        (Algorithm.SOURCE_IP, None, 6, NEW_OVN, ("ipv6_src",)),
        (Algorithm.SOURCE_IP, None, 6, frozenset(), ("eth_src",)),
        (Algorithm.SOURCE_IP_PORT, None, 4, NEW_OVN, ("ip_src", "tp_src")),
        (Algorithm.SOURCE_IP_PORT, None, 6, NEW_OVN, ("ipv6_src", "tp_src")),
        (Algorithm.SOURCE_IP_PORT, None, 6, frozenset(), ("eth_src", "tp_src")),
        (Algorithm.SOURCE_IP_PORT, KEPT, 4, NEW_OVN, ("ip_src",)),
    ],
)
def test_selection_fields_follow_from_algorithm_and_persistence(algorithm, persistence, version, abilities, fields):
    chosen = replace(pool(make_member(0), algorithm=algorithm), persistence=persistence)
    assert fields == selection_fields(abilities, chosen, version)
    assert list(fields) == sorted(fields)
    assert chosen.goes_by_fields == bool(fields)


def backends(chosen: Pool) -> tuple[str, ...]:
    return Tables(frozenset()).backends(LISTENER, chosen, 4)[0]


@pytest.mark.parametrize(
    ("algorithm", "buckets"),
    [(Algorithm.ROUND_ROBIN, 2), (Algorithm.SOURCE_IP_PORT, MAX_SLOTS), (Algorithm.SOURCE_IP, MAX_SLOTS)],
)
def test_group_with_selection_fields_keeps_its_bucket_count(algorithm, buckets):
    """Open vSwitch takes the bucket whose number wins: one bucket more or less would move clients of all members."""
    two = pool(make_member(0), make_member(1), algorithm=algorithm)
    assert buckets == len(backends(two))
    assert {"10.0.0.1:80", "10.0.0.2:80"} == set(backends(two))


def test_doubled_slot_table_keeps_the_buckets_of_a_group_with_fields():
    """A document of a pool with few slots and one with all of them are the same group."""
    few = pool(make_member(0), make_member(1), algorithm=Algorithm.SOURCE_IP_PORT)
    (table,) = few.tables
    assert len(table.ranks[0]) < MAX_SLOTS
    doubled = replace(few, tables=(replace(table, ranks=tuple(rank * 2 for rank in table.ranks)),))
    assert backends(few) == backends(doubled)


def test_one_member_is_one_bucket_for_every_algorithm():
    for algorithm in (Algorithm.ROUND_ROBIN, Algorithm.SOURCE_IP_PORT, Algorithm.SOURCE_IP):
        assert ("10.0.0.1:80",) == backends(pool(make_member(0), algorithm=algorithm))
