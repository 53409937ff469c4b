"""End to end: failover of a router's gateway when its chassis fails, in a lab of three chassis.

A chassis without BFD sessions to any other considers itself isolated (ovn-controller, ha-chassis.c), so of two chassis
the second would not take over.
"""

import os
import signal
from collections.abc import Iterator

import pytest

from fairlead.lab import Traffic
from fairlead.lab.processes import read_pidfile
from harness.lab.gateway import active_chassis
from harness.lab.labs import lab_of
from harness.lab.site import LabSite, open_site
from harness.waiting import wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

CHASSIS = ("chassis1", "chassis2", "chassis3")


@pytest.fixture
def site(machine: None) -> Iterator[LabSite]:
    with lab_of("three", chassis=len(CHASSIS)) as lab:
        site = open_site(lab)
        yield site
        site.close()


def await_active_chassis(site: LabSite) -> str:
    """First chassis with the gateway. It may briefly lose it again at the beginning, until BFD has settled."""
    seen = [""]

    def has_one() -> bool:
        seen.append(active_chassis(site))
        return seen[-1] != ""

    wait_until(has_one, "a chassis has the gateway")
    return seen[-1]


def test_gateway_moves_to_another_chassis_when_its_chassis_freezes(site: LabSite):
    """OVN fails over when a chassis stops, and fails back at some time after it resumes.

    The stopped chassis answers no BFD probes. Connections are answered by either chassis.

    All its processes are stopped. If only its switch were, its ovn-controller would use the last BFD state that the
    switch wrote, and claim the gateway back from the other chassis twice a second.
    """
    wire = {"provider_network_type": "flat", "provider_physical_network": "physnet", "is_router_external": True}
    public = site.network("public", "203.0.113.0/24", **wire)
    site.network("blue", "10.0.0.0/24")
    router = site.router("r1", "blue-v4")
    site.cloud.network.update_router(router, external_gateway_info={"network_id": public.id})
    site.await_applied()
    home = await_active_chassis(site)
    site.machines("blue", {"m1": next(name for name in CHASSIS if name != home)}, serve=[8080])
    pids = [pid for file in site.lab.layout.node_directory(home).glob("*.pid") if (pid := read_pidfile(file))]
    assert len(pids) == 3, "ovsdb-server, ovs-vswitchd, ovn-controller"
    with site.balancer("blue-v4", ["m1"]) as balancer, site.balancer("public-v4", ["m1"]) as outside:
        port = site.cloud.load_balancer.get_load_balancer(balancer.id).vip_port_id
        address = site.cloud.network.create_ip(floating_network_id=public.id, port_id=port).floating_ip_address
        site.await_applied()

        def answers() -> bool:
            """Whether a floating IP and a VIP on the gateway are answered."""
            traffic = (Traffic(to=to, port=80, count=5, concurrency=5, timeout=5) for to in (address, outside.vip))
            return all(site.lab.traffic("outside", each).answers == {"m1": 5} for each in traffic)

        wait_until(answers, "it answers")
        try:
            for pid in pids:
                os.kill(pid, signal.SIGSTOP)
            wait_until(
                lambda: active_chassis(site), "the gateway has moved", is_enough=lambda found: found not in ("", home)
            )
            wait_until(answers, "it answers again")
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)
        wait_until(answers, "it answers with all chassis there")
