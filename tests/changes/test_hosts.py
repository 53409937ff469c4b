"""Plain hosts: an operator declares them, prefixes are disjoint, and each member is routed by one host."""

from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from immutables import Map

from fairlead.changes.host_checks import (
    DuplicateHostAddressVersion,
    HostAddressInOtherPrefix,
    HostAddressInUse,
    HostOverlapsAnnounced,
    InvalidHostDestination,
    NoCommonIpVersion,
    NoHostAddress,
    OverlappingPrefix,
    PrefixInUse,
)
from fairlead.changes.hosts import (
    BadHostName,
    HasMembers,
    HostNumberImmutable,
    HostNumberInUse,
    HostRequest,
    NoSuchHost,
    TooManyHosts,
    TooManyPrefixes,
    UnroutedMember,
    drain_host,
    end_return,
    put_host,
    remove_host,
)
from fairlead.changes.member_placement import MemberIsHostAddress, MemberNotRouted, MemberSubnetNotSupported
from fairlead.changes.members import create_member, update_member
from fairlead.changes.subnets import AnnouncedAtHost, create_subnet
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.hosts import MAX_HOST_NUMBER, MAX_HOSTS, MAX_PREFIXES, Host, HostPrefix
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.api import NOON
from harness.changes.announced import NAMES, POOL, balancer
from harness.changes.balancing import ASKER, listener, member, pool
from harness.changes.world import ADMIN, GUEST, NETWORK, OWNER, OWNERS, refusal, snapshot_with, subnet

HOUR = timedelta(hours=1)


def prefixes(*texts: str) -> tuple[HostPrefix, ...]:
    """Parse prefixes: `10.1.0.0/24=city` belongs to project city."""
    words = (text.partition("=") for text in texts)
    return tuple(HostPrefix(cidr=ip_network(cidr), project_id=project or None) for cidr, _, project in words)


def addresses(*texts: str) -> tuple[IPAddress, ...]:
    return tuple(map(ip_address, texts))


ONE = Host(
    name="one",
    number=1,
    addresses=addresses("10.20.0.21", "fd00:20::21"),
    prefixes=prefixes("10.1.0.0/24", "10.1.1.0/24=owner", "fd00:1::/64"),
)
TWO = Host(name="two", number=2, addresses=addresses("10.20.0.22"), prefixes=prefixes("10.2.0.0/16=guest"))


def asked(name: str = "new", *, at: str = "10.20.0.99", has: tuple[str, ...] = (), **more: Any) -> HostRequest:
    return HostRequest(name=name, addresses=addresses(*at.split(",")), prefixes=prefixes(*has), **more)


def put(snapshot: Snapshot, wanted: HostRequest) -> Changes:
    return run_to_completion(put_host(snapshot, wanted))


def removed(snapshot: Snapshot, name: str) -> Changes:
    return run_to_completion(remove_host(snapshot, name))


def declared(snapshot: Snapshot, wanted: HostRequest) -> Host:
    (host,) = put(snapshot, wanted).puts
    assert isinstance(host, Host)
    return host


# Declare, change, drain, remove


def test_new_host_gets_a_free_number_and_sorted_parts():
    wanted = asked(at="fd00:20::9,10.20.0.9", has=("fd00:9::/64", "10.9.1.0/24", "10.9.0.0/24=owner"))
    changes = put(snapshot_with(ONE, TWO), wanted)
    (host,) = changes.puts
    assert host == Host(
        name="new",
        number=host.number,
        addresses=addresses("10.20.0.9", "fd00:20::9"),
        prefixes=prefixes("10.9.0.0/24=owner", "10.9.1.0/24", "fd00:9::/64"),
    )
    assert changes.requires_unchanged_model, "another one may be declared at the same time"
    assert declared(snapshot_with(), wanted).number == host.number, "the same for the same name while it is free"
    assert declared(snapshot_with(replace(ONE, number=host.number)), wanted).number == host.number % MAX_HOST_NUMBER + 1
    assert declared(snapshot_with(ONE), replace(wanted, name="newer")).number != host.number


def test_host_number_is_unique_and_cannot_change():
    there = snapshot_with(ONE)
    assert declared(there, asked(number=7)).number == 7
    assert refusal(put, there, asked(number=1)) == HostNumberInUse(number=1, host="one")
    assert refusal(put, there, HostRequest(name="one", number=2)) == HostNumberImmutable(name="one", number=1)
    assert put(there, HostRequest(name="one", number=1)) == Changes()
    first = declared(there, asked()).number
    taken = snapshot_with(
        *(replace(TWO, name=f"h{each}", number=each, prefixes=()) for each in range(first, first + 9))
    )
    assert declared(taken, asked()).number not in taken.host_numbers


def test_omitted_fields_of_a_host_update_are_kept():
    there = snapshot_with(replace(ONE, draining=True))
    more = declared(there, HostRequest(name="one", prefixes=prefixes("10.1.0.0/24", "10.3.0.0/24")))
    assert (more.addresses, more.number, more.draining) == (ONE.addresses, 1, True)
    moved = declared(there, HostRequest(name="one", addresses=addresses("10.20.0.77")))
    assert (moved.addresses, moved.prefixes) == (addresses("10.20.0.77"), ONE.prefixes)
    assert put(there, HostRequest(name="one", prefixes=ONE.prefixes[::-1])) == Changes()


def test_host_may_have_no_prefixes_but_needs_an_address():
    assert declared(snapshot_with(), HostRequest(name="new", addresses=addresses("10.20.0.9"))).prefixes == ()
    assert refusal(put, snapshot_with(), HostRequest(name="new")) == NoHostAddress(name="new")


def test_host_can_be_drained_and_returned_to_service():
    there = snapshot_with(ONE)
    drained = drain_host(there, "one", draining=True, now=NOON)
    assert drained.puts == (replace(ONE, draining=True),)
    there = apply_changes(there, drained, 2)
    assert drain_host(there, "one", draining=True, now=NOON) == Changes(), "nothing is written twice"
    back = drain_host(there, "one", draining=False, now=NOON)
    assert back.puts == (replace(ONE, returning_until=NOON + HOUR),)
    assert refusal(lambda: drain_host(there, "two", draining=True, now=NOON)) == NoSuchHost(name="two")
    there = apply_changes(there, back, 3)
    assert drain_host(there, "one", draining=False, now=NOON + HOUR) == Changes(), "nor is it longer"
    assert declared(there, HostRequest(name="one", prefixes=())).returning_until == NOON + HOUR
    assert drain_host(there, "one", draining=True, now=NOON).puts == (replace(ONE, draining=True),)
    for name in ("one", "two"):
        assert end_return(there, name, NOON + HOUR / 2) == Changes()
    assert end_return(there, "one", NOON + HOUR).puts == (ONE,)


def test_a_host_is_removed():
    changes = removed(snapshot_with(ONE, TWO), "one")
    assert (changes.deletes, changes.requires_unchanged_model) == ((Owner(Kind.HOST, "one"),), True)
    assert refusal(removed, snapshot_with(TWO), "one") == NoSuchHost(name="one")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-a", "x" * 65, "näme"])
def test_invalid_host_names_are_refused(name: str):
    assert refusal(put, snapshot_with(), asked(name)) == BadHostName(name=name)


def test_number_of_hosts_and_prefixes_is_limited():
    many = [Host(name=f"h{each}", number=each, addresses=addresses("10.0.0.1"), prefixes=()) for each in range(1, 1001)]
    assert len(many) == MAX_HOSTS
    assert refusal(put, snapshot_with(*many), asked()) == TooManyHosts(most=MAX_HOSTS)
    found = tuple(f"10.{each}.0.0/24" for each in range(100, 100 + MAX_PREFIXES))
    assert len(declared(snapshot_with(), asked(has=found)).prefixes) == MAX_PREFIXES
    assert refusal(put, snapshot_with(), asked(has=(*found, "10.9.0.0/24"))) == TooManyPrefixes(most=MAX_PREFIXES)


# Owners of addresses


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("10.20.0.9,10.20.0.10", DuplicateHostAddressVersion(version=4)),
        ("10.20.0.9,fd00::1,fd00::2", DuplicateHostAddressVersion(version=6)),
        ("127.0.0.1", InvalidHostDestination(what=ip_address("127.0.0.1"))),
        ("fe80::1", InvalidHostDestination(what=ip_address("fe80::1"))),
        ("224.0.0.9", InvalidHostDestination(what=ip_address("224.0.0.9"))),
        ("10.20.0.21", HostAddressInUse(address=ip_address("10.20.0.21"), host="one")),
        ("10.20.0.9,fd00:20::21", HostAddressInUse(address=ip_address("fd00:20::21"), host="one")),
        (
            "10.1.0.9",
            HostAddressInOtherPrefix(address=ip_address("10.1.0.9"), behind="one", cidr=ip_network("10.1.0.0/24")),
        ),
        (
            "10.20.0.9,fd00:1::9",
            HostAddressInOtherPrefix(address=ip_address("fd00:1::9"), behind="one", cidr=ip_network("fd00:1::/64")),
        ),
        ("fd00:20::9", NoCommonIpVersion(name="new", other="two")),
        (
            "203.0.113.9",
            HostOverlapsAnnounced(what=ip_address("203.0.113.9"), cidr=ip_network("203.0.113.0/24"), network_id="pool"),
        ),
    ],
)
def test_invalid_or_conflicting_host_addresses_are_refused(at: str, why: object):
    assert refusal(put, snapshot_with(ONE, TWO, POOL), asked(at=at)) == why


@pytest.mark.parametrize(
    ("has", "other", "host"),
    [
        ("10.1.0.0/24", "10.1.0.0/24", "one"),
        ("10.1.0.128/25=owner", "10.1.0.0/24", "one"),
        ("10.1.0.0/16", "10.1.0.0/24", "one"),
        ("10.2.3.4/32", "10.2.0.0/16", "two"),
        ("fd00:1::/80", "fd00:1::/64", "one"),
        ("fd00:1::/48", "fd00:1::/64", "one"),
    ],
)
def test_prefix_overlapping_another_host_is_refused(has: str, other: str, host: str):
    (wanted,) = prefixes(has)
    why = PrefixInUse(cidr=wanted.cidr, other=ip_network(other), host=host)
    assert refusal(put, snapshot_with(ONE, TWO), asked(has=("10.9.0.0/24", has))) == why


@pytest.mark.parametrize(
    ("has", "why"),
    [
        (("10.9.0.0/24", "10.9.0.0/25"), OverlappingPrefix(cidr=ip_network("10.9.0.0/25"))),
        (("10.9.0.0/24=owner", "10.9.0.0/24=guest"), OverlappingPrefix(cidr=ip_network("10.9.0.0/24"))),
        (("fd00:9::/48", "fd00:9:0:1::/64", "10.9.0.0/24"), OverlappingPrefix(cidr=ip_network("fd00:9:0:1::/64"))),
        (("127.0.0.0/8",), InvalidHostDestination(what=ip_network("127.0.0.0/8"))),
        (("0.0.0.0/0",), InvalidHostDestination(what=ip_network("0.0.0.0/0"))),
        (("fe80::/64",), InvalidHostDestination(what=ip_network("fe80::/64"))),
        (
            ("10.20.0.20/31",),
            HostAddressInOtherPrefix(address=ip_address("10.20.0.21"), behind="new", cidr=ip_network("10.20.0.20/31")),
        ),
        (
            ("203.0.113.128/25",),
            HostOverlapsAnnounced(
                what=ip_network("203.0.113.128/25"), cidr=ip_network("203.0.113.0/24"), network_id="pool"
            ),
        ),
        (
            ("2001:db8::/32",),
            HostOverlapsAnnounced(
                what=ip_network("2001:db8::/32"), cidr=ip_network("2001:db8:5::/64"), network_id="pool"
            ),
        ),
    ],
)
def test_invalid_or_conflicting_prefixes_are_refused(has: tuple[str, ...], why: object):
    assert refusal(put, snapshot_with(ONE, TWO, POOL), asked(has=has)) == why


def test_adjacent_prefixes_and_the_hosts_own_address_are_accepted():
    """A member may run on the host itself."""
    near = asked(has=("10.1.2.0/24", "10.3.0.0/16", "fd00:1:0:1::/64", "203.0.114.0/24", "10.20.0.99/32"))
    assert len(declared(snapshot_with(ONE, TWO, POOL), near).prefixes) == 5
    changed = HostRequest(name="one", prefixes=prefixes("10.1.0.0/23", "fd00:1::/65"))
    assert len(declared(snapshot_with(ONE, TWO, POOL), changed).prefixes) == 2, "its own may grow and shrink"


@pytest.mark.parametrize("cidr", ["10.1.0.0/25", "10.0.0.0/15", "10.20.0.16/28", "fd00:1::/80"])
def test_announced_subnet_overlapping_a_host_or_its_prefixes_is_refused(cidr: str):
    wanted = subnet("s", cidr)
    why = AnnouncedAtHost(cidr=wanted.cidr, host="one")
    assert refusal(create_subnet, snapshot_with(ONE, POOL), ADMIN, "pool", wanted) == why
    plain = Network(id="plain", mtu=1500, **OWNERS)
    assert create_subnet(snapshot_with(ONE, plain), ADMIN, "plain", wanted).puts, "what is not announced meets no host"
    apart = replace(TWO, addresses=addresses("192.0.2.22"))
    assert create_subnet(snapshot_with(apart, POOL), ADMIN, "pool", wanted).puts


# Members routed by hosts


def with_members(*found: str, project: Any = OWNER, extra: Any = (ONE, TWO)) -> Changes:
    there = snapshot_with(replace(POOL, shared=True), NETWORK, *extra)
    whose = {"project_id": project.project_id}
    members = (member(f"m{at}", 1, address=ip_address(at), **whose) for at in found)
    parts = {
        "pools": (pool("app", *members, **whose),),
        "listeners": (listener("front", 443, default_pool_id="app", **whose),),
    }
    return run_to_completion(balancer(there, project, "hosts", **parts))


def serving(*found: str, **more: Any) -> Snapshot:
    changes = with_members(*found, **more)
    (made,) = (each for each in changes.puts if isinstance(each, LoadBalancer))
    hosts = more.get("extra", (ONE, TWO))
    return snapshot_with(replace(POOL, shared=True), NETWORK, *hosts, made)


def test_member_creation_depends_on_the_host_that_routes_the_member():
    reads = with_members("10.1.0.7", "10.1.1.7", "fd00:1::7").reads
    assert reads.count(owner_of(ONE)) == 1, "the host may not go meanwhile"
    assert owner_of(TWO) not in reads
    assert owner_of(TWO) in with_members("10.2.3.4", project=GUEST).reads


@pytest.mark.parametrize(("at", "project"), [("10.9.0.1", OWNER), ("10.2.0.7", OWNER), ("10.1.1.7", GUEST)])
def test_member_outside_usable_prefixes_is_refused_without_disclosure(at: str, project: Any):
    why = MemberNotRouted(address=ip_address(at), provider="hosts")
    assert refusal(lambda: with_members("10.1.0.7", at, project=project)) == why


def test_added_member_must_be_routed_by_a_host():
    there, asker = serving("10.1.0.7"), replace(ASKER, providers=NAMES)
    (first,) = there.load_balancers["lb"].pools[0].members

    def added(at: str) -> Changes:
        return run_to_completion(create_member(there, asker, "app", member("more", 1, address=ip_address(at))))

    assert owner_of(ONE) in added("fd00:1::8").reads
    assert refusal(lambda: added("10.9.0.1")) == MemberNotRouted(address=ip_address("10.9.0.1"), provider="hosts")
    heavier = run_to_completion(update_member(there, asker, "app", replace(first, weight=7)))
    assert owner_of(ONE) not in heavier.reads, "who stays where they are is not asked again"


def test_monitor_address_must_lie_in_a_usable_prefix_of_a_host():
    """The monitor address must be in the same project: otherwise a host's agent would probe another project's
    machine."""
    there, asker = serving("10.1.0.7"), replace(ASKER, providers=NAMES)
    (first,) = there.load_balancers["lb"].pools[0].members

    def probed(at: str, of: Member = first) -> Changes:
        return run_to_completion(update_member(there, asker, "app", replace(of, monitor_address=ip_address(at))))

    assert owner_of(ONE) in probed("10.1.1.7").reads
    for elsewhere in ("10.9.0.1", "10.2.0.7"):
        why = MemberNotRouted(address=ip_address(elsewhere), provider="hosts", is_probed=True)
        assert refusal(lambda at=elsewhere: probed(at)) == why
    made = next(each for each in probed("10.1.1.7").puts if isinstance(each, LoadBalancer))
    there = snapshot_with(replace(POOL, shared=True), NETWORK, ONE, TWO, made)
    fewer = HostRequest(name="one", prefixes=prefixes("10.1.0.0/24", "10.1.1.0/24=guest", "fd00:1::/64"))
    left = HasMembers(name="one", members=(UnroutedMember("lb", ip_address("10.1.1.7")),))
    assert refusal(put, there, fewer) == left


def test_member_routed_by_a_host_cannot_name_a_subnet_of_another_network():
    """Members routed by a host cannot name a subnet: probes would go to the address there, connections to the host."""
    asker, own = replace(ASKER, providers=NAMES), replace(NETWORK, id="own", subnets=(subnet("away", "10.1.0.0/24"),))
    there = apply_changes(serving("10.1.0.7"), Changes(puts=(own,)), 2)
    (first,) = there.load_balancers["lb"].pools[0].members

    def on(subnet_id: str) -> Changes:
        return run_to_completion(update_member(there, asker, "app", replace(first, subnet_id=subnet_id)))

    assert refusal(lambda: on("away")) == MemberSubnetNotSupported(subnet_id="away", provider="hosts")
    assert on("six").puts, "the VIP's own says nothing else"


def test_members_of_other_providers_need_no_host():
    there = snapshot_with(NETWORK, ONE)
    parts = {"pools": (pool("app", member("a", 11)),), "listeners": (listener("front", 443, default_pool_id="app"),)}
    assert run_to_completion(balancer(there, OWNER, "switch", network_id="net", **parts)).puts


def test_host_with_members_cannot_be_removed_or_lose_their_prefix():
    there = serving("10.1.0.7", "fd00:1::7")
    lost = HasMembers(
        name="one",
        members=(UnroutedMember("lb", ip_address("10.1.0.7")), UnroutedMember("lb", ip_address("fd00:1::7"))),
    )
    assert refusal(removed, there, "one") == lost
    assert removed(there, "two").deletes
    fewer = HostRequest(name="one", prefixes=prefixes("10.1.0.0/24", "10.1.1.0/24=owner"))
    assert refusal(put, there, fewer) == replace(lost, members=lost.members[1:])
    assert declared(there, HostRequest(name="one", prefixes=prefixes("10.1.0.0/24", "fd00:1::/64"))), "nobody is there"


def test_prefix_can_change_while_its_members_stay_allowed():
    there = serving("10.1.0.7", "fd00:1::7")
    halves = ("10.1.0.0/25", "10.1.0.128/25", "fd00:1::/64=owner")
    assert len(declared(there, HostRequest(name="one", prefixes=prefixes(*halves))).prefixes) == 3
    theirs = HostRequest(name="one", prefixes=prefixes("10.1.0.0/24=guest", "fd00:1::/64"))
    why = HasMembers(name="one", members=(UnroutedMember("lb", ip_address("10.1.0.7")),))
    assert refusal(put, there, theirs) == why
    anybodys = HostRequest(name="one", prefixes=prefixes("10.1.0.0/16", "fd00:1::/60"))
    assert declared(there, anybodys).prefixes == anybodys.prefixes


def test_own_address_of_a_host_is_refused_for_new_members_only():
    there, asker = serving("10.1.0.7", "fd00:1::7"), replace(ASKER, providers=NAMES)
    own = replace(there, own_addresses=Map({"one": frozenset(addresses("10.1.0.1", "10.1.0.7"))}))

    def added(at: str, known: Snapshot = own) -> Changes:
        return run_to_completion(create_member(known, asker, "app", member("more", 1, address=ip_address(at))))

    assert refusal(lambda: added("10.1.0.1")) == MemberIsHostAddress(address=ip_address("10.1.0.1"), provider="hosts")
    others = replace(own, own_addresses=Map({"two": frozenset(addresses("10.2.0.1"))}))
    why = MemberNotRouted(address=ip_address("10.2.0.1"), provider="hosts")
    assert refusal(lambda: added("10.2.0.1", others)) == why, "it tells nobody what others have"
    halves = ("10.1.0.0/25", "10.1.0.128/25", "fd00:1::/64=owner")
    assert len(declared(own, HostRequest(name="one", prefixes=prefixes(*halves))).prefixes) == 3
    (made,) = (each for each in added("10.1.0.8").puts if isinstance(each, LoadBalancer))
    (before,) = (each for each in added("10.1.0.8", there).puts if isinstance(each, LoadBalancer))
    assert {each.before for each in before.moved} == set(addresses("10.1.0.7"))
    assert made.moved == (), "nobody had its slots of that IP version"


def test_refusal_to_remove_a_host_names_at_most_five_members():
    there = serving(*(f"10.1.0.{each}" for each in range(1, 10)))
    why = refusal(removed, there, "one")
    assert isinstance(why, HasMembers)
    assert len(why.members) == 5
