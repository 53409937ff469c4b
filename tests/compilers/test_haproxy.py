"""What a change may ask of proxies is said before any node has one; and how long a compile takes at a stretch."""

from dataclasses import replace

import pytest
from immutables import Map

from fairlead.compilers.haproxy import HAPROXY
from fairlead.compilers.haproxy.abilities import ABILITIES
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Certificate, Frontend, Server
from fairlead.dataplane.haproxy_words import read_line
from fairlead.model.abilities import Feature
from fairlead.model.addresses import parse_address, parse_network
from fairlead.model.loadbalancer import (
    ListenerProtocol,
    ListenerTls,
    Locality,
    PoolProtocol,
    PoolTls,
    SourceIpPersistence,
    Timeouts,
)
from fairlead.model.port_ranges import PortRange
from fairlead.model.sizes import CIDRS, MEMBERS
from fairlead.model.snapshot import Snapshot
from harness.hold import MAX_STEPS
from harness.proxied import WEB, listener, member, pool, rows_of, view
from harness.step_counter import longest_between_yields


def nowhere(snapshot: Snapshot) -> Snapshot:
    """The whole model, in which no chassis is known."""
    return replace(snapshot, chassis=Map())


def test_what_cannot_be_had_is_refused_before_any_node_has_a_proxy() -> None:
    each = pool("p", replace(member("m1", 1), port=None))
    one = listener("l", 2000, each, ports=(PortRange(80, 81),))
    with pytest.raises(Unsupported, match="several ports"):
        HAPROXY.compile(nowhere(view([one], [each])), WEB)
    assert {} == HAPROXY.compile(nowhere(view([listener("l", 2000)], [])), WEB)


def test_refusals_are_the_abilities() -> None:
    granular = SourceIpPersistence(granularity=parse_address("255.255.255.0"))
    its = pool("p", persistence=granular)
    with pytest.raises(Unsupported) as refused:
        rows_of(view([listener("l", 2000, its)], [its]))
    assert Feature("pool.persistence.granularity") == refused.value.asked
    assert {ListenerProtocol.UDP, ListenerProtocol.SCTP, ListenerProtocol.ANY}.isdisjoint(ABILITIES.listener_protocols)
    assert {PoolProtocol.UDP, PoolProtocol.SCTP, PoolProtocol.ANY}.isdisjoint(ABILITIES.pool_protocols)


def test_zones_are_not_looked_for() -> None:
    """A node knows its own alone."""
    its = pool("p", locality=Locality.ZONE)
    with pytest.raises(Unsupported) as refused:
        rows_of(view([listener("l", 2000, its)], [its]))
    assert Feature("pool.locality", "ZONE") == refused.value.asked


def test_no_protocol_is_agreed_with_members_for_who_is_not_looked_into() -> None:
    its = pool("p", member("m1", 90), tls=PoolTls(enabled=True, alpn_protocols=("h2", "http/1.1")))
    told = [
        next(row.options for row in rows_of(view([one], [its])).values() if isinstance(row, Server))
        for one in (listener("l", 2000, its), listener("l", 2000, its, protocol=ListenerProtocol.TCP))
    ]
    assert [("ssl", "verify", "none", "alpn", "h2,http/1.1"), ("ssl", "verify", "none")] == told


def test_one_certificate_is_the_default() -> None:
    tls = ListenerTls(sni_container_refs=("b", "a", "b"))
    rows = rows_of(view([listener("l", 2000, protocol=ListenerProtocol.TERMINATED_HTTPS, tls=tls)], [])).values()
    shown = {row.reference: row.is_default for row in rows if isinstance(row, Certificate)}
    assert {"b": True, "a": False} == shown


def test_a_pool_that_no_proxied_listener_leads_to_is_not_looked_at() -> None:
    its = pool("p", persistence=SourceIpPersistence(granularity=parse_address("255.255.255.0")))
    assert rows_of(view([listener("l", 2000)], [its]))


def test_a_member_without_a_port_is_at_the_one_that_the_client_asked_for() -> None:
    its = pool("p", replace(member("m1", 1), port=None), replace(member("m2", 1), port=(PortRange(90, 90),)))
    rows = rows_of(view([listener("l", 2000, its)], [its])).values()
    assert [80, 90] == [row.port for row in rows if isinstance(row, Server)]


def test_a_member_that_is_down_at_its_port_is_in_maintenance() -> None:
    its = pool("p", member("m1", 90), member("m2", 90))
    snapshot = replace(view([listener("l", 2000, its)], [its]), down=Map({"web": frozenset({("m1", 90), ("m2", 91)})}))
    assert [True, False] == [row.maintained for row in rows_of(snapshot).values() if isinstance(row, Server)]


def test_as_many_prefixes_as_the_model_lets_come_in() -> None:
    cidrs = tuple(parse_network(f"10.0.{number}.0/24") for number in range(CIDRS))
    (row,) = (
        row
        for row in rows_of(view([listener("l", 2000, allowed_cidrs=cidrs)], [])).values()
        if isinstance(row, Frontend)
    )
    named = [line[3:] for line in row.lines if line[:2] == ("acl", "allowed")]
    assert sorted(map(str, cidrs)) == sorted(prefix for prefixes in named for prefix in prefixes)
    assert all(read_line(" ".join(line)) == line for line in row.lines)


def test_time_that_octavia_lets_be_is_less_than_haproxy_counts() -> None:
    longest = 2_073_600_000
    one = listener("l", 2000, timeouts=Timeouts(client_data=longest, member_connect=longest, member_data=longest))
    assert rows_of(view([one], []))
    assert longest < 2**31


def test_a_thousand_members_are_compiled_in_small_steps() -> None:
    its = pool("p", *(member(f"m{number}", 80) for number in range(MEMBERS)))
    snapshot = view([listener("l", 2000, its)], [its])
    _, longest = longest_between_yields(HAPROXY.compile_in_steps(snapshot, WEB))
    assert longest < MAX_STEPS["reconciler"]
