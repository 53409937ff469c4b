"""Plug-in API: a service's objects are written under their own ids, or refused with no write."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.changes.identity import Identity
from fairlead.model.documents.loadbalancer import ExternalService, MigrationStage
from fairlead.model.documents.quota import Quota
from fairlead.model.registry.changeset import Changes
from harness.api import InProcessServer
from harness.front_ends.plugin_world import (
    LB,
    LISTENER,
    MONITOR,
    ONE,
    OTHER,
    POOL,
    PORT,
    SECOND,
    TWO,
    VIP,
    WHOLE,
    call_error,
    play_plugin,
    vip_port,
)
from harness.octavia import NET, SUBNET


def test_load_balancer_tree_is_created_with_given_ids_and_project(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        told = (await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE}))["loadbalancer"]
        made = place.model.snapshot.load_balancers[LB]
        assert (made.project_id, made.name, made.kept) == ("tenant", "web", ExternalService(made_port=True))
        assert (made.vip.port_id, made.vip.address, made.owns_vip_port) == (PORT, VIP, False)
        assert [(each.id, each.default_pool_id, each.project_id) for each in made.listeners] == [
            (LISTENER, POOL, "tenant")
        ]
        (pool,) = made.pools
        assert (pool.id, pool.health_monitor and pool.health_monitor.id) == (POOL, MONITOR)
        assert [(member.id, member.weight, member.ordinal) for member in pool.members] == [(ONE, 2, 0)]
        assert told["provisioning_status"] == "PENDING_CREATE"
        assert {kind: [each["id"] for each in told[kind]] for kind in ("listeners", "pools", "members")} == {
            "listeners": [LISTENER],
            "pools": [POOL],
            "members": [ONE],
        }

    play_plugin(tmp_path, story)


def test_parts_are_made_changed_and_deleted_under_their_ids(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        listener = {"id": SECOND, "loadbalancer_id": LB, "protocol": "UDP", "protocol_port": 53}
        await place.call_ok("POST", "/listeners", {"listener": listener})
        member = {"id": TWO, "address": "10.0.0.12", "protocol_port": 8080}
        await place.call_ok("POST", f"/pools/{POOL}/members", {"member": member})
        await place.call_ok("PUT", f"/pools/{POOL}/members/{TWO}", {"member": {"weight": 7}})
        await place.call_ok("PUT", f"/healthmonitors/{MONITOR}", {"healthmonitor": {"delay": 9, "timeout": 4}})
        await place.call_ok("PUT", f"/pools/{POOL}", {"pool": {"session_persistence": {"type": "SOURCE_IP"}}})
        await place.call_ok("PUT", f"/loadbalancers/{LB}", {"loadbalancer": {"name": "new", "admin_state_up": False}})
        made = place.model.snapshot.load_balancers[LB]
        assert [each.id for each in made.listeners] == [LISTENER, SECOND]
        assert [(each.id, each.weight) for each in made.pools[0].members] == [(ONE, 2), (TWO, 7)]
        assert made.pools[0].health_monitor is not None
        assert (made.pools[0].health_monitor.delay, made.name, made.admin_state_up) == (9, "new", False)
        assert made.kept == ExternalService(made_port=True)
        batch = [{**member, "weight": 1}, {"id": OTHER, "address": "10.0.0.13", "protocol_port": 8080}]
        await place.call_ok("PUT", f"/pools/{POOL}/members", {"members": batch})
        left = place.model.snapshot.load_balancers[LB].pools[0].members
        assert [(each.id, each.weight) for each in left] == [(TWO, 1), (OTHER, 1)]
        for path in (
            f"healthmonitors/{MONITOR}",
            f"listeners/{SECOND}",
            f"pools/{POOL}/members/{TWO}",
            f"pools/{POOL}",
        ):
            await place.call_ok("DELETE", f"/{path}")
        made = place.model.snapshot.load_balancers[LB]
        assert (made.pools, [each.id for each in made.listeners]) == ((), [LISTENER])
        assert await call_error(place, "DELETE", f"/pools/{POOL}") == (404, f"Pool {POOL} not found.")
        await place.call_ok("PUT", f"/loadbalancers/{LB}/failover")

    play_plugin(tmp_path, story)


def test_unsupported_attributes_are_named_in_the_error(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        async def without(part: str, **changes: Any) -> tuple[int, str]:
            whole = {**WHOLE, part: [{**WHOLE[part][0], **changes}]} if part else {**WHOLE, **changes}
            return await call_error(place, "POST", "/loadbalancers", {"loadbalancer": whole})

        assert await without("listeners", connection_limit=5) == (501, "connection_limit")
        assert await without("listeners", protocol="HTTP", default_pool_id=None) == (501, "protocol HTTP")
        assert await without("pools", lb_algorithm="LEAST_CONNECTIONS") == (501, "lb_algorithm LEAST_CONNECTIONS")
        assert await without("", vip_qos_policy_id=OTHER) == (501, "vip_qos_policy_id")
        assert await without("", flavor={"size": "xl"}) == (501, "flavor_data size")
        elsewhere = {"valid_vip_networks": [OTHER]}
        assert (await without("", availability_zone=elsewhere))[0] == 400
        assert await without("pools", id="x") == (
            400,
            "Invalid input for field/attribute id. Value: 'x'. Value should be UUID format",
        )
        assert (await without("", vip_address="10.0.0.51"))[0] == 400
        del (no_project := dict(WHOLE))["project_id"]
        assert (await call_error(place, "POST", "/loadbalancers", {"loadbalancer": no_project}))[0] == 400
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        limit = {"listener": {"connection_limit": 9}}
        assert await call_error(place, "PUT", f"/listeners/{LISTENER}", limit) == (501, "connection_limit")
        policy = {"id": OTHER, "listener_id": LISTENER, "action": "REJECT"}
        assert (await call_error(place, "POST", "/l7policies", {"l7policy": policy}))[0] == 501

    play_plugin(tmp_path, story)


@pytest.mark.parametrize(("path", "body"), [("loadbalancers", {"loadbalancer": WHOLE}), ("listeners", None)])
def test_duplicate_id_is_rejected(tmp_path: Path, path: str, body: Any):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        again = body or {"listener": {"id": LISTENER, "loadbalancer_id": LB, "protocol": "TCP", "protocol_port": 81}}
        assert (await call_error(place, "POST", f"/{path}", again))[0] in (400, 409)

    play_plugin(tmp_path, story)


def test_port_created_by_the_service_survives_load_balancer_deletion(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert (await call_error(place, "DELETE", f"/loadbalancers/{LB}"))[0] == 400
        await place.call_ok("DELETE", f"/loadbalancers/{LB}?cascade=true")
        assert LB not in place.model.snapshot.load_balancers
        assert place.model.snapshot.ports[PORT] == vip_port()
        assert (await call_error(place, "DELETE", f"/loadbalancers/{LB}"))[0] == 404

    play_plugin(tmp_path, story)


def test_tenant_port_is_restored_after_load_balancer_deletion(tmp_path: Path):
    own = vip_port(device_id="", device_owner="", name="mine")

    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert place.model.snapshot.load_balancers[LB].kept == ExternalService(made_port=False)
        assert place.model.snapshot.ports[PORT].device_owner == "Octavia"
        await place.call_ok("DELETE", f"/loadbalancers/{LB}?cascade=true")
        assert place.model.snapshot.ports[PORT] == own

    play_plugin(tmp_path, story, own)


def test_a_port_that_is_reserved_for_another_load_balancer_is_not_taken(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        status, said = await call_error(place, "POST", "/loadbalancers", {"loadbalancer": WHOLE})
        assert (status, f"lb-{OTHER}" in said) == (400, True)

    play_plugin(tmp_path, story, vip_port(device_id=f"lb-{OTHER}"))


def test_additional_vips_on_several_ports_are_rejected(tmp_path: Path):
    """A load balancer with addresses on several ports is refused by name; another provider may have created it."""

    async def story(place: InProcessServer) -> None:
        more = [{"subnet_id": SUBNET, "port_id": OTHER, "ip_address": "10.0.0.51"}]
        for path in ("/trials", "/loadbalancers"):
            asked = {"loadbalancer": {**WHOLE, "additional_vips": more, "takeover": True}}
            status, said = await call_error(place, "POST", path, asked)
            assert (status, said) == (
                400,
                "Validation failure: port_id of additional_vips is not supported: all VIPs are on one port; set it as"
                " vip_port_id.",
            )
        assert LB not in place.model.snapshot.load_balancers

    play_plugin(tmp_path, story)


def test_quota_error_applies_to_the_project_of_the_load_balancer(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.model.write(lambda _: Changes(puts=(Quota(project_id="tenant", pool=0),)))
        asked = {"loadbalancer": WHOLE}
        assert await call_error(place, "POST", "/loadbalancers", asked) == (
            413,
            "Quota has been met for resources: Pool",
        )
        assert LB not in place.model.snapshot.load_balancers

    play_plugin(tmp_path, story)


def test_profiles_are_validated_against_provider_capabilities(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        assert (await place.call_ok("GET", "/profiles"))["availability_zone"].keys() == {"valid_vip_networks"}
        zone = {"profiles": {"availability_zone": {"valid_vip_networks": [NET]}}}
        assert (await place.call("POST", "/profiles", zone)).status_code == 204
        wrong = {"profiles": {"availability_zone": {"compute_zone": "x"}}}
        assert await call_error(place, "POST", "/profiles", wrong) == (501, "availability_zone_data compute_zone")

    play_plugin(tmp_path, story)


def test_plugin_api_admits_only_administrators(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        place.caller = Identity(user="u", project_id="tenant", roles=frozenset({"member", "load-balancer_admin"}))
        for method, path in (("POST", "/loadbalancers"), ("GET", "/statuses"), ("GET", "/news")):
            assert (await place.call(method, path, {"loadbalancer": WHOLE})).status_code == 403

    play_plugin(tmp_path, story)


def test_takeover_from_another_provider_is_prepared_and_then_completed(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": {**WHOLE, "takeover": True}})
        prepared = place.model.snapshot.load_balancers[LB]
        assert prepared.kept == ExternalService(made_port=True, takeover=MigrationStage.PREPARED)
        told = (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]
        assert told["takeover"] == "prepared"
        for _ in range(2):
            await place.call_ok("PUT", f"/loadbalancers/{LB}/takeover")
        taken = place.model.snapshot.load_balancers[LB]
        assert taken.kept == ExternalService(made_port=True, takeover=MigrationStage.TAKEN)
        assert (taken.listeners, taken.pools) == (prepared.listeners, prepared.pools)
        assert (await place.call_ok("GET", f"/statuses/{LB}"))["loadbalancer"]["takeover"] == "taken"
        await place.call_ok("PUT", f"/loadbalancers/{LB}", {"loadbalancer": {"name": "new"}})
        assert place.model.snapshot.load_balancers[LB].kept == taken.kept

    play_plugin(tmp_path, story, vip_port(name=f"ovn-lb-vip-{LB}", device_owner="ovn-lb:vip"))


def test_takeover_of_an_unsupported_load_balancer_is_rejected(tmp_path: Path):
    lacking = {**WHOLE, "listeners": [{**WHOLE["listeners"][0], "connection_limit": 5}], "takeover": True}

    async def story(place: InProcessServer) -> None:
        for path in ("/trials", "/loadbalancers"):
            assert await call_error(place, "POST", path, {"loadbalancer": lacking}) == (501, "connection_limit")
        before = place.model.snapshot.revision
        answer = await place.call("POST", "/trials", {"loadbalancer": {**WHOLE, "takeover": True}})
        assert (answer.status_code, place.model.snapshot.revision) == (204, before)
        status, _ = await call_error(place, "PUT", f"/loadbalancers/{LB}/takeover")
        assert status == 404

    play_plugin(tmp_path, story)


def test_takeover_of_an_own_load_balancer_changes_nothing(tmp_path: Path):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", "/loadbalancers", {"loadbalancer": WHOLE})
        before = place.model.snapshot.revision
        await place.call_ok("PUT", f"/loadbalancers/{LB}/takeover")
        assert place.model.snapshot.revision == before

    play_plugin(tmp_path, story)
