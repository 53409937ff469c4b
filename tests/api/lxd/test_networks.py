"""Networks of the LXD API: what clients see, and refusals with their texts and no write."""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_interface, ip_network
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.http.front_end import Services
from fairlead.api.lxd.bodies import MAX_FREE_KEYS
from fairlead.api.lxd.events import EventListener
from fairlead.api.lxd.network_encode import encode_network
from fairlead.model.documents.network import FixedIP, Network, Port, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import Quota
from fairlead.model.documents.status import AppliedState
from fairlead.model.registry.changeset import Changes
from fairlead.runtime.steps import run_to_completion
from harness.api import NOON, compile_anything
from harness.front_ends.lxd_networks import UPLINK, make
from harness.front_ends.lxd_world import CALLERS, LxdFrontEnd

OVN = {
    "network": "UPLINK",
    "ipv4.address": "10.0.0.1/24",
    "ipv4.nat": "true",
    "ipv6.address": "fd42::1/64",
    "ipv6.nat": "true",
}


@pytest.fixture
def outside(door: LxdFrontEnd) -> LxdFrontEnd:
    """Return an API front end with an uplink."""
    make(door, "UPLINK", UPLINK, kind="physical")
    return door


@pytest.fixture
def ovn(outside: LxdFrontEnd) -> LxdFrontEnd:
    """Return an API front end with an uplink and a network attached to it."""
    make(outside, "ovn0", OVN)
    return outside


@pytest.fixture
def anything(tmp_path: Path) -> Iterator[LxdFrontEnd]:
    """Yield a network in a site whose provider supports every attribute of the API."""
    door = LxdFrontEnd(tmp_path, compile_anything)
    make(door, "UPLINK", UPLINK, kind="physical")
    make(door, "ovn0", OVN)
    yield door
    door.close()


def config(door: LxdFrontEnd, name: str = "ovn0") -> Any:
    return door.call_ok("GET", f"/1.0/networks/{name}")["config"]


def stored(door: LxdFrontEnd, name: str) -> Network:
    return next(each for each in door.snapshot.networks.values() if each.name == name)


# Show


def test_network_is_shown_with_its_configuration_and_allocated_addresses(ovn: LxdFrontEnd):
    assert ovn.call_ok("GET", "/1.0/networks/ovn0") == {
        "name": "ovn0",
        "type": "ovn",
        "description": "",
        "config": {
            **OVN,
            "bridge.mtu": "1442",
            "volatile.network.ipv4.address": config(ovn)["volatile.network.ipv4.address"],
            "volatile.network.ipv6.address": config(ovn)["volatile.network.ipv6.address"],
        },
        "managed": True,
        "status": "Created",
        "used_by": [],
        "locations": ["none"],
        "project": "default",
    }
    assert config(ovn)["volatile.network.ipv4.address"].startswith("203.0.113.")


def test_uplink_is_shown_with_its_attached_networks(ovn: LxdFrontEnd):
    shown = ovn.call_ok("GET", "/1.0/networks/UPLINK")
    assert (shown["type"], shown["config"]) == ("physical", UPLINK)
    assert shown["used_by"] == ["/1.0/networks/ovn0"]


def test_networks_are_listed_sorted_and_filtered(ovn: LxdFrontEnd):
    assert ovn.call_ok("GET", "/1.0/networks") == ["/1.0/networks/UPLINK", "/1.0/networks/ovn0"]
    whole = ovn.call_ok("GET", "/1.0/networks?recursion=1")
    assert [each["name"] for each in whole] == ["UPLINK", "ovn0"]
    assert ovn.call_ok("GET", "/1.0/networks?filter=type eq ovn") == ["/1.0/networks/ovn0"]
    assert ovn.call_ok("GET", "/1.0/networks?filter=config.ipv4.nat eq true") == ["/1.0/networks/ovn0"]


def test_network_created_by_the_neutron_api_is_shown_and_updated(door: LxdFrontEnd):
    cidr = ip_network("10.5.0.0/24")
    subnet = Subnet(id="s", project_id="default", created_at=NOON, cidr=cidr, gateway=cidr[1], allocation_pools=())
    door.write(Network(id="n", project_id="default", created_at=NOON, name="my net", mtu=1300, subnets=(subnet,)))
    shown = {"bridge.mtu": "1300", "ipv4.address": "10.5.0.1/24", "ipv6.address": "none", "network": "none"}
    assert config(door, "n") == shown
    door.call_ok("PATCH", "/1.0/networks/n", {"description": "mine", "config": {"user.a": "b"}})
    network = door.snapshot.networks["n"]
    assert (network.description, network.subnets, network.name) == ("mine", (subnet,), "my net")
    assert config(door, "n") == {**shown, "user.a": "b"}
    assert door.call_ok("GET", "/1.0/networks") == ["/1.0/networks/n"]


def test_network_state_lists_addresses_counters_and_ovn_ids(ovn: LxdFrontEnd):
    told, network = ovn.call_ok("GET", "/1.0/networks/ovn0/state"), stored(ovn, "ovn0")
    assert told["addresses"] == [
        {"family": "inet", "address": "10.0.0.1", "netmask": "24", "scope": "link"},
        {"family": "inet6", "address": "fd42::1", "netmask": "64", "scope": "link"},
    ]
    assert told["hwaddr"].startswith("fa:16:3e:")
    assert (told["mtu"], told["state"], told["type"]) == (network.mtu, "up", "broadcast")
    assert told["counters"] == dict.fromkeys(("bytes_received", "bytes_sent", "packets_received", "packets_sent"), 0)
    shown = config(ovn)
    assert told["ovn"] == {
        "chassis": "",
        "logical_router": network.router_id,
        "logical_switch": network.id,
        "uplink_ipv4": shown["volatile.network.ipv4.address"],
        "uplink_ipv6": shown["volatile.network.ipv6.address"],
    }
    wire = ovn.call_ok("GET", "/1.0/networks/UPLINK/state")
    assert [each["address"] for each in wire["addresses"]] == ["203.0.113.1", "2001:db8::1"]
    assert wire["ovn"] is None


def test_missing_network_returns_404(ovn: LxdFrontEnd):
    for path in ("/1.0/networks/x", "/1.0/networks/x/state"):
        assert ovn.call_error("GET", path) == (404, "Network not found")
    for method, body in (("PUT", {}), ("PATCH", {}), ("DELETE", None), ("POST", {"name": "y"})):
        assert ovn.call_error(method, "/1.0/networks/x", body) == (404, "Failed loading network: Network not found")


def test_network_status_follows_the_apply_result(outside: LxdFrontEnd):
    outside.server.caller, outside.server.is_reconciling = CALLERS["root"], False
    outside.run(outside.server.client.post("/networks", json={"name": "ovn1", "type": "ovn"}))
    network, place = stored(outside, "ovn1"), outside.server

    def status(services: Services) -> str:
        shown = run_to_completion(encode_network(services, outside.snapshot, CALLERS["root"], network))
        return str(shown["status"])

    assert status(place.services) == "Pending"
    assert status(replace(place.services, applied=lambda _: AppliedState(error="no"))) == "Errored"
    outside.reconcile()
    assert status(place.services) == "Created"


# Create


def test_network_without_configuration_gets_ipv4_and_ipv6_subnets_with_nat(outside: LxdFrontEnd):
    make(outside, "ovn1", None)
    shown = config(outside, "ovn1")
    assert (shown["network"], shown["ipv4.nat"], shown["ipv6.nat"]) == ("UPLINK", "true", "true")
    assert shown["ipv4.address"].startswith("10.")
    assert shown["ipv4.address"].endswith(".1/24")
    assert shown["ipv6.address"].startswith("fd42:")
    assert shown["ipv6.address"].endswith("::1/64")


@pytest.mark.parametrize(
    "said",
    [
        {"network": "none", "ipv4.address": "10.1.0.1/24", "ipv6.address": "none"},
        {"network": "none", "ipv4.address": "none", "ipv6.address": "none"},
        {**OVN, "bridge.mtu": "1400", "ipv4.dhcp": "false", "ipv6.dhcp.stateful": "true"},
        {**OVN, "ipv4.dhcp": "yes", "ipv6.dhcp": "off", "ipv4.nat": "1", "user.a": "b", "user.z": "%"},
        {**OVN, "dns.nameservers": "2620:fe::fe, 9.9.9.9"},
        {**OVN, "ipv4.address": "198.51.100.1/26", "ipv4.nat": "false", "ipv6.address": "none", "ipv6.nat": ""},
    ],
)
def test_network_configuration_round_trips(outside: LxdFrontEnd, said: Any):
    make(outside, "ovn1", said)
    wanted = {"bridge.mtu": "1442", **{key: value for key, value in said.items() if value}}
    assert {key: value for key, value in config(outside, "ovn1").items() if "volatile" not in key} == wanted
    before = outside.snapshot
    outside.call_ok("PUT", "/1.0/networks/ovn1", {"config": config(outside, "ovn1"), "description": ""})
    assert outside.snapshot is before


@pytest.mark.parametrize(
    "said",
    [
        {"parent": "physnet2"},
        {"parent": "physnet2", "vlan": "100", "mtu": "9000", "user.a": "b"},
        {"parent": "physnet2", "vlan": "0", "ovn.ingress_mode": "routed"},
        {
            "parent": "physnet2",
            "ipv4.gateway": "192.0.2.1/24",
            "ipv4.ovn.ranges": "192.0.2.50-192.0.2.60, 192.0.2.10-192.0.2.20",
            "ipv4.routes": "192.0.2.128/25, 198.18.0.0/24",
            "dns.nameservers": "192.0.2.1",
        },
        {"parent": "physnet2", "ipv6.gateway": "2001:db8:9::1/64", "ipv6.routes": "2001:db8:a::/48"},
    ],
)
def test_uplink_configuration_round_trips(door: LxdFrontEnd, said: Any):
    make(door, "up", said, kind="physical")
    assert config(door, "up") == said
    before = door.snapshot
    door.call_ok("PUT", "/1.0/networks/up", {"config": config(door, "up"), "description": ""})
    assert door.snapshot is before
    door.call_ok("DELETE", "/1.0/networks/up")
    assert not door.snapshot.networks


def test_ipv6_added_to_an_uplink_reaches_its_existing_networks(door: LxdFrontEnd):
    make(door, "UPLINK", {key: text for key, text in UPLINK.items() if "ipv6" not in key}, kind="physical")
    make(door, "ovn0", OVN)
    had = config(door)
    assert "volatile.network.ipv6.address" not in had
    door.call_ok("PATCH", "/1.0/networks/UPLINK", {"config": UPLINK})
    address = ip_address(config(door)["volatile.network.ipv6.address"])
    assert ip_address("2001:db8::10") <= address <= ip_address("2001:db8::ff")
    assert config(door) == {**had, "volatile.network.ipv6.address": str(address)}
    assert door.call_ok("GET", "/1.0/networks/ovn0/state")["ovn"]["uplink_ipv6"] == str(address)


def test_network_creation_fails_when_the_router_quota_is_exhausted(ovn: LxdFrontEnd):
    ovn.write(Quota(project_id="default", router=1))
    more = {"name": "ovn1", "type": "ovn", "config": {"network": "UPLINK"}}
    assert ovn.call_error("POST", "/1.0/networks", more) == (403, "Project quota for routers is exhausted")


@pytest.mark.parametrize("name", ["ovn0", "UPLINK"])
def test_configuration_with_maximum_user_keys_can_be_written_back(ovn: LxdFrontEnd, name: str):
    path = f"/1.0/networks/{name}"
    ovn.call_ok("PATCH", path, {"config": {f"user.{number}": "x" for number in range(MAX_FREE_KEYS)}})
    shown = ovn.call_ok("GET", path)
    assert len(shown["config"]) > MAX_FREE_KEYS
    ovn.call_ok("PUT", path, {"config": shown["config"], "description": "again"})
    assert ovn.call_ok("GET", path)["config"] == shown["config"]
    code, told = ovn.call_error("PUT", path, {"config": {**shown["config"], "user.more": "x"}})
    assert (code, f"at most {MAX_FREE_KEYS} keys" in told) == (400, True)
    assert ovn.call_error("PATCH", path, {"config": {"user.more": "x"}})[0] == 400


def test_location_header_is_the_network_url(outside: LxdFrontEnd):
    answer = outside.send("POST", "/1.0/networks", {"name": "ovn1", "type": "ovn"})
    assert (answer.status_code, answer.headers["location"]) == (201, "/1.0/networks/ovn1")
    outside.make_project("one")
    answer = outside.send("POST", "/1.0/networks?project=one", {"name": "ovn1"}, by="ann")
    assert answer.headers["location"] == "/1.0/networks/ovn1?project=one"
    assert stored(outside, "ovn1")


NAMED = 'Invalid value for network "x" option '
TYPES = "is not supported, type must be one of: ovn, physical, bridge"


@pytest.mark.parametrize(
    ("body", "code", "text"),
    [
        ({}, 400, "No name provided"),
        ({"name": "a b"}, 400, "Invalid network name: Name cannot contain white space"),
        ({"name": "a:b"}, 400, 'Invalid network name: Cannot contain ":"'),
        ({"name": "ovn0", "type": "ovn"}, 409, 'Network "ovn0" already exists'),
        ({"name": "UPLINK", "type": "ovn"}, 409, 'Network "UPLINK" already exists'),
        ({"name": "x", "type": "macvlan"}, 400, f'Network type "macvlan" {TYPES}'),
        ({"config": {"foo": "bar"}}, 400, 'Invalid option for network "x" option "foo"'),
        (
            {"config": {"bridge.hwaddr": "00:16:3e:00:00:01"}},
            400,
            'Invalid option for network "x" option "bridge.hwaddr"',
        ),
        ({"config": {"bridge.mtu": "a"}}, 400, f'{NAMED}"bridge.mtu": Invalid MTU "a"'),
        ({"config": {"bridge.mtu": "67"}}, 400, f'{NAMED}"bridge.mtu": Out of MTU range (68-16384) "67"'),
        ({"config": {"bridge.mtu": "1279"}}, 400, "The MTU of a network with IPv6 is at least 1280"),
        ({"config": {"ipv4.address": "10.0.0.1"}}, 400, f'{NAMED}"ipv4.address": invalid CIDR address: 10.0.0.1'),
        (
            {"config": {"ipv4.address": "10.0.0.0/24"}},
            400,
            f'{NAMED}"ipv4.address": Not a usable IPv4 address "10.0.0.0/24"',
        ),
        ({"config": {"ipv4.address": "fd42::1/64"}}, 400, f'{NAMED}"ipv4.address": Not an IPv4 address "fd42::1/64"'),
        ({"config": {"ipv6.address": "10.0.0.1/24"}}, 400, f'{NAMED}"ipv6.address": Not an IPv6 address "10.0.0.1/24"'),
        (
            {"config": {"ipv6.address": "::ffff:10.0.0.1/120"}},
            400,
            f'{NAMED}"ipv6.address": invalid CIDR address: ::ffff:10.0.0.1/120',
        ),
        ({"config": {"ipv6.address": "fd42::1/112"}}, 400, "IPv6 subnet must be at least a /64"),
        ({"config": {"ipv4.nat": "maybe"}}, 400, f'{NAMED}"ipv4.nat": Invalid value for a boolean "maybe"'),
        (
            {"config": {"dns.nameservers": "9.9.9.9,x"}},
            400,
            f'{NAMED}"dns.nameservers": Item "x": Not an IP address "x"',
        ),
        (
            {"config": {"network": "nowhere"}},
            400,
            'Option "network" value "nowhere" is not one of the allowed uplink networks in project',
        ),
        (
            {"config": {"network": "ovn0"}},
            400,
            'Option "network" value "ovn0" is not one of the allowed uplink networks in project',
        ),
        (
            {"config": {"volatile.network.ipv4.address": "203.0.113.9"}},
            400,
            f'{NAMED}"volatile.network.ipv4.address": The value is set by the server',
        ),
        (
            {"config": {"ipv4.address": "192.0.2.1/24"}},
            400,
            'Uplink network does not contain "192.0.2.0/24" in its routes',
        ),
        (
            {"config": {"ipv4.address": "203.0.113.129/26"}},
            400,
            'Subnet "203.0.113.128/26" overlaps with "203.0.113.0/24", which the network\'s router is on',
        ),
        (
            {"config": {"ipv4.address": "10.0.0.1/31", "ipv4.nat": "true"}},
            400,
            'Subnet "10.0.0.0/31" is too small for DHCP; set ipv4.dhcp to false',
        ),
        (
            {"config": {"ipv4.address": "0.0.0.1/0", "ipv4.nat": "true"}},
            400,
            'Subnet "0.0.0.0/0" contains all addresses',
        ),
        (
            {"config": {"ipv4.address": "10.0.0.255/24", "ipv4.nat": "true"}},
            400,
            'Not a usable IPv4 address "10.0.0.255"',
        ),
    ],
)
def test_invalid_network_returns_the_error_text_of_lxd(ovn: LxdFrontEnd, body: Any, code: int, text: str):
    body = {"name": "x", "type": "ovn", **body} if "config" in body else body
    assert ovn.call_error("POST", "/1.0/networks", body) == (code, text)


@pytest.mark.parametrize(
    ("said", "code", "text"),
    [
        ({"parent": ""}, 400, f'{NAMED}"parent": Required value'),
        ({"parent": "a b"}, 400, f'{NAMED}"parent": Network interface contains invalid characters'),
        ({"parent": "physnet"}, 409, 'Parent interface "physnet" in use by another network'),
        ({"vlan": "x"}, 400, f'{NAMED}"vlan": Invalid VLAN ID "x"'),
        ({"vlan": "4095"}, 400, f'{NAMED}"vlan": Out of VLAN ID range (0-4094) "4095"'),
        ({"ipv4.gateway": "192.0.2.0/24"}, 400, f'{NAMED}"ipv4.gateway": Not a usable IPv4 address "192.0.2.0/24"'),
        (
            {"ipv4.routes": "192.0.2.1/24"},
            400,
            f'{NAMED}"ipv4.routes": Item "192.0.2.1/24": Not an IPv4 network address "192.0.2.1/24"',
        ),
        (
            {"ipv6.routes": "192.0.2.0/24"},
            400,
            f'{NAMED}"ipv6.routes": Item "192.0.2.0/24": Not an IPv6 network "192.0.2.0/24"',
        ),
        (
            {"ipv4.ovn.ranges": "192.0.2.5"},
            400,
            f'{NAMED}"ipv4.ovn.ranges": Item "192.0.2.5": IP range must contain start and end IP addresses',
        ),
        (
            {"ipv4.gateway": "192.0.2.1/24", "ipv4.ovn.ranges": "192.0.2.9-192.0.2.5"},
            400,
            'Invalid IP range "192.0.2.9-192.0.2.5"',
        ),
        (
            {"ipv4.gateway": "192.0.2.1/24", "ipv4.ovn.ranges": "192.0.2.1-192.0.2.5"},
            400,
            'IP range "192.0.2.1-192.0.2.5" contains the gateway "192.0.2.1"',
        ),
        (
            {"ipv4.gateway": "192.0.2.1/24", "ipv4.ovn.ranges": "192.0.3.1-192.0.3.5"},
            400,
            'IP range "192.0.3.1-192.0.3.5" is not within the subnet "192.0.2.0/24"',
        ),
        (
            {"ipv4.gateway": "192.0.2.1/24", "ipv4.routes": "192.0.0.0/16"},
            400,
            'Route "192.0.0.0/16" contains the uplink\'s own subnet "192.0.2.0/24"',
        ),
        ({"ovn.ingress_mode": "x"}, 400, f'{NAMED}"ovn.ingress_mode": Invalid value "x" (not one of [l2proxy routed])'),
        ({"gvrp": "true"}, 400, 'Invalid option for network "x" option "gvrp"'),
    ],
)
def test_invalid_uplink_returns_the_error_text_of_lxd(ovn: LxdFrontEnd, said: Any, code: int, text: str):
    body = {"name": "x", "type": "physical", "config": {"parent": "other", **said}}
    assert ovn.call_error("POST", "/1.0/networks", body) == (code, text)


def test_uplinks_need_the_default_project_and_an_unrestricted_client(outside: LxdFrontEnd):
    outside.make_project("one")
    body = {"name": "x", "type": "physical", "config": {"parent": "other"}}
    assert outside.call_error("POST", "/1.0/networks?project=one", body, by="ann") == (
        400,
        "Network type does not support non-default projects",
    )
    assert outside.call_error("DELETE", "/1.0/networks/UPLINK?project=default", by="ann")[0] == 403
    assert outside.call_error("GET", "/1.0/networks/UPLINK?project=one", by="ann") == (404, "Network not found")


def test_network_without_uplink_option_fails_with_no_or_several_uplinks(door: LxdFrontEnd):
    body = {"name": "x", "type": "ovn"}
    assert door.call_error("POST", "/1.0/networks", body) == (400, "No allowed uplink networks in project")
    make(door, "UPLINK", UPLINK, kind="physical")
    make(door, "UP2", {"parent": "two"}, kind="physical")
    assert door.call_error("POST", "/1.0/networks", body) == (400, 'Option "network" is required')
    make(door, "x", {"network": "UP2"})
    assert config(door, "x")["network"] == "UP2"


WITHOUT_GATEWAY = {
    "parent": "two",
    "ipv4.ovn.ranges": "192.0.2.5-192.0.2.5",
    "ipv4.routes": "198.51.100.0/24",
    "ipv6.ovn.ranges": "2001:db8::5-2001:db8::5",
    "ipv6.routes": "2001:db8:1::/64",
}
FIRST = {4: "192.0.2.5", 6: "2001:db8::5"}
GATEWAYS = {4: "192.0.2.1/24", 6: "2001:db8::1/64"}


@pytest.mark.parametrize("version", [4, 6])
def test_network_is_isolated_until_its_uplink_has_a_gateway(door: LxdFrontEnd, version: int):
    """As in Incus, where ranges without a gateway are no network's."""
    make(door, "UP2", WITHOUT_GATEWAY, kind="physical")
    assert config(door, "UP2") == WITHOUT_GATEWAY
    make(door, "ovn0", {**OVN, "network": "UP2"})
    shown = door.call_ok("GET", "/1.0/networks/ovn0")
    assert shown["status"] == "Created"
    assert not [key for key in shown["config"] if key.startswith("volatile.")]
    assert door.call_ok("GET", "/1.0/networks/UP2")["used_by"] == ["/1.0/networks/ovn0"]
    listen = {4: "198.51.100.10", 6: "2001:db8:1::10"}[version]
    text = "Isolated OVN network cannot use network load balancers"
    path = "/1.0/networks/ovn0/load-balancers"
    assert text in door.call_error("POST", path, {"listen_address": listen})[1]
    door.call_ok("PATCH", "/1.0/networks/ovn0", {"description": "still up"})
    door.call_ok("PATCH", "/1.0/networks/UP2", {"config": {f"ipv{version}.gateway": GATEWAYS[version]}})
    given = {key: text for key, text in config(door, "ovn0").items() if key.startswith("volatile.")}
    assert given == {f"volatile.network.ipv{version}.address": FIRST[version]}
    door.call_ok("POST", path, {"listen_address": listen})
    door.call_ok("DELETE", "/1.0/networks/ovn0")


BRIDGE = {
    "bridge.driver": "openvswitch",
    "bridge.external_interfaces": "eth1",
    "bridge.mtu": "1400",
    "dns.mode": "managed",
    "ipv4.address": "192.0.2.1/24",
    "ipv4.dhcp": "true",
    "ipv4.dhcp.gateway": "192.0.2.1",
    "ipv4.dhcp.ranges": "192.0.2.100-192.0.2.199",
    "ipv4.nat": "true",
    "ipv4.ovn.ranges": "192.0.2.5-192.0.2.5",
    "ipv4.routes": "198.51.100.0/24",
    "ipv6.address": "2001:db8::1/64",
    "ipv6.nat": "false",
    "ipv6.ovn.ranges": "2001:db8::5-2001:db8::5",
    "ipv6.routes": "2001:db8:1::/64",
    "user.color": "red",
}


def test_bridge_is_an_uplink_with_its_name_as_physical_network(door: LxdFrontEnd):
    make(door, "br0", BRIDGE, kind="bridge")
    shown = door.call_ok("GET", "/1.0/networks/br0")
    assert (shown["type"], shown["config"]) == ("bridge", BRIDGE)
    bridge = stored(door, "br0")
    assert (bridge.mtu, bridge.segment and bridge.segment.physical_network) == (1400, "br0")
    make(door, "ovn0", {**OVN, "network": "br0"})
    given = {key: text for key, text in config(door, "ovn0").items() if key.startswith("volatile.")}
    assert given == {f"volatile.network.ipv{version}.address": FIRST[version] for version in (4, 6)}
    for listen in ("198.51.100.10", "2001:db8:1::10"):
        door.call_ok("POST", "/1.0/networks/ovn0/load-balancers", {"listen_address": listen})
    assert door.call_ok("GET", "/1.0/networks?filter=type eq bridge") == ["/1.0/networks/br0"]
    door.call_ok("PATCH", "/1.0/networks/br0", {"config": {"ipv4.nat": "", "bridge.mtu": ""}})
    assert (stored(door, "br0").mtu, "ipv4.nat" in config(door, "br0")) == (door.server.services.external_mtu, False)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_renamed_bridge_keeps_its_physical_network(door: LxdFrontEnd, method: str):
    make(door, "br0", BRIDGE, kind="bridge")
    make(door, "ovn0", {**OVN, "network": "br0"})
    before = stored(door, "br0")
    door.call_ok("POST", "/1.0/networks/br0", {"name": "outside"})
    assert stored(door, "outside") == replace(before, name="outside", updated_at=NOON)
    door.call_ok(method, "/1.0/networks/outside", {"config": {**BRIDGE, "user.color": "blue"}})
    assert stored(door, "outside").segment == before.segment
    assert config(door, "outside") == {**BRIDGE, "user.color": "blue"}
    door.call_ok("POST", "/1.0/networks/outside", {"name": "br0"})
    assert stored(door, "br0").segment == before.segment


def test_bridge_name_of_a_renamed_uplink_stays_in_use(door: LxdFrontEnd):
    make(door, "br0", BRIDGE, kind="bridge")
    door.call_ok("POST", "/1.0/networks/br0", {"name": "outside"})
    assert door.call_error("POST", "/1.0/networks", {"name": "br0", "type": "bridge", "config": {}})[0] == 409
    make(door, "br1", {}, kind="bridge")


def test_bridge_with_an_invalid_name_from_another_api_can_be_changed(door: LxdFrontEnd):
    make(door, "br0", BRIDGE, kind="bridge")
    named = replace(stored(door, "br0"), name="out of the house")
    door.write(named)
    path = f"/1.0/networks/{named.id}"
    door.call_ok("PATCH", path, {"config": {"user.color": "blue"}})
    assert stored(door, named.name).segment == named.segment
    text = "Invalid network name: Network interface is too long (maximum 15 characters)"
    assert door.call_error("POST", path, {"name": "a" * 16}) == (400, text)


def test_network_without_a_type_is_a_bridge_with_generated_addresses(door: LxdFrontEnd):
    door.call_ok("POST", "/1.0/networks", {"name": "br0"})
    shown = door.call_ok("GET", "/1.0/networks/br0")
    addresses = [ip_interface(shown["config"][f"ipv{version}.address"]) for version in (4, 6)]
    assert (shown["type"], [each.network.prefixlen for each in addresses]) == ("bridge", [24, 64])
    door.call_ok("PUT", "/1.0/networks/br0", {"config": {"ipv6.address": "auto"}})
    assert config(door, "br0") == {"ipv4.address": "none", "ipv6.address": str(addresses[1])}
    door.call_ok("DELETE", "/1.0/networks/br0")


@pytest.mark.parametrize(
    ("name", "said", "text"),
    [
        ("a", {}, "Invalid network name: Network interface is too short (minimum 2 characters)"),
        ("a" * 16, {}, "Invalid network name: Network interface is too long (maximum 15 characters)"),
        ("a#b", {}, "Invalid network name: Network interface contains invalid characters"),
        ("br0", {"parent": "eth0"}, 'Invalid option for network "br0" option "parent"'),
        ("br0", {"ipv4.gateway": "192.0.2.1/24"}, 'Invalid option for network "br0" option "ipv4.gateway"'),
        ("br0", {"ipv4.nat": "x"}, f'{NAMED}"ipv4.nat": Invalid value for a boolean "x"'.replace('"x" o', '"br0" o')),
    ],
)
def test_invalid_bridge_returns_the_error_text_of_lxd(door: LxdFrontEnd, name: str, said: Any, text: str):
    body = {"name": name, "type": "bridge", "config": said}
    assert door.call_error("POST", "/1.0/networks", body) == (400, text)


def test_networks_of_one_project_are_isolated_from_other_projects(outside: LxdFrontEnd):
    outside.make_project("one")
    outside.make_project("two")
    routed = {"ipv4.address": "198.51.100.1/26", "ipv6.address": "none"}
    text = 'Project does not contain "198.51.100.0/26" in its restricted uplink subnets'
    body = {"name": "mine", "type": "ovn", "config": routed}
    assert outside.call_error("POST", "/1.0/networks?project=one", body, by="ann") == (400, text)
    outside.call_ok("PUT", "/1.0/projects/one", {"config": {"restricted.networks.subnets": "UPLINK:198.51.100.0/25"}})
    make(outside, "mine", routed, project="one", by="ann")
    make(outside, "mine", {"ipv4.address": "10.0.0.1/24", "ipv4.nat": "true"}, project="two", by="bob")
    overlap = {"name": "more", "type": "ovn", "config": {"ipv4.address": "198.51.100.33/27", "ipv6.address": "none"}}
    text = 'External subnet "198.51.100.32/27" overlaps with another network or NIC'
    assert outside.call_error("POST", "/1.0/networks?project=two", overlap, by="bob") == (400, text)
    assert outside.call_error("GET", "/1.0/networks/mine?project=one", by="bob")[0] == 403
    shown = outside.call_ok("GET", "/1.0/networks/UPLINK")["used_by"]
    assert shown == ["/1.0/networks/mine?project=one", "/1.0/networks/mine?project=two"]
    assert [
        each["network"]
        for each in outside.call_ok("GET", "/1.0/network-allocations?all-projects=true&project=two", by="bob")
    ]
    mine = outside.call_ok("GET", "/1.0/network-allocations?all-projects=true&project=two", by="bob")
    assert {each["used_by"] for each in mine} == {"/1.0/networks/mine?project=two"}


# Update


def test_empty_value_removes_a_key(ovn: LxdFrontEnd):
    ovn.call_ok("PATCH", "/1.0/networks/ovn0", {"config": {"user.a": "1", "bridge.mtu": "1300"}})
    assert (config(ovn)["user.a"], stored(ovn, "ovn0").mtu) == ("1", 1300)
    ovn.call_ok("PATCH", "/1.0/networks/ovn0", {"config": {"user.a": "", "bridge.mtu": ""}})
    assert ("user.a" in config(ovn), config(ovn)["bridge.mtu"]) == (False, "1442")
    assert stored(ovn, "ovn0").mtu == ovn.server.services.mtu == 1442


def test_minimum_mtu_without_ipv6_is_68(outside: LxdFrontEnd):
    make(outside, "small", {**OVN, "ipv6.address": "none", "ipv6.nat": "", "bridge.mtu": "68"})
    assert (config(outside, "small")["bridge.mtu"], stored(outside, "small").mtu) == ("68", 68)


def test_patch_keeps_absent_fields(ovn: LxdFrontEnd):
    ovn.call_ok("PATCH", "/1.0/networks/ovn0", {"description": "mine"})
    before = config(ovn)
    ovn.call_ok("PATCH", "/1.0/networks/ovn0", {"config": {"ipv6.nat": "true", "user.b": "2"}})
    shown = ovn.call_ok("GET", "/1.0/networks/ovn0")
    assert (shown["description"], shown["config"]) == ("mine", {**before, "user.b": "2"})


def test_put_replaces_the_network_configuration(ovn: LxdFrontEnd):
    said = {**config(ovn), "ipv4.address": "10.7.0.1/16", "ipv6.address": "none", "dns.nameservers": "10.7.0.2"}
    del said["ipv6.nat"]
    ovn.call_ok("PUT", "/1.0/networks/ovn0", {"config": said, "description": "new"})
    assert config(ovn) == said
    ovn.call_ok("PUT", "/1.0/networks/ovn0", {"config": {**said, "ipv4.dhcp": "false"}})
    assert ovn.call_ok("GET", "/1.0/networks/ovn0")["description"] == ""


def test_network_update_with_outdated_etag_returns_412(ovn: LxdFrontEnd):
    tag = ovn.send("GET", "/1.0/networks/ovn0").headers["etag"]
    body = {"config": {**config(ovn), "user.a": "1"}, "description": ""}
    ovn.call_ok("PUT", "/1.0/networks/ovn0", body, if_match=tag)
    code, text = ovn.call_error("PUT", "/1.0/networks/ovn0", body, if_match=tag)
    assert (code, text.startswith("ETag doesn't match: ")) == (412, True)
    assert ovn.send("GET", "/1.0/networks/ovn0").headers["etag"] != tag


def test_network_and_uplink_can_be_renamed(ovn: LxdFrontEnd):
    answer = ovn.send("POST", "/1.0/networks/ovn0", {"name": "other"})
    assert (answer.status_code, answer.headers["location"]) == (201, "/1.0/networks/other")
    assert ovn.call_ok("GET", "/1.0/networks") == ["/1.0/networks/UPLINK", "/1.0/networks/other"]
    assert ovn.call_error("POST", "/1.0/networks/other", {"name": "UPLINK"}) == (409, 'Network "UPLINK" already exists')
    assert ovn.call_error("POST", "/1.0/networks/other", {}) == (400, "New network name not provided")
    ovn.call_ok("POST", "/1.0/networks/UPLINK", {"name": "WORLD"})
    assert config(ovn, "other")["network"] == "WORLD"


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"ipv4.address": "10.9.0.1/24"}, "The network is currently in use"),
        ({"ipv4.address": "none"}, "The network is currently in use"),
        ({"ipv4.nat": "false"}, 'Uplink network does not contain "10.0.0.0/24" in its routes'),
        ({"ipv6.nat": ""}, 'Uplink network does not contain "fd42::/64" in its routes'),
        (
            {"network": "nowhere"},
            'Option "network" value "nowhere" is not one of the allowed uplink networks in project',
        ),
        (
            {"volatile.network.ipv4.address": "203.0.113.9"},
            'Invalid value for network "ovn0" option "volatile.network.ipv4.address": The value is set by the server',
        ),
    ],
)
def test_invalid_change_of_a_network_in_use_is_rejected(ovn: LxdFrontEnd, change: Any, text: str):
    add_machine(ovn)
    assert ovn.call_error("PATCH", "/1.0/networks/ovn0", {"config": change}) == (400, text)


def add_machine(door: LxdFrontEnd) -> Port:
    network = stored(door, "ovn0")
    fixed = FixedIP(subnet_id=network.subnets[0].id, address=ip_address("10.0.0.11"))
    port = Port(
        id="vm",
        project_id="default",
        created_at=NOON,
        network_id=network.id,
        mac_address="fa:16:3e:ff:00:01",
        fixed_ips=(fixed,),
    )
    door.write(port)
    return port


def test_lifecycle_event_is_sent_for_every_network_change(outside: LxdFrontEnd):
    listener = EventListener(user="root", project=None)
    body = {"config": {**OVN, "user.a": "b"}}
    with outside.events.register(listener):
        make(outside, "ovn1", OVN)
        outside.call_ok("PATCH", "/1.0/networks/ovn1", body)
        outside.call_ok("PATCH", "/1.0/networks/ovn1", body)
        outside.send("POST", "/1.0/networks/ovn1", {"name": "ovn2"})
        outside.call_ok("DELETE", "/1.0/networks/ovn2")
        told = [listener.queue.get_nowait().event for _ in range(listener.queue.qsize())]
    assert [(event["metadata"]["action"], event["metadata"]["source"]) for event in told if event] == [
        ("network-created", "/1.0/networks/ovn1"),
        ("network-updated", "/1.0/networks/ovn1"),
        ("network-renamed", "/1.0/networks/ovn2"),
        ("network-deleted", "/1.0/networks/ovn2"),
    ]


# Delete


def test_network_deletion_removes_its_router_and_ports(ovn: LxdFrontEnd):
    add_machine(ovn)
    assert ovn.call_error("DELETE", "/1.0/networks/ovn0") == (400, "The network is currently in use")
    assert ovn.call_error("DELETE", "/1.0/networks/UPLINK") == (400, "The network is currently in use")
    ovn.run(ovn.server.model.write(lambda _: Changes(deletes=(Owner(Kind.PORT, "vm"),))))
    ovn.call_ok("DELETE", "/1.0/networks/ovn0")
    assert (len(ovn.snapshot.networks), len(ovn.snapshot.routers), len(ovn.snapshot.ports)) == (1, 0, 0)
    ovn.call_ok("DELETE", "/1.0/networks/UPLINK")


BALANCER = {
    "listen_address": "198.51.100.7",
    "backends": [{"name": "c1", "target_address": "10.0.0.11", "target_port": "80"}],
    "ports": [{"protocol": "tcp", "listen_port": "80", "target_backend": ["c1"]}],
}


def test_load_balancers_block_subnet_changes_and_are_deleted_with_the_network(anything: LxdFrontEnd):
    ovn = anything
    ovn.call_ok("POST", "/1.0/networks/ovn0/load-balancers", BALANCER)
    forward = {"listen_address": "2001:db8:1::7", "config": {"target_address": "fd42::11"}}
    ovn.call_ok("POST", "/1.0/networks/ovn0/forwards", forward)
    assert ovn.call_ok("GET", "/1.0/networks/ovn0")["used_by"] == [
        "/1.0/networks/ovn0/forwards/2001:db8:1::7",
        "/1.0/networks/ovn0/load-balancers/198.51.100.7",
    ]
    said = config(ovn)
    not_within = "that is not within the network subnet"
    backend = f'Network load balancer for "198.51.100.7" has a backend target address "10.0.0.11" {not_within}'
    moved = {**said, "ipv4.address": "10.9.0.1/24"}
    assert ovn.call_error("PUT", "/1.0/networks/ovn0", {"config": moved}) == (400, backend)
    default = f'Network forward for "2001:db8:1::7" has a default target address "fd42::11" {not_within}'
    moved = {**said, "ipv6.address": "fd43::1/64"}
    assert ovn.call_error("PUT", "/1.0/networks/ovn0", {"config": moved}) == (400, default)
    text = '"ipv4.routes" is missing network for listener "198.51.100.7" of network "ovn0" in project "default"'
    assert ovn.call_error("PATCH", "/1.0/networks/UPLINK", {"config": {"ipv4.routes": "203.0.113.128/25"}}) == (
        400,
        text,
    )
    text = '"ipv6.routes" is missing network for listener "2001:db8:1::7" of network "ovn0" in project "default"'
    assert ovn.call_error("PATCH", "/1.0/networks/UPLINK", {"config": {"ipv6.routes": ""}}) == (400, text)
    assert [
        (each["addresses"], each["type"], each["used_by"], each["nat"], each["network"])
        for each in ovn.call_ok("GET", "/1.0/network-allocations")
    ] == [
        ("203.0.113.1/24", "network", "/1.0/networks/UPLINK", False, "UPLINK"),
        ("2001:db8::1/64", "network", "/1.0/networks/UPLINK", False, "UPLINK"),
        ("10.0.0.1/24", "network", "/1.0/networks/ovn0", True, "ovn0"),
        ("fd42::1/64", "network", "/1.0/networks/ovn0", True, "ovn0"),
        (f"{said['volatile.network.ipv4.address']}/32", "network-uplink", "/1.0/networks/ovn0", False, "ovn0"),
        (f"{said['volatile.network.ipv6.address']}/128", "network-uplink", "/1.0/networks/ovn0", False, "ovn0"),
        ("2001:db8:1::7/128", "network-forward", "/1.0/networks/ovn0/forwards/2001:db8:1::7", False, "ovn0"),
        ("198.51.100.7/32", "network-load-balancer", "/1.0/networks/ovn0/load-balancers/198.51.100.7", False, "ovn0"),
    ]
    ovn.call_ok("DELETE", "/1.0/networks/ovn0")
    assert (len(ovn.snapshot.load_balancers), len(ovn.snapshot.ports)) == (0, 0)
