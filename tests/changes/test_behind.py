"""Lookup of the host that routes an address, and of the load balancers with members there, in IPv4 and IPv6."""

import random
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any

import pytest
from immutables import Map

from fairlead.model.documents.addresses import IPNetwork
from fairlead.model.documents.hosts import Block, Host, HostPrefix, block_of
from fairlead.model.documents.loadbalancer import Algorithm, LoadBalancer, Member, MovedSlots, Pool, PoolProtocol, Vip
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import find_balancers_in_prefixes, find_routing_host
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import claims, owner_of
from fairlead.model.snapshot import Aggregate, Snapshot
from harness.changes.world import OWNERS, snapshot_with, subnet

POOL = Network(id="pool", mtu=1500, announced=True, subnets=(subnet("four", "203.0.113.0/24"),), **OWNERS)
PLAIN = replace(POOL, id="plain", announced=False)


def prefix(text: str, project_id: str | None = None) -> HostPrefix:
    return HostPrefix(cidr=ip_network(text), project_id=project_id)


ONE = Host(
    name="one",
    number=1,
    addresses=(ip_address("10.20.0.21"), ip_address("fd00::21")),
    prefixes=(prefix("10.1.0.0/24"), prefix("10.1.1.0/25", "city"), prefix("fd00:1::/64"), prefix("fd00:2::7/128")),
)
TWO = Host(
    name="two",
    number=2,
    addresses=(ip_address("10.20.0.22"),),
    prefixes=(prefix("10.1.1.128/25"), prefix("10.64.0.0/10"), prefix("fd00:1:1::/48")),
)


def balancer(name: str, network: str, *members: str) -> LoadBalancer:
    vip = Vip(address=ip_address("203.0.113.5"), port_id=f"vip-{name}", subnet_id="four", network_id=network)
    there = tuple(Member(id=f"{name}-{at}", address=ip_address(at), port=80, **OWNERS) for at in members)
    app = Pool(id=f"p-{name}", protocol=PoolProtocol.TCP, algorithm=Algorithm.SOURCE_IP_PORT, members=there, **OWNERS)
    return LoadBalancer(id=name, provider="hosts", vip=vip, pools=(app,), **OWNERS)


WEB = balancer("web", "pool", "10.1.0.7", "fd00:1::7")
API = balancer("api", "pool", "10.100.3.9", "fd00:1:1:5::9")
SWITCHED = balancer("switched", "plain", "10.1.0.7")
ALL = (POOL, PLAIN, ONE, TWO, WEB, API, SWITCHED)


@pytest.mark.parametrize(
    ("address", "host", "cidr"),
    [
        ("10.1.0.7", "one", "10.1.0.0/24"),
        ("10.1.0.255", "one", "10.1.0.0/24"),
        ("10.1.1.127", "one", "10.1.1.0/25"),
        ("10.1.1.128", "two", "10.1.1.128/25"),
        ("10.127.255.255", "two", "10.64.0.0/10"),
        ("fd00:1::ffff", "one", "fd00:1::/64"),
        ("fd00:2::7", "one", "fd00:2::7/128"),
        ("fd00:1:1:8000::1", "two", "fd00:1:1::/48"),
    ],
)
def test_address_is_mapped_to_its_routing_host(address: str, host: str, cidr: str):
    found = find_routing_host(snapshot_with(*ALL), ip_address(address))
    assert found is not None
    assert (found[0].name, str(found[1].cidr)) == (host, cidr)


@pytest.mark.parametrize("address", ["10.1.2.0", "10.0.0.1", "fd00:2::8", "fd00:3::1", "::a01:7"])
def test_address_outside_all_prefixes_has_no_host(address: str):
    assert find_routing_host(snapshot_with(*ALL), ip_address(address)) is None
    assert find_routing_host(Snapshot(), ip_address(address)) is None


@pytest.mark.parametrize(
    ("cidr", "behind"),
    [
        ("10.1.0.0/24", ["web"]),
        ("10.1.0.7/32", ["web"]),
        ("10.0.0.0/8", ["api", "web"]),
        ("10.64.0.0/10", ["api"]),
        ("0.0.0.0/0", ["api", "web"]),
        ("fd00::/16", ["api", "web"]),
        ("fd00:1::/64", ["web"]),
        ("fd00:1:1::/48", ["api"]),
        ("10.2.0.0/24", []),
        ("::/0", ["api", "web"]),
    ],
)
def test_prefix_lookup_finds_announced_load_balancers_with_members_inside(cidr: str, behind: list[str]):
    """Only load balancers with announced VIPs count: on tenant networks the same address is another machine."""
    assert list(find_balancers_in_prefixes(snapshot_with(*ALL), [ip_network(cidr)])) == behind


def test_prefix_lookup_matches_an_exhaustive_search_for_random_prefixes():
    chance, snapshot = random.Random(7), snapshot_with(*ALL)
    for _ in range(300):
        members = [chance.choice((ip_address(chance.getrandbits(10) << 8), _in_six(chance, 10))) for _ in range(40)]
        who = {each: frozenset({chance.choice(("web", "api"))}) for each in map(block_of, members)}
        known = replace(snapshot, member_blocks=Map(who))
        cidrs = [_any_prefix(chance) for _ in range(chance.randrange(6))]
        blocks = {block for block in who for cidr in cidrs if _meets(block, cidr)}
        wanted = sorted({name for block in blocks for name in who[block]})
        assert list(find_balancers_in_prefixes(known, cidrs)) == wanted, (cidrs, who)


def _in_six(chance: random.Random, bits: int) -> IPv6Address:
    return IPv6Address(chance.getrandbits(bits) << 64)


def _any_prefix(chance: random.Random) -> IPNetwork:
    if chance.random() < 0.5:
        length = chance.choice((0, 8, 14, 16, 18, 20, 22, 24, 26, 32))
        return IPv4Network((chance.getrandbits(10) << 8 >> 32 - length << 32 - length, length))
    length = chance.choice((0, 48, 56, 58, 60, 62, 64, 96, 128))
    return IPv6Network((int(_in_six(chance, 10)) >> 128 - length << 128 - length, length))


def _meets(block: Block, cidr: IPNetwork) -> bool:
    version, number = block
    there = IPv4Network((number << 8, 24)) if version == 4 else IPv6Network((number << 64, 64))
    return version == cidr.version and there.overlaps(cidr)  # type: ignore[arg-type]


class Counted(dict[Block, Any]):
    """Dictionary that counts passes over all of its items, and lookups of single keys."""

    def __init__(self, known: Mapping[Block, Any]) -> None:
        super().__init__(known)
        self.passes = self.lookups = 0

    def __iter__(self) -> Iterator[Block]:
        self.passes += 1
        return super().__iter__()

    def __contains__(self, block: object) -> bool:
        self.lookups += 1
        return super().__contains__(block)


@pytest.mark.parametrize("length", [48, 62, 64, 128])
def test_lookup_for_a_thousand_hosts_takes_one_pass_over_the_blocks(length: int):
    """A thousand hosts are processed in one pass over the blocks, also where each prefix covers more blocks than are
    stored."""
    blocks = {block_of(IPv6Address((number % 1000) << 80 | (number // 1000) << 64)): {"web"} for number in range(5_000)}
    counted = Counted(blocks)
    known = replace(snapshot_with(*ALL), member_blocks=counted)
    assert list(find_balancers_in_prefixes(known, [IPv6Network((host << 80, length)) for host in range(1000)])) == [
        "web"
    ]
    assert (counted.passes <= 1, counted.lookups <= len(blocks)) == (True, True)


def changed(before: tuple[Aggregate, ...], after: tuple[Aggregate, ...]) -> set[str]:
    old = snapshot_with(*before)
    gone = tuple(owner_of(each) for each in before if owner_of(each) not in {owner_of(other) for other in after})
    new = apply_changes(old, Changes(puts=after, deletes=gone), 2)
    owners = [owner_of(each) for each in (*before, *after) if old.find(owner_of(each)) != new.find(owner_of(each))]
    return {str(owner) for owner in find_affected_owners(old, new, owners)}


def test_host_change_affects_the_host_and_balancers_with_members_there():
    others = (POOL, PLAIN, WEB, API, SWITCHED)
    assert changed((ONE, *others), (TWO, ONE, *others)) == {"host/two", "loadbalancer/api"}
    assert changed((ONE, TWO, *others), (TWO, *others)) == {"host/one", "loadbalancer/web"}
    drained = replace(TWO, draining=True)
    assert changed((ONE, TWO, *others), (ONE, drained, *others)) == {"host/two", "loadbalancer/api"}
    back, later = (replace(TWO, returning_until=datetime(2026, 1, day, tzinfo=UTC)) for day in (1, 2))
    assert changed((ONE, drained, *others), (ONE, back, *others)) == {"host/two", "loadbalancer/api"}
    assert changed((ONE, back, *others), (ONE, TWO, *others)) == {"host/two", "loadbalancer/api"}
    assert changed((ONE, back, *others), (ONE, later, *others)) == {"host/two"}, "rows do not say until when"
    moved = replace(TWO, addresses=(ip_address("10.20.0.99"),))
    assert changed((ONE, TWO, *others), (ONE, moved, *others)) == {"host/two"}, "services call a host by its number"
    both = replace(TWO, addresses=(*TWO.addresses, ip_address("fd00::22")))
    assert changed((ONE, TWO, *others), (ONE, both, *others)) == {"host/one", "host/two"}, "they may meet by IPv6 now"
    more = replace(ONE, prefixes=(*ONE.prefixes, prefix("fd00:3::/64")))
    assert changed((ONE, TWO, *others), (more, TWO, *others)) == {"host/one"}
    less = replace(ONE, prefixes=ONE.prefixes[:2])
    assert changed((ONE, TWO, *others), (less, TWO, *others)) == {"host/one", "loadbalancer/web"}


def test_host_removal_affects_balancers_with_slots_moved_from_the_host():
    """Rows name a previous owner by its host number, which may be reused, so they are recompiled although it has no
    members."""
    moved = MovedSlots(listener_id="front", before=ip_address("10.100.3.9"), slots=(7,), until=datetime.max)
    others = (POOL, replace(WEB, moved=(moved,)))
    assert changed((ONE, TWO, *others), (ONE, *others)) == {"host/two", "loadbalancer/web"}
    assert changed((ONE, TWO, POOL, WEB), (ONE, POOL, WEB)) == {"host/two"}


def test_hosts_are_compiled_before_load_balancers():
    old, new = snapshot_with(POOL), snapshot_with(POOL, ONE, WEB)
    owners = [owner_of(each) for each in (WEB, ONE)]
    assert find_affected_owners(old, new, owners)[0] == Owner(Kind.HOST, "one")


def test_host_claims_its_number():
    assert claims(ONE) == {"host-number/1"}
