"""Members: valid addresses, and refusals of addresses at which nothing can answer."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairlead.api import octavia
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import Network, PortUse, Router, Subnet
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Aggregate
from harness.api import InProcessServer, play
from harness.front_ends.octavia_probing import COMMON, SUBNET6, WORLD, port, tree
from harness.octavia import ROOT, SUBNET, error_of

ELSEWHERE = "11111111-0000-4000-8000-000000000040"
ROUTED = "22222222-0000-4000-8000-000000000040"
ROUTER = "33333333-0000-4000-8000-000000000040"
VIP = "10.0.0.100"


def routed() -> tuple[Aggregate, ...]:
    """Return a second network, 10.4.0.0/24, on a router shared with the first, and a machine on it."""
    subnet = Subnet(
        id=ROUTED,
        cidr=parse_network("10.4.0.0/24"),
        gateway=parse_address("10.4.0.1"),
        allocation_pools=(),
        **COMMON,
    )
    interfaces = (port(40, "10.0.0.1"), port(41, "10.4.0.1", ROUTED, ELSEWHERE))
    return (
        Network(id=ELSEWHERE, mtu=1442, subnets=(subnet,), **COMMON),
        Router(id=ROUTER, **COMMON),
        *(replace(each, device_owner=PortUse.ROUTER_INTERFACE.value, device_id=ROUTER) for each in interfaces),
        port(42, "10.4.0.11", ROUTED, ELSEWHERE),
    )


@pytest.fixture
def door(tmp_path: Path):
    def run(story) -> None:
        async def with_world(place: InProcessServer) -> None:
            await place.model.write(lambda _: Changes(puts=WORLD))
            await place.reconcile()
            await story(place)

        play(octavia.make_front_end, tmp_path, with_world, "/load-balancer")

    return run


NOWHERE = [
    "169.254.1.1",
    "127.0.0.1",
    "224.0.0.5",
    "0.0.0.0",
    "255.255.255.255",
    "fe80::1",
    "::1",
    "ff02::1",
    "::",
]


@pytest.mark.parametrize("address", NOWHERE)
def test_special_purpose_member_addresses_are_refused(door, address: str):
    async def story(place: InProcessServer) -> None:
        shown = parse_address(address)
        words = f"{shown} is not a valid option for member address"
        assert await error_of(place, "POST", "loadbalancers", tree(address, monitor=None)) == (400, words)
        probed = tree({"address": "10.0.0.11", "monitor_address": address}, monitor=None)
        words = f"{shown} is not a valid option for member monitor_address"
        assert await error_of(place, "POST", "loadbalancers", probed) == (400, words)
        made = (await place.call_ok("POST", f"{ROOT}/loadbalancers", tree("10.0.0.11")))["loadbalancer"]
        members = f"pools/{made['pools'][0]['id']}/members"
        [member] = (await place.call_ok("GET", f"{ROOT}/{members}"))["members"]
        change = {"member": {"monitor_address": address}}
        assert await error_of(place, "PUT", f"{members}/{member['id']}", change) == (400, words)
        assert len(place.model.snapshot.load_balancers) == 1

    door(story)


VIPS = "it is a VIP, and a connection is balanced only once"
OBSTACLES: list[tuple[dict[str, Any], str]] = [
    ({"address": VIP}, VIPS),
    ({"address": "10.0.0.101"}, VIPS),  # its own VIP
    ({"address": VIP, "subnet_id": SUBNET}, VIPS),
    ({"address": "10.4.0.100"}, VIPS),  # a VIP on a routed network
    ({"address": "10.4.0.100", "subnet_id": ROUTED}, VIPS),
    ({"address": "10.0.0.1"}, "it is the address of a router"),
    ({"address": "10.4.0.1"}, "it is the address of a router"),
    ({"address": "10.0.0.0"}, "it is the network or the broadcast address of 10.0.0.0/24"),
    ({"address": "10.0.0.255"}, "it is the network or the broadcast address of 10.0.0.0/24"),
    ({"address": "10.4.0.255"}, "it is the network or the broadcast address of 10.4.0.0/24"),
    ({"address": "10.9.0.1", "subnet_id": "22222222-0000-4000-8000-000000000030"}, "it is the gateway of 10.9.0.0/30"),
    ({"address": "10.0.0.77"}, "it is a source address of probes"),
]


@pytest.mark.parametrize(("member", "what"), OBSTACLES, ids=lambda value: str(value)[:60])
def test_member_address_that_no_workload_can_have_is_refused_by_name(door, member: dict[str, Any], what: str):
    async def story(place: InProcessServer) -> None:
        probe = replace(port(77, "10.0.0.77"), device_owner=PortUse.PROBE.value)
        await place.model.write(lambda _: Changes(puts=(*routed(), probe)))
        for where in ({"vip_address": VIP}, {"vip_subnet_id": ROUTED, "vip_address": "10.4.0.100"}):
            await place.call_ok("POST", f"{ROOT}/loadbalancers", {"loadbalancer": {"vip_subnet_id": SUBNET, **where}})
        body = tree(member, monitor=None, vip_address="10.0.0.101")
        words = f"Provider 'fairlead' does not support a requested option: member {member['address']}: {what}"
        assert await error_of(place, "POST", "loadbalancers", body) == (501, words)
        body = tree("10.0.0.11", monitor=None, vip_address="10.0.0.101")
        made = (await place.call_ok("POST", f"{ROOT}/loadbalancers", body))["loadbalancer"]
        members = f"pools/{made['pools'][0]['id']}/members"
        one = {"protocol_port": 80, **member}
        assert await error_of(place, "POST", members, {"member": one}) == (501, words)
        assert await error_of(place, "PUT", members, {"members": [one]}) == (501, words)
        assert len((await place.call_ok("GET", f"{ROOT}/{members}"))["members"]) == 1

    door(story)


def test_member_may_have_a_gateway_address_or_an_address_outside_known_subnets(door):
    async def story(place: InProcessServer) -> None:
        await place.model.write(lambda _: Changes(puts=(port(40, "10.0.0.1"), *routed()[:1])))
        for address in ("10.0.0.1", "10.0.0.200", "10.4.0.1", "10.4.0.255", "203.0.113.255", "192.0.2.0"):
            await place.call_ok("POST", f"{ROOT}/loadbalancers", tree(address, monitor=None))

    door(story)


def test_member_is_in_error_while_its_address_is_a_vip(door):
    """A member whose address becomes a VIP later is kept, but its status is ERROR."""

    async def story(place: InProcessServer) -> None:
        body = tree(VIP, "10.0.0.11", monitor=None)
        made = (await place.call_ok("POST", f"{ROOT}/loadbalancers", body))["loadbalancer"]
        [pool] = made["pools"]

        async def statuses() -> tuple[str, str, list[str]]:
            members = (await place.call_ok("GET", f"{ROOT}/pools/{pool['id']}/members"))["members"]
            shown = (await place.call_ok("GET", f"{ROOT}/pools/{pool['id']}"))["pool"]["operating_status"]
            whole = (await place.call_ok("GET", f"{ROOT}/loadbalancers/{made['id']}"))["loadbalancer"][
                "operating_status"
            ]
            return whole, shown, [member["operating_status"] for member in members]

        assert await statuses() == ("ONLINE", "ONLINE", ["NO_MONITOR", "NO_MONITOR"])
        other = {"loadbalancer": {"vip_subnet_id": SUBNET, "vip_address": VIP}}
        taker = (await place.call_ok("POST", f"{ROOT}/loadbalancers", other))["loadbalancer"]
        assert await statuses() == ("DEGRADED", "DEGRADED", ["ERROR", "NO_MONITOR"])
        member = made["pools"][0]["members"][0]["id"]
        await place.call_ok("PUT", f"{ROOT}/pools/{pool['id']}/members/{member}", {"member": {"weight": 3}})
        await place.call_ok("DELETE", f"{ROOT}/pools/{pool['id']}/members/{made['pools'][0]['members'][1]['id']}")
        assert await statuses() == ("ERROR", "ERROR", ["ERROR"])
        await place.call_ok("DELETE", f"{ROOT}/loadbalancers/{taker['id']}")
        assert await statuses() == ("ONLINE", "ONLINE", ["NO_MONITOR"])

    door(story)


@pytest.mark.parametrize("text", ["::ffff:10.0.0.11", "::ffff:a00:b", "::FFFF:10.0.0.100"])
def test_ipv4_mapped_ipv6_addresses_are_refused(door, text: str):
    """IPv4-mapped IPv6 addresses are refused in every attribute with an address that may end up in a row."""

    async def story(place: InProcessServer) -> None:
        made = (await place.call_ok("POST", f"{ROOT}/loadbalancers", tree("10.0.0.11")))["loadbalancer"]
        pool, listener = made["pools"][0]["id"], made["listeners"][0]["id"]
        member = {"address": "10.0.0.12", "protocol_port": 80}
        vip = {"subnet_id": SUBNET, "ip_address": text}
        ways: list[tuple[str, str, dict[str, Any], str]] = [
            ("address", "loadbalancers", tree(text), "POST"),
            ("address", f"pools/{pool}/members", {"member": {**member, "address": text}}, "POST"),
            ("monitor_address", f"pools/{pool}/members", {"member": {**member, "monitor_address": text}}, "POST"),
            ("vip_address", "loadbalancers", {"loadbalancer": {"vip_subnet_id": SUBNET, "vip_address": text}}, "POST"),
            ("ip_address", "loadbalancers", tree(additional_vips=[vip]), "POST"),
        ]
        for name, path, body, method in ways:
            said_so = await error_of(place, method, path, body)
            words = f"Invalid input for field/attribute {name}. Value: '{text}'. Value should be IPv4 or IPv6 format"
            assert said_so == (400, words)
        for cidr in (f"{text}/104", f"{text}/96", f"{text}/128", f"{text}/127"):
            body = {"listener": {"allowed_cidrs": ["2001:db8::/32", cidr]}}
            status, words = await error_of(place, "PUT", f"listeners/{listener}", body)
            assert status == 400
            assert words.endswith("Value should be IPv4 or IPv6 CIDR format")

    door(story)


def test_allowed_cidrs_lose_host_bits_and_families_get_separate_acls(door):
    async def story(place: InProcessServer) -> None:
        body = tree("10.0.0.11", "fd00::11", vip_address=VIP, additional_vips=[{"subnet_id": SUBNET6}], monitor=None)
        made = (await place.call_ok("POST", f"{ROOT}/loadbalancers", body))["loadbalancer"]
        path = f"{ROOT}/listeners/{made['listeners'][0]['id']}"

        async def acls(*cidrs: str) -> tuple[list[str], list[str]]:
            shown = (await place.call_ok("PUT", path, {"listener": {"allowed_cidrs": cidrs}}))["listener"][
                "allowed_cidrs"
            ]
            rows = [str(row) for rows in place.driver.rows.values() for row in rows.values()]
            found = (row.partition(".src == ")[2] for row in rows if "from-lport allow" in row)
            return shown, sorted(found)

        cut = ["10.1.0.0/24", "2001:db8::/32"]
        assert await acls("10.1.0.9/24", "2001:db8::9/32") == (cut, ["{10.1.0.0/24}'", "{2001:db8::/32}'"])
        assert await acls("10.1.0.9/24", "10.1.0.0/24", "::/0") == (["10.1.0.0/24", "::/0"], ["{10.1.0.0/24}'"])
        assert await acls("0.0.0.0/0", "2001:db8::/32") == (["0.0.0.0/0", "2001:db8::/32"], ["{2001:db8::/32}'"])
        assert await acls("0.0.0.0/0", "::/0", "10.0.0.0/8") == (["0.0.0.0/0", "::/0", "10.0.0.0/8"], [])

    door(story)
