"""The Octavia API: requests of stock clients, their responses, and errors for invalid input."""

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import octavia
from fairlead.changes.identity import Identity
from fairlead.dataplane.ovn import LoadBalancer
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.network import FixedIP, Port
from fairlead.model.registry.changeset import Changes
from harness.api import InProcessServer, play
from harness.front_ends.octavia_probing import COMMON, LBS, NET, SUBNET, SUBNET6, UNKNOWN_ID, network


@pytest.fixture
def door(tmp_path: Path):
    def run(story) -> None:
        async def with_network(place: InProcessServer) -> None:
            await place.model.write(lambda _: Changes(puts=(network(),)))
            await place.reconcile()
            await story(place)

        play(octavia.make_front_end, tmp_path, with_network, "/load-balancer")

    return run


async def make_balancer(place: InProcessServer, **more: object) -> dict[str, Any]:
    body = {"name": "web", "vip_subnet_id": SUBNET, **more}
    return (await place.call_ok("POST", LBS, {"loadbalancer": body}))["loadbalancer"]


async def make_listener(place: InProcessServer, balancer: str, port: int = 80, **more: object) -> dict[str, Any]:
    body = {"protocol": "TCP", "protocol_port": port, "loadbalancer_id": balancer, **more}
    return (await place.call_ok("POST", "/v2.0/lbaas/listeners", {"listener": body}))["listener"]


async def make_pool(place: InProcessServer, listener: str, **more: object) -> dict[str, Any]:
    body = {"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "listener_id": listener, **more}
    return (await place.call_ok("POST", "/v2.0/lbaas/pools", {"pool": body}))["pool"]


async def make_member(place: InProcessServer, pool: str, address: str = "10.0.0.11", **more: object) -> dict[str, Any]:
    body = {"address": address, "protocol_port": 8080, **more}
    return (await place.call_ok("POST", f"/v2.0/lbaas/pools/{pool}/members", {"member": body}))["member"]


def test_versions_match_octavias_and_link_to_this_api(door):
    async def story(place: InProcessServer) -> None:
        versions = (await place.call_ok("GET", "/"))["versions"]
        assert len(versions) == 31
        assert versions[-1]["id"] == "v2.30"
        assert versions[-1]["links"] == [{"href": "http://door/load-balancer/v2", "rel": "self"}]
        assert (await place.call_ok("GET", "/v2"))["version"]["id"] == "v2.30"

    door(story)


def test_load_balancer_is_created_step_by_step(door):
    async def story(place: InProcessServer) -> None:
        answer = await place.call("POST", LBS, {"loadbalancer": {"name": "web", "vip_subnet_id": SUBNET}})
        made = answer.json()["loadbalancer"]
        assert answer.status_code == 201
        assert (made["provisioning_status"], made["operating_status"]) == ("PENDING_CREATE", "OFFLINE")
        await place.reconcile()
        shown = (await place.call_ok("GET", f"{LBS}/{made['id']}"))["loadbalancer"]
        assert (shown["provisioning_status"], shown["operating_status"]) == ("ACTIVE", "ONLINE")
        listener = await make_listener(place, made["id"])
        assert listener["provisioning_status"] == "PENDING_CREATE"
        pool = await make_pool(place, listener["id"])
        await make_member(place, pool["id"], name="a", weight=3)
        await make_member(place, pool["id"], "10.0.0.12", name="b")
        rows = [row for rows in place.driver.rows.values() for row in rows.values() if isinstance(row, LoadBalancer)]
        assert rows[0].services[0].vip == f"{made['vip_address']}:80"
        assert Counter(rows[0].services[0].backends) == {"10.0.0.11:8080": 3, "10.0.0.12:8080": 1}
        tree = (await place.call_ok("GET", f"{LBS}/{made['id']}/status"))["statuses"]["loadbalancer"]
        members = tree["listeners"][0]["pools"][0]["members"]
        assert [(member["name"], member["operating_status"]) for member in members] == [
            ("a", "NO_MONITOR"),
            ("b", "NO_MONITOR"),
        ]
        assert tree["provisioning_status"] == "ACTIVE"

    door(story)


def test_vip_port_is_created_and_deleted_with_the_load_balancer(door):
    async def story(place: InProcessServer) -> None:
        made = await make_balancer(place, vip_address="10.0.0.10")
        port = place.model.snapshot.ports[made["vip_port_id"]]
        assert (port.name, port.device_owner) == (f"octavia-lb-{made['id']}", "Octavia")
        await place.call_ok("DELETE", f"{LBS}/{made['id']}")
        assert not place.model.snapshot.ports
        assert [str(row) for rows in place.driver.rows.values() for row in rows.values()] == [f"Logical_Switch {NET}"]

    door(story)


TREE = {
    "name": "tree",
    "vip_network_id": NET,
    "vip_address": "fd00::10",
    "listeners": [
        {
            "name": "l1",
            "protocol": "TCP",
            "protocol_port": 80,
            "default_pool": {
                "name": "p1",
                "protocol": "TCP",
                "lb_algorithm": "SOURCE_IP",
                "members": [{"address": "fd00::11", "protocol_port": 80}],
            },
        },
        {"name": "l2", "protocol": "UDP", "protocol_port": 53, "default_pool": {"name": "p2"}},
    ],
    "pools": [
        {
            "name": "p2",
            "protocol": "UDP",
            "lb_algorithm": "ROUND_ROBIN",
            "session_persistence": {"type": "SOURCE_IP", "persistence_timeout": 60},
        }
    ],
}


def test_member_address_is_shown_as_written_and_compared_by_value(door):
    """Addresses are shown as written, because Terraform and Octavia's own tests compare the response with their
    request."""

    async def story(place: InProcessServer) -> None:
        made = (await place.call_ok("POST", LBS, {"loadbalancer": TREE}))["loadbalancer"]
        path = f"/v2.0/lbaas/pools/{made['pools'][0]['id']}/members"
        body = {"address": "FD00:0:0:0::0012", "monitor_address": "fd00:0::13", "protocol_port": 53}
        member = (await place.call_ok("POST", path, {"member": body}))["member"]
        assert body == {name: member[name] for name in body}
        [found] = (await place.call_ok("GET", f"{path}?address={body['address']}"))["members"]
        assert found["id"] == member["id"]
        again = {"member": {**body, "address": "fd00::12"}}
        answer = await place.call("POST", path, again)
        assert (answer.status_code, answer.json()["faultstring"]) == (
            409, "Another member on this pool is already using ip fd00::12 on protocol_port 53",
        )  # fmt: skip
        change = {"member": {"monitor_address": "fd00::13"}}
        assert (await place.call_ok("PUT", f"{path}/{member['id']}", change))["member"]["monitor_address"] == "fd00::13"
        change = {"member": {"monitor_address": None}}
        assert (await place.call_ok("PUT", f"{path}/{member['id']}", change))["member"]["monitor_address"] is None
        bodies = {"members": [{"address": "fd00::12", "protocol_port": 53, "weight": 3}]}
        await place.call_ok("PUT", path, bodies)
        [kept] = (await place.call_ok("GET", path))["members"]
        assert (kept["id"], kept["address"], kept["weight"]) == (member["id"], body["address"], 3)

    door(story)


def test_tree_is_created_in_one_request_and_deleted_by_cascade(door):
    async def story(place: InProcessServer) -> None:
        made = (await place.call_ok("POST", LBS, {"loadbalancer": TREE}))["loadbalancer"]
        assert [listener["name"] for listener in made["listeners"]] == ["l1", "l2"]
        assert {pool["name"]: len(pool["members"]) for pool in made["pools"]} == {"p1": 1, "p2": 0}
        shown = (await place.call_ok("GET", f"{LBS}/{made['id']}"))["loadbalancer"]
        assert len(shown["listeners"]) == 2
        answer = await place.call("DELETE", f"{LBS}/{made['id']}")
        assert answer.status_code == 400
        expected = f"Validation failure: Cannot delete Load Balancer {made['id']} - it has children"
        assert answer.json()["faultstring"] == expected
        assert (await place.call("DELETE", f"{LBS}/{made['id']}?cascade=true")).status_code == 204
        await place.reconcile()
        assert not place.model.snapshot.load_balancers

    door(story)


def test_member_batch_adds_updates_and_removes_members(door):
    async def story(place: InProcessServer) -> None:
        listener = await make_listener(place, (await make_balancer(place))["id"])
        pool = (await make_pool(place, listener["id"]))["id"]
        first = await make_member(place, pool, "10.0.0.11")
        path = f"/v2.0/lbaas/pools/{pool}/members"
        more = {"members": [{"address": "10.0.0.13", "protocol_port": 80}]}
        assert (await place.call("PUT", f"{path}?additive_only=true", more)).status_code == 202
        batch = {
            "members": [
                {"address": "10.0.0.11", "protocol_port": 8080, "weight": 7},
                {"address": "10.0.0.14", "protocol_port": 81},
            ]
        }
        assert (await place.call("PUT", path, batch)).status_code == 202
        members = (await place.call_ok("GET", f"{path}?fields=id&fields=address&fields=weight"))["members"]
        assert members[0] == {"id": first["id"], "address": "10.0.0.11", "weight": 7}
        assert (members[1]["address"], members[1]["weight"]) == ("10.0.0.14", 1)
        twice = await place.call("PUT", path, {"members": [batch["members"][0]] * 2})
        assert twice.json()["faultstring"] == (
            "Validation failure: Member must be updated only once in the same request."
        )

    door(story)


def test_number_of_members_per_load_balancer_is_limited(door):
    async def story(place: InProcessServer) -> None:
        listener = await make_listener(place, (await make_balancer(place))["id"])
        pool = (await make_pool(place, listener["id"]))["id"]
        path = f"/v2.0/lbaas/pools/{pool}/members?additive_only=true"

        def batch(net: int) -> dict[str, Any]:
            return {
                "members": [{"address": f"10.1.{net}.{n % 250}", "protocol_port": 80 + n // 250} for n in range(600)]
            }

        assert (await place.call("PUT", path, batch(0))).status_code == 501
        weightless = {"members": [{**member, "weight": 0} for member in batch(0)["members"]]}
        assert (await place.call("PUT", path, weightless)).status_code == 202
        more = {"members": [{**member, "weight": 0} for member in batch(1)["members"]]}
        answer = await place.call("PUT", path, more)
        assert (answer.status_code, "at most 1000 members in all" in answer.text) == (400, True)

    door(story)


def test_null_restores_the_default(door):
    async def story(place: InProcessServer) -> None:
        listener = await make_listener(place, (await make_balancer(place))["id"], timeout_client_data=7, name="x")
        pool = await make_pool(place, listener["id"], session_persistence={"type": "SOURCE_IP"})
        path = f"/v2.0/lbaas/listeners/{listener['id']}"
        body = {"timeout_client_data": None, "default_pool_id": None, "name": None, "connection_limit": None}
        changed = (await place.call_ok("PUT", path, {"listener": body}))["listener"]
        assert (changed["timeout_client_data"], changed["default_pool_id"], changed["name"]) == (50000, None, "")
        body = {"pool": {"session_persistence": None}}
        changed = (await place.call_ok("PUT", f"/v2.0/lbaas/pools/{pool['id']}", body))["pool"]
        assert changed["session_persistence"] is None

    door(story)


def test_load_balancer_lists_are_filtered_sorted_and_paged(door):
    async def story(place: InProcessServer) -> None:
        for name in ("c", "a", "b"):
            await make_balancer(place, name=name, tags=[name, "all"])
        assert [
            item["name"] for item in (await place.call_ok("GET", f"{LBS}?sort=name:desc"))["loadbalancers"]
        ] == list("cba")
        assert len((await place.call_ok("GET", f"{LBS}?name=a&admin_state_up=True"))["loadbalancers"]) == 1
        assert len((await place.call_ok("GET", f"{LBS}?tags=all&not-tags=a"))["loadbalancers"]) == 2
        page = await place.call_ok("GET", f"{LBS}?limit=2&sort=name")
        assert [item["name"] for item in page["loadbalancers"]] == ["a", "b"]
        following = page["loadbalancers_links"][0]
        assert following["rel"] == "next"
        page = await place.call_ok("GET", following["href"])
        assert [item["name"] for item in page["loadbalancers"]] == ["c"]
        assert page["loadbalancers_links"][0]["rel"] == "previous"

    door(story)


def test_lists_are_filtered_by_id_name_and_parent(door):
    async def story(place: InProcessServer) -> None:
        made = [await make_balancer(place, name=name) for name in ("a", "b", "")]
        listener = await make_listener(place, made[0]["id"])
        await make_listener(place, made[1]["id"])
        pool = await make_pool(place, listener["id"])
        for path, plural, ids in (
            (f"{LBS}?id={made[1]['id']}", "loadbalancers", [made[1]["id"]]),
            (f"{LBS}?name=a", "loadbalancers", [made[0]["id"]]),
            (f"{LBS}?name=null", "loadbalancers", []),
            (f"{LBS}?id={UNKNOWN_ID}", "loadbalancers", []),
            (f"{LISTENERS}?loadbalancer_id={made[0]['id']}", "listeners", [listener["id"]]),
            (f"{LISTENERS}?id={listener['id']}&loadbalancer_id={made[1]['id']}", "listeners", []),
            (f"{POOLS}?id={pool['id']}", "pools", [pool["id"]]),
            (f"{POOLS}?listener_id={listener['id']}", "pools", [pool["id"]]),
        ):
            assert [item["id"] for item in (await place.call_ok("GET", path))[plural]] == ids, path

    door(story)


def test_list_filter_matches_any_value_of_a_list_attribute(door):
    async def story(place: InProcessServer) -> None:
        balancer = (await make_balancer(place))["id"]
        await make_listener(place, balancer, 80, allowed_cidrs=["10.0.0.0/24", "10.0.1.0/24"])
        await make_listener(place, balancer, 81, allowed_cidrs=["10.0.1.0/24"])
        await make_listener(place, balancer, 82)
        for query, ports in (
            ("allowed_cidrs=10.0.0.0/24", [80]),
            ("allowed_cidrs=10.0.1.0/24", [80, 81]),
            ("allowed_cidrs=10.0.0.0/24&allowed_cidrs=10.0.1.0/24", [80, 81]),
            ("allowed_cidrs=10.0.2.0/24", []),
            ("allowed_cidrs=null", [82]),
        ):
            found = (await place.call_ok("GET", f"{LISTENERS}?{query}"))["listeners"]
            assert [item["protocol_port"] for item in found] == ports, query

    door(story)


def test_pools_are_filtered_by_monitor_id_under_both_names(door):
    async def story(place: InProcessServer) -> None:
        listener = await make_listener(place, (await make_balancer(place))["id"])
        pool = (await make_pool(place, listener["id"]))["id"]
        body = {"pool_id": pool, "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
        monitor = (await place.call_ok("POST", "/v2.0/lbaas/healthmonitors", {"healthmonitor": body}))["healthmonitor"]
        for name in ("healthmonitor_id", "health_monitor_id"):
            for identity, found in ((monitor["id"], [pool]), (UNKNOWN_ID, [])):
                pools = (await place.call_ok("GET", f"{POOLS}?{name}={identity}"))["pools"]
                assert [item["id"] for item in pools] == found, name

    door(story)


def test_other_projects_cannot_read_or_change_a_load_balancer(door):
    async def story(place: InProcessServer) -> None:
        made = await make_balancer(place)
        place.caller = Identity(user="eve", project_id="other", roles=frozenset({"member", "reader"}))
        assert (await place.call_ok("GET", LBS))["loadbalancers"] == []
        refused = await place.call("GET", f"{LBS}/{made['id']}")
        assert refused.json()["faultstring"] == "Policy does not allow this request to be performed."
        assert refused.status_code == 403
        assert (await place.call("DELETE", f"{LBS}/{made['id']}")).status_code == 403
        place.caller = Identity(user="bob", project_id="demo", roles=frozenset({"reader"}))
        assert (await place.call("GET", f"{LBS}/{made['id']}")).status_code == 200
        assert (await place.call("PUT", f"{LBS}/{made['id']}", {"loadbalancer": {"name": "x"}})).status_code == 403

    door(story)


def test_vip_on_a_network_of_another_project_is_refused_unless_shared(door):
    async def story(place: InProcessServer) -> None:
        made = await make_balancer(place)
        place.caller = Identity(user="eve", project_id="other", roles=frozenset({"member", "reader"}))
        for wanted in ({"vip_subnet_id": SUBNET}, {"vip_network_id": NET}, {"vip_port_id": made["vip_port_id"]}):
            answer = await place.call("POST", LBS, {"loadbalancer": wanted})
            assert (answer.status_code, "not found." in answer.json()["faultstring"]) == (400, True)
        network = replace(place.model.snapshot.networks[NET], shared=True)
        await place.model.write(lambda _: Changes(puts=(network,)))
        hers = await make_balancer(place)
        assert hers["project_id"] == "other"

    door(story)


def test_given_vip_port_is_used_and_released_on_delete(door):
    async def story(place: InProcessServer) -> None:
        made = await make_balancer(place)
        lent = replace(
            place.model.snapshot.ports[made["vip_port_id"]],
            id="33333333-0000-4000-8000-000000000001",
            mac_address="02:00:00:00:00:33",
            fixed_ips=(FixedIP(subnet_id=SUBNET, address=parse_address("10.0.0.33")),),
            device_id="",
            device_owner="",
        )
        await place.model.write(lambda _: Changes(puts=(lent,)))
        body = {"name": "given", "vip_port_id": lent.id}
        given = (await place.call_ok("POST", LBS, {"loadbalancer": body}))["loadbalancer"]
        assert (given["vip_address"], given["vip_subnet_id"]) == ("10.0.0.33", SUBNET)
        taken = await place.call("POST", LBS, {"loadbalancer": body})
        assert (taken.status_code, "is already used by device" in taken.text) == (400, True)
        await place.call_ok("DELETE", f"{LBS}/{given['id']}")
        assert place.model.snapshot.ports[lent.id].device_id == ""

    door(story)


def test_member_with_a_deleted_subnet_does_not_block_changes(door):
    async def story(place: InProcessServer) -> None:
        listener = await make_listener(place, (await make_balancer(place))["id"])
        pool = await make_pool(place, listener["id"])
        await make_member(place, pool["id"], subnet_id=SUBNET6)
        network = place.model.snapshot.networks[NET]
        rest = replace(network, subnets=tuple(subnet for subnet in network.subnets if subnet.id != SUBNET6))
        await place.model.write(lambda _: Changes(puts=(rest,)))
        await make_member(place, pool["id"], "10.0.0.12")

    door(story)


def lb(**more: object) -> dict[str, Any]:
    return {"loadbalancer": {"name": "x", "vip_subnet_id": SUBNET, **more}}


def listener_of(**more: object) -> dict[str, Any]:
    return {"listener": {"protocol": "TCP", "protocol_port": 81, "loadbalancer_id": "{lb}", **more}}


def pool_of(**more: object) -> dict[str, Any]:
    return {"pool": {"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "loadbalancer_id": "{lb}", **more}}


def member_of(**more: object) -> dict[str, Any]:
    return {"member": {"address": "10.0.0.50", "protocol_port": 80, **more}}


def monitor_of(**more: object) -> dict[str, Any]:
    return {"healthmonitor": {"pool_id": "{pool}", "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2, **more}}


def policy_of(**more: object) -> dict[str, Any]:
    return {"l7policy": {"listener_id": "{listener}", "action": "REJECT", **more}}


LISTENERS, POOLS, MEMBERS = "/v2.0/lbaas/listeners", "/v2.0/lbaas/pools", "/v2.0/lbaas/pools/{pool}/members"
MONITORS, POLICIES = "/v2.0/lbaas/healthmonitors", "/v2.0/lbaas/l7policies"
BAD = [
    ("POST", LBS, [], 400, "should be an object"),
    ("POST", LBS, {"balancer": {}}, 400, "loadbalancer"),
    ("POST", LBS, lb(bogus=1), 400, "Unknown attribute for argument load_balancer.loadbalancer: bogus"),
    ("POST", LBS, lb(vip_subnet_id="nope"), 400, "Value: 'nope'. Value should be UUID format"),
    ("POST", LBS, lb(vip_subnet_id=UNKNOWN_ID), 400, f"Subnet {UNKNOWN_ID} not found."),
    ("POST", LBS, {"loadbalancer": {"name": "x"}}, 400, "VIP must contain one of"),
    ("POST", LBS, lb(vip_address="10.9.0.1"), 400, "VIP address 10.9.0.1 is not a valid IP for subnet"),
    ("POST", LBS, lb(vip_address="10.0.0.255"), 400, "is not a valid IP"),
    ("POST", LBS, lb(vip_address="fd00::5"), 400, "is not a valid IP"),
    ("POST", LBS, lb(vip_address="10.0.0.999"), 400, "Value should be IPv4 or IPv6 format"),
    ("POST", LBS, lb(vip_address="10.0.0.10"), 409, "The VIP IP address is already in use: 10.0.0.10"),
    ("POST", LBS, lb(vip_address="10.0.0.1"), 409, "The VIP IP address is already in use: 10.0.0.1"),
    ("POST", LBS, lb(name="x" * 256), 400, "maximum character requirement of 255"),
    ("POST", LBS, lb(name=5), 400, "Value should be string"),
    ("POST", LBS, lb(admin_state_up="maybe"), 400, "Value should be a boolean."),
    ("POST", LBS, lb(provider="amphora"), 400, "Provider 'amphora' is not enabled."),
    ("POST", LBS, lb(flavor_id=UNKNOWN_ID), 400, "Validation failure: Invalid flavor_id."),
    ("POST", LBS, lb(vip_port_id=UNKNOWN_ID), 400, f"Port {UNKNOWN_ID} not found."),
    ("PUT", LBS + "/{lb}", lb(), 400, "Unknown attribute for argument load_balancer.loadbalancer: vip_subnet_id"),
    ("GET", f"{LBS}/{UNKNOWN_ID}", None, 404, f"Load Balancer {UNKNOWN_ID} not found."),
    ("GET", f"{LBS}/nonsense", None, 404, "Load Balancer nonsense not found."),
    ("GET", "/v2.0/lbaas/bogus", None, 404, "Not Found"),
    ("PATCH", LBS, {}, 405, "Method Not Allowed"),
    ("POST", LISTENERS, listener_of(protocol_port=0), 400, "Value should be greater or equal to 1"),
    ("POST", LISTENERS, listener_of(protocol_port=65536), 400, "Value should be lower or equal to 65535"),
    ("POST", LISTENERS, listener_of(protocol_port=80.5), 400, "Value should be an integer."),
    ("POST", LISTENERS, listener_of(protocol_port=None), 400, "Mandatory field missing."),
    ("POST", LISTENERS, listener_of(protocol="BOGUS"), 400, "Value should be one of: HTTP"),
    ("POST", LISTENERS, listener_of(protocol_port=80), 409, "already using protocol TCP and protocol_port 80"),
    ("POST", LISTENERS, listener_of(protocol="HTTP"), 501, "protocol HTTP"),
    ("POST", LISTENERS, listener_of(connection_limit=5), 501, "connection_limit"),
    ("POST", LISTENERS, listener_of(allowed_cidrs=["fd00::/8"]), 400, "CIDR fd00::/8 IP version incompatible with all"),
    ("POST", LISTENERS, listener_of(allowed_cidrs=["10.0.0.0/8"] * 101), 400, "Value should have at most 100 items."),
    ("POST", LISTENERS, listener_of(allowed_cidrs=["10.0.0.1/x"]), 400, "Value should be IPv4 or IPv6 CIDR format"),
    ("POST", LISTENERS, listener_of(loadbalancer_id=UNKNOWN_ID), 404, f"Load Balancer {UNKNOWN_ID} not found."),
    ("POST", LISTENERS, listener_of(default_pool_id=UNKNOWN_ID), 404, f"Pool {UNKNOWN_ID} not found."),
    ("POST", LISTENERS, listener_of(protocol="UDP", default_pool_id="{pool}"), 400, "pool protocol 'TCP' is invalid"),
    ("PUT", LISTENERS + "/{listener}", {"listener": {"protocol": "UDP"}}, 400, "argument listener_.listener: protocol"),
    ("POST", POOLS, {"pool": {"protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}, 400, "Must provide at least one of"),
    ("POST", POOLS, pool_of(listener_id="{listener}"), 409, "This listener already has a default pool"),
    ("POST", POOLS, pool_of(listener_id="{listener}", protocol="UDP"), 400, "while the listener protocol is 'TCP'."),
    ("POST", POOLS, pool_of(lb_algorithm="BAD"), 400, "Value should be one of: LEAST_CONNECTIONS"),
    ("POST", POOLS, pool_of(session_persistence={"type": "SOURCE_IP", "persistence_timeout": 10}), 400, "is only for"),
    ("POST", POOLS, pool_of(session_persistence={"type": "APP_COOKIE"}), 400, 'Field "cookie_name" must be specified'),
    ("PUT", POOLS + "/{pool}", {"pool": {"lb_algorithm": "LEAST_CONNECTIONS"}}, 501, "lb_algorithm LEAST_CONNECTIONS"),
    ("POST", MEMBERS, member_of(address="10.0.0.11", protocol_port=8080), 409, "already using ip 10.0.0.11"),
    ("POST", MEMBERS, member_of(address="fd00::11"), 501, "members with an IP version that no VIP has"),
    ("POST", MEMBERS, member_of(address="169.254.169.254"), 400, "is not a valid option for member address"),
    ("POST", MEMBERS, member_of(weight=257), 400, "Value should be lower or equal to 256"),
    ("POST", MEMBERS, member_of(weight=-1), 400, "Value should be greater or equal to 0"),
    ("POST", MEMBERS, member_of(subnet_id=UNKNOWN_ID), 400, f"Subnet {UNKNOWN_ID} not found."),
    ("PUT", MEMBERS, {"members": "all"}, 400, "a list"),
    ("PUT", MEMBERS, {"members": [{"address": "10.0.0.9"}]}, 400, "protocol_port. Value: 'None'. Mandatory"),
    ("DELETE", f"{MEMBERS}/{UNKNOWN_ID}", None, 404, f"Member {UNKNOWN_ID} not found."),
    ("POST", MONITORS, monitor_of(type="HTTP"), 501, "a requested option: health monitors of type HTTP"),
    ("POST", MONITORS, monitor_of(delay=None), 400, "attribute delay. Value: 'None'. Mandatory field missing."),
    ("POST", POLICIES, policy_of(), 501, "a requested option: L7 policies"),
    ("POST", POLICIES, policy_of(action="WAIT"), 400, "Value should be one of: REDIRECT_PREFIX"),
    ("POST", LISTENERS, listener_of(tls_ciphers="AES"), 501, "a requested option: tls_ciphers"),
    ("PUT", POOLS + "/{pool}", {"pool": {"tls_enabled": True}}, 501, "a requested option: tls_enabled"),
    ("POST", LBS, lb(vip_sg_ids=[UNKNOWN_ID]), 501, "a requested option: vip_sg_ids"),
    ("POST", LBS, lb(vip_qos_policy_id=UNKNOWN_ID), 501, "a requested option: vip_qos_policy_id"),
]


def _filled(template: Any, ids: dict[str, str]) -> Any:
    match template:
        case str():
            for name, identity in ids.items():
                template = template.replace(f"{{{name}}}", identity)
            return template
        case dict():
            return {key: _filled(value, ids) for key, value in template.items()}
        case list():
            return [_filled(value, ids) for value in template]
        case _:
            return template


def test_invalid_requests_are_refused_and_write_nothing(door):
    async def story(place: InProcessServer) -> None:
        balancer = await make_balancer(place, vip_address="10.0.0.10")
        listener = await make_listener(place, balancer["id"])
        pool = await make_pool(place, listener["id"])
        await make_member(place, pool["id"])
        ids = {"lb": balancer["id"], "listener": listener["id"], "pool": pool["id"]}
        before, applies = await place.store.range(""), place.driver.applies
        for method, path, body, status, words in BAD:
            answer = await place.call(method, _filled(path, ids), _filled(body, ids))
            got = (answer.status_code, answer.json().get("faultstring", answer.text))
            assert got[0] == status, (method, path, body, got)
            assert words in got[1], (method, path, body, got)
            assert answer.json()["faultcode"] == ("Server" if status >= 500 else "Client")
        for text, words in ((b"{", "not valid JSON"), (b'{"loadbalancer": {"name": "\xff"}}', "not valid JSON")):
            answer = await place.client.post(LBS, content=text)
            assert (answer.status_code, words in answer.text) == (400, True)
        answer = await place.client.post(LBS, content=b" " * (5 * 2**20))
        assert (answer.status_code, "larger than" in answer.text) == (413, True)
        assert await place.store.range("") == before
        await place.reconcile()
        assert place.driver.applies == applies

    door(story)


def test_dual_stack_load_balancer_serves_both_address_families(door):
    async def story(place: InProcessServer) -> None:
        balancer = await make_balancer(
            place, vip_address="10.0.0.10", additional_vips=[{"subnet_id": SUBNET6, "ip_address": "FD00:0::10"}]
        )
        port = balancer["vip_port_id"]
        assert balancer["additional_vips"] == [{"subnet_id": SUBNET6, "ip_address": "fd00::10", "port_id": port}]
        assert [str(fixed.address) for fixed in place.model.snapshot.ports[port].fixed_ips] == ["10.0.0.10", "fd00::10"]
        listener = await make_listener(place, balancer["id"], allowed_cidrs=["10.0.0.5/24", "fd00::/64", "10.0.0.0/24"])
        assert listener["allowed_cidrs"] == ["10.0.0.0/24", "fd00::/64"]
        pool = await make_pool(place, listener["id"])
        for address in ("10.0.0.11", "fd00::11"):
            await make_member(place, pool["id"], address)
        rows = {str(row) for rows in place.driver.rows.values() for row in rows.values()}
        assert any("10.0.0.10:80=10.0.0.11:8080 [fd00::10]:80=[fd00::11]:8080" in row for row in rows)
        assert sum(row.startswith("ACL ") for row in rows) == 8, (
            "a drop and an allowance, of each family, inside and outside"
        )
        changed = await place.call_ok(
            "PUT", f"/v2.0/lbaas/listeners/{listener['id']}", {"listener": {"allowed_cidrs": None}}
        )
        assert changed["listener"]["allowed_cidrs"] is None
        assert not any(str(row).startswith("ACL ") for rows in place.driver.rows.values() for row in rows.values())
        await place.call_ok("DELETE", f"{LBS}/{balancer['id']}?cascade=true")
        assert not place.model.snapshot.ports

    door(story)


def test_additional_vips_must_be_addresses_of_the_given_port(door):
    async def story(place: InProcessServer) -> None:
        fixed = (
            FixedIP(subnet_id=SUBNET, address=parse_address("10.0.0.20")),
            FixedIP(subnet_id=SUBNET6, address=parse_address("fd00::20")),
        )
        port = Port(id=UNKNOWN_ID, network_id=NET, mac_address="02:00:00:00:00:20", fixed_ips=fixed, **COMMON)
        await place.model.write(lambda _: Changes(puts=(port,)))
        mine = {"vip_subnet_id": SUBNET, "vip_port_id": UNKNOWN_ID}
        for entry, words in (
            ({"ip_address": "fd00::21"}, f"Port {UNKNOWN_ID} has no such address on subnet {SUBNET6}."),
            (
                {"port_id": NET},
                "port_id of additional_vips is not supported: all VIPs are on one port; set it as vip_port_id.",
            ),
        ):
            body = {"loadbalancer": {**mine, "additional_vips": [{"subnet_id": SUBNET6, **entry}]}}
            answer = await place.call("POST", LBS, body)
            assert (answer.status_code, answer.json()["faultstring"]) == (400, f"Validation failure: {words}")
        balancer = await make_balancer(place, **mine, additional_vips=[{"subnet_id": SUBNET6}])
        assert balancer["additional_vips"][0]["ip_address"] == "fd00::20"
        await place.call_ok("DELETE", f"{LBS}/{balancer['id']}")
        assert place.model.snapshot.ports[UNKNOWN_ID] == port

    door(story)


@pytest.mark.parametrize(
    ("additional", "words"),
    [
        ([{"subnet_id": SUBNET}], "Duplicate VIP subnet(s) specified. Only one IP can be bound per subnet."),
        ([{"subnet_id": UNKNOWN_ID}], f"Subnet {UNKNOWN_ID} not found."),
        ([{"subnet_id": SUBNET6, "ip_address": "10.0.0.9"}], "VIP address 10.0.0.9 is not a valid IP for subnet"),
        ([{"ip_address": "fd00::9"}], "Invalid input for field/attribute subnet_id. Value: 'None'. Mandatory field"),
        ([{"subnet_id": SUBNET6, "port_id": UNKNOWN_ID}], "port_id of additional_vips is not supported"),
        (
            [{"subnet_id": SUBNET6, "colour": "red"}],
            "Unknown attribute for argument load_balancer.loadbalancer.additional_vips: colour",
        ),
    ],
)
def test_invalid_additional_vips_are_refused(door, additional: list[dict[str, str]], words: str):
    async def story(place: InProcessServer) -> None:
        body = {"loadbalancer": {"vip_subnet_id": SUBNET, "additional_vips": additional}}
        answer = await place.call("POST", LBS, body)
        assert answer.status_code == 400
        assert words in answer.json()["faultstring"]
        assert not place.model.snapshot.load_balancers

    door(story)


def test_backup_member_of_an_sctp_pool_gets_no_new_connections(door):
    async def story(place: InProcessServer) -> None:
        balancer = await make_balancer(place, vip_address="10.0.0.10")
        listener = await make_listener(place, balancer["id"], protocol="SCTP")
        pool = await make_pool(place, listener["id"], protocol="SCTP")
        await make_member(place, pool["id"], "10.0.0.11")
        backup = await make_member(place, pool["id"], "10.0.0.12", backup=True)
        assert backup["backup"]
        found = [row for rows in place.driver.rows.values() for row in rows.values() if isinstance(row, LoadBalancer)]
        backends = {row.name.removeprefix(balancer["id"]): row.services[0].backends for row in found}
        assert backends == {"-sctp": ("10.0.0.11:8080",), "-sctp-parting": ("10.0.0.12:8080",)}
        assert {row.protocol for row in found} == {"sctp"}

    door(story)
