"""Router gateways that serve VIPs on an external network, and VIPs whose gateway is gone."""

from fairlead.compilers.ovn import compile_owner
from fairlead.model.documents.health import Health
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import AppliedState, OperatingStatus
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.queries.probes import members_health
from fairlead.model.queries.statistics import CountedService, Datapath, find_listeners
from fairlead.model.queries.uplink import choose_router
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.draining import Transport
from fairlead.model.snapshot import Snapshot
from harness.case import EMPTY_SNAPSHOT, parse_model

WORLD = """\
network public external wire=physnet project=admin 203.0.113.0/24 2001:db8::/64
network net1 10.0.0.0/24 fd00::/64
network net2 10.1.0.0/24
network net3 10.2.0.0/24
router r1 net1=10.0.0.1,fd00::1 gateway:public=203.0.113.10
router r2 net2=10.1.0.1 gateway:public=203.0.113.11
router r3 net3=10.2.0.1
router r9 gateway:public=203.0.113.12 project=city
"""
WEB = "web vip=203.0.113.80 on=public {} tcp:80{{monitor=TCP}}={}\n"


def made(*lines: str) -> Snapshot:
    documents, _ = parse_model("".join(lines), {})
    return apply_changes(EMPTY_SNAPSHOT, Changes(puts=tuple(documents.values())), 1)


def chosen(words: str, members: str, world: str = WORLD) -> str | None:
    snapshot = made(world, WEB.format(words, members))
    router = choose_router(snapshot, snapshot.load_balancers["web"])
    return router and router.id


def test_gateway_that_reaches_most_members_is_chosen():
    assert chosen("", "-") == "r1"
    assert chosen("", "a/10.1.0.11:80") == "r2"
    assert chosen("", "a/10.0.0.11:80,b/10.1.0.11:80,c/10.1.0.12:80") == "r2"


def test_chosen_gateway_stays_while_any_member_is_reachable():
    assert chosen("at=r2", "-") == "r2"
    assert chosen("at=r1", "a/10.0.0.11:80,b/10.1.0.11:80,c/10.1.0.12:80") == "r1"
    assert chosen("at=r1", "b/10.1.0.11:80") == "r2"
    assert chosen("at=r2", "b/10.9.0.11:80") == "r2"


def test_requested_network_decides_the_gateway():
    assert chosen("for=net2", "a/10.0.0.11:80") == "r2"
    assert chosen("for=net3", "-") is None


def test_gateway_of_another_project_is_not_chosen():
    assert chosen("", "-", WORLD.replace("gateway:public=203.0.113.10\n", "\n").replace("r2 ", "r2 project=x ")) is None


def test_load_balancer_without_its_gateway_has_no_rows_and_is_in_error():
    """Rules refuse to remove the gateway; if it is gone anyway, the status shows it and no rows remain."""
    web = WEB.format("at=r1", "a/10.0.0.11:80")
    before, after = made(WORLD, web), made(WORLD.replace(" gateway:public=203.0.113.10", ""), web)
    owner = Owner(Kind.LOAD_BALANCER, "web")
    assert owner in find_affected_owners(before, after, [Owner(Kind.ROUTER, "r1")])
    assert compile_owner(before, owner) != {} == compile_owner(after, owner)
    balancer = after.load_balancers["web"]
    assert dict(members_health(after, balancer)) == {"web-a": Health.UNREACHABLE}
    bare = WEB.format("at=r1", "a/10.0.0.11:80").replace("{monitor=TCP}", "")
    assert operating(made(WORLD, bare)) is OperatingStatus.ONLINE
    assert operating(made(WORLD.replace("gateway:public=203.0.113.10", ""), bare)) is OperatingStatus.ERROR


def test_gateway_without_an_address_serves_no_vip():
    """None is placed there; one that is there all the same has rows when the gateway has an address."""
    bare = WORLD.replace("gateway:public=203.0.113.10", "gateway:public=").replace("r2 net2", "r2 project=x net2")
    assert chosen("", "a/10.0.0.11:80", bare) is None
    web, owner = WEB.format("at=r1", "a/10.0.0.11:80"), Owner(Kind.LOAD_BALANCER, "web")
    before, after = made(bare, web), made(WORLD, web)
    assert compile_owner(before, owner) == {} != compile_owner(after, owner)
    for old, new in ((before, after), (after, before)):
        assert owner in find_affected_owners(old, new, [Owner(Kind.PORT, "r1-public")])


def operating(snapshot: Snapshot) -> OperatingStatus:
    applied = AppliedState(generation=snapshot.revision)
    return derive_balancer_status(snapshot, snapshot.load_balancers["web"], applied).of_balancer()


def test_listener_counters_include_switch_router_and_vip_network():
    """Traffic counts on the client's switch, on the router for outside clients, and on the VIP's network; another
    router on the uplink counts for no listener."""
    snapshot = made(WORLD, WEB.format("at=r1", "a/10.0.0.11:80"))
    address = snapshot.load_balancers["web"].vip.address
    service = CountedService(place=Datapath(1), transport=Transport.TCP, address=address, port=80)
    found = find_listeners(snapshot, [(place, service) for place in ("net1", "r1", "net2", "r2", "r9", "public")])
    assert found == ["web-tcp-80", "web-tcp-80", None, None, None, "web-tcp-80"]
