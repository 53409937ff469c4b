"""Plug-in API: proxy ports that an unmanaged network needs, and the service's refusal to create them."""

from pathlib import Path

from fairlead.api import plugin
from fairlead.model.documents.observed_proxy import ProxyPortChanges
from fairlead.model.documents.proxy_place import device_mac, place_of
from fairlead.model.registry.facts import PROXY_PORT_CHANGES, UNMANAGED
from fairlead.model.registry.kinds import owner_of
from harness.api import WITH_PROXIES, InProcessServer, compile_with_proxies, in_process_server
from harness.front_ends.plugin_world import LB, LISTENER, WHOLE, machine, neutron_document, vip_port
from harness.octavia import NET, network

POOL = {**WHOLE["pools"][0], "protocol": "HTTP", "healthmonitor": None}
PROXIED = {**WHOLE, "listeners": [{**WHOLE["listeners"][0], "protocol": "HTTP"}], "pools": [POOL]}
OLD = "0b6f1a1c-7e11-4c0e-9d5e-0b6f1a1c7e11"
PATH = f"/proxied-networks/{NET}"


async def test_plugin_api_lists_proxy_ports_to_create_and_delete(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        for each in (network(), vip_port(), machine(11)):
            for _ in place.model.observe(UNMANAGED, {owner_of(each): neutron_document(each)}):
                pass

        async def told() -> object:
            return (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]

        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": PROXIED})
        balancer = place.model.snapshot.load_balancers[LB]
        project = balancer.project_id
        nothing = {"project_id": project, "come": [], "go": []}
        assert (await told())["proxied_networks"] == [{"id": NET, "is_ready": True}]
        assert await place.call_ok("GET", PATH) == {"network": {"places": [nothing]}}
        cursor = (await place.call_ok("GET", "/news"))["cursor"]
        for _ in place.model.observe(
            PROXY_PORT_CHANGES, {place_of(balancer): ProxyPortChanges(create_on=("one",), delete=(OLD,))}
        ):
            pass
        assert (await place.call_ok("GET", f"/news?since={cursor}"))["changed"] == [LB]
        device = f"fairlead-proxy-{NET}-one"
        comes = [{"host": "one", "device_id": device, "mac_address": device_mac(device, project)}]
        assert await place.call_ok("GET", PATH) == {"network": {"places": [{**nothing, "come": comes, "go": [OLD]}]}}
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
        assert await place.call_ok("GET", PATH) == {"network": {"places": []}}

    async with in_process_server(
        plugin.make_front_end, tmp_path, "/plugin", compile_with_proxies, WITH_PROXIES
    ) as place:
        await story(place)
