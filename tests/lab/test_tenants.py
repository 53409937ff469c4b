"""End to end: two tenants with equal subnets, and routers on a common shared network, are isolated from each other."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

import pytest

from fairlead.lab import Lab, Protocol, Traffic, TrafficResult
from fairlead.lab.port_workloads import Placement, workload_of_port
from harness.lab.local_ips import UNREACHABLE_RESULTS, LocalIPs, LocalIPSite, create_local_ips, with_clients
from harness.lab.site import LabSite, open_site

pytestmark = pytest.mark.lab

PROTOCOLS = [Protocol.TCP, Protocol.UDP]
PREFIX = {4: "10.0.0.", 6: "fd00:a::"}
"""Prefix of each tenant's own network, the same for both."""
PLACES = {"database": "chassis1", "client": "chassis2"}
HOSTS = {"alice-database": "50", "alice-client": "51", "bob-database": "60", "bob-client": "61"}
"""Last part of each machine's address."""
UNKNOWN_ID = "192.0.2.0/24", "2001:db8:dead::/64"


@dataclass(frozen=True)
class Vip:
    """A load balancer of a tenant. `members` are addresses; `ports` are listeners, and `shut` ones allow no client."""

    tenant: str
    subnet: str
    members: tuple[str, ...]
    address: str | None = None
    ports: tuple[int, ...] = (80,)
    shut: tuple[int, ...] = ()


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """square is shared. alice and bob have a network and a router each, which has a port on square too."""
    site = open_site(lab)
    site.network("square", "10.5.0.0/24", "fd00:5::/64", is_shared=True, project_id="city")
    for tenant in ("alice", "bob"):
        site.network(tenant, "10.0.0.0/24", "fd00:a::/64", project_id=tenant)
        router = site.cloud.network.create_router(name=tenant, project_id=tenant)
        for version in (4, 6):
            site.add_interface(router, f"{tenant}-v{version}")
        door = site.cloud.network.create_port(network_id=network_id(site, "square"), name=f"{tenant}-door")
        site.cloud.network.add_interface_to_router(router, port_id=door.id)
        for kind, chassis in PLACES.items():
            machine(site, tenant, f"{tenant}-{kind}", chassis, HOSTS[f"{tenant}-{kind}"])
    machine(site, "square", "guest", "chassis1", "70", project="carol")
    machine(site, "square", "bob-stall", "chassis2", "71", project="bob")
    machine(site, "square", "alice-stall", "chassis2", "72", project="alice")
    site.lab.wait_bound(*HOSTS, "guest", "bob-stall", "alice-stall")
    site.lab.wait_synced()
    yield site
    for name in (*HOSTS, "guest", "bob-stall", "alice-stall"):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    site.close()


def network_id(site: LabSite, name: str) -> str:
    found: str = site.cloud.network.find_network(name, ignore_missing=False).id
    return found


def machine(site: LabSite, network: str, name: str, chassis: str, host: str, project: str | None = None) -> None:
    """A machine that serves ports 8080 and 8081."""
    fixed = [
        {"subnet_id": subnet.id, "ip_address": str(subnet.cidr).split("0/24")[0].split("/64")[0] + host}
        for subnet in site.cloud.network.subnets(network_id=network_id(site, network))
    ]
    port = site.cloud.network.create_port(
        name=name, network_id=network_id(site, network), fixed_ips=fixed, project_id=project or network
    )
    placement = Placement(name=name, chassis=chassis, serve=(8080, 8081))
    site.lab.add_workload(workload_of_port(site.url, port.id, placement))


@contextmanager
def balanced(site: LabSite, *wanted: Vip, protocol: Protocol = Protocol.TCP) -> Iterator[list[str]]:
    """Create all these load balancers, and yield their addresses."""
    made = [site.cloud.load_balancer.create_load_balancer(**tree(site, vip, protocol)) for vip in wanted]
    try:
        for each in made:
            site.settle(each.id)
        yield [each.vip_address for each in made]
    finally:
        for each in made:
            site.cloud.load_balancer.delete_load_balancer(each.id, cascade=True)


def tree(site: LabSite, vip: Vip, protocol: Protocol) -> Mapping[str, Any]:
    word = protocol.value.upper()
    pool = {"name": "pool", "protocol": word, "lb_algorithm": "SOURCE_IP_PORT"}
    members = [{"address": address, "protocol_port": 8080} for address in vip.members]
    nobody = UNKNOWN_ID[":" in vip.members[0]]
    listeners = [
        {"protocol": word, "protocol_port": port, "default_pool": {"name": "pool"}}
        | ({"allowed_cidrs": [nobody]} if port in vip.shut else {})
        for port in (*vip.ports, *vip.shut)
    ]
    address = {} if vip.address is None else {"vip_address": vip.address}
    return {
        "project_id": vip.tenant,
        "vip_subnet_id": site.subnet(vip.subnet).id,
        "listeners": listeners,
        "pools": [{**pool, "members": members}],
        **address,
    }


def ask(site: LabSite, client: str, to: str, protocol: Protocol, port: int = 80) -> TrafficResult:
    return site.lab.traffic(client, Traffic(to=to, port=port, protocol=protocol, count=12, concurrency=6, timeout=10))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_vip_equal_to_another_tenants_machine_takes_no_traffic_of_that_tenant(
    site: LabSite, version: int, protocol: Protocol
):
    """Each tenant has a VIP with the address of the other's database. Traffic of both is unaffected."""
    prefix = PREFIX[version]
    alice, bob = (prefix + HOSTS[f"{tenant}-database"] for tenant in ("alice", "bob"))
    theft = [
        Vip(tenant="bob", subnet=f"bob-v{version}", address=alice, members=(bob,), ports=(8080,), shut=(8081,)),
        Vip(tenant="alice", subnet=f"alice-v{version}", address=bob, members=(alice,), ports=(8080,), shut=(8081,)),
    ]
    with balanced(site, *theft, protocol=protocol):
        for tenant, own, others in (("alice", alice, bob), ("bob", bob, alice)):
            for port in (8080, 8081):
                result = ask(site, f"{tenant}-client", own, protocol, port)
                assert (result.errors, result.answers) == ({}, {f"{tenant}-database": 12}), (tenant, port)
            result = ask(site, f"{tenant}-client", others, protocol, 8080)
            assert (result.errors, result.answers) == ({}, {f"{tenant}-database": 12}), "their own VIP"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_clients_reach_their_own_tenants_vip_among_identical_ones(site: LabSite, version: int, protocol: Protocol):
    """Equal VIPs with equal subnets of members: each client reaches its own project's."""
    prefix = PREFIX[version]
    same = [
        Vip(
            tenant=tenant,
            subnet=f"{tenant}-v{version}",
            address=f"{prefix}10",
            members=(prefix + HOSTS[f"{tenant}-database"],),
        )
        for tenant in ("alice", "bob")
    ]
    with balanced(site, *same, protocol=protocol):
        for tenant in ("alice", "bob"):
            result = ask(site, f"{tenant}-client", f"{prefix}10", protocol)
            assert (result.errors, result.answers) == ({}, {f"{tenant}-database": 12}), tenant


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_clients_on_a_shared_network_reach_only_members_on_that_network(
    site: LabSite, version: int, protocol: Protocol
):
    """Clients on square reach both tenants' VIPs there, and only members on square.

    bob's other member has the same address as alice's database. bob's own network reaches all his members.
    """
    square = {4: "10.5.0.", 6: "fd00:5::"}[version]
    both = [
        Vip(
            tenant="bob", subnet=f"square-v{version}", members=(square + "71", PREFIX[version] + HOSTS["bob-database"])
        ),
        Vip(tenant="alice", subnet=f"square-v{version}", members=(square + "72",)),
    ]
    with balanced(site, *both, protocol=protocol) as (bobs, alices):
        for client in ("guest", "alice-stall"):
            assert ask(site, client, bobs, protocol).answers == {"bob-stall": 12}, client
        assert ask(site, "guest", alices, protocol).answers == {"alice-stall": 12}
        site.lab.exec("guest", ["ping", f"-{version}", "-c1", "-w30", bobs])
        route_home(site)
        result = ask(site, "bob-client", bobs, protocol)
        assert (result.errors, set(result.answers)) == ({}, {"bob-stall", "bob-database"})


@contextmanager
def local_ips(site: LabSite, tenant: str, network: str) -> Iterator[LocalIPs]:
    """Local IPs at addresses that no machine has."""
    identity = network_id(site, network)
    addresses = [str(ip_network(subnet.cidr)[90]) for subnet in site.cloud.network.subnets(network_id=identity)]
    bodies = [{"project_id": tenant, "network_id": identity, "local_ip_address": each} for each in addresses]
    with create_local_ips(site, *bodies) as both:
        yield both


@pytest.fixture
def wood(site: LabSite) -> Iterator[LocalIPSite]:
    with with_clients(site, *HOSTS, "guest", "alice-stall", "bob-stall") as wood:
        yield wood


def test_clients_reach_only_their_own_tenants_replica_of_identical_local_ips(site: LabSite, wood: LocalIPSite):
    """Each tenant's clients reach their own replica, and only if it exists."""
    with ExitStack() as stack:
        alices, bobs = (stack.enter_context(local_ips(site, tenant, tenant)) for tenant in ("alice", "bob"))
        assert {*alices.addresses} == {*bobs.addresses}
        alices.associate("alice-database")
        bobs.associate("bob-database")
        wood.expect(alices.addresses, {"alice-client": "timeout", "bob-client": "timeout"})
        for name, seen in (("alice-database", {"bob-client": "timeout"}), ("bob-database", {})):
            stack.callback(wood.move, name, "chassis1")
            wood.move(name, "chassis2")
            wood.expect(alices.addresses, {name.replace("database", "client"): name, **seen})
        alices.dissociate("alice-database")
        wood.expect(alices.addresses, {"alice-client": "timeout", "bob-client": "bob-database"})


def test_local_ip_on_a_shared_network_serves_that_network_and_its_owner(site: LabSite, wood: LocalIPSite):
    """On square all machines reach it, beyond it only bob's own. alice's router forwards to no replica."""
    nobody = ["guest", "alice-client", "bob-database"]
    route_home(site)
    with local_ips(site, "bob", "square") as bobs:
        bobs.associate("bob-stall")
        led = {"alice-stall": "bob-stall", "bob-client": "bob-stall"}
        wood.expect(bobs.addresses, {**led, **dict.fromkeys(nobody, "timeout")})
        bobs.change(fallback="reject")
        wood.expect(bobs.addresses, {**led, "guest": UNREACHABLE_RESULTS, "bob-database": UNREACHABLE_RESULTS})


def route_home(site: LabSite) -> None:
    """Add a route to bob's network on his stall."""
    door = site.cloud.network.find_port("bob-door", ignore_missing=False)
    for via in (each["ip_address"] for each in door.fixed_ips):
        home = "fd00:a::/64" if ":" in via else "10.0.0.0/24"
        site.lab.exec("bob-stall", ["ip", "route", "replace", home, "via", via, "dev", "eth0"])
