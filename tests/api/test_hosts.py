"""Plain hosts: operators declare them, and tenants have members routed by them; each error has its remedy."""

from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import httpx
import pytest
from immutables import Map

from fairlead.model.documents.hosts import MAX_HOST_NUMBER, MAX_PREFIXES
from harness.api import PLAIN, Deployment
from harness.front_ends.plain_hosts import NAMES, ONE, announced, as_tenant, balancer, caller, compile_own, put
from harness.front_ends.tenants import BALANCER, NETWORK, by_name, message
from harness.whole_application import Caller

__all__ = ["caller"]


def hosts(caller: Caller) -> Any:
    return caller.send("GET", "/operator/hosts").json()["hosts"]


def test_a_host_is_declared_shown_changed_drained_and_removed(caller: Caller):
    made = put(caller, "one", **ONE)
    assert made.status_code == 200
    assert 1 <= made.json()["number"] <= MAX_HOST_NUMBER
    assert made.json() == {
        "name": "one",
        "number": made.json()["number"],
        "addresses": ["10.20.0.21", "fd00:20::21"],
        "prefixes": [{"cidr": "10.1.0.0/24", "project_id": None}, {"cidr": "fd00:1::/64", "project_id": "alice"}],
        "draining": False,
    }
    assert put(caller, "two", addresses=["10.20.0.22"], number=7).json()["number"] == 7
    assert [each["name"] for each in hosts(caller)] == ["one", "two"]
    changed = put(caller, "two", prefixes=[{"cidr": "10.2.0.0/24"}]).json()
    assert (changed["number"], changed["addresses"]) == (7, ["10.20.0.22"])
    assert caller.send("GET", "/operator/hosts/two").json() == changed
    assert caller.send("PUT", "/operator/hosts/two/draining").json() == {**changed, "draining": True}
    assert caller.send("PUT", "/operator/hosts/two/draining").json()["draining"] is True
    assert put(caller, "two", prefixes=[]).json()["draining"] is True
    assert caller.send("DELETE", "/operator/hosts/two/draining").json()["draining"] is False
    assert caller.send("DELETE", "/operator/hosts/two").status_code == 204
    assert [each["name"] for each in hosts(caller)] == ["one"]


def test_declared_host_is_listed_as_chassis_before_its_agent_connects(caller: Caller):
    put(caller, "one", **ONE, number=3)
    caller.send("PUT", "/operator/hosts/one/draining")
    (row,) = caller.send("GET", "/operator/chassis").json()["chassis"]
    assert (row["name"], row["in_ovn"], row["agent"]) == ("one", False, None)
    assert row["declared"] == {"number": 3, "draining": True}
    assert caller.send("GET", "/operator/chassis/one").json() == row


NINE = {"addresses": ["10.20.0.99"]}
WRONG = {
    "what is no address": ({"addresses": ["10.20.0.300"]}, 400, "addresses: '10.20.0.300' is not a valid IP address."),
    "what is no text": ({"addresses": [7]}, 400, "addresses: '7' is not a valid IP address."),
    "three of them": ({"addresses": ["10.20.0.9"] * 3}, 400, "addresses: Value should have at most 2 items."),
    "two of IPv4": ({"addresses": ["10.20.0.9", "10.20.0.8"]}, 400, "a host has at most one IPv4 address"),
    "none": ({"addresses": []}, 400, "host two needs an address for packets of other hosts"),
    "not said": ({}, 400, "two needs an address"),
    "no prefix": (NINE | {"prefixes": ["10.1.0.0/24"]}, 400, "prefixes: Value should be an object."),
    "no cidr": (NINE | {"prefixes": [{"project_id": "alice"}]}, 400, "prefixes: cidr is required."),
    "an address": (NINE | {"prefixes": [{"cidr": "10.9.0.1"}]}, 400, "cidr: '10.9.0.1' is not a valid IP subnet."),
    "nobody's": (NINE | {"prefixes": [{"cidr": "10.9.0.0/24", "project_id": ""}]}, 400, "project_id: Value should be"),
    "unknown": (
        NINE | {"draining": True},
        400,
        "Unknown attribute draining; known attributes: number, addresses, prefixes.",
    ),
    "number 0": (NINE | {"number": 0}, 400, "number: Value should be greater or equal to 1"),
    "number 4096": (NINE | {"number": 4096}, 400, "number: Value should be lower or equal to 4095"),
    "loopback": (
        {"addresses": ["127.0.0.1"]},
        400,
        "127.0.0.1 is not a unicast destination for packets of other hosts",
    ),
    "twice": (
        NINE | {"prefixes": [{"cidr": "10.9.0.0/16"}, {"cidr": "10.9.1.0/24"}]},
        400,
        "prefix 10.9.1.0/24 overlaps with another prefix of the same host",
    ),
    "too many": (
        NINE | {"prefixes": [{"cidr": f"10.9.{each}.0/24"} for each in range(MAX_PREFIXES + 1)]},
        400,
        f"prefixes: Value should have at most {MAX_PREFIXES} items.",
    ),
    "another's number": (NINE | {"number": 1}, 409, "number 1 is used by host one: omit the number to use a free one"),
    "another's address": ({"addresses": ["fd00:20::21", "10.20.0.9"]}, 409, "address fd00:20::21 is used by host one"),
    "another's prefix": (
        NINE | {"prefixes": [{"cidr": "10.0.0.0/8"}]},
        409,
        "prefix 10.0.0.0/8 overlaps with prefix 10.1.0.0/24, which host one routes",
    ),
    "behind another": (
        {"addresses": ["10.1.0.9"]},
        409,
        "host address 10.1.0.9 is in prefix 10.1.0.0/24, which host one routes",
    ),
    "announced": (
        NINE | {"prefixes": [{"cidr": "203.0.113.0/28"}]},
        409,
        "203.0.113.0/28 overlaps with 203.0.113.0/24 of announced network ",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_invalid_host_is_rejected_with_a_remedy_and_not_stored(caller: Caller, what: str):
    announced(caller)
    put(caller, "one", **ONE, number=1)
    before = hosts(caller)
    body, status, why = WRONG[what]
    refused = put(caller, "two", **body)
    assert refused.status_code == status
    assert why in refused.json()["error"]
    assert hosts(caller) == before


def test_invalid_host_name_and_undeclared_host_are_rejected(caller: Caller):
    refused = put(caller, "a b", **NINE)
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "'a b' is not a host name: it must equal agent.host of its agent, begin with a letter or digit, and have at"
        " most 64 letters, digits, dots, - and _",
    )
    for method, path in (("GET", ""), ("DELETE", ""), ("PUT", "/draining"), ("DELETE", "/draining")):
        answer = caller.send(method, f"/operator/hosts/nobody{path}")
        told = "host nobody does not exist: declare it with `fairlead chassis host set`"
        assert (answer.status_code, answer.json()["error"]) == (404, told)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/hosts"),
        ("GET", "/hosts/one"),
        ("PUT", "/hosts/one"),
        ("DELETE", "/hosts/one"),
        ("PUT", "/hosts/one/draining"),
        ("DELETE", "/hosts/one/draining"),
    ],
)
def test_tenants_cannot_read_or_change_hosts(caller: Caller, method: str, path: str):
    """Only operators declare hosts, because a tenant or an agent could attract the traffic of other projects'
    members."""
    put(caller, "one", **ONE)
    before = hosts(caller)
    refused = as_tenant(caller, method, f"/operator{path}", NINE if method == "PUT" else None)
    assert (refused.status_code, refused.json()["error"]) == (403, "the operator API requires role admin")
    assert hosts(caller) == before


# Members


def test_member_address_must_be_in_a_host_prefix_of_its_project(caller: Caller):
    put(caller, "one", **ONE, number=1)
    put(caller, "two", addresses=["10.20.0.22"], prefixes=[{"cidr": "10.2.0.0/24", "project_id": "bob"}], number=2)
    network = announced(caller)
    for elsewhere in ("10.9.0.1", "10.2.0.1", "fd00:2::1"):
        refused = balancer(caller, network, "10.1.0.7", elsewhere)
        assert (refused.status_code, message(refused)) == (
            400,
            f"Validation failure: Member address {elsewhere} is not routed by a host of provider native on which the"
            " project may have members: it must be in a prefix that an operator declared for a host.",
        )
    assert balancer(caller, network, "10.1.0.7", "fd00:1::7").status_code == 201


def test_member_at_an_address_of_the_host_itself_is_rejected(tmp_path: Path):
    facts = replace(PLAIN.facts, own_addresses=Map({"one": frozenset({ip_address("10.1.0.7")})}))
    caller = Caller(tmp_path, by_name, compile_owner=compile_own, deployment=Deployment(facts, NAMES))
    put(caller, "one", **ONE, number=1)
    refused = balancer(caller, announced(caller), "10.1.0.7")
    assert (refused.status_code, message(refused)) == (
        400,
        "Validation failure: Member address 10.1.0.7 is an address of the host itself, to which provider native sends"
        " no clients unless an operator declared that members run on the host.",
    )
    caller.close()


def test_host_member_needs_a_routed_monitor_address_and_no_subnet(caller: Caller):
    put(caller, "one", **ONE, number=1)
    put(caller, "two", addresses=["10.20.0.22"], prefixes=[{"cidr": "10.2.0.0/24", "project_id": "bob"}], number=2)
    wanted = {"name": "own", "project_id": "alice"}
    network = str(caller.make(f"{NETWORK}/networks", "network", **wanted)["id"])
    cidr = {"network_id": network, "cidr": "10.1.0.0/24", "ip_version": 4, "project_id": "alice"}
    subnet = caller.make(f"{NETWORK}/subnets", "subnet", **cidr)["id"]
    made = balancer(caller, announced(caller), "10.1.0.7").json()["loadbalancer"]
    members = f"{BALANCER}/pools/{made['pools'][0]['id']}/members"
    new = {"address": "10.1.0.8", "protocol_port": 80}
    refused = as_tenant(caller, "POST", members, {"member": {**new, "monitor_address": "10.2.0.1"}})
    assert (refused.status_code, message(refused)) == (
        400,
        "Validation failure: Member monitor_address 10.2.0.1 is not routed by a host of provider native on which the"
        " project may have members: it must be in a prefix that an operator declared for a host.",
    )
    refused = as_tenant(caller, "POST", members, {"member": {**new, "subnet_id": subnet}})
    assert (refused.status_code, message(refused)) == (
        400,
        f"Validation failure: Hosts of provider native route to members by address only: omit subnet_id {subnet}, which"
        " is on another network.",
    )
    assert as_tenant(caller, "POST", members, {"member": {**new, "monitor_address": "10.1.0.9"}}).status_code == 201


def test_host_with_members_cannot_be_removed(caller: Caller):
    put(caller, "one", **ONE, number=1)
    made = balancer(caller, announced(caller), "10.1.0.7", "fd00:1::7").json()["loadbalancer"]
    told = "host one routes members that no other host routes: {}; remove these first"
    both = f"10.1.0.7 of load balancer {made['id']}, fd00:1::7 of load balancer {made['id']}"
    refused = caller.send("DELETE", "/operator/hosts/one")
    assert (refused.status_code, refused.json()["error"]) == (409, told.format(both))
    refused = put(caller, "one", prefixes=[{"cidr": "fd00:1::/64", "project_id": "alice"}])
    assert refused.json()["error"] == told.format(f"10.1.0.7 of load balancer {made['id']}")
    assert caller.send("PUT", "/operator/hosts/one/draining").status_code == 200, "drained it may be"
    assert as_tenant(caller, "DELETE", f"{BALANCER}/loadbalancers/{made['id']}?cascade=true").status_code == 204
    assert caller.send("DELETE", "/operator/hosts/one").status_code == 204


def test_announced_subnet_must_not_overlap_a_host_prefix(caller: Caller):
    put(caller, "one", **ONE)
    network = announced(caller)
    made = {"network_id": network, "cidr": "10.1.0.128/25", "ip_version": 4, "project_id": "alice"}
    refused = caller.send("POST", f"{NETWORK}/subnets", json={"subnet": made})
    assert refused.status_code == 400
    assert "cidr: 10.1.0.128/25 overlaps with an address or prefix of host one" in message(refused)


def addresses(made: Any) -> list[str]:
    return [made["vip_address"], *(each["ip_address"] for each in made["additional_vips"])]


def flow(caller: Caller, **asked: str) -> httpx.Response:
    return caller.send("GET", "/operator/flow", params=asked)


def test_flow_lookup_returns_member_host_and_slot(caller: Caller):
    put(caller, "one", **ONE, number=1)
    made = balancer(caller, announced(caller), "10.1.0.7", "fd00:1::7").json()["loadbalancer"]
    vip = next(each for each in addresses(made) if "." in each)
    found = flow(caller, client="198.51.100.9:40000", to=f"{vip}:443").json()
    assert (found["endpoint"], found["chassis"], found["before"], found["admitted"]) == (
        "10.1.0.7:8080",
        "one",
        None,
        True,
    )
    assert (found["load_balancer"]["id"], found["listener"]["id"]) == (made["id"], made["listeners"][0]["id"])
    assert 0 <= found["slot"] < 256
    assert found["unheard"] == ["one"], "no agent has come"
    nobody = flow(caller, client="198.51.100.9:40000", to=f"{vip}:81")
    assert (nobody.status_code, nobody.json()["error"]) == (
        404,
        f"no load balancer on plain hosts has a listener for tcp at {vip}:81",
    )


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({}, "client must be ADDRESS:PORT or [IPv6]:PORT"),
        ({"client": "10.0.0.9:1", "to": "10.0.0.9"}, "to must be ADDRESS:PORT or [IPv6]:PORT"),
        ({"client": "fd00::1:80", "to": "10.0.0.9:80"}, "client must be ADDRESS:PORT or [IPv6]:PORT"),
        ({"client": "[10.0.0.1]:80", "to": "10.0.0.9:80"}, "client must be ADDRESS:PORT or [IPv6]:PORT"),
        ({"client": "10.0.0.9:0", "to": "10.0.0.9:80"}, "client must be ADDRESS:PORT or [IPv6]:PORT"),
        ({"client": "[fd00::1]:1", "to": "10.0.0.9:80"}, "client and to must have the same IP version"),
        ({"client": "10.0.0.9:1", "to": "10.0.0.9:80", "protocol": "icmp"}, "protocol must be one of: tcp, udp, sctp"),
    ],
)
def test_invalid_flow_query_is_rejected_with_the_expected_format(caller: Caller, asked: dict[str, str], why: str):
    refused = flow(caller, **asked)
    assert (refused.status_code, refused.json()["error"]) == (400, why)


def test_tenants_cannot_look_up_flows(caller: Caller):
    assert as_tenant(caller, "GET", "/operator/flow?client=10.0.0.9:1&to=10.0.0.9:80").status_code == 403
