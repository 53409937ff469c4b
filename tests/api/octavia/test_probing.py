"""Health monitors: the source address of probes, and refusals of endpoints that cannot be probed."""

from dataclasses import replace
from typing import Any

import pytest
from immutables import Map
from starlette.applications import Starlette

from fairlead.api import network as network_door
from fairlead.api import octavia
from fairlead.api.http.front_end import Services
from fairlead.changes.identity import Identity
from fairlead.model.documents.network import Port, PortUse
from fairlead.model.documents.quota import ProbeLimits
from fairlead.model.queries.probes import probe_port_id
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from harness.api import InProcessServer
from harness.front_ends.octavia_probing import (
    COMMON,
    FULL_SUBNET,
    LBS,
    MONITOR,
    NET,
    SUBNET,
    SUBNET6,
    WORLD,
    door,
    network,
    port,
    probed_members,
    tree,
)

__all__ = ["door"]


def test_monitors_of_a_subnet_share_one_probe_source_address(door):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", LBS, tree("10.0.0.11", monitor=None))
        assert probed_members(place) == []
        made = (await place.call_ok("POST", LBS, tree("10.0.0.11")))["loadbalancer"]
        [probe] = probed_members(place)
        assert (probe.id, probe.network_id) == (probe_port_id(SUBNET), NET)
        await place.call_ok("POST", LBS, tree("10.0.0.11"))
        assert probed_members(place) == [probe]
        rows = [str(row) for rows in place.driver.rows.values() for row in rows.values()]
        address = probe.fixed_ips[0].address
        assert any(f"ip_port_mappings:10.0.0.11={WORLD[2].id}:{address}" in row for row in rows)
        assert sum(row.startswith("Load_Balancer_Health_Check") for row in rows) == 2
        assert not any(str(address) in row for row in rows if row.startswith("Logical_Switch_Port"))
        await place.call_ok("DELETE", f"{LBS}/{made['id']}?cascade=true")
        assert probed_members(place) == [probe]

    door(story)


MINE = Identity(user="me", project_id="mine", roles=frozenset({"member"}))


def test_probes_go_to_ports_of_the_project_only(door):
    """Ports of other projects on a shared network are not probed, and are refused with the text for unassigned
    addresses."""

    async def story(place: InProcessServer) -> None:
        shared = replace(network(), shared=True)
        mine = replace(port(8, "10.0.0.12"), project_id="mine")
        await place.model.write(lambda _: Changes(puts=(shared, mine)))
        place.caller = MINE
        answers = [await place.call("POST", LBS, tree(address)) for address in ("10.0.0.11", "10.0.0.99")]
        assert [answer.status_code for answer in answers] == [501, 501]
        texts = [answer.json()["faultstring"] for answer in answers]
        assert "10.0.0.11 is not the address of a port of project mine on network" in texts[0]
        assert texts[0].replace("10.0.0.11", "10.0.0.99") == texts[1]
        body = tree("10.0.0.12", {"address": "10.0.0.13", "monitor_address": "10.0.0.11"})
        assert (await place.call("POST", LBS, body)).status_code == 501
        await place.call_ok("POST", LBS, tree("10.0.0.11", monitor=None))
        await place.call_ok("POST", LBS, tree("10.0.0.12"))
        rows = [str(row) for rows in place.driver.rows.values() for row in rows.values()]
        assert [row for row in rows if f"ip_port_mappings:10.0.0.12={mine.id}" in row]
        assert not [row for row in rows if "ip_port_mappings:10.0.0.11" in row]

    door(story)


def test_port_recreated_by_another_project_is_no_longer_probed(door):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", LBS, tree("10.0.0.11"))
        stranger = replace(port(9, "10.0.0.11"), project_id="stranger")
        gone = owner_of(port(1, "10.0.0.11"))
        await place.model.write(lambda _: Changes(deletes=(gone,)))
        await place.model.write(lambda _: Changes(puts=(stranger,)))
        await place.reconcile()
        rows = [str(row) for rows in place.driver.rows.values() for row in rows.values()]
        assert not [row for row in rows if "ip_port_mappings" in row or row.startswith("Load_Balancer_Health")]
        assert not place.model.snapshot.down  # no probe result yet: the member serves, as without a monitor

    door(story)


def test_probes_of_a_previous_address_owner_do_not_count_for_the_new_port(door):
    """Monitors of an address's previous owner do not probe the new owner, nor use up its probe limit."""

    async def story(place: InProcessServer) -> None:
        shared = replace(network(), shared=True)
        mine = replace(port(8, "10.0.0.12"), project_id="mine")
        await place.model.write(lambda _: Changes(puts=(shared, mine)))
        often = {**MONITOR, "delay": 1}
        for _ in range(20):
            await place.call_ok("POST", LBS, tree("10.0.0.11", monitor=often))
        assert (await place.call("POST", LBS, tree("10.0.0.11", monitor=often))).status_code == 403
        taken = replace(port(9, "10.0.0.11"), project_id="mine")
        await place.model.write(lambda _: Changes(deletes=(owner_of(port(1, "10.0.0.11")),)))
        await place.model.write(lambda _: Changes(puts=(taken,)))
        place.caller = MINE
        await place.call_ok("POST", LBS, tree("10.0.0.11", monitor=often))

    door(story)


def services(number: int, delay: int, address: str = "10.0.0.11") -> dict[str, Any]:
    """Return a load balancer with this many probes of one machine, one each `delay` seconds."""
    members = [{"address": address, "protocol_port": 1000 + each} for each in range(number)]
    return tree(*members, monitor={**MONITOR, "delay": delay})


def test_probe_rate_per_port_is_limited(door):
    async def story(place: InProcessServer) -> None:
        words = f"Quota has been met for resources: Probes per second of port {port(1, '10.0.0.11').id} (20)"
        for delay, most in ((1, 20), (5, 100)):
            answer = await place.call("POST", LBS, services(most + 1, delay))
            assert (answer.status_code, answer.json()["faultstring"]) == (403, words)
        made = (await place.call_ok("POST", LBS, services(20, 1)))["loadbalancer"]
        named = services(1, 1)
        pool = named["loadbalancer"]["listeners"][0]["default_pool"]
        pool["members"][0]["subnet_id"] = SUBNET  # the same port, named by its subnet
        other = {"address": "fd00::11", "monitor_address": "10.0.0.11", "protocol_port": 80}
        for body in (services(1, 1), named, tree(other, vip_subnet_id=SUBNET6)):
            answer = await place.call("POST", LBS, body)
            assert (answer.status_code, answer.json()["faultstring"]) == (403, words)
        monitor = made["pools"][0]["healthmonitor"]["id"]
        path = f"/v2.0/lbaas/healthmonitors/{monitor}"
        await place.call_ok("PUT", path, {"healthmonitor": {"delay": 2}})
        again = (await place.call_ok("POST", LBS, services(10, 1)))["loadbalancer"]
        answer = await place.call("PUT", path, {"healthmonitor": {"delay": 1}})
        assert (answer.status_code, answer.json()["faultstring"]) == (403, words)
        for balancer in (made, again):
            await place.call_ok("DELETE", f"{LBS}/{balancer['id']}?cascade=true")
        assert (dict(place.model.snapshot.probed), dict(place.model.snapshot.probing)) == ({}, {})
        assert (await place.call("POST", LBS, services(1000, 1))).status_code == 403

    door(story)


def test_probe_rate_per_project_is_limited(door):
    async def story(place: InProcessServer) -> None:
        ports = tuple(port(100 + each, f"10.0.0.{100 + each}") for each in range(11))
        await place.model.write(lambda _: Changes(puts=ports))
        made = [
            await place.call_ok("POST", LBS, services(20, 1, f"10.0.0.{100 + each}")) for each in range(10)
        ]  # 200 in total
        answer = await place.call("POST", LBS, services(1, 1, "10.0.0.110"))
        words = "Quota has been met for resources: Probes per second (200)"
        assert (answer.status_code, answer.json()["faultstring"]) == (403, words)
        await place.call_ok("DELETE", f"{LBS}/{made[0]['loadbalancer']['id']}?cascade=true")
        await place.call_ok("POST", LBS, services(1, 1, "10.0.0.110"))

    door(story)


def test_monitor_above_the_probe_limit_can_change_but_not_probe_more(door):
    async def story(place: InProcessServer) -> None:
        made = (await place.call_ok("POST", LBS, services(2, 1)))["loadbalancer"]
        place.model.snapshot = replace(place.model.snapshot, probing=Map({"demo": 10**9}))
        await place.call_ok("PUT", f"{LBS}/{made['id']}", {"loadbalancer": {"name": "x"}})
        monitor = f"/v2.0/lbaas/healthmonitors/{made['pools'][0]['healthmonitor']['id']}"
        await place.call_ok("PUT", monitor, {"healthmonitor": {"delay": 2}})
        assert (await place.call("PUT", monitor, {"healthmonitor": {"delay": 1}})).status_code == 403

    door(story)


def probed_by(monitor: dict[str, Any]) -> dict[str, Any]:
    return tree({"address": "10.0.0.11", "protocol_port": 80}, monitor=monitor)


def test_ping_monitors_and_delay_ms_require_probing_by_agents(door):
    quick = {**MONITOR, "delay_ms": 100}

    async def by_ovn(place: InProcessServer) -> None:
        for kind, monitor in (("health monitors of type PING", {**MONITOR, "type": "PING"}), ("delay_ms", quick)):
            answer = await place.call("POST", LBS, probed_by(monitor))
            assert (answer.status_code, kind in answer.json()["faultstring"]) == (501, True)

    async def by_agents(place: InProcessServer) -> None:
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        made = await place.call_ok("POST", LBS, probed_by(quick))
        monitor = made["loadbalancer"]["pools"][0]["healthmonitor"]
        assert (monitor["delay"], monitor["delay_ms"], monitor["probed_by"]) == (5, 100, "agents")
        path = f"/v2.0/lbaas/healthmonitors/{monitor['id']}"
        for delay_ms, status in ((99, 400), (1000, 400), (999, 200), (None, 200)):
            answer = await place.call("PUT", path, {"healthmonitor": {"delay_ms": delay_ms}})
            assert answer.status_code == status
        rate = sum(place.model.snapshot.probing.values())
        assert rate == 200_000

    door(by_ovn)
    door(by_agents)


def test_delay_ms_counts_for_the_probe_limit_and_the_minimum_delay(door):
    def strict(services: Services) -> Starlette:
        return octavia.make_front_end(replace(services, probes=ProbeLimits(max_probes_per_second_per_port=9)))

    def slow(services: Services) -> Starlette:
        return octavia.make_front_end(replace(services, probes=ProbeLimits(min_delay=2)))

    async def refused(place: InProcessServer) -> None:
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        answer = await place.call("POST", LBS, probed_by({**MONITOR, "delay_ms": 100}))
        assert answer.status_code in (400, 403)

    door(refused, strict)
    door(refused, slow)


def test_minimum_delay_is_configurable(door):
    def strict(services: Services) -> Starlette:
        return octavia.make_front_end(replace(services, probes=ProbeLimits(min_delay=5)))

    async def story(place: InProcessServer) -> None:
        answer = await place.call("POST", LBS, services(1, 4))
        words = "The request delay value 4 should be larger than 5 for TCP health monitor type."
        assert (answer.status_code, answer.json()["faultstring"]) == (400, f"Validation failure: {words}")
        await place.call_ok("POST", LBS, services(1, 5))

    door(story, strict)


def test_disabled_load_balancer_gets_its_probe_address_when_enabled(door):
    async def story(place: InProcessServer) -> None:
        made = (await place.call_ok("POST", LBS, tree("10.0.0.11", admin_state_up=False)))["loadbalancer"]
        assert probed_members(place) == []
        await place.call_ok("PUT", f"{LBS}/{made['id']}", {"loadbalancer": {"admin_state_up": True}})
        assert len(probed_members(place)) == 1
        rows = [str(row) for rows in place.driver.rows.values() for row in rows.values()]
        assert sum(row.startswith("Load_Balancer_Health_Check") for row in rows) == 1

    door(story)


def test_ipv6_monitor_needs_no_probe_source_address(door):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", LBS, tree("fd00::11", vip_subnet_id=SUBNET6))
        assert probed_members(place) == []

    door(story)


REFUSED = [
    (
        tree("10.0.0.99"),
        501,
        f"member 10.0.0.99: 10.0.0.99 is not the address of a port of network {NET}; if it is on another network",
    ),
    (
        tree({"address": "10.0.0.11", "monitor_address": "10.0.0.98"}),
        501,
        "10.0.0.98 is not the address of a port of network",
    ),
    (tree("10.9.0.2"), 501, "is not the address of a port of network"),
    (
        tree({"address": "10.9.0.2", "subnet_id": FULL_SUBNET}),
        409,
        f"No more IP addresses available on subnet {FULL_SUBNET}",
    ),
    (tree("10.0.0.11", monitor={**MONITOR, "type": "HTTP"}), 501, "health monitors of type HTTP"),
    (tree("10.0.0.11", monitor={**MONITOR, "type": "PING"}), 501, "health monitors of type PING"),
]


@pytest.mark.parametrize(("body", "code", "words"), REFUSED, ids=lambda value: str(value)[-40:])
def test_impossible_probes_are_refused_with_the_reason(door, body: dict[str, Any], code: int, words: str):
    async def story(place: InProcessServer) -> None:
        answer = await place.call("POST", LBS, body)
        assert answer.status_code == code
        assert words in answer.json()["faultstring"]
        assert (len(place.model.snapshot.load_balancers), probed_members(place)) == (0, [])

    door(story)


def test_new_member_must_be_probeable_and_a_lost_port_blocks_no_update(door):
    async def story(place: InProcessServer) -> None:
        made = (await place.call_ok("POST", LBS, tree("10.0.0.11")))["loadbalancer"]
        members = f"/v2.0/lbaas/pools/{made['pools'][0]['id']}/members"
        answer = await place.call("POST", members, {"member": {"address": "10.0.0.99", "protocol_port": 80}})
        assert answer.status_code == 501
        await place.model.write(lambda snapshot: Changes(puts=(port(9, "10.0.0.12"),)))
        await place.call_ok("POST", members, {"member": {"address": "10.0.0.12", "protocol_port": 80}})
        await place.model.write(lambda snapshot: Changes(deletes=(owner_of(port(9, "10.0.0.12")),)))
        [down] = place.model.snapshot.down[made["id"]]
        await place.call_ok("PUT", f"{members}/{down}", {"member": {"weight": 5}})

    door(story)


def test_probe_port_is_protected_and_deleted_with_its_subnet_or_network(door):
    async def story(place: InProcessServer) -> None:
        identity = probe_port_id(SUBNET)
        probe = port(7, "10.0.0.7")
        held = Port(
            id=identity,
            network_id=NET,
            mac_address=probe.mac_address,
            fixed_ips=probe.fixed_ips,
            device_owner=PortUse.PROBE.value,
            **COMMON,
        )
        gone = tuple(owner_of(each) for each in WORLD[2:4])
        await place.model.write(lambda _: Changes(puts=(held,), deletes=gone))
        ports = f"/v2.0/ports/{identity}"
        assert (await place.call("DELETE", ports)).status_code == 409
        moved = {"port": {"fixed_ips": [{"subnet_id": SUBNET, "ip_address": "10.0.0.8"}]}}
        assert (await place.call("PUT", ports, moved)).status_code == 409
        fake = {"port": {"network_id": NET, "device_owner": PortUse.PROBE}}
        assert (await place.call("POST", "/v2.0/ports", fake)).status_code == 400
        await place.call_ok("DELETE", f"/v2.0/subnets/{SUBNET}")
        assert probed_members(place) == []
        await place.model.write(lambda _: Changes(puts=(network(), held)))
        await place.call_ok("DELETE", f"/v2.0/networks/{NET}")
        assert probed_members(place) == []

    door(story, network_door.make_front_end, "/network")


def test_down_member_reset_requires_probing_by_agents(door):
    def asking(word: str) -> dict[str, Any]:
        body = probed_by(MONITOR)
        body["loadbalancer"]["listeners"][0]["default_pool"]["down_member"] = word
        return body

    async def by_ovn(place: InProcessServer) -> None:
        answer = await place.call("POST", LBS, asking("RESET"))
        assert (answer.status_code, "down_member RESET" in answer.json()["faultstring"]) == (501, True)
        assert (await place.call("POST", LBS, asking("FLEE"))).status_code == 400
        made = (await place.call_ok("POST", LBS, asking("KEEP")))["loadbalancer"]
        assert "down_member" not in made["pools"][0]

    async def by_agents(place: InProcessServer) -> None:
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        made = (await place.call_ok("POST", LBS, asking("RESET")))["loadbalancer"]
        assert made["pools"][0]["down_member"] == "RESET"
        path = f"/v2.0/lbaas/pools/{made['pools'][0]['id']}"
        for said, kept in (("KEEP", "KEEP"), ("RESET", "RESET"), (None, "KEEP")):
            changed = await place.call_ok("PUT", path, {"pool": {"down_member": said}})
            assert changed["pool"].get("down_member", "KEEP") == kept

    door(by_ovn)
    door(by_agents)
