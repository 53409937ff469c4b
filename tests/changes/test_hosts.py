"""Plain hosts: an operator declares them, prefixes are disjoint, and each member is routed by one host."""

from dataclasses import replace
from datetime import timedelta
from ipaddress import ip_address, ip_network
from typing import Any

import pytest
from immutables import Map

from fairlead.changes.host_checks import (
    HostAddressBehind,
    HostAddressTaken,
    HostInAnnounced,
    HostsApart,
    NoHostAddress,
    NoHostDestination,
    PrefixTaken,
    PrefixTwice,
    SeveralHostAddresses,
)
from fairlead.changes.hosts import (
    AskedHost,
    BadHostName,
    HasMembers,
    HostNumberStays,
    HostNumberTaken,
    MemberBehind,
    NoSuchHost,
    TooManyHosts,
    TooManyPrefixes,
    drain_host,
    forget_return,
    put_host,
    remove_host,
)
from fairlead.changes.member_placement import BehindNoHost, IsAHost, OnASubnet
from fairlead.changes.members import create_member, update_member
from fairlead.changes.subnets import AnnouncedAtHost, create_subnet
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.hosts import LARGEST_NUMBER, MOST_HOSTS, MOST_PREFIXES, Host, HostPrefix
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import at_once
from harness.api import NOON
from harness.changes.announced import NAMES, POOL, balancer
from harness.changes.balancing import ASKER, listener, member, pool
from harness.changes.world import ADMIN, GUEST, NETWORK, OWNER, OWNERS, having, refusal, subnet

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


def asked(name: str = "new", *, at: str = "10.20.0.99", has: tuple[str, ...] = (), **more: Any) -> AskedHost:
    return AskedHost(name=name, addresses=addresses(*at.split(",")), prefixes=prefixes(*has), **more)


def put(snapshot: Snapshot, wanted: AskedHost) -> Changes:
    return at_once(put_host(snapshot, wanted))


def removed(snapshot: Snapshot, name: str) -> Changes:
    return at_once(remove_host(snapshot, name))


def declared(snapshot: Snapshot, wanted: AskedHost) -> Host:
    (host,) = put(snapshot, wanted).puts
    assert isinstance(host, Host)
    return host


# Declare, change, drain, remove


def test_a_host_is_declared_with_a_free_number_and_its_parts_in_order():
    wanted = asked(at="fd00:20::9,10.20.0.9", has=("fd00:9::/64", "10.9.1.0/24", "10.9.0.0/24=owner"))
    changes = put(having(ONE, TWO), wanted)
    (host,) = changes.puts
    assert host == Host(
        name="new",
        number=host.number,
        addresses=addresses("10.20.0.9", "fd00:20::9"),
        prefixes=prefixes("10.9.0.0/24=owner", "10.9.1.0/24", "fd00:9::/64"),
    )
    assert changes.rests_on_absence, "another one may be declared at the same time"
    assert declared(having(), wanted).number == host.number, "the same for the same name while it is free"
    assert declared(having(replace(ONE, number=host.number)), wanted).number == host.number % LARGEST_NUMBER + 1
    assert declared(having(ONE), replace(wanted, name="newer")).number != host.number


def test_a_number_is_one_hosts_and_stays():
    there = having(ONE)
    assert declared(there, asked(number=7)).number == 7
    assert refusal(put, there, asked(number=1)) == HostNumberTaken(number=1, host="one")
    assert refusal(put, there, AskedHost(name="one", number=2)) == HostNumberStays(name="one", number=1)
    assert put(there, AskedHost(name="one", number=1)) == Changes()
    first = declared(there, asked()).number
    taken = having(*(replace(TWO, name=f"h{each}", number=each, prefixes=()) for each in range(first, first + 9)))
    assert declared(taken, asked()).number not in taken.host_numbers


def test_what_is_not_said_of_a_host_that_is_there_stays():
    there = having(replace(ONE, draining=True))
    more = declared(there, AskedHost(name="one", prefixes=prefixes("10.1.0.0/24", "10.3.0.0/24")))
    assert (more.addresses, more.number, more.draining) == (ONE.addresses, 1, True)
    moved = declared(there, AskedHost(name="one", addresses=addresses("10.20.0.77")))
    assert (moved.addresses, moved.prefixes) == (addresses("10.20.0.77"), ONE.prefixes)
    assert put(there, AskedHost(name="one", prefixes=ONE.prefixes[::-1])) == Changes()


def test_a_host_without_prefixes_has_clients_only():
    assert declared(having(), AskedHost(name="new", addresses=addresses("10.20.0.9"))).prefixes == ()
    assert refusal(put, having(), AskedHost(name="new")) == NoHostAddress(name="new")


def test_a_host_is_drained_and_comes_back():
    there = having(ONE)
    drained = drain_host(there, "one", draining=True, now=NOON)
    assert drained.puts == (replace(ONE, draining=True),)
    there = apply_changes(there, drained, 2)
    assert drain_host(there, "one", draining=True, now=NOON) == Changes(), "nothing is written twice"
    back = drain_host(there, "one", draining=False, now=NOON)
    assert back.puts == (replace(ONE, returning_until=NOON + HOUR),)
    assert refusal(lambda: drain_host(there, "two", draining=True, now=NOON)) == NoSuchHost(name="two")
    there = apply_changes(there, back, 3)
    assert drain_host(there, "one", draining=False, now=NOON + HOUR) == Changes(), "nor is it longer"
    assert declared(there, AskedHost(name="one", prefixes=())).returning_until == NOON + HOUR
    assert drain_host(there, "one", draining=True, now=NOON).puts == (replace(ONE, draining=True),)
    for name in ("one", "two"):
        assert forget_return(there, name, NOON + HOUR / 2) == Changes()
    assert forget_return(there, "one", NOON + HOUR).puts == (ONE,)


def test_a_host_is_removed():
    changes = removed(having(ONE, TWO), "one")
    assert (changes.deletes, changes.rests_on_absence) == ((Owner(Kind.HOST, "one"),), True)
    assert refusal(removed, having(TWO), "one") == NoSuchHost(name="one")


@pytest.mark.parametrize("name", ["", "a/b", "a b", "-a", "x" * 65, "näme"])
def test_a_host_is_called_as_a_chassis_may_be(name: str):
    assert refusal(put, having(), asked(name)) == BadHostName(name=name)


def test_there_are_so_many_at_most():
    many = [Host(name=f"h{each}", number=each, addresses=addresses("10.0.0.1"), prefixes=()) for each in range(1, 1001)]
    assert len(many) == MOST_HOSTS
    assert refusal(put, having(*many), asked()) == TooManyHosts(most=MOST_HOSTS)
    found = tuple(f"10.{each}.0.0/24" for each in range(100, 100 + MOST_PREFIXES))
    assert len(declared(having(), asked(has=found)).prefixes) == MOST_PREFIXES
    assert refusal(put, having(), asked(has=(*found, "10.9.0.0/24"))) == TooManyPrefixes(most=MOST_PREFIXES)


# Owners of addresses


@pytest.mark.parametrize(
    ("at", "why"),
    [
        ("10.20.0.9,10.20.0.10", SeveralHostAddresses(version=4)),
        ("10.20.0.9,fd00::1,fd00::2", SeveralHostAddresses(version=6)),
        ("127.0.0.1", NoHostDestination(what=ip_address("127.0.0.1"))),
        ("fe80::1", NoHostDestination(what=ip_address("fe80::1"))),
        ("224.0.0.9", NoHostDestination(what=ip_address("224.0.0.9"))),
        ("10.20.0.21", HostAddressTaken(address=ip_address("10.20.0.21"), host="one")),
        ("10.20.0.9,fd00:20::21", HostAddressTaken(address=ip_address("fd00:20::21"), host="one")),
        (
            "10.1.0.9",
            HostAddressBehind(address=ip_address("10.1.0.9"), behind="one", cidr=ip_network("10.1.0.0/24")),
        ),
        (
            "10.20.0.9,fd00:1::9",
            HostAddressBehind(address=ip_address("fd00:1::9"), behind="one", cidr=ip_network("fd00:1::/64")),
        ),
        ("fd00:20::9", HostsApart(name="new", other="two")),
        (
            "203.0.113.9",
            HostInAnnounced(what=ip_address("203.0.113.9"), cidr=ip_network("203.0.113.0/24"), network_id="pool"),
        ),
    ],
)
def test_an_address_is_one_hosts(at: str, why: object):
    assert refusal(put, having(ONE, TWO, POOL), asked(at=at)) == why


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
def test_an_address_is_behind_one_host(has: str, other: str, host: str):
    (wanted,) = prefixes(has)
    why = PrefixTaken(cidr=wanted.cidr, other=ip_network(other), host=host)
    assert refusal(put, having(ONE, TWO), asked(has=("10.9.0.0/24", has))) == why


@pytest.mark.parametrize(
    ("has", "why"),
    [
        (("10.9.0.0/24", "10.9.0.0/25"), PrefixTwice(cidr=ip_network("10.9.0.0/25"))),
        (("10.9.0.0/24=owner", "10.9.0.0/24=guest"), PrefixTwice(cidr=ip_network("10.9.0.0/24"))),
        (("fd00:9::/48", "fd00:9:0:1::/64", "10.9.0.0/24"), PrefixTwice(cidr=ip_network("fd00:9:0:1::/64"))),
        (("127.0.0.0/8",), NoHostDestination(what=ip_network("127.0.0.0/8"))),
        (("0.0.0.0/0",), NoHostDestination(what=ip_network("0.0.0.0/0"))),
        (("fe80::/64",), NoHostDestination(what=ip_network("fe80::/64"))),
        (
            ("10.20.0.20/31",),
            HostAddressBehind(address=ip_address("10.20.0.21"), behind="new", cidr=ip_network("10.20.0.20/31")),
        ),
        (
            ("203.0.113.128/25",),
            HostInAnnounced(what=ip_network("203.0.113.128/25"), cidr=ip_network("203.0.113.0/24"), network_id="pool"),
        ),
        (
            ("2001:db8::/32",),
            HostInAnnounced(what=ip_network("2001:db8::/32"), cidr=ip_network("2001:db8:5::/64"), network_id="pool"),
        ),
    ],
)
def test_what_is_behind_a_host_is_nothing_else(has: tuple[str, ...], why: object):
    assert refusal(put, having(ONE, TWO, POOL), asked(has=has)) == why


def test_what_is_beside_is_free_and_a_hosts_own_address_may_be_behind_itself():
    """A member may run on the host itself."""
    near = asked(has=("10.1.2.0/24", "10.3.0.0/16", "fd00:1:0:1::/64", "203.0.114.0/24", "10.20.0.99/32"))
    assert len(declared(having(ONE, TWO, POOL), near).prefixes) == 5
    changed = AskedHost(name="one", prefixes=prefixes("10.1.0.0/23", "fd00:1::/65"))
    assert len(declared(having(ONE, TWO, POOL), changed).prefixes) == 2, "its own may grow and shrink"


@pytest.mark.parametrize("cidr", ["10.1.0.0/25", "10.0.0.0/15", "10.20.0.16/28", "fd00:1::/80"])
def test_no_announced_network_has_addresses_of_hosts_or_behind_them(cidr: str):
    wanted = subnet("s", cidr)
    why = AnnouncedAtHost(cidr=wanted.cidr, host="one")
    assert refusal(create_subnet, having(ONE, POOL), ADMIN, "pool", wanted) == why
    plain = Network(id="plain", mtu=1500, **OWNERS)
    assert create_subnet(having(ONE, plain), ADMIN, "plain", wanted).puts, "what is not announced meets no host"
    apart = replace(TWO, addresses=addresses("192.0.2.22"))
    assert create_subnet(having(apart, POOL), ADMIN, "pool", wanted).puts


# Members routed by hosts


def with_members(*found: str, project: Any = OWNER, extra: Any = (ONE, TWO)) -> Changes:
    there = having(replace(POOL, shared=True), NETWORK, *extra)
    whose = {"project_id": project.project_id}
    members = (member(f"m{at}", 1, address=ip_address(at), **whose) for at in found)
    parts = {
        "pools": (pool("app", *members, **whose),),
        "listeners": (listener("front", 443, default_pool_id="app", **whose),),
    }
    return at_once(balancer(there, project, "hosts", **parts))


def serving(*found: str, **more: Any) -> Snapshot:
    changes = with_members(*found, **more)
    (made,) = (each for each in changes.puts if isinstance(each, LoadBalancer))
    hosts = more.get("extra", (ONE, TWO))
    return having(replace(POOL, shared=True), NETWORK, *hosts, made)


def test_a_member_is_behind_a_host_where_its_project_may_have_some():
    reads = with_members("10.1.0.7", "10.1.1.7", "fd00:1::7").reads
    assert reads.count(owner_of(ONE)) == 1, "the host may not go meanwhile"
    assert owner_of(TWO) not in reads
    assert owner_of(TWO) in with_members("10.2.3.4", project=GUEST).reads


@pytest.mark.parametrize(("at", "project"), [("10.9.0.1", OWNER), ("10.2.0.7", OWNER), ("10.1.1.7", GUEST)])
def test_one_that_is_elsewhere_is_refused_and_it_is_not_said_what_others_have(at: str, project: Any):
    why = BehindNoHost(address=ip_address(at), provider="hosts")
    assert refusal(lambda: with_members("10.1.0.7", at, project=project)) == why


def test_members_come_and_move_behind_hosts_only():
    there, asker = serving("10.1.0.7"), replace(ASKER, providers=NAMES)
    (first,) = there.load_balancers["lb"].pools[0].members

    def added(at: str) -> Changes:
        return at_once(create_member(there, asker, "app", member("more", 1, address=ip_address(at))))

    assert owner_of(ONE) in added("fd00:1::8").reads
    assert refusal(lambda: added("10.9.0.1")) == BehindNoHost(address=ip_address("10.9.0.1"), provider="hosts")
    heavier = at_once(update_member(there, asker, "app", replace(first, weight=7)))
    assert owner_of(ONE) not in heavier.reads, "who stays where they are is not asked again"


def test_where_a_member_is_probed_is_behind_a_host_too():
    """The monitor address must be in the same project: otherwise a host's agent would probe another project's
    machine."""
    there, asker = serving("10.1.0.7"), replace(ASKER, providers=NAMES)
    (first,) = there.load_balancers["lb"].pools[0].members

    def probed(at: str, of: Member = first) -> Changes:
        return at_once(update_member(there, asker, "app", replace(of, monitor_address=ip_address(at))))

    assert owner_of(ONE) in probed("10.1.1.7").reads
    for elsewhere in ("10.9.0.1", "10.2.0.7"):
        why = BehindNoHost(address=ip_address(elsewhere), provider="hosts", is_probed=True)
        assert refusal(lambda at=elsewhere: probed(at)) == why
    made = next(each for each in probed("10.1.1.7").puts if isinstance(each, LoadBalancer))
    there = having(replace(POOL, shared=True), NETWORK, ONE, TWO, made)
    fewer = AskedHost(name="one", prefixes=prefixes("10.1.0.0/24", "10.1.1.0/24=guest", "fd00:1::/64"))
    left = HasMembers(name="one", members=(MemberBehind("lb", ip_address("10.1.1.7")),))
    assert refusal(put, there, fewer) == left


def test_a_member_behind_a_host_is_on_no_subnet_of_another_network():
    """Members routed by a host cannot name a subnet: probes would go to the address there, connections to the host."""
    asker, own = replace(ASKER, providers=NAMES), replace(NETWORK, id="own", subnets=(subnet("away", "10.1.0.0/24"),))
    there = apply_changes(serving("10.1.0.7"), Changes(puts=(own,)), 2)
    (first,) = there.load_balancers["lb"].pools[0].members

    def on(subnet_id: str) -> Changes:
        return at_once(update_member(there, asker, "app", replace(first, subnet_id=subnet_id)))

    assert refusal(lambda: on("away")) == OnASubnet(subnet_id="away", provider="hosts")
    assert on("six").puts, "the VIP's own says nothing else"


def test_of_other_providers_members_are_wherever_they_are():
    there = having(NETWORK, ONE)
    parts = {"pools": (pool("app", member("a", 11)),), "listeners": (listener("front", 443, default_pool_id="app"),)}
    assert at_once(balancer(there, OWNER, "switch", network_id="net", **parts)).puts


def test_a_host_with_members_behind_it_stays():
    there = serving("10.1.0.7", "fd00:1::7")
    lost = HasMembers(
        name="one", members=(MemberBehind("lb", ip_address("10.1.0.7")), MemberBehind("lb", ip_address("fd00:1::7")))
    )
    assert refusal(removed, there, "one") == lost
    assert removed(there, "two").deletes
    fewer = AskedHost(name="one", prefixes=prefixes("10.1.0.0/24", "10.1.1.0/24=owner"))
    assert refusal(put, there, fewer) == replace(lost, members=lost.members[1:])
    assert declared(there, AskedHost(name="one", prefixes=prefixes("10.1.0.0/24", "fd00:1::/64"))), "nobody is there"


def test_a_prefix_may_change_as_long_as_who_is_there_may_be():
    there = serving("10.1.0.7", "fd00:1::7")
    halves = ("10.1.0.0/25", "10.1.0.128/25", "fd00:1::/64=owner")
    assert len(declared(there, AskedHost(name="one", prefixes=prefixes(*halves))).prefixes) == 3
    theirs = AskedHost(name="one", prefixes=prefixes("10.1.0.0/24=guest", "fd00:1::/64"))
    why = HasMembers(name="one", members=(MemberBehind("lb", ip_address("10.1.0.7")),))
    assert refusal(put, there, theirs) == why
    anybodys = AskedHost(name="one", prefixes=prefixes("10.1.0.0/16", "fd00:1::/60"))
    assert declared(there, anybodys).prefixes == anybodys.prefixes


def test_where_a_host_is_itself_no_member_comes_and_one_that_was_there_is_in_nobodys_way():
    there, asker = serving("10.1.0.7", "fd00:1::7"), replace(ASKER, providers=NAMES)
    own = replace(there, own_addresses=Map({"one": frozenset(addresses("10.1.0.1", "10.1.0.7"))}))

    def added(at: str, known: Snapshot = own) -> Changes:
        return at_once(create_member(known, asker, "app", member("more", 1, address=ip_address(at))))

    assert refusal(lambda: added("10.1.0.1")) == IsAHost(address=ip_address("10.1.0.1"), provider="hosts")
    others = replace(own, own_addresses=Map({"two": frozenset(addresses("10.2.0.1"))}))
    why = BehindNoHost(address=ip_address("10.2.0.1"), provider="hosts")
    assert refusal(lambda: added("10.2.0.1", others)) == why, "it tells nobody what others have"
    halves = ("10.1.0.0/25", "10.1.0.128/25", "fd00:1::/64=owner")
    assert len(declared(own, AskedHost(name="one", prefixes=prefixes(*halves))).prefixes) == 3
    (made,) = (each for each in added("10.1.0.8").puts if isinstance(each, LoadBalancer))
    (before,) = (each for each in added("10.1.0.8", there).puts if isinstance(each, LoadBalancer))
    assert {each.before for each in before.moved} == set(addresses("10.1.0.7"))
    assert made.moved == (), "nobody had its slots of that IP version"


def test_some_of_the_members_are_named():
    there = serving(*(f"10.1.0.{each}" for each in range(1, 10)))
    why = refusal(removed, there, "one")
    assert isinstance(why, HasMembers)
    assert len(why.members) == 5
