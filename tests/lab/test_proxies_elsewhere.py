"""End to end: proxies for VIPs on another project's network, on a gateway and behind a floating IP.

The tenants have identical addresses. One test measures the effect of a failed proxy on the clients of its node.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest

from fairlead.drivers.haproxy.process import start_time_of
from fairlead.lab import Lab, agents
from fairlead.lab.errors import LabCommandFailed
from fairlead.lab.port_workloads import Placement, workload_of_port
from harness.lab.periodic_connections import ConnectionResult, periodic_connections
from harness.lab.proxied import OPTIONS, get
from harness.lab.site import CreatedBalancer, LabSite, open_site, remove_gateways
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab]

TENANTS = {"dora": "chassis1", "egon": "chassis2"}
"""Tenants, each with a machine on this node. Their networks and machines have the same addresses."""
HOSTS = {"web": 50, "client": 51}
GUESTS = {"gus": "chassis1", "hugo": "chassis2"}


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """The shared network market, and for each tenant a network and a router on it, on market and outside."""
    site = open_site(lab, **OPTIONS)
    public = site.outside()
    site.network("market", "10.6.0.0/24", "fd00:6::/64", is_shared=True, project_id="town")
    for tenant, chassis in TENANTS.items():
        site.network(tenant, "10.0.0.0/24", "fd00:a::/64", project_id=tenant)
        router = site.cloud.network.create_router(
            name=tenant, project_id=tenant, external_gateway_info={"network_id": public.id, "enable_snat": False}
        )
        for version in (4, 6):
            site.add_interface(router, f"{tenant}-v{version}")
        door = site.cloud.network.create_port(network_id=network_id(site, "market"), name=f"{tenant}-door")
        site.cloud.network.add_interface_to_router(router, port_id=door.id)
        machine(site, tenant, f"{tenant}-web", chassis, HOSTS["web"])
        machine(site, tenant, f"{tenant}-client", "chassis2", HOSTS["client"])
    for guest, chassis in GUESTS.items():
        machine(site, "market", guest, chassis, 70 + list(GUESTS).index(guest), project="carol")
    names = [*GUESTS, *(f"{tenant}-{kind}" for tenant in TENANTS for kind in HOSTS)]
    site.lab.wait_bound(*names)
    site.lab.wait_synced()
    yield site
    for name in names:
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    remove_gateways(site.cloud)
    site.close()


@pytest.fixture(scope="module", autouse=True)
def nodes(site: LabSite) -> Iterator[dict[str, agents.LabAgent]]:
    started = {agent.chassis: agent for agent in agents.start(site.lab.layout, site.url)}
    yield started
    for agent in started.values():
        agent.stop()


def network_id(site: LabSite, name: str) -> str:
    found: str = site.cloud.network.find_network(name, ignore_missing=False).id
    return found


def machine(site: LabSite, network: str, name: str, chassis: str, host: int, project: str = "") -> None:
    """A machine that serves port 8080."""
    subnets = site.cloud.network.subnets(network_id=network_id(site, network))
    fixed = [
        {"subnet_id": subnet.id, "ip_address": str(subnet.cidr).split("0/24")[0].split("/64")[0] + str(host)}
        for subnet in subnets
    ]
    port = site.cloud.network.create_port(
        name=name, network_id=network_id(site, network), fixed_ips=fixed, project_id=project or network
    )
    site.lab.add_workload(workload_of_port(site.url, port.id, Placement(name=name, chassis=chassis, serve=(8080,))))


@contextmanager
def led(
    site: LabSite, tenant: str, subnet: str, version: int, at: str | None = None, **listener: Any
) -> Iterator[CreatedBalancer]:
    """A load balancer of the tenant, with a VIP on this subnet and the tenant's only machine as member."""
    asked = {"protocol": "HTTP", **listener}
    pool = {"name": "pool", "protocol": asked["protocol"], "lb_algorithm": "ROUND_ROBIN"}
    member = {"address": site.address(f"{tenant}-web", version), "protocol_port": 8080}
    made = site.cloud.load_balancer.create_load_balancer(
        project_id=tenant,
        vip_subnet_id=site.subnet(subnet).id,
        **({} if at is None else {"vip_address": at}),
        listeners=[{"protocol_port": 80, "default_pool": {"name": "pool"}, **asked}],
        pools=[{**pool, "members": [member]}],
    )
    try:
        site.settle(made.id)
        yield CreatedBalancer(
            id=made.id, vip=made.vip_address, pool=made.pools[0]["id"], listener=made.listeners[0]["id"]
        )
    finally:
        site.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)


def answer(site: LabSite, client: str, vip: str) -> str:
    """Name of the member or a status code; empty without a response."""
    with suppress(LabCommandFailed):
        code, who = get(site, client, vip)
        return who if code == "200" else code
    return ""


def served(site: LabSite, wanted: Mapping[tuple[str, str], str]) -> None:
    """Wait until each client of each VIP is answered by this machine, and then always by it."""
    wait_until(lambda: all(answer(site, *each) == who for each, who in wanted.items()), f"{wanted} come true")
    for each, who in wanted.items():
        assert Counter(answer(site, *each) for _ in range(6)) == {who: 6}, each


@pytest.mark.parametrize("version", [4, 6])
def test_tenants_on_a_shared_network_have_separate_proxies(site: LabSite, version: int):
    """Both have a member with the same address. Clients are on the network, or behind the tenant's router."""
    with ExitStack() as stack:
        found = {each: stack.enter_context(led(site, each, f"market-v{version}", version)) for each in TENANTS}
        wanted = {(client, each.vip): f"{tenant}-web" for tenant, each in found.items() for client in GUESTS}
        wanted |= {(f"{tenant}-client", each.vip): f"{tenant}-web" for tenant, each in found.items()}
        served(site, wanted)
        ports = list(site.cloud.network.ports(network_id=network_id(site, "market"), device_owner=PROXY))
        nodes = {(port.project_id, port.binding_host_id) for port in ports}
        assert nodes == {(tenant, chassis) for tenant in TENANTS for chassis in ("chassis1", "chassis2")}


PROXY = "network:load_balancer_proxy"


@pytest.mark.parametrize("version", [4, 6])
def test_tenants_with_identical_addresses_may_have_identical_vips(site: LabSite, version: int):
    with ExitStack() as stack:
        vip = {4: "10.0.0.200", 6: "fd00:a::c8"}[version]
        found = {each: stack.enter_context(led(site, each, f"{each}-v{version}", version, vip)) for each in TENANTS}
        assert {each.vip for each in found.values()} == {vip}
        served(site, {(f"{tenant}-client", each.vip): f"{tenant}-web" for tenant, each in found.items()})


@pytest.mark.parametrize("version", [4, 6])
def test_external_clients_reach_proxies_through_the_gateway(site: LabSite, version: int):
    """Each tenant has a VIP on the external network, and the same addresses behind it."""
    with ExitStack() as stack:
        found = {each: stack.enter_context(led(site, each, f"public-v{version}", version)) for each in TENANTS}
        wanted = {("outside", each.vip): f"{tenant}-web" for tenant, each in found.items()}
        wanted |= {(f"{tenant}-client", each.vip): f"{tenant}-web" for tenant, each in found.items()}
        served(site, wanted)


def test_floating_ip_reaches_proxies(site: LabSite):
    with led(site, "dora", "dora-v4", 4) as balancer:
        port = site.cloud.load_balancer.get_load_balancer(balancer.id).vip_port_id
        floating = site.cloud.network.create_ip(
            floating_network_id=network_id(site, "public"), port_id=port, project_id="dora"
        )
        try:
            address = floating.floating_ip_address
            served(site, {("outside", address): "dora-web", ("dora-client", address): "dora-web"})
        finally:
            site.cloud.network.delete_ip(floating)


@pytest.mark.parametrize("how", ["killed", "agent frozen"])
@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.extended
def test_client_is_served_after_its_proxy_is_killed_or_its_agent_freezes(
    site: LabSite, nodes: dict[str, agents.LabAgent], version: int, how: str
):
    with led(site, "dora", f"dora-v{version}", version, protocol="TCP", connection_limit=1000) as balancer:
        served(site, {("dora-client", balancer.vip): "dora-web"})
        wait_equal(lambda: sorted(name for name, _ in proxies(site)), sorted(nodes))
        first = dict(proxies(site))["chassis2"]
        with periodic_connections(site.lab, "dora-client", balancer.vip, 80) as ticker:
            wait_until(
                lambda: len([each for each in ticker.results if each.name]),
                "it is served",
                is_enough=lambda found: found > 5,
            )
            agent = nodes["chassis2"].process
            os.kill(agent.pid if how == "agent frozen" else first, STOPS[how])
            try:
                if how == "agent frozen":
                    wait_until(lambda: is_silent(site, "chassis2"), "the server calls the agent silent")
                before = len(ticker.results)
                wait_until(
                    lambda: served_in_a_row(ticker.results[before:]) >= IN_A_ROW, "one after the other is served"
                )
            finally:
                os.kill(agent.pid, signal.SIGCONT)
            ticker.stop()
        assert (dict(proxies(site))["chassis2"] != first) == (how == "killed")
    failed = Counter(each.kind for each in ticker.results if not each.name)
    print(f"IPv{version}, {how}: {failed} of {len(ticker.results)}")
    assert how == "killed" or not failed


STOPS = {"killed": signal.SIGKILL, "agent frozen": signal.SIGSTOP}
IN_A_ROW = 20
"""connections"""


def served_in_a_row(ticks: list[ConnectionResult]) -> int:
    """Number of the last connections that were answered without a failure in between."""
    return next((place for place, each in enumerate(reversed(ticks)) if not each.name), len(ticks))


def is_silent(site: LabSite, chassis: str) -> bool:
    agent = httpx.get(f"{site.url}/operator/chassis/{chassis}").json()["agent"]
    return not agent["heard"]


def proxies(site: LabSite) -> list[tuple[str, int]]:
    """(chassis, PID) of each running proxy, including those of networks of other tests in the same lab."""
    folders = site.lab.layout.directory / "fairlead"
    written = [
        (path.parent.parent.name.removeprefix("agent-").removesuffix(".proxies"), int(path.read_text().split()[0]))
        for path in folders.glob("agent-*.proxies/*/pid")
    ]
    return [(chassis, process) for chassis, process in written if start_time_of(process)]
