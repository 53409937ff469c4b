"""Project restrictions on networks, and project keys that have no effect here."""

from typing import Any

import pytest

from harness.front_ends.lxd_balancing import LISTEN, LISTEN6
from harness.front_ends.lxd_networks import UPLINK, make
from harness.front_ends.lxd_world import LxdFrontEnd

SHOP = "/1.0/projects/shop"
NETWORKS = "/1.0/networks?project=shop"
OVN = {"network": "UP", "ipv4.nat": "true", "ipv6.nat": "true"}


@pytest.fixture
def site(door: LxdFrontEnd) -> LxdFrontEnd:
    make(door, "UP", {**UPLINK, "ipv6.routes": "2001:db8:2::/64"}, kind="physical")
    make(door, "OTHER", {**UPLINK, "parent": "physnet2"}, kind="physical")
    door.call_ok("POST", "/1.0/projects", {"name": "shop"})
    return door


def say(site: LxdFrontEnd, **config: str) -> None:
    site.call_ok("PUT", SHOP, {"config": {key.replace("__", "."): value for key, value in config.items()}})


def network(name: str, number: int, **more: str) -> dict[str, Any]:
    addresses = {"ipv4.address": f"10.{number}.0.1/24", "ipv6.address": f"fd00:{number}::1/64"}
    return {"name": name, "config": {**OVN, **addresses, **more}}


KEPT = {
    "features.images": "false",
    "features.profiles": "true",
    "features.storage.volumes": "false",
    "features.storage.buckets": "true",
    "features.networks.zones": "false",
    "restricted": "false",
}


def test_keys_of_instances_and_storage_are_kept_and_change_nothing(site: LxdFrontEnd):
    config = {"features.networks": "true", **KEPT}
    site.call_ok("POST", "/1.0/projects", {"name": "x", "config": config})
    assert site.call_ok("GET", "/1.0/projects/x")["config"] == config
    site.call_ok("POST", "/1.0/networks?project=x", network("n", 9))


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({"features.images": "maybe"}, 'key "features.images": Invalid value for a boolean "maybe"'),
        ({"restricted": "2"}, 'key "restricted": Invalid value for a boolean "2"'),
        ({"limits.networks": "-1"}, 'key "limits.networks": Invalid value for uint32 "-1": '),
        ({"limits.networks.uplink_ips.ipv6.UP": "x"}, 'key "limits.networks.uplink_ips.ipv6.UP": Invalid value for'),
        ({"restricted.networks.uplinks": ",".join(map(str, range(65)))}, "at most 64 names"),
        ({"features.nothing": "true"}, 'Invalid project configuration key "features.nothing"'),
        ({"limits.networks.uplink_ips.ipv5.UP": "1"}, "Invalid project configuration key"),
    ],
)
def test_invalid_project_key_is_rejected(site: LxdFrontEnd, config: dict[str, str], text: str):
    code, told = site.call_error("POST", "/1.0/projects", {"name": "x", "config": config})
    assert code == 400
    assert text in told


def test_restricted_project_uses_only_its_allowed_uplinks(site: LxdFrontEnd):
    refused = 'Option "network" value "UP" is not one of the allowed uplink networks in project'
    say(site, restricted="true", restricted__networks__uplinks="OTHER")
    assert site.call_error("POST", NETWORKS, network("n", 9)) == (400, refused)
    site.call_ok("POST", NETWORKS, network("n", 9, network=""))  # the only uplink that the project may use
    assert site.call_ok("GET", "/1.0/networks/n?project=shop")["config"]["network"] == "OTHER"
    assert site.call_error("PATCH", "/1.0/networks/n?project=shop", {"config": {"network": "UP"}}) == (400, refused)
    say(site, restricted="true")
    assert site.call_error("POST", NETWORKS, network("m", 8)) == (400, refused)
    assert site.call_error("POST", NETWORKS, network("m", 8, network="")) == (
        400,
        "No allowed uplink networks in project",
    )
    site.call_ok("PATCH", "/1.0/networks/n?project=shop", {"description": "what is there stays"})
    say(site, restricted="false", restricted__networks__uplinks="OTHER")
    site.call_ok("POST", NETWORKS, network("m", 8))


def test_restricted_project_accesses_only_its_allowed_networks(site: LxdFrontEnd):
    for number, name in enumerate(("one", "two"), 8):
        site.call_ok("POST", NETWORKS, network(name, number))
    say(site, restricted="true", restricted__networks__uplinks="UP", restricted__networks__access="one,three")
    assert site.call_ok("GET", NETWORKS) == ["/1.0/networks/one?project=shop"]
    assert site.call_error("GET", "/1.0/networks/two?project=shop") == (404, "Network not found")
    for many in ("load-balancers", "forwards"):
        for listen in (LISTEN, LISTEN6):
            path = f"/1.0/networks/two/{many}?project=shop"
            told = (404, "Failed loading network: Network not found")
            assert site.call_error("POST", path, {"listen_address": listen}) == told
    text = 'Network "four" is not one of the networks that the project may access (restricted.networks.access)'
    assert site.call_error("POST", NETWORKS, network("four", 7)) == (403, text)
    site.call_ok("POST", NETWORKS, network("three", 7))


def test_number_of_networks_of_a_project_is_limited(site: LxdFrontEnd):
    say(site, limits__networks="1")
    site.call_ok("POST", NETWORKS, network("one", 8))
    assert site.call_error("POST", NETWORKS, network("two", 9)) == (403, "Project quota for networks is exhausted")
    assert site.call_ok("GET", f"{SHOP}/state")["resources"]["networks"] == {"Limit": 1, "Usage": 1}
    say(site, limits__networks="0")
    site.call_ok("PATCH", "/1.0/networks/one?project=shop", {"description": "what is there stays"})


@pytest.mark.parametrize(("version", "listen"), [(4, LISTEN), (6, LISTEN6)])
def test_number_of_uplink_addresses_of_a_project_is_limited(site: LxdFrontEnd, version: int, listen: str):
    """Addresses of routers, load balancers and forwards count against a project's limit on an uplink."""
    key = f"limits.networks.uplink_ips.ipv{version}.UP"
    site.call_ok("PUT", SHOP, {"config": {key: "2"}})
    text = f'Reached maximum number of IPv{version} addresses (2) of uplink network "UP" in project "shop"'
    site.call_ok("POST", NETWORKS, network("one", 8))
    many = "/1.0/networks/one/{}?project=shop".format
    site.call_ok("POST", many("load-balancers"), {"listen_address": listen})
    free = {4: "0.0.0.0", 6: "::"}[version]
    for sort, noun in (("load-balancers", "load balancer"), ("forwards", "forward")):
        refused = site.call_error("POST", many(sort), {"listen_address": free})
        assert refused == (403, f"Failed creating {noun}: {text}")
    assert site.call_error("POST", NETWORKS, network("two", 9)) == (403, text)
    own = site.call_ok("GET", "/1.0/networks/one?project=shop")["config"][f"volatile.network.ipv{version}.address"]
    routes = {4: f"{listen}/32,{own}/32", 6: f"2001:db8:2::/64,{own}/128"}[version]
    site.call_ok("PATCH", "/1.0/networks/UP", {"config": {f"ipv{version}.routes": routes}})
    site.call_ok("POST", many("forwards"), {"listen_address": own})  # the router's own address is already counted
    site.call_ok("DELETE", f"/1.0/networks/one/load-balancers/{listen}?project=shop")
    site.call_ok("PUT", SHOP, {"config": {key: "0"}})
    site.call_ok("PATCH", "/1.0/networks/one?project=shop", {"description": "what is there stays"})
