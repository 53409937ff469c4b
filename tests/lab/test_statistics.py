"""End to end: counters of load balancers and listeners, with real connections and an agent on each node."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from openstack.exceptions import HttpException

from fairlead.lab import Lab, Protocol, Traffic, agents
from fairlead.lab.server import ServerProcess, start, stop
from harness.lab.site import ACTIVE_TIMEOUT, PORT, CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

PROTOCOLS = [Protocol.TCP, Protocol.UDP]
COUNTED = {"FAIRLEAD_OVN_COUNT_REPLY_BYTES": "yes"}
FIELDS = ("active_connections", "bytes_in", "bytes_out", "request_errors", "total_connections")


@pytest.fixture(scope="module")
def restarted() -> Iterator[list[ServerProcess]]:
    """Servers that replace the first one. At the end the processes of all of them have exited."""
    servers: list[ServerProcess] = []
    yield servers
    for server in servers:
        assert server.process is not None
        server.process.wait(timeout=ACTIVE_TIMEOUT)


@pytest.fixture(scope="module")
def bare(lab: Lab, restarted: list[ServerProcess]) -> Iterator[LabSite]:
    """Members and `near` on ochre, `far` on mauve across a router."""
    site = open_site(lab, **COUNTED)
    site.network("ochre", "10.0.0.0/24", "fd00:a::/64")
    site.network("mauve", "10.0.1.0/24", "fd00:b::/64")
    site.router("tally", "ochre-v4", "ochre-v6", "mauve-v4", "mauve-v6")
    site.machines("ochre", {"o1": "chassis1", "o2": "chassis2"}, serve=[PORT])
    site.machines("ochre", {"close": "chassis1"})
    site.machines("mauve", {"afar": "chassis2"})
    yield site
    for name in ("o1", "o2", "close", "afar"):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module")
def nodes(bare: LabSite) -> Iterator[dict[str, agents.LabAgent]]:
    """An agent on each chassis."""
    with bare.counting() as agents_:
        yield agents_


@pytest.fixture(scope="module")
def site(bare: LabSite, nodes: dict[str, agents.LabAgent]) -> LabSite:
    return bare


def figures(site: LabSite, balancer_id: str) -> Mapping[str, int]:
    found = site.cloud.load_balancer.get_load_balancer_statistics(balancer_id)
    return {name: found[name] for name in FIELDS}


def listener_figures(site: LabSite, listener_id: str) -> Mapping[str, int]:
    found = site.cloud.load_balancer.get_listener_statistics(listener_id)
    return {name: found[name] for name in FIELDS}


def expect(site: LabSite, balancer: CreatedBalancer, **wanted: int) -> None:
    """Wait for these counters: a node reports every second, and the switch updates its statistics after it forwards."""

    def is_there() -> bool:
        found = figures(site, balancer.id)
        return all(found[name] == value for name, value in wanted.items())

    wait_until(is_there, f"{wanted}; found {figures(site, balancer.id)}")


def ask(site: LabSite, client: str, to: str, protocol: Protocol = Protocol.TCP, **more: Any) -> None:
    traffic = {"to": to, "port": 80, "protocol": protocol, "count": 20, "concurrency": 5, **more}
    result = site.lab.traffic(client, Traffic(**traffic))
    assert result.errors == {}


def test_statistics_without_an_agent_return_501(bare: LabSite):
    with bare.balancer("ochre-v4", ["o1"]) as balancer:
        for find in (figures, listener_figures):
            with pytest.raises(HttpException, match="no compute node reports counters") as refused:
                find(bare, balancer.id if find is figures else balancer.listener)
            assert refused.value.status_code == 501


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_every_connection_is_counted_once(site: LabSite, protocol: Protocol, version: int):
    """Clients are on both nodes, on the same switch and across a router."""
    members, kind = ["o1", "o2"], protocol.value.upper()
    with site.balancer(f"ochre-v{version}", members, protocol=kind, version=version) as balancer:
        expect(site, balancer, total_connections=0, bytes_in=0, active_connections=0, request_errors=0)
        for client in ("close", "afar"):
            ask(site, client, balancer.vip, protocol, size=1000)
        expect(site, balancer, total_connections=40, request_errors=0)
        assert 40 * 1000 < figures(site, balancer.id)["bytes_in"] < 40 * 2000
        assert figures(site, balancer.id) == listener_figures(site, balancer.listener)


def received(site: LabSite, *clients: str) -> int:
    """Bytes of the frames received by these clients."""
    said = (site.lab.exec(each, ["cat", "/sys/class/net/eth0/statistics/rx_bytes"]) for each in clients)
    return sum(map(int, said))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("version", [4, 6])
def test_bytes_sent_to_clients_are_counted(site: LabSite, protocol: Protocol, version: int):
    """Answers are counted on each client's switch and on both nodes, and other traffic of members is not.

    Counters continue after a restart of the agent and a change of the pool's flows.
    """
    clients, kind = ("close", "afar"), protocol.value.upper()
    with site.balancer(f"ochre-v{version}", ["o1", "o2"], protocol=kind, version=version) as balancer:
        expect(site, balancer, bytes_out=0)
        counted = 0
        for weight in (1, 3):
            before = received(site, *clients)
            for client in clients:
                ask(site, client, balancer.vip, protocol, size=1000)
            got = received(site, *clients) - before
            asked = site.address("o1", version)
            site.lab.traffic("close", Traffic(to=asked, port=PORT, protocol=protocol, count=20, size=1000))

            def is_there(least: float = counted + 0.9 * got, most: float = counted + 1.02 * got) -> bool:
                return least < figures(site, balancer.id)["bytes_out"] < most

            wait_until(is_there, f"{got} bytes after {counted}; found {figures(site, balancer.id)} at first")
            counted = figures(site, balancer.id)["bytes_out"]
            assert counted == listener_figures(site, balancer.listener)["bytes_out"]
            site.set_member(balancer, "o2", weight=weight)


def test_connections_with_chassis_locality_are_counted(site: LabSite):
    """With the option near, the switches' flows differ by chassis."""
    with site.balancer("ochre-v4", ["o1", "o2"], locality="CHASSIS") as balancer:
        expect(site, balancer, total_connections=0, bytes_in=0, active_connections=0, request_errors=0)
        for client in ("close", "afar"):
            ask(site, client, balancer.vip, size=1000)
        expect(site, balancer, total_connections=40, request_errors=0)
        assert 40 * 1000 < figures(site, balancer.id)["bytes_in"] < 40 * 2000


def test_active_connections_are_counted_while_open(site: LabSite):
    with site.balancer("ochre-v4", ["o1", "o2"]) as balancer:
        traffic = Traffic(to=balancer.vip, port=80)
        with site.lab.hold("close", traffic) as one, site.lab.hold("afar", traffic) as other:
            assert one.exchange("hello")
            assert other.exchange("hello")
            expect(site, balancer, active_connections=2, total_connections=2)
        expect(site, balancer, active_connections=0, total_connections=2)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_refused_connections_are_counted_as_request_errors(site: LabSite, protocol: Protocol):
    with site.balancer("ochre-v4", ["o1"], protocol=protocol.value.upper()) as balancer:
        ask(site, "close", balancer.vip, protocol, count=5)
        expect(site, balancer, total_connections=5, request_errors=0)
        site.set_member(balancer, "o1", is_admin_state_up=False)
        refused = Traffic(to=balancer.vip, port=80, protocol=protocol, count=7, timeout=2)
        assert site.lab.traffic("close", refused).answers == {}
        expect(site, balancer, request_errors=7)
        site.set_member(balancer, "o1", is_admin_state_up=True)
        ask(site, "close", balancer.vip, protocol, count=5)
        expect(site, balancer, total_connections=10, request_errors=7)


def test_counters_survive_member_changes(site: LabSite):
    """OVN replaces the flows with the counters."""
    with site.balancer("ochre-v4", ["o1", "o2"]) as balancer:
        for round_ in (1, 2, 3):
            ask(site, "close", balancer.vip)
            expect(site, balancer, total_connections=20 * round_)
            site.set_member(balancer, "o2", weight=1 + round_)


def test_load_balancer_counters_are_the_sum_of_listener_counters(site: LabSite):
    with site.balancer("ochre-v4", ["o1", "o2"]) as balancer:
        second = site.cloud.load_balancer.create_listener(
            name="second",
            load_balancer_id=balancer.id,
            protocol="TCP",
            protocol_port=81,
            default_pool_id=balancer.pool,
        )
        site.settle(balancer.id)
        ask(site, "close", balancer.vip)
        ask(site, "close", balancer.vip, port=81, count=7)
        expect(site, balancer, total_connections=27)
        assert listener_figures(site, balancer.listener)["total_connections"] == 20
        assert listener_figures(site, second.id)["total_connections"] == 7


def test_counters_of_a_recreated_listener_start_at_zero(site: LabSite):
    with site.balancer("ochre-v4", ["o1"]) as balancer:
        ask(site, "close", balancer.vip)
        expect(site, balancer, total_connections=20)
        site.cloud.load_balancer.delete_listener(balancer.listener)
        site.settle(balancer.id)
        site.cloud.load_balancer.create_listener(
            load_balancer_id=balancer.id, protocol="TCP", protocol_port=80, default_pool_id=balancer.pool
        )
        site.settle(balancer.id)
        ask(site, "close", balancer.vip, count=3)
        expect(site, balancer, total_connections=3)


def test_identical_vips_of_two_tenants_are_counted_separately(site: LabSite):
    made = {}
    for name, machine in (("twin1", "t1"), ("twin2", "t2")):
        site.network(name, "10.9.0.0/24")
        site.machines(name, {machine: "chassis1"}, serve=[PORT])
        pool: dict[str, Any] = {"name": name, "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT"}
        pool["members"] = [{"address": site.address(machine), "protocol_port": PORT}]
        made[name] = site.cloud.load_balancer.create_load_balancer(
            name=name,
            vip_subnet_id=site.subnet(f"{name}-v4").id,
            vip_address="10.9.0.99",
            listeners=[{"protocol": "TCP", "protocol_port": 80, "default_pool": pool}],
        )
        site.machines(name, {f"{machine}client": "chassis2"})
    try:
        for balancer in made.values():
            site.settle(balancer.id)
        for machine, count in (("t1client", 11), ("t2client", 4)):
            ask(site, machine, "10.9.0.99", count=count)

        def totals() -> list[int]:
            return [figures(site, each.id)["total_connections"] for each in made.values()]

        wait_equal(totals, [11, 4])
    finally:
        for balancer in made.values():
            site.cloud.load_balancer.delete_load_balancer(balancer.id, cascade=True)
        for machine in ("t1", "t2"):
            site.lab.remove_workload(machine)
            site.lab.remove_workload(f"{machine}client")


def test_counters_survive_agent_kills_and_a_server_restart(
    site: LabSite, nodes: dict[str, agents.LabAgent], restarted: list[ServerProcess]
):
    layout = site.lab.layout
    with site.balancer("ochre-v4", ["o1", "o2"]) as balancer:
        for client in ("close", "afar"):
            ask(site, client, balancer.vip)
        expect(site, balancer, total_connections=40)
        for chassis, client in (("chassis1", "close"), ("chassis2", "afar")):
            nodes[chassis].process.kill()
            nodes[chassis].process.wait()
            ask(site, client, balancer.vip, count=5)
            nodes[chassis] = agents.start_one(layout, site.url, chassis)
        expect(site, balancer, total_connections=50)
        stop(layout, site.service)
        ask(site, "afar", balancer.vip, count=5)
        restarted.append(start(layout, site.url.removeprefix("http://"), COUNTED))
        wait_until(lambda: _answers(site, balancer), "nodes tell again")
        expect(site, balancer, total_connections=55)


def _answers(site: LabSite, balancer: CreatedBalancer) -> bool:
    try:
        return figures(site, balancer.id)["total_connections"] > 0
    except HttpException:
        return False
