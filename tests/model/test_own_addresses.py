"""Addresses that a host itself has: no member at such an address is routed by it."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fairlead.compilers.native import flow_lookup
from fairlead.dataplane.interface import Flow
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.health import Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import AppliedState, OperatingStatus
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.queries.placement import filter_own_addresses, find_declared_host, find_member_host
from fairlead.model.queries.probes import enabled_monitor, find_endpoint, why_down
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import AGENTS, OWN_ADDRESSES, derive, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import read_state

TEXT = """\
network pool announced 203.0.113.0/24
host h1 1 10.20.0.21 10.1.0.0/24 10.20.0.21/32 fd00:1::/64
host h2 2 10.20.0.22 10.2.0.0/24
web vip=203.0.113.5 on=pool provider=native tcp:80{monitor=TCP}=a/10.1.0.1:22,b/10.2.0.11:80@10.2.0.1:80,c/10.20.0.21:80
api vip=203.0.113.6 on=pool provider=native tcp:80=a/10.1.0.1:22
far vip=203.0.113.7 on=pool provider=native tcp:80=a/10.1.0.12:22
agents probe
"""
WEB, API = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.LOAD_BALANCER, "api")
BRIDGE, DECLARED = parse_address("10.1.0.1"), parse_address("10.20.0.21")
ITS = frozenset({BRIDGE, DECLARED})


@pytest.fixture
def known() -> Snapshot:
    return read_state("now", TEXT, {}, {}).snapshot()


def saying(known: Snapshot, **said: frozenset[IPAddress] | None) -> Snapshot:
    return derive(with_facts(known, OWN_ADDRESSES, said), (WEB, API))


def where(known: Snapshot, *addresses: IPAddress) -> list[str | None]:
    found = (find_member_host(known, known.load_balancers["web"], each) for each in addresses)
    return [None if each is None else each.name for each in found]


def test_own_address_of_a_host_is_not_routed_by_the_host_unless_declared(known: Snapshot):
    assert where(known, BRIDGE, DECLARED) == ["h1", "h1"]
    own = saying(known, h1=ITS)
    assert where(own, BRIDGE, DECLARED, BRIDGE + 1) == [None, "h1", "h1"]
    assert where(saying(own, h1=frozenset()), BRIDGE) == ["h1"]
    assert where(saying(own, h1=None), BRIDGE) == ["h1"]


def test_own_addresses_count_only_within_the_prefixes_of_the_host(known: Snapshot):
    assert where(saying(known, h2=ITS, h3=ITS), BRIDGE) == ["h1"]
    said = [BRIDGE, DECLARED, *map(parse_address, ("10.2.0.1", "127.0.0.1", "fd00:1::1", "fe80::1"))]
    assert filter_own_addresses(known, "h1", said) == {BRIDGE, DECLARED, parse_address("fd00:1::1")}
    assert filter_own_addresses(known, "h3", said) == frozenset()


def test_declared_prefixes_are_independent_of_own_addresses_of_the_host(known: Snapshot):
    """Declarations are independent of a host's own addresses, so a member at one does not prevent a split of its
    prefix."""
    own, web = saying(known, h1=ITS), known.load_balancers["web"]
    assert find_declared_host(own, web, BRIDGE) == own.hosts["h1"]


def test_own_address_report_affects_load_balancers_with_members_there(known: Snapshot):
    own = with_facts(known, OWN_ADDRESSES, {"h1": ITS})
    for before, after in ((known, own), (own, known)):
        assert {*OWN_ADDRESSES.affected_owners(before, after, {"h1": ITS})} == {WEB, API}
    assert not [*OWN_ADDRESSES.affected_owners(own, own, {"h1": ITS})]
    probed = with_facts(known, OWN_ADDRESSES, {"h2": frozenset({parse_address("10.2.0.1")})})
    assert [*OWN_ADDRESSES.affected_owners(known, probed, probed.own_addresses)] == [WEB]


def test_change_of_a_declared_host_address_affects_load_balancers(known: Snapshot):
    own = saying(known, h1=ITS)
    other = replace(own.hosts["h1"], addresses=(parse_address("10.20.0.31"),))
    after = apply_changes(own, Changes(puts=(other,)), 2)
    assert where(after, DECLARED) == [None]
    assert WEB in find_affected_owners(own, after, [Owner(Kind.HOST, "h1")])


def test_member_at_an_own_address_of_a_host_is_not_probed_and_is_in_error(known: Snapshot):
    agent = Agent(name="h1", since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)
    known = with_facts(known, AGENTS, {"h1": agent, "h2": replace(agent, name="h2")})
    own = saying(known, h1=ITS, h2=frozenset({parse_address("10.2.0.1")}))
    web, api = own.load_balancers["web"], own.load_balancers["api"]
    [pool] = web.pools
    monitor = enabled_monitor(web, pool)
    assert monitor is not None
    probed = {each.id: find_endpoint(own, web, monitor, each, 80) for each in pool.members}
    assert [each for each, found in probed.items() if found is Health.GONE] == ["web-a", "web-b"]
    assert set(why_down(own, web)) == own.down["web"] == {"web-a", "web-b"}
    assert "web" not in known.down
    for snapshot, wanted in ((known, OperatingStatus.NO_MONITOR), (own, OperatingStatus.ERROR)):
        status = derive_balancer_status(snapshot, api, AppliedState(generation=1))
        assert status.of_member(api.pools[0], api.pools[0].members[0]) is wanted


def test_flow_lookup_finds_no_member_at_an_own_address_of_a_host(known: Snapshot):
    asked = Flow(
        client=(parse_address("192.0.2.9"), 40_000),
        destination=(parse_address("203.0.113.6"), 80),
        transport=Transport.TCP,
    )
    before, after = (run_to_completion(flow_lookup.explain(each, asked)) for each in (known, saying(known, h1=ITS)))
    assert before is not None
    assert after is not None
    assert (before.chassis, before.member) == ("h1", (BRIDGE, 22))
    assert (after.chassis, after.member) == ("", None)
