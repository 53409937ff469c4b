"""Plug-in API: proxy ports that an unmanaged network needs, and the service's refusal to create them."""

from pathlib import Path

from fairlead.api import plugin
from fairlead.model.documents.observed_proxy import WantedProxies
from fairlead.model.documents.proxy_place import device_mac, place_of
from fairlead.model.registry.facts import FOREIGN, WANTED_PROXIES
from fairlead.model.registry.kinds import owner_of
from harness.api import WITH_PROXIES, Inside, compile_with_proxies, inside
from harness.front_ends.plugin_world import LB, LISTENER, WHOLE, machine, neutrons, vip_port
from harness.octavia import NET, network

POOL = {**WHOLE["pools"][0], "protocol": "HTTP", "healthmonitor": None}
PROXIED = {**WHOLE, "listeners": [{**WHOLE["listeners"][0], "protocol": "HTTP"}], "pools": [POOL]}
OLD = "0b6f1a1c-7e11-4c0e-9d5e-0b6f1a1c7e11"
PATH = f"/proxied-networks/{NET}"


async def test_which_ports_have_to_come_and_to_go(tmp_path: Path):
    async def story(place: Inside) -> None:
        for each in (network(), vip_port(), machine(11)):
            for _ in place.model.observe(FOREIGN, {owner_of(each): neutrons(each)}):
                pass

        async def told() -> object:
            return (await place.good("GET", f"/statuses/{LB}"))["loadbalancer"]

        await place.good("POST", "/loadbalancers", {"loadbalancer": PROXIED})
        balancer = place.model.snapshot.load_balancers[LB]
        project = balancer.project_id
        nothing = {"project_id": project, "come": [], "go": []}
        assert (await told())["proxied_networks"] == [{"id": NET, "is_ready": True}]
        assert await place.good("GET", PATH) == {"network": {"places": [nothing]}}
        cursor = (await place.good("GET", "/news"))["cursor"]
        for _ in place.model.observe(WANTED_PROXIES, {place_of(balancer): WantedProxies(come=("one",), go=(OLD,))}):
            pass
        assert (await place.good("GET", f"/news?since={cursor}"))["changed"] == [LB]
        device = f"fairlead-proxy-{NET}-one"
        comes = [{"host": "one", "device_id": device, "mac_address": device_mac(device, project)}]
        assert await place.good("GET", PATH) == {"network": {"places": [{**nothing, "come": comes, "go": [OLD]}]}}
        assert (await told())["proxied_networks"] == [{"id": NET, "is_ready": False}]

        assert (await place.call("PUT", PATH, {"network": {"refused": "no more ports"}})).status_code == 204
        stands = {each["id"]: each["operating_status"] for each in (await told())["listeners"]}
        assert stands == {LISTENER: "ERROR"}
        assert (await place.call("PUT", PATH, {"network": {"refused": ""}})).status_code == 204
        assert dict(place.model.snapshot.refused_proxies) == {}
        assert (await place.call("PUT", "/proxied-networks/x", {"network": {"refused": "no"}})).status_code == 204
        assert dict(place.model.snapshot.refused_proxies) == {}, "nobody leads to proxies there"
        assert (await place.call("PUT", PATH, {"network": {}})).status_code == 400
        await place.call("DELETE", f"/loadbalancers/{LB}?cascade=true")
        assert await place.good("GET", PATH) == {"network": {"places": []}}

    async with inside(plugin.make_door, tmp_path, "/plugin", compile_with_proxies, WITH_PROXIES) as place:
        await story(place)
