"""End to end: VIPs reached from outside OVN, by their own address and by a floating IP, through a router's gateway."""

import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import httpx
import pytest

from fairlead.lab import Lab, Protocol, Traffic, TrafficResult
from fairlead.lab.chassis import EXTERNAL_UPLINK
from harness.lab.gateway import floating_ip, ping, set_gateway, vip_port
from harness.lab.holder import holding
from harness.lab.site import CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = {"b1": "chassis1", "b2": "chassis2"}
PROTOCOLS = [Protocol.TCP, Protocol.UDP]
OTHER = {4: "203.0.113.99/32", 6: "2001:db8::99/128"}
"""Second address of the external host, which is not its default source address."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members and shore on bay, hill on creek; one router between them and the host outside, which knows the way in."""
    site = open_site(lab, FAIRLEAD_OVN_COUNT_REPLY_BYTES="yes")
    public = site.outside()
    site.network("bay", "10.0.0.0/24", "fd00:a::/64")
    site.network("creek", "10.0.1.0/24", "fd00:b::/64")
    router = site.router("gate", "bay-v4", "bay-v6", "creek-v4", "creek-v6")
    set_gateway(site, router, public, snat=False)
    site.machines("bay", MEMBERS, serve=[8080])
    site.machines("bay", {"shore": "chassis1"})
    site.machines("creek", {"hill": "chassis2"})
    for host in ("203.0.113.1", "2001:db8::1"):  # the gateway resolves the host's address, which delays first packets
        ping(site, "hill", host)
    yield site
    for name in (*MEMBERS, "shore", "hill"):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    site.close()


def ask(site: LabSite, client: str, to: str, protocol: Protocol = Protocol.TCP, count: int = 20) -> TrafficResult:
    """Answers to connections, with a generous timeout: a late answer on a busy machine is no defect, a lost one is."""
    return site.lab.traffic(client, Traffic(to=to, port=80, protocol=protocol, count=count, concurrency=5, timeout=30))


def is_shut(site: LabSite, client: str, to: str) -> bool:
    traffic = Traffic(to=to, port=80, count=3, concurrency=3, timeout=1)
    return site.lab.traffic(client, traffic).errors == {"timeout": 3}


@contextmanager
def translating(site: LabSite) -> Iterator[None]:
    """Enable SNAT on the router."""
    network = site.cloud.network.find_network("public", ignore_missing=False)
    router = site.cloud.network.find_router("gate", ignore_missing=False)
    set_gateway(site, router, network, snat=True)
    try:
        yield
    finally:
        set_gateway(site, router, network, snat=False)


@contextmanager
def network_behind(site: LabSite, name: str, config: Mapping[str, str]) -> Iterator[str]:
    """A declared network (LXD) with an external network of the Neutron API as its uplink. Yields its URL."""
    body = {"name": name, "type": "ovn", "config": config}
    made = httpx.post(f"{site.url}/1.0/networks", json=body).raise_for_status()
    yield f"{site.url}{made.headers['location']}"
    network = site.cloud.network.find_network(name, ignore_missing=False)
    for port in site.cloud.network.ports(network_id=network.id, device_owner=""):
        site.cloud.network.delete_port(port)
    httpx.delete(f"{site.url}{made.headers['location']}").raise_for_status()


def chassis_of(url: str) -> str:
    """Chassis with the gateway of the network's router."""
    found: str = httpx.get(f"{url}/state").raise_for_status().json()["metadata"]["ovn"]["chassis"]
    return found


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_vip_is_reached_by_its_own_address_from_outside_and_inside(site: LabSite, protocol: Protocol, version: int):
    """From outside by a route, from its own switch and from another one; then without a member."""
    with site.balancer(f"bay-v{version}", [*MEMBERS], protocol=protocol.value.upper(), version=version) as balancer:
        for client in ("outside", "shore", "hill"):
            ping(site, client, balancer.vip)
            result = ask(site, client, balancer.vip, protocol)
            assert (result.errors, set(result.answers)) == ({}, set(MEMBERS)), client
        for name in MEMBERS:
            site.set_member(balancer, name, is_admin_state_up=False)
        for client in ("outside", "shore", "hill"):
            assert ask(site, client, balancer.vip, protocol, 3).errors == {"refused": 3}, client


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_vip_is_reached_by_its_own_address_through_a_router_with_snat(site: LabSite, protocol: Protocol):
    """Answers to a connection from outside keep the VIP as source address."""
    with translating(site), site.balancer("bay-v4", [*MEMBERS], protocol=protocol.value.upper()) as balancer:
        result = ask(site, "outside", balancer.vip, protocol)
        assert (result.errors, set(result.answers)) == ({}, set(MEMBERS))
        for client in (*MEMBERS, "shore", "hill"):
            ping(site, client, "203.0.113.1")


def test_declared_network_has_nat_for_ipv4_and_ipv6(site: LabSite):
    """The external host has no route to the network, so an answer arrives only if the router translated the request."""
    config = {"network": "public", "ipv4.address": "172.16.0.1/24", "ipv6.address": "fd77::1/64"}
    nat = {"ipv4.nat": "true", "ipv6.nat": "true"}
    with network_behind(site, "cove", config | nat) as url:
        site.machines("cove", {"crab": "chassis2"})
        try:
            for host in ("203.0.113.1", "2001:db8::1"):
                ping(site, "crab", host)
            wait_until(lambda: chassis_of(url).startswith("chassis"), "somebody has the gateway")
        finally:
            site.lab.remove_workload("crab")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_vip_is_reached_by_a_floating_ip_from_outside_and_inside(site: LabSite, protocol: Protocol):
    """It works from the inside too, where the machines' own switch has the address."""
    with (
        translating(site),
        site.balancer("bay-v4", [*MEMBERS], protocol=protocol.value.upper()) as balancer,
        floating_ip(site, vip_port(site, balancer)) as address,
    ):
        for client in ("outside", "shore", "hill"):
            result = ask(site, client, address, protocol)
            assert (result.errors, set(result.answers)) == ({}, set(MEMBERS)), client
        ping(site, "outside", address)
        with site.lab.hold("outside", Traffic(to=address, port=80, protocol=protocol)) as held:
            member = held.exchange("before").split()[0]
            site.set_member(balancer, member, weight=0)
            assert held.exchange("after").split()[0] == member
        for name in MEMBERS:
            site.set_member(balancer, name, is_admin_state_up=False)
        for client in ("outside", "shore", "hill"):
            assert ask(site, client, address, protocol, 3).errors == {"refused": 3}, client


WAYS = [(4, False, "vip"), (4, True, "vip"), (4, False, "floating"), (4, True, "floating"), (6, False, "vip")]
"""IP version, whether the router has SNAT, and the kind of address that external clients use."""


@pytest.mark.parametrize(("version", "snat", "by"), WAYS)
@pytest.mark.extended
def test_external_connections_outlive_drain_disabling_and_removal_of_a_member(
    site: LabSite, version: int, snat: bool, by: str
):
    """The member drains, is disabled, its pool is disabled, and it is removed; new connections go to the others."""
    with ExitStack() as stack:
        if snat:
            stack.enter_context(translating(site))
        balancer = stack.enter_context(site.balancer(f"bay-v{version}", [*MEMBERS], version=version))
        address = balancer.vip
        if by == "floating":
            address = stack.enter_context(floating_ip(site, vip_port(site, balancer)))
        ping(site, "outside", address)
        outside = stack.enter_context(holding(site.lab, "outside", address, 80))
        inside = stack.enter_context(holding(site.lab, "hill", balancer.vip, 80))
        before = {holder: holder.open(24) for holder in (outside, inside)}
        assert all(set(names.values()) == set(MEMBERS) for names in before.values())
        cloud, broken = site.cloud.load_balancer, dict[str, tuple[int, int]]()

        def look(what: str, **left: str) -> None:
            site.settle(balancer.id)
            broken[what] = tuple(
                sum(names[key] != name for key, name in before[holder].items())
                for holder in (outside, inside)
                for names in [holder.exchange_all()]
            )
            if left:
                assert set(ask(site, "outside", address).answers) == {left["name"]}

        site.set_member(balancer, "b1", weight=0)
        look("drained", name="b2")
        site.set_member(balancer, "b1", weight=1, is_admin_state_up=False)
        look("disabled", name="b2")
        cloud.update_pool(balancer.pool, admin_state_up=False)
        look("pool disabled")
        cloud.update_pool(balancer.pool, admin_state_up=True)
        cloud.delete_member(site.member(balancer, "b1"), balancer.pool)
        look("removed", name="b2")
        print(f"IPv{version}, snat {snat}, by {by}: broken of 24 outside, inside: {broken}")
        assert set(broken.values()) == {(0, 0)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_external_connections_are_counted_once(site: LabSite, protocol: Protocol):
    """Each connection is counted once, on the gateway's chassis, by the VIP's own address and by a floating IP."""
    with (
        site.counting(),
        site.balancer("bay-v4", [*MEMBERS], protocol=protocol.value.upper()) as balancer,
        floating_ip(site, vip_port(site, balancer)) as address,
    ):
        for client in ("outside", "shore"):
            for to in (balancer.vip, address):
                assert ask(site, client, to, protocol, 10).errors == {}
        figures = site.cloud.load_balancer.get_load_balancer_statistics
        wait_equal(lambda: figures(balancer.id).total_connections, 40)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_bytes_of_floating_ip_connections_are_counted(site: LabSite, protocol: Protocol):
    """Sent and received bytes are counted on the switch of the external network."""
    with (
        site.counting(),
        site.balancer("bay-v4", [*MEMBERS], protocol=protocol.value.upper()) as balancer,
        floating_ip(site, vip_port(site, balancer)) as address,
    ):
        sent = Traffic(to=address, port=80, protocol=protocol, count=10, concurrency=5, timeout=30, size=1000)
        assert site.lab.traffic("outside", sent).errors == {}
        find = site.cloud.load_balancer.get_load_balancer_statistics

        def is_counted() -> bool:
            found = find(balancer.id)
            return all(10_000 < each < 20_000 for each in (found.bytes_in, found.bytes_out))

        wait_until(is_counted, f"they are counted; {find(balancer.id)}")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_floating_ip_reaches_the_machine_of_its_associated_port(site: LabSite, protocol: Protocol):
    ports = {name: site.cloud.network.find_port(name, ignore_missing=False).id for name in MEMBERS}
    target = {"port": 8080, "protocol": protocol, "count": 3, "timeout": 2}
    with translating(site), floating_ip(site, ports["b2"]) as address:
        for client in ("outside", "shore", "hill"):
            result = site.lab.traffic(client, Traffic(to=address, **target))
            assert (result.errors, set(result.answers)) == ({}, {"b2"}), client
            ping(site, client, address)
        [made] = site.cloud.network.ips(floating_ip_address=address)
        site.cloud.network.update_ip(made, port_id=ports["b1"])
        site.await_applied()
        assert set(site.lab.traffic("outside", Traffic(to=address, **target)).answers) == {"b1"}
        site.cloud.network.update_ip(made, port_id=None)
        site.await_applied()
        assert site.lab.traffic("outside", Traffic(to=address, **target)).answers == {}


@pytest.mark.parametrize("version", [4, 6])
def test_allowed_cidrs_apply_to_external_clients(site: LabSite, version: int):
    """It applies to the VIP's own address and its floating IP; internal clients are allowed by their own addresses."""
    one = {4: "203.0.113.1/32", 6: "2001:db8::1/128"}[version]
    with site.balancer(f"bay-v{version}", [*MEMBERS], version=version) as balancer:
        addresses = [balancer.vip]
        with floating_ip(site, vip_port(site, balancer)) if version == 4 else nowhere() as address:
            addresses += [address] if address else []
            allow(site, balancer, OTHER[version])
            for to in addresses:
                for client in ("outside", "shore", "hill"):
                    assert is_shut(site, client, to), (client, to)
            allow(site, balancer, one)
            for to in addresses:
                assert ask(site, "outside", to).errors == {}
                assert is_shut(site, "hill", to)
            allow(site, balancer, {4: "10.0.1.0/24", 6: "fd00:b::/64"}[version])
            for to in addresses:
                assert ask(site, "hill", to).errors == {}
                assert is_shut(site, "outside", to)


@pytest.mark.parametrize("version", [4, 6])
def test_gateway_answers_oversized_external_packets_with_an_icmp_error(site: LabSite, version: int):
    """Internal networks have an MTU of 1,442, the external one of 1,500, so the gateway sends an ICMP error."""
    with site.balancer(f"bay-v{version}", ["b2"], protocol="UDP", version=version) as balancer:
        for to in (site.address("b2", version), balancer.vip):
            question = f"ping -{version} -M do -s 1440 -c2 -i0.2 -w30 {to} 2>&1 || true"
            told = site.lab.exec("outside", ["sh", "-c", question])
            assert re.search("mtu ?= ?1442", told), told


CALL = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[2] else socket.AF_INET
for source in sys.argv[3:]:
    with socket.socket(family) as client:
        client.settimeout(10)  # the gateway learns the MAC of each address, and may lose what came before
        client.bind((source, 0))
        client.connect((sys.argv[2], int(sys.argv[1])))
        client.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n")
        print(client.makefile().read().split()[-1])
"""


@pytest.mark.parametrize("version", [4, 6])
def test_persistence_keeps_external_clients_on_their_member(site: LabSite, version: int):
    """Affinity is by source address.

    Over IPv6 OVN has no field for it and uses the MAC, so clients behind a router are one.
    """
    base = {4: "203.0.113.{}", 6: "2001:db8::{}"}[version]
    clients = [base.format(number) for number in range(101, 113)]
    for client in clients:
        site.lab.exec("outside", ["ip", "address", "add", client, "dev", "eth0"])
    with site.balancer(
        f"bay-v{version}", [*MEMBERS], version=version, session_persistence={"type": "SOURCE_IP"}
    ) as balancer:
        first, again = (
            site.lab.exec("outside", [sys.executable, "-c", CALL, "80", balancer.vip, *clients]).split()
            for _ in range(2)
        )
        assert len(first) == len(clients)
        assert first == again
        schema = site.lab.exec("central", ["ovsdb-client", "get-schema", site.lab.layout.northbound, "OVN_Northbound"])
        assert len(set(first)) == (2 if version == 4 or "ipv6_src" in schema else 1)
    for client in clients:
        site.lab.exec("outside", ["ip", "address", "delete", f"{client}/{32 if version == 4 else 128}", "dev", "eth0"])


@contextmanager
def nowhere() -> Iterator[str]:
    yield ""


def allow(site: LabSite, balancer: CreatedBalancer, *cidrs: str) -> None:
    site.cloud.load_balancer.update_listener(balancer.listener, allowed_cidrs=list(cidrs))
    site.settle(balancer.id)


def test_vip_is_reached_by_a_floating_ip_on_a_vlan_network(site: LabSite):
    """The physical network carries VLAN 100 only during this test, with the external host on an access port."""
    wire = {"provider_network_type": "vlan", "provider_physical_network": "physnet", "provider_segmentation_id": 100}
    public = site.network("tagged", "198.51.100.0/24", is_router_external=True, **wire)
    site.network("harbour", "10.9.0.0/24")
    router = site.router("tagged-gate", "harbour-v4")
    site.cloud.network.update_router(router, external_gateway_info={"network_id": public.id})
    site.machines("harbour", {"b3": "chassis1"}, serve=[8080])
    with site.balancer("harbour-v4", ["b3"]) as balancer, access_port(site, 100, "198.51.100.1/24"):
        made = site.cloud.network.create_ip(floating_network_id=public.id, port_id=vip_port(site, balancer))
        site.await_applied()
        ping(site, "outside", made.floating_ip_address)
        assert ask(site, "outside", made.floating_ip_address).answers == {"b3": 20}
        site.cloud.network.delete_ip(made)
    site.lab.remove_workload("b3")


@contextmanager
def access_port(site: LabSite, tag: int, address: str) -> Iterator[None]:
    """Put the external host's port into this VLAN."""
    chassis = [node.name for node in site.lab.record.chassis]
    for name in chassis:
        site.lab.exec(name, ["ovs-vsctl", "set", "Port", EXTERNAL_UPLINK, f"tag={tag}"])
    site.lab.exec("outside", ["ip", "address", "add", address, "dev", "eth0"])
    try:
        yield
    finally:
        site.lab.exec("outside", ["ip", "address", "delete", address, "dev", "eth0"])
        for name in chassis:
            site.lab.exec(name, ["ovs-vsctl", "clear", "Port", EXTERNAL_UPLINK, "tag"])
