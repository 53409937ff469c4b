"""End to end: a listener's pool is replaced by others, served by the switch and by proxies, and no request fails."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from fairlead.lab import Lab, agents
from harness.lab.site import PORT, CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal

pytestmark = [pytest.mark.lab, pytest.mark.extended]

MEMBERS = {"rowan1": "chassis1", "rowan2": "chassis2"}
CLIENTS = {"rowan-client1": "chassis1", "rowan-client2": "chassis2"}
TURNS = 6
ASK = """
count=0
while [ $count -lt {times} ]; do
    curl -g -s -o /dev/null -m 15 -w '%{{http_code}}%{{exitcode}}\n' http://{host}/ || true
    count=$((count + 1))
done
"""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    site.network("rowan", "10.0.0.0/24", "fd00:a::/64")
    site.machines("rowan", MEMBERS, serve=[PORT])
    site.machines("rowan", CLIENTS)
    started = agents.start(lab.layout, site.url)
    yield site
    for agent in started:
        agent.stop()
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    site.close()


def ask(site: LabSite, client: str, balancer: CreatedBalancer, times: int) -> Counter[str]:
    """Number of responses by status code; 000 is a connection that failed or ended too early."""
    host = f"[{balancer.vip}]:80" if ":" in balancer.vip else f"{balancer.vip}:80"
    return Counter(site.lab.exec(client, ["sh", "-c", ASK.format(times=times, host=host)]).split())


def swap_pool(site: LabSite, balancer: CreatedBalancer, pool: str | None) -> None:
    site.cloud.load_balancer.update_listener(balancer.listener, default_pool_id=pool)
    site.settle(balancer.id)


@pytest.mark.parametrize("protocol", ["HTTP", "TCP"])
@pytest.mark.parametrize("version", [4, 6])
def test_no_request_fails_while_the_default_pool_is_replaced(site: LabSite, version: int, protocol: str):
    with site.balancer(f"rowan-v{version}", ["rowan1"], protocol=protocol, version=version) as balancer:
        other = site.cloud.load_balancer.create_pool(
            loadbalancer_id=balancer.id, protocol=protocol, lb_algorithm="SOURCE_IP_PORT"
        )
        address = site.address("rowan2", version)
        site.cloud.load_balancer.create_member(other.id, address=address, protocol_port=PORT)
        site.settle(balancer.id)
        for client in CLIENTS:
            wait_equal(lambda each=client: ask(site, each, balancer, 1)["2000"], 1)
        with ThreadPoolExecutor(len(CLIENTS)) as pool:
            asking = {each: pool.submit(ask, site, each, balancer, 150) for each in CLIENTS}
            for turn in range(TURNS):
                swap_pool(site, balancer, (other.id, balancer.pool)[turn % 2])
            assert [found.result() for found in asking.values()] == [Counter({"2000": 150})] * len(CLIENTS)
        swap_pool(site, balancer, None)
        nobody = "5030" if protocol == "HTTP" else "0007"
        wait_equal(lambda: set(ask(site, "rowan-client1", balancer, 3)), {nobody})
        swap_pool(site, balancer, balancer.pool)
        wait_equal(lambda: ask(site, "rowan-client1", balancer, 3)["2000"], 3)
