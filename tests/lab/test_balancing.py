"""End to end: a load balancer made through the API balances real connections in a real OVN."""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import pytest

from fairlead.lab import Lab, LabError, Protocol, Traffic, TrafficResult
from harness.lab.members import retransmitted_segments
from harness.lab.site import CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MEMBERS = [f"m{number}" for number in range(10)]
CLIENTS = ("near1", "near2", "far1", "far2")
PROTOCOLS = [Protocol.TCP, Protocol.UDP]
CHI_SQUARE_9 = 33.7
"""Nine degrees of freedom; the probability of a larger value is 1 in 10,000."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Dual-stack networks: blue and green joined by a router, and lonely without one.

    Ten members on blue, clients on all.
    """
    site = open_site(lab)
    site.network("blue", "10.0.0.0/24", "fd00:a::/64")
    site.network("green", "10.0.1.0/24", "fd00:b::/64")
    site.network("lonely", "10.9.0.0/24", "fd00:c::/64")
    site.router("r1", "blue-v4", "blue-v6", "green-v4", "green-v6")
    site.machines("blue", {name: f"chassis{1 + place % 2}" for place, name in enumerate(MEMBERS)}, serve=[8080])
    site.machines("blue", {"near1": "chassis1", "near2": "chassis2"})
    site.machines("green", {"far1": "chassis1", "far2": "chassis2"})
    site.machines("lonely", {"alone1": "chassis1"}, serve=[8080])
    site.machines("lonely", {"alone2": "chassis2"})
    yield site
    for name in (*MEMBERS, *CLIENTS, "alone1", "alone2"):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    site.close()


def ask(site: LabSite, client: str, balancer: CreatedBalancer, count: int = 40, **more: object) -> TrafficResult:
    words = {"count": count, "concurrency": 8, "timeout": 30, **more}
    return site.lab.traffic(client, Traffic(to=balancer.vip, port=80, **words))  # type: ignore[arg-type]


def check_all_answered(result: TrafficResult, members: list[str]) -> None:
    assert (result.errors, set(result.answers)) == ({}, set(members))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_every_client_is_answered_by_every_member(site: LabSite, protocol: Protocol, version: int):
    """Clients are on the same switch, on another one across the router, and on each chassis."""
    members = MEMBERS[:2]
    with site.balancer(f"blue-v{version}", members, protocol=protocol.value.upper(), version=version) as balancer:
        for client in CLIENTS:
            check_all_answered(ask(site, client, balancer, protocol=protocol), members)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_vip_on_another_network_than_its_members_is_served(site: LabSite, protocol: Protocol, version: int):
    members = MEMBERS[:2]
    with site.balancer(f"green-v{version}", members, protocol=protocol.value.upper(), version=version) as balancer:
        for client in CLIENTS:
            check_all_answered(ask(site, client, balancer, protocol=protocol), members)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_vip_is_served_on_a_network_without_a_router(site: LabSite, protocol: Protocol, version: int):
    with site.balancer(f"lonely-v{version}", ["alone1"], protocol=protocol.value.upper(), version=version) as balancer:
        check_all_answered(ask(site, "alone2", balancer, protocol=protocol), ["alone1"])
        ping(site, "alone2", balancer.vip)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_member_reaches_itself_through_its_own_vip(site: LabSite, protocol: Protocol, version: int):
    with site.balancer("blue-v" + str(version), ["m0"], protocol=protocol.value.upper(), version=version) as balancer:
        check_all_answered(ask(site, "m0", balancer, protocol=protocol), ["m0"])


def test_connections_follow_member_weights_of_3_to_1(site: LabSite):
    with site.balancer("blue-v4", ["m0", "m1"], weights={"m0": 3}) as balancer:
        result = ask(site, "near1", balancer, 400)
        assert result.errors == {}
        assert 300 * 0.9 <= result.answers["m0"] <= 300 * 1.1


@pytest.mark.extended
def test_ten_equal_members_have_even_slots_and_even_connections(site: LabSite):
    with site.balancer("blue-v4", MEMBERS) as balancer:
        backends = site.lab.exec("central", ["ovn-nbctl", "get", "Load_Balancer", f"{balancer.id}-tcp", "vips"])
        slots = Counter(re.findall(r"(10\.0\.0\.\d+):8080", backends))
        assert max(slots.values()) - min(slots.values()) <= 1
        count = 4000
        result = ask(site, "near1", balancer, count)
        assert result.errors == {}
        addresses = {site.address(name): name for name in MEMBERS}
        due = {addresses[address]: count * slot / slots.total() for address, slot in slots.items()}
        assert sum((result.answers[name] - due[name]) ** 2 / due[name] for name in MEMBERS) < CHI_SQUARE_9


@pytest.mark.extended
def test_deleting_one_of_ten_members_moves_no_key_of_the_others(site: LabSite):
    with site.balancer("blue-v4", MEMBERS) as balancer:
        before = ask(site, "near1", balancer, 1500, source_port_from=20_000)
        site.cloud.load_balancer.delete_member(site.member(balancer, "m3"), balancer.pool)
        site.settle(balancer.id)
        after = ask(site, "near1", balancer, 1500, source_port_from=20_000)
        assert (before.errors, after.errors) == ({}, {})
        assert "m3" not in after.answers
        moved = [port for port, name in before.keys.items() if name != "m3" and after.keys[port] != name]
        assert moved == []


def test_keys_move_only_to_an_added_member(site: LabSite):
    """Two members have a table of two buckets, three a table of 32, which is equivalent to the shorter one."""
    with site.balancer("blue-v4", ["m0", "m1"]) as balancer:
        before = ask(site, "near1", balancer, 1000, source_port_from=30_000)
        site.cloud.load_balancer.create_member(balancer.pool, name="m2", address=site.address("m2"), protocol_port=8080)
        site.settle(balancer.id)
        after = ask(site, "near1", balancer, 1000, source_port_from=30_000)
        assert (before.errors, after.errors) == ({}, {})
        moved = {after.keys[port] for port, name in before.keys.items() if after.keys[port] != name}
        assert moved == {"m2"}


@pytest.mark.parametrize("off", [{"weight": 0}, {"is_admin_state_up": False}])
def test_draining_or_disabled_member_keeps_connections_and_gets_no_new_ones(site: LabSite, off: dict[str, object]):
    with (
        site.balancer("blue-v4", ["m0", "m1"]) as balancer,
        site.lab.hold("near2", Traffic(to=balancer.vip, port=80)) as held,
    ):
        name = held.exchange("before").split()[0]
        other = {"m0": "m1", "m1": "m0"}[name]
        site.set_member(balancer, name, **off)
        check_all_answered(ask(site, "near1", balancer, 200), [other])
        check_all_answered(ask(site, "near2", balancer, 200), [other])
        assert held.exchange("after").split() == [name, "after"]


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_source_ip_persistence_keeps_a_client_on_one_member(site: LabSite, protocol: Protocol, version: int):
    """A client keeps its member from the first connection on, on all ports; added members take only their share."""
    persistence: dict[str, object] = {"type": "SOURCE_IP"}
    if protocol is Protocol.UDP:
        persistence["persistence_timeout"] = 60
    with site.balancer(
        f"blue-v{version}",
        MEMBERS[:4],
        protocol=protocol.value.upper(),
        version=version,
        session_persistence=persistence,
    ) as balancer:
        for client in CLIENTS:
            result = ask(site, client, balancer, 60, protocol=protocol)
            assert (result.errors, list(result.answers.values())) == ({}, [60])


@pytest.mark.parametrize("version", [4, 6])
def test_the_source_ip_algorithm_sends_a_client_to_one_member(site: LabSite, version: int):
    with site.balancer(f"blue-v{version}", MEMBERS, version=version, lb_algorithm="SOURCE_IP") as balancer:
        chosen = {}
        for client in (*CLIENTS, *MEMBERS):
            result = ask(site, client, balancer, 20)
            assert (result.errors, len(result.answers)) == ({}, 1)
            chosen[client] = next(iter(result.answers))
        assert len(set(chosen.values())) > 3, "many clients do not all go to one member"


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_first_segment_to_a_vip_without_members_is_refused(site: LabSite, protocol: Protocol, version: int):
    with site.balancer(f"blue-v{version}", [], protocol=protocol.value.upper(), version=version) as balancer:
        for client in ("near1", "far2"):
            assert ask(site, client, balancer, 4, protocol=protocol).errors == {"refused": 4}
            wait_until(partial(refused_by_the_first_segment, site, client, balancer, protocol))


def refused_by_the_first_segment(site: LabSite, client: str, balancer: CreatedBalancer, protocol: Protocol) -> bool:
    """Whether the first segment of each connection is refused.

    A slow machine may take more than a second, after which a SYN is sent again (RFC 6298, section 2).
    """
    before = retransmitted_segments(site, client)
    assert ask(site, client, balancer, 4, protocol=protocol).errors == {"refused": 4}
    return retransmitted_segments(site, client) == before


def test_connection_to_a_port_without_a_listener_is_refused(site: LabSite):
    with site.balancer("blue-v4", ["m0"]) as balancer:
        for client in ("near1", "far2"):
            result = site.lab.traffic(client, Traffic(to=balancer.vip, port=81, count=2))
            assert result.errors == {"refused": 2}


@pytest.mark.parametrize("version", [4, 6])
def test_the_vip_answers_ping(site: LabSite, version: int):
    with site.balancer(f"blue-v{version}", ["m0"], version=version) as balancer:
        for client in CLIENTS:
            ping(site, client, balancer.vip)


def test_network_reaches_the_vip_only_while_its_router_interface_exists(site: LabSite):
    """A network joins the domain of an existing VIP, is served, and leaves again."""
    site.network("late", "10.0.2.0/24")
    site.machines("late", {"late1": "chassis2"})
    router = site.cloud.network.find_router("r1")
    with site.balancer("blue-v4", ["m0", "m1"]) as balancer:
        assert ask(site, "late1", balancer, 1, timeout=0.5).answers == {}
        site.add_interface(router, "late-v4")
        site.lab.wait_synced()
        check_all_answered(ask(site, "late1", balancer), ["m0", "m1"])
        site.remove_interface(router, "late-v4")
        site.lab.wait_synced()
        assert ask(site, "late1", balancer, 1, timeout=0.5).answers == {}
        check_all_answered(ask(site, "near1", balancer), ["m0", "m1"])
    site.lab.remove_workload("late1")
    site.cloud.network.delete_port(site.cloud.network.find_port("late1"))
    site.cloud.network.delete_network(site.cloud.network.find_network("late"))


def test_deleting_every_object_leaves_no_ovn_row(site: LabSite):
    site.lab.wait_synced()
    before = site.our_rows()
    network = site.network("brief", "10.0.3.0/24", "fd00:d::/64")
    router = site.router("r9", "brief-v4", "brief-v6")
    port = site.cloud.network.create_port(name="p", network_id=network.id)
    made = [
        site.cloud.load_balancer.create_load_balancer(name="x", vip_subnet_id=site.subnet(subnet).id)
        for subnet in ("brief-v4", "brief-v6")
    ]
    for balancer in made:
        site.settle(balancer.id)
    assert len(site.our_rows()) > len(before)
    for balancer in made:
        site.cloud.load_balancer.delete_load_balancer(balancer.id, cascade=True)
    for subnet in ("brief-v4", "brief-v6"):
        site.remove_interface(router, subnet)
    site.cloud.network.delete_router(router)
    site.cloud.network.delete_port(port)
    site.cloud.network.delete_network(network)
    wait_equal(site.our_rows, before)


def ping(site: LabSite, client: str, address: str) -> None:
    """Ping the address. The first request may be lost, because there is no neighbour entry yet."""
    with suppress(LabError):
        site.lab.exec(client, ["ping", "-c", "1", "-W", "1", address])
    site.lab.exec(client, ["ping", "-c", "3", "-i", "0.2", "-W", "30", address])
