"""Takeover of a load balancer of Octavia's stock provider under load, on two chassis: no client notices.

The rows are those that ovn_octavia_provider writes (a row per protocol, on each switch and on the router), and the test
sends the requests of the takeover command to the plug-in front end.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import httpx
import pytest

from fairlead.lab import Protocol
from fairlead.lab.load import Load, LoadTarget, sum_results
from harness.lab.labs import lab_of
from harness.lab.site import PORT, LabSite, open_site
from harness.waiting import pause

pytestmark = [pytest.mark.lab, pytest.mark.extended]

MEMBERS = {"m0": "chassis1", "m1": "chassis2", "m2": "chassis1", "m3": "chassis2"}
CLIENTS = {"near1": "chassis1", "near2": "chassis2", "far1": "chassis1", "far2": "chassis2"}
RATE, HELD = 40, 48
"""Rate and number of persistent connections of each client."""


@dataclass(frozen=True)
class Scene:
    site: LabSite
    switches: tuple[str, str]
    router: str

    def northbound(self, *words: str) -> str:
        return self.site.lab.exec("central", ["ovn-nbctl", *words])

    def rows_named(self, name: str) -> list[str]:
        return self.northbound("--bare", "--columns=_uuid", "find", "Load_Balancer", f"name={name}").split()

    def plugin(self, method: str, path: str, body: Any = None) -> httpx.Response:
        answer = httpx.request(method, f"{self.site.url}/plugin{path}", json=body, timeout=60)
        assert answer.status_code < 300, answer.text
        return answer


@pytest.fixture
def scene(machine: None) -> Iterator[Scene]:
    """A lab of its own, because options of OVN apply to all networks."""
    with ExitStack() as stack:
        site = open_site(stack.enter_context(lab_of("takeover", chassis=2)))
        stack.callback(site.close)
        blue = site.network("blue", "10.0.0.0/24", "fd00:a::/64")
        green = site.network("green", "10.0.1.0/24", "fd00:b::/64")
        router = site.router("r1", "blue-v4", "blue-v6", "green-v4", "green-v6")
        site.machines("blue", MEMBERS, serve=[PORT])
        site.machines("blue", {name: CLIENTS[name] for name in ("near1", "near2")})
        site.machines("green", {name: CLIENTS[name] for name in ("far1", "far2")})
        made = Scene(site=site, switches=(blue.id, green.id), router=router.id)
        made.northbound("set", "NB_Global", ".", "options:ignore_lsp_down=false")  # as Neutron sets it
        yield made


@dataclass(frozen=True)
class Stock:
    """A load balancer of the stock provider, in Octavia's terms."""

    id: str
    port: str
    vips: tuple[str, str]

    def body(self, site: LabSite) -> dict[str, Any]:
        pools, listeners = [], []
        for protocol in ("TCP", "UDP"):
            members = [
                {"id": str(uuid4()), "address": site.address(name, version), "protocol_port": PORT}
                for name in MEMBERS
                for version in (4, 6)
            ]
            pool = {"id": str(uuid4()), "protocol": protocol, "lb_algorithm": "SOURCE_IP_PORT", "members": members}
            pools.append(pool)
            listeners.append(
                {"id": str(uuid4()), "protocol": protocol, "protocol_port": 80, "default_pool_id": pool["id"]}
            )
        return {
            "id": self.id,
            "project_id": site.cloud.network.get_port(self.port).project_id,
            "name": "web",
            "vip_port_id": self.port,
            "vip_address": self.vips[0],
            "vip_subnet_id": site.subnet("blue-v4").id,
            "additional_vips": [{"subnet_id": site.subnet("blue-v6").id, "ip_address": self.vips[1]}],
            "listeners": listeners,
            "pools": pools,
            "takeover": True,
        }


def make_stock(scene: Scene) -> Stock:
    site, identity, vips = scene.site, str(uuid4()), ("10.0.0.20", "fd00:a::20")
    fixed = [
        {"subnet_id": site.subnet(name).id, "ip_address": vip}
        for name, vip in zip(("blue-v4", "blue-v6"), vips, strict=True)
    ]
    port = site.cloud.network.create_port(
        name=f"ovn-lb-vip-{identity}",
        network_id=scene.switches[0],
        fixed_ips=fixed,
        device_owner="ovn-lb:vip",
        device_id=f"lb-{identity}",
    )
    for protocol in ("tcp", "udp"):
        backends = (
            ",".join(f"{site.address(name)}:{PORT}" for name in MEMBERS),
            ",".join(f"[{site.address(name, 6)}]:{PORT}" for name in MEMBERS),
        )
        row = scene.northbound(
            *("create", "Load_Balancer", f"name={identity}", f"protocol={protocol}"),
            f'vips={{"{vips[0]}:80"="{backends[0]}","[{vips[1]}]:80"="{backends[1]}"}}',
            "selection_fields=ip_src,ip_dst,tp_src,tp_dst",
            f'external_ids={{enabled="True","neutron:vip"="{vips[0]}","neutron:vip_port_id"="{port.id}"}}',
        ).strip()
        for switch in scene.switches:
            scene.northbound("add", "Logical_Switch", switch, "load_balancer", row)
        scene.northbound("add", "Logical_Router", scene.router, "load_balancer", row)
    site.lab.wait_synced()
    return Stock(identity, port.id, vips)


def test_takeover_from_the_stock_provider_breaks_no_connection(scene: Scene):
    lab = scene.site.lab
    stock = make_stock(scene)
    body = stock.body(scene.site)
    targets = tuple(LoadTarget(to=vip, port=80, protocol=protocol) for vip in stock.vips for protocol in Protocol)
    load = Load(targets=targets, rate=RATE, count=RATE * 60, held=HELD, seconds=300, period=0.5, timeout=30)
    with ExitStack() as stack:
        running = [stack.enter_context(lab.load(client, load)) for client in CLIENTS]
        scene.plugin("POST", "/loadbalancers", {"loadbalancer": body})
        lab.wait_synced()
        assert len(scene.rows_named(stock.id)) == 2
        scene.plugin("PUT", f"/loadbalancers/{stock.id}/takeover")
        scene.site.settle(stock.id)
        lab.wait_synced()
        assert scene.rows_named(stock.id) == []
        pause(5)
        results = [each.stop() for each in running]
    print(dict(sum_results(results)), "sent again:", sum(len(result.retransmissions) for result in results))
    assert [each for result in results for each in result.failed] == []
    assert sum_results(results)["held"] == HELD * len(CLIENTS)
    assert {name for result in results for name in result.answers} == set(MEMBERS)
    scene.site.cloud.load_balancer.delete_load_balancer(stock.id, cascade=True)
