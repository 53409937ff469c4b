"""Local IPs and their associations: each response that Neutron's clients know, and better ones where Neutron fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from immutables import Map

from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.network import PortUse
from fairlead.model.registry.facts import CHASSIS, HEALTH, PLUGGED
from fairlead.runtime.steps import run_to_completion
from harness.api import compile_anything
from harness.front_ends.network_world import NetworkFrontEnd

UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"


class LocalIPScene:
    """A network of project one, with a subnet of each family, and ports on it."""

    def __init__(self, door: NetworkFrontEnd) -> None:
        self.door = door
        self.net = door.create("network", name="net", shared=True)["id"]
        self.four = door.create("subnet", network_id=self.net, cidr="10.0.0.0/24")["id"]
        self.six = door.create("subnet", network_id=self.net, cidr="fd00::/64")["id"]

    def port(self, *addresses: str, caller: str = "ann", **attributes: Any) -> str:
        fixed = [{"ip_address": address} for address in addresses]
        port_id: str = self.door.create("port", caller, network_id=self.net, fixed_ips=fixed, **attributes)["id"]
        return port_id

    def local_ip(self, caller: str = "ann", **attributes: Any) -> dict[str, Any]:
        asked = attributes if attributes else {"network_id": self.net}
        return self.door.create("local_ip", caller, **asked)

    def associate(self, local_ip: dict[str, Any], port_id: str, caller: str = "ann", **more: Any) -> dict[str, Any]:
        body = {"port_association": {"fixed_port_id": port_id, **more}}
        made: dict[str, Any] = self.door.call_ok("POST", path(local_ip), body, caller)["port_association"]
        return made

    def refused(self, status: int, kind: str, caller: str = "ann", **attributes: Any) -> str:
        told = self.door.call_error("POST", "/local_ips", {"local_ip": attributes}, caller)
        assert told[:2] == (status, kind)
        return told[2]

    def not_associated(self, status: int, kind: str, to: dict[str, Any], caller: str = "ann", **asked: Any) -> str:
        told = self.door.call_error("POST", path(to), {"port_association": asked}, caller)
        assert told[:2] == (status, kind)
        return told[2]


def path(local_ip: dict[str, Any], port_id: str = "") -> str:
    return f"/local_ips/{local_ip['id']}/port_associations" + (f"/{port_id}" if port_id else "")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[LocalIPScene]:
    """Yield a site whose dataplane supports every attribute of the API."""
    door = NetworkFrontEnd(tmp_path, compile_anything)
    yield LocalIPScene(door)
    door.close()


def test_local_ip_response_has_every_attribute_that_clients_show(world: LocalIPScene):
    port_id = world.port("10.0.0.7")
    monitor = {"port": 53, "type": "UDP-CONNECT"}
    made = world.local_ip(
        local_port_id=port_id, network_id=UNKNOWN_ID, name="dns", description="d" * 1024, health_monitor=monitor
    )
    assert made == {
        "id": made["id"],
        "name": "dns",
        "description": "d" * 1024,
        "project_id": "one",
        "tenant_id": "one",
        "created_at": "2026-01-01T12:00:00Z",
        "updated_at": "2026-01-01T12:00:00Z",
        "revision_number": made["revision_number"],
        "local_port_id": port_id,
        "network_id": world.net,
        "local_ip_address": "10.0.0.7",
        "ip_mode": "translate",
        "fallback": "forward",
        "health_monitor": {
            "type": "UDP-CONNECT",
            "port": 53,
            "delay": 5,
            "timeout": 3,
            "max_retries": 3,
            "max_retries_down": 3,
        },
    }
    assert world.door.call_ok("GET", f"/local_ips/{made['id']}") == {"local_ip": made}
    assert world.door.call_ok("GET", f"/local-ips/{made['id']}") == {"local_ip": made}


def test_local_ip_of_a_network_gets_a_port_that_holds_its_address(world: LocalIPScene):
    made = world.local_ip()
    port = world.door.call_ok("GET", f"/ports/{made['local_port_id']}")["port"]
    assert port["fixed_ips"] == [{"subnet_id": world.four, "ip_address": made["local_ip_address"]}]
    shown = ("device_owner", "device_id", "status", "port_security_enabled", "security_groups", "project_id")
    assert [port[name] for name in shown] == ["network:local_ip", made["id"], "N/A", False, [], "one"]
    for field, value in (("fixed_ips", []), ("device_id", "vm"), ("device_owner", "compute:az")):
        assert world.door.call_error("PUT", f"/ports/{port['id']}", {"port": {field: value}}, "ann") == (
            *(409, "PortInUse"),
            f"Port {port['id']} holds the address of Local IP {made['id']}: {field} cannot be changed before that is"
            " deleted.",
        )
    renamed = {"port": {"name": "n", "device_id": made["id"]}}
    assert world.door.call_ok("PUT", f"/ports/{port['id']}", renamed, "ann")["port"]["name"] == "n"
    assert world.door.call_ok("GET", f"/local_ips/{made['id']}", caller="ann")["local_ip"] == made
    assert world.door.call("DELETE", f"/local_ips/{made['id']}", caller="ann")[0] == 204
    assert world.door.call("GET", f"/ports/{port['id']}")[0] == 404
    named = world.local_ip(network_id=world.net, local_ip_address="FD00::0053", ip_mode="passthrough", fallback="drop")
    assert [named[name] for name in ("local_ip_address", "ip_mode", "fallback")] == ["fd00::53", "passthrough", "drop"]


def test_port_of_a_local_ip_cannot_be_deleted_or_lose_the_address(world: LocalIPScene):
    port_id = world.port("10.0.0.7")
    made = world.local_ip(local_port_id=port_id)
    assert world.door.call_error("DELETE", f"/ports/{port_id}", caller="ann") == (
        *(409, "ServicePortInUse"),
        f"Port {port_id} cannot be deleted directly via the port API: still referenced by Local IPs.",
    )
    moved = {"port": {"fixed_ips": [{"subnet_id": world.six}]}}
    assert world.door.call_error("PUT", f"/ports/{port_id}", moved, "ann") == (
        *(409, "PortInUse"),
        f"IP address 10.0.0.7 cannot be taken from port {port_id} before Local IP {made['id']} is deleted.",
    )
    plugged = {"port": {"device_id": "vm", "device_owner": "compute:az", "name": "n"}}
    assert world.door.call_ok("PUT", f"/ports/{port_id}", plugged, "ann")["port"]["device_owner"] == "compute:az"
    both = {"port": {"fixed_ips": [{"ip_address": "10.0.0.7"}, {"subnet_id": world.six}]}}
    assert len(world.door.call_ok("PUT", f"/ports/{port_id}", both)["port"]["fixed_ips"]) == 2
    assert world.door.call_ok("GET", f"/local_ips/{made['id']}", caller="ann")["local_ip"] == made
    world.door.call_ok("DELETE", f"/local_ips/{made['id']}", caller="ann")
    world.door.call_ok("DELETE", f"/ports/{port_id}", caller="ann")


def test_invalid_local_ips_are_refused_with_neutrons_error_texts(world: LocalIPScene):
    """Refused Local IPs have Neutron's own error texts."""
    bare, several, one = world.port(), world.port("10.0.0.8", "10.0.0.9"), world.port("10.0.0.7")
    empty = world.door.create("network", "ann")["id"]
    said = world.refused(400, "LocalIPPortOrNetworkRequired")
    assert said == "Either Port ID or Network ID must be specified for Local IP create."
    assert world.refused(404, "NetworkNotFound", network_id=UNKNOWN_ID) == f"Network {UNKNOWN_ID} could not be found."
    said = world.refused(400, "BadRequest", local_port_id=UNKNOWN_ID)
    assert said == f"Bad local_ip request: Port {UNKNOWN_ID} not found."
    said = world.refused(400, "BadRequest", network_id=empty)
    assert said == f"Bad local_ip request: Network {empty} does not contain any IPv4 subnet."
    said = world.refused(400, "InvalidIpForNetwork", network_id=world.net, local_ip_address="99.9.0.1")
    assert said == "IP address 99.9.0.1 is not a valid IP for any of the subnets on the specified network."
    said = world.refused(409, "IpAddressAlreadyAllocated", network_id=world.net, local_ip_address="10.0.0.7")
    assert said == f"IP address 10.0.0.7 already allocated in subnet {world.four}"
    said = world.refused(400, "LocalIPNoIP", local_port_id=bare)
    assert said == f"Specified Port {bare} has no fixed IPs configured."
    said = world.refused(400, "LocalIPRequestedIPNotFound", local_port_id=one, local_ip_address="10.0.0.9")
    assert said == f"Specified Port {one} does not have requested IP address: 10.0.0.9."
    said = world.refused(400, "LocalIPNoRequestedIP", local_port_id=several)
    text = f"Specified Port {several} has several IPs, should specify exact IP address to use for Local IP."
    assert said == text
    said = world.refused(400, "HTTPBadRequest", network_id=world.net, ip_mode="foo")
    assert said == "Invalid input for ip_mode. Reason: foo is not in valid_values."
    said = world.refused(400, "HTTPBadRequest", network_id=world.net, local_ip_address="10.9.0.1/24")
    assert said == "Invalid input for local_ip_address. Reason: '10.9.0.1/24' is not a valid IP address."
    assert world.refused(400, "HTTPBadRequest", bogus=1) == "Unrecognized attribute(s) 'bogus'"
    assert world.refused(400, "HTTPBadRequest", tags=["x"]) == "Unrecognized attribute(s) 'tags'"
    told = world.door.call_error("POST", "/local_ips", {"local_ips": {}}, "ann")
    assert told == (400, "HTTPBadRequest", "Resources required")
    told = world.door.call_error("POST", "/local_ips", {"x": {}}, "ann")
    assert told == (400, "HTTPBadRequest", "Unable to find 'local_ip' in request body")


def test_checks_beyond_neutrons_refuse_invalid_local_ips(world: LocalIPScene):
    world.local_ip(local_port_id=world.port("10.0.0.7"))
    (same,) = (port["id"] for port in world.door.call_ok("GET", "/ports?fixed_ips=ip_address=10.0.0.7")["ports"])
    said = world.refused(409, "LocalIPAddressInUse", local_port_id=same)
    assert said == f"IP address 10.0.0.7 of network {world.net} is the address of another Local IP."
    outside = world.door.create("network", **{"router:external": True})["id"]
    said = world.refused(400, "BadRequest", "ann", network_id=outside)
    assert said == f"Bad local_ip request: Network {outside} is external."
    router = world.door.create("router", "ann")
    joined = world.door.call_ok(
        "PUT", f"/routers/{router['id']}/add_router_interface", {"subnet_id": world.four}, "ann"
    )
    said = world.refused(400, "BadRequest", local_port_id=joined["port_id"])
    assert said.endswith("has device owner network:router_interface, so it is not the port of a machine.")
    bobs = world.port(caller="bob")
    said = world.refused(400, "BadRequest", local_port_id=bobs)  # ann can see the port, because it is on her network
    assert said == f"Bad local_ip request: Port {bobs} is not of the project of the Local IP."
    assert world.refused(400, "BadRequest", "admin", local_port_id=bobs) == said
    for monitor, words in {
        "x": "'x' is not a dictionary",
        "port": "'port' is required",
        "more": "Unexpected keys supplied: more",
        "delay": "delay: Value should be greater or equal to 1",
    }.items():
        body = {"x": "x", "port": {}, "more": {"port": 1, "more": 1}, "delay": {"port": 1, "delay": 0}}[monitor]
        said = world.refused(400, "HTTPBadRequest", network_id=world.net, health_monitor=body)
        assert said == f"Invalid input for health_monitor. Reason: {words}."
    monitor = {"type": "UDP-CONNECT", "port": 53, "delay": 2}
    said = world.refused(400, "HTTPBadRequest", network_id=world.net, health_monitor=monitor)
    assert said.startswith("Invalid input for health_monitor. Reason: delay '2' is too small for UDP-CONNECT")


def test_local_ip_update_changes_only_writable_attributes(world: LocalIPScene):
    made = world.local_ip()
    changes = {"name": "n", "description": "d", "ip_mode": "passthrough", "fallback": "reject"}
    changes["health_monitor"] = {"port": 80, "type": "TCP"}
    changed = world.door.update("local_ip", made, "ann", **changes)
    assert changed["revision_number"] > made["revision_number"]
    assert [changed[name] for name in ("name", "description", "ip_mode", "fallback")] == [*changes.values()][:4]
    assert changed["health_monitor"]["port"] == 80
    assert world.door.update("local_ip", made, "ann", health_monitor=None)["health_monitor"] is None
    for name in ("network_id", "local_port_id", "local_ip_address", "project_id", "id"):
        body = {"local_ip": {name: UNKNOWN_ID}}
        told = world.door.call_error("PUT", f"/local_ips/{made['id']}", body, "ann")
        assert told == (400, "HTTPBadRequest", f"Cannot update read-only attribute {name}")
    old = {"If-Match": "revision_number=1"}
    answer = world.door.send("PUT", f"/v2.0/local_ips/{made['id']}", json={"local_ip": {"name": "x"}}, headers=old)
    assert answer.status_code == 412


def test_local_ip_name_and_description_have_a_maximum_length(world: LocalIPScene):
    said = world.refused(400, "HTTPBadRequest", network_id=world.net, description="d" * 1025)
    assert said.endswith("exceeds maximum length of 1024.")
    said = world.refused(400, "HTTPBadRequest", network_id=world.net, name="d" * 256)
    assert said.endswith("exceeds maximum length of 255.")


def test_association_response_has_every_attribute_that_clients_show(world: LocalIPScene):
    local_ip, port_id = world.local_ip(), world.port("10.0.0.8")
    made = world.associate(local_ip, port_id)
    assert made == {
        "local_ip_id": local_ip["id"],
        "local_ip_address": local_ip["local_ip_address"],
        "fixed_port_id": port_id,
        "fixed_ip": "10.0.0.8",
        "host": "",
        "operating_status": "OFFLINE",
    }
    shown = world.door.call_ok("GET", path(local_ip, port_id) + f"?local_ip_id={local_ip['id']}")
    assert shown == {"port_association": made}
    assert world.door.call_ok("GET", path(local_ip)) == {"port_associations": [made]}
    assert world.door.call_ok("GET", path(local_ip).replace("local_ips", "local-ips")) == {"port_associations": [made]}
    world.door.call_ok("DELETE", path(local_ip, port_id), caller="ann")
    assert world.door.call_ok("GET", path(local_ip)) == {"port_associations": []}


def test_association_shows_the_host_and_health_of_its_replica(world: LocalIPScene):
    local_ip, ports = world.local_ip(health_monitor={"port": 80}, network_id=world.net), ["10.0.0.8", "10.0.0.9"]
    ports = [world.port(address) for address in ports]
    for port_id in ports:
        world.associate(local_ip, port_id)
    model = world.door.server.model
    run_to_completion(model.observe(PLUGGED, dict.fromkeys(ports, "node1")))
    run_to_completion(
        model.observe(CHASSIS, {"c1": Chassis(name="c1", host="node1", ports=Map(dict.fromkeys(ports, True)))})
    )

    def shown() -> list[tuple[str, str]]:
        found = world.door.call_ok("GET", path(local_ip))["port_associations"]
        return [(each["host"], each["operating_status"]) for each in found]

    assert shown() == [("node1", "ONLINE"), ("node1", "STANDBY")]
    endpoint = Endpoint(
        ports[0], world.door.snapshot.local_ips[local_ip["id"]].associations[0].address, 80, Transport.TCP
    )
    run_to_completion(model.observe(HEALTH, {endpoint: Health.ERROR}))
    assert shown() == [("node1", "ERROR"), ("node1", "ONLINE")]


def test_probe_rate_of_a_replica_port_is_limited(world: LocalIPScene):
    monitor, port_id = {"port": 80, "delay": 1}, world.port("10.0.0.8")
    bodies = [{"network_id": world.net, "health_monitor": monitor} for _ in range(21)]
    *made, last = world.door.call_ok("POST", "/local-ips", {"local_ips": bodies}, "ann")["local_ips"]
    for each in made:
        world.associate(each, port_id)
    said = world.not_associated(409, "OverQuota", last, fixed_port_id=port_id)
    assert said == f"Quota exceeded for resources: ['probes per second of port {port_id} (20)']."
    world.door.update("local_ip", made[0], "ann", health_monitor=None)
    world.associate(last, port_id)
    [probes] = [each for each in world.door.snapshot.ports.values() if each.use is PortUse.PROBE]
    assert probes.network_id == world.net


def test_associations_are_created_in_bulk(world: LocalIPScene):
    local_ip, ports = world.local_ip(), [world.port("10.0.0.8"), world.port("10.0.0.9")]
    body = {"port_associations": [{"fixed_port_id": port_id} for port_id in ports]}
    made = world.door.call_ok("POST", path(local_ip), body, "ann")["port_associations"]
    assert [each["fixed_port_id"] for each in made] == ports
    assert made[0].keys() == world.door.call_ok("GET", path(local_ip))["port_associations"][0].keys()
    twice = {"port_associations": [{"fixed_port_id": world.port("10.0.0.10")}] * 2}
    assert world.door.call_error("POST", path(local_ip), twice, "ann")[:2] == (409, "LocalIPPortAlreadyAssociated")


def test_local_ips_are_created_in_bulk(world: LocalIPScene):
    body = {"local_ips": [{"network_id": world.net, "name": f"n{number}"} for number in range(3)]}
    made = world.door.call_ok("POST", "/local-ips", body, "ann")["local_ips"]
    assert len({each["local_ip_address"] for each in made}) == 3
    assert [each["name"] for each in made] == ["n0", "n1", "n2"]


def test_association_uses_the_only_fixed_ip_of_the_local_ips_family(world: LocalIPScene):
    four, six = world.local_ip(), world.local_ip(network_id=world.net, local_ip_address="fd00::53")
    both = world.port("10.0.0.8", "fd00::8")
    assert world.associate(four, both)["fixed_ip"] == "10.0.0.8"  # Neutron requires fixed_ip here
    assert world.associate(six, both)["fixed_ip"] == "fd00::8"
    several, bare = world.port("10.0.0.9", "10.0.0.10"), world.port()
    said = world.not_associated(400, "LocalIPNoRequestedIP", four, fixed_port_id=several)
    text = f"Specified Port {several} has several IPs, should specify exact IP address to use for Local IP."
    assert said == text
    said = world.not_associated(400, "LocalIPNoIP", four, fixed_port_id=bare)
    assert said == f"Specified Port {bare} has no fixed IPs configured."
    said = world.not_associated(400, "LocalIPRequestedIPNotFound", four, fixed_port_id=several, fixed_ip="10.0.0.8")
    assert said == f"Specified Port {several} does not have requested IP address: 10.0.0.8."
    assert world.associate(four, several, fixed_ip="10.0.0.10")["fixed_ip"] == "10.0.0.10"


def test_requests_on_which_neutron_fails_get_an_error_with_the_cause(world: LocalIPScene):
    """Requests that Neutron answers with 500, or not at all, get an error with its cause."""
    local_ip, port_id = world.local_ip(), world.port("10.0.0.8")
    world.associate(local_ip, port_id)
    said = world.not_associated(409, "LocalIPPortAlreadyAssociated", local_ip, fixed_port_id=port_id)
    assert said == f"Local IP {local_ip['id']} is already associated with port {port_id}."
    said = world.not_associated(404, "PortNotFound", local_ip, fixed_port_id=UNKNOWN_ID)
    assert said == f"Port {UNKNOWN_ID} could not be found."
    text = f"Local IP {UNKNOWN_ID} could not be found."
    assert world.not_associated(404, "LocalIPNotFound", {"id": UNKNOWN_ID}, fixed_port_id=port_id) == text
    for method in ("GET", "DELETE"):
        assert world.door.call_error(method, path({"id": UNKNOWN_ID}, port_id)) == (404, "LocalIPNotFound", text)
    assert world.door.call_error("GET", path({"id": UNKNOWN_ID})) == (404, "LocalIPNotFound", text)
    elsewhere = world.door.create("network", "ann")["id"]
    world.door.create("subnet", "ann", network_id=elsewhere, cidr="10.1.0.0/24")
    other = world.door.create("port", "ann", network_id=elsewhere)["id"]
    said = world.not_associated(400, "BadRequest", local_ip, fixed_port_id=other)
    assert said == f"Bad port_association request: Port {other} is not on network {world.net} of the Local IP."
    six = world.port("fd00::8")
    said = world.not_associated(400, "BadRequest", local_ip, fixed_port_id=six)
    assert said.startswith(f"Bad port_association request: Port {six} is associated by an IPv4 address")
    said = world.not_associated(400, "BadRequest", local_ip, fixed_port_id=local_ip["local_port_id"])
    assert said.endswith(f"has the address of Local IP {local_ip['id']}.")


def test_invalid_associations_are_refused_with_neutrons_error_texts(world: LocalIPScene):
    local_ip, port_id = world.local_ip(), world.port("10.0.0.8")
    said = world.not_associated(400, "HTTPBadRequest", local_ip)
    assert said == "Failed to parse request. Required attribute 'fixed_port_id' not specified"
    text = f"Local IP {local_ip['id']} association with port {port_id} could not be found."
    for method in ("GET", "DELETE"):
        told = world.door.call_error(method, path(local_ip, port_id), caller="ann")
        assert told == (404, "LocalIPAssociationNotFound", text)
    world.associate(local_ip, port_id, project_id="one")
    for name in ("fixed_port_id", "fixed_ip", "host", "local_ip_id"):
        told = world.door.call_error("PUT", path(local_ip, port_id), {"port_association": {name: UNKNOWN_ID}}, "ann")
        assert told == (400, "HTTPBadRequest", f"Cannot update read-only attribute {name}")
    assert world.door.call_ok("PUT", path(local_ip, port_id), {"port_association": {}}, "ann")["port_association"]
    said = world.not_associated(400, "HTTPBadRequest", local_ip, fixed_port_id=port_id, project_id="two")
    assert "requires admin privileges" in said


def test_local_ip_with_associations_is_deleted_only_by_force(world: LocalIPScene):
    local_ip, port_id = world.local_ip(), world.port("10.0.0.8")
    world.associate(local_ip, port_id)
    where = f"/local_ips/{local_ip['id']}"
    text = f"Local IP {local_ip['id']} is still associated with one or more ports."
    for query in ("", "?force=false"):
        assert world.door.call_error("DELETE", where + query, caller="ann") == (409, "LocalIPInUse", text)
    told = world.door.call_error("DELETE", where + "?force=x", caller="ann")
    assert told == (400, "HTTPBadRequest", "Invalid input for force. Reason: 'x' is not a valid boolean value.")
    assert world.door.call("DELETE", where + "?force=true", caller="ann")[0] == 204
    text = f"Local IP {local_ip['id']} could not be found."
    assert world.door.call_error("GET", where) == (404, "LocalIPNotFound", text)
    assert world.door.call("GET", f"/ports/{local_ip['local_port_id']}")[0] == 404
    assert world.door.call("GET", f"/ports/{port_id}")[0] == 200


def test_association_is_removed_with_its_port_or_its_fixed_ip(world: LocalIPScene):
    local_ip, port_id = world.local_ip(), world.port("10.0.0.8")
    world.associate(local_ip, port_id)
    world.door.call_ok("PUT", f"/ports/{port_id}", {"port": {"fixed_ips": [{"ip_address": "10.0.0.9"}]}}, "ann")
    assert world.door.call_ok("GET", path(local_ip)) == {"port_associations": []}
    world.associate(local_ip, port_id)
    world.door.call_ok("DELETE", f"/ports/{port_id}", caller="ann")
    assert world.door.call_ok("GET", path(local_ip)) == {"port_associations": []}


def test_local_ip_list_is_filtered_sorted_and_paged(world: LocalIPScene):
    ports = [world.port(f"10.0.0.{number}") for number in (7, 8, 9)]
    made = [world.local_ip(local_port_id=port_id, name=f"n{n}") for n, port_id in enumerate(ports)]
    ids = [each["id"] for each in made]

    def found(query: str, caller: str = "ann") -> list[str]:
        return [each["id"] for each in world.door.call_ok("GET", f"/local_ips?{query}", caller=caller)["local_ips"]]

    assert found("") == ids
    assert found("name=n1") == [ids[1]]
    assert found(f"local_port_id={ports[2]}") == [ids[2]]
    assert found(f"network_id={world.net}&sort_key=name&sort_dir=desc") == ids[::-1]
    assert found("local_ip_address=10.0.0.8") == [ids[1]]
    assert found("ip_mode=passthrough") == []
    assert found("fallback=forward&project_id=one&limit=2") == ids[:2]
    assert found(f"limit=2&marker={ids[1]}") == ids[2:]
    assert found("", "bob") == []
    assert world.door.call_ok("GET", "/local_ips?fields=name&limit=1", caller="ann")["local_ips"] == [{"name": "n0"}]
    for unknown in ("bogus", "tags"):
        text = f"['{unknown}'] is invalid attribute for filtering"
        assert world.door.call_error("GET", f"/local_ips?{unknown}=x") == (400, "HTTPBadRequest", text)
        assert world.door.call_error("GET", path(made[0]) + f"?{unknown}=x") == (400, "HTTPBadRequest", text)
    assert world.door.call("GET", f"/local_ips/{ids[0]}/tags")[0] == 404


def test_association_list_is_filtered_sorted_and_paged(world: LocalIPScene):
    local_ip = world.local_ip()
    ports = [world.port(f"10.0.0.{number}") for number in (7, 8, 9)]
    for port_id in ports:
        world.associate(local_ip, port_id)
    run_to_completion(world.door.server.model.observe(PLUGGED, {ports[1]: "node1"}))

    def found(query: str) -> list[str]:
        listed = world.door.call_ok("GET", f"{path(local_ip)}?{query}")["port_associations"]
        return [each["fixed_port_id"] for each in listed]

    assert found("host=node1") == [ports[1]]
    assert found("host=") == [ports[0], ports[2]]
    assert found(f"fixed_port_id={ports[2]}&local_ip_id={local_ip['id']}") == [ports[2]]
    assert found("fixed_ip=10.0.0.7") == [ports[0]]
    assert found("sort_key=fixed_ip&sort_dir=desc") == ports[::-1]
    assert found(f"limit=1&marker={ports[0]}") == [ports[1]]
    page = world.door.call_ok("GET", f"{path(local_ip)}?limit=3&sort_key=fixed_ip")
    assert f"marker={ports[2]}" in page["port_associations_links"][0]["href"]  # a full last page: the next one is empty
    page = world.door.call_ok("GET", f"{path(local_ip)}?limit=1")
    assert page["port_associations_links"][0]["href"].endswith(f"limit=1&marker={ports[0]}")
    told = world.door.call_error("GET", f"{path(local_ip)}?marker={UNKNOWN_ID}")
    assert told[:2] == (400, "HTTPBadRequest")


def test_local_ip_access_follows_neutrons_default_policy(world: LocalIPScene):
    """Access follows Neutron's default rules; a resource outside the caller's view is reported as not found."""
    local_ip, port_id = world.local_ip(), world.port("10.0.0.8")
    where = f"/local_ips/{local_ip['id']}"
    for method, at, body in (
        ("GET", where, None),
        ("PUT", where, {"local_ip": {"name": "x"}}),
        ("DELETE", where, None),
        ("GET", path(local_ip), None),
        ("POST", path(local_ip), {"port_association": {"fixed_port_id": port_id}}),
        ("DELETE", path(local_ip, port_id), None),
    ):
        told = world.door.call_error(method, at, body, "bob")
        assert told == (404, "LocalIPNotFound", f"Local IP {local_ip['id']} could not be found.")
    assert world.door.call("GET", where, caller="rita")[0] == 200
    assert world.door.call("GET", path(local_ip), caller="rita")[0] == 200
    for method, at, body, rule in (
        ("POST", "/local_ips", {"local_ip": {"network_id": world.net}}, "create_local_ip"),
        ("PUT", where, {"local_ip": {"name": "x"}}, "update_local_ip"),
        ("DELETE", where, None, "delete_local_ip"),
        ("POST", path(local_ip), {"port_association": {"fixed_port_id": port_id}}, "create_local_ip_port_association"),
        ("DELETE", path(local_ip, port_id), None, "delete_local_ip_port_association"),
    ):
        told = world.door.call_error(method, at, body, "rita")
        assert told == (403, "PolicyNotAuthorized", f"rule:{rule} is disallowed by policy")
    world.associate(local_ip, port_id, "admin")


def test_other_project_creates_local_ips_on_a_shared_network(world: LocalIPScene):
    guests = world.local_ip("bob")
    assert guests["project_id"] == "two"
    world.associate(guests, world.door.create("port", "bob", network_id=world.net)["id"], "bob")
    anns = world.port("10.0.0.8")
    assert world.not_associated(404, "PortNotFound", guests, "bob", fixed_port_id=anns).startswith("Port")
    said = world.not_associated(400, "BadRequest", guests, "admin", fixed_port_id=anns)
    assert said.endswith("is not of the project of the Local IP.")
    rule = "(rule:create_local_ip and (rule:create_local_ip:local_ip_address)) is disallowed by policy"
    named = {"network_id": world.net, "local_ip_address": "10.0.0.50"}
    assert world.refused(403, "PolicyNotAuthorized", "bob", **named) == rule
    assert "requires admin privileges" in world.refused(
        400, "HTTPBadRequest", "bob", network_id=world.net, project_id="one"
    )
    assert world.local_ip("admin", network_id=world.net, project_id="two")["project_id"] == "two"


def test_network_with_local_ips_cannot_become_external(world: LocalIPScene):
    alone = world.door.create("network", "ann")
    world.door.create("subnet", "ann", network_id=alone["id"], cidr="10.1.0.0/24")
    made = world.local_ip(network_id=alone["id"])
    told = world.door.call_error("PUT", f"/networks/{alone['id']}", {"network": {"router:external": True}})
    text = f"Network {alone['id']} cannot be made external: Local IPs are on it."
    assert told == (409, "NetworkInUse", text)
    assert world.door.call_error("DELETE", f"/networks/{alone['id']}")[:2] == (409, "NetworkInUse")
    world.door.call_ok("DELETE", f"/local_ips/{made['id']}", caller="ann")
    world.door.call_ok("DELETE", f"/networks/{alone['id']}", caller="ann")


def test_local_ips_and_associations_have_quotas(world: LocalIPScene):
    limits = {"local_ip": 1, "local_ip_association": 1}
    assert world.door.call_ok("PUT", "/quotas/one", {"quota": limits})["quota"].items() >= limits.items()
    local_ip = world.local_ip()
    said = world.refused(409, "OverQuota", network_id=world.net)
    assert said == "Quota exceeded for resources: ['local_ip']."
    world.associate(local_ip, world.port("10.0.0.8"))
    said = world.not_associated(409, "OverQuota", local_ip, fixed_port_id=world.port("10.0.0.9"))
    assert said == "Quota exceeded for resources: ['local_ip_association']."
    details = world.door.call_ok("GET", "/quotas/one/details")["quota"]
    assert details["local_ip"] == {"limit": 1, "used": 1, "reserved": 0}
    assert details["local_ip_association"] == {"limit": 1, "used": 1, "reserved": 0}


def test_local_ip_unsupported_by_the_dataplane_is_not_stored(door: NetworkFrontEnd):
    net = door.create("network")["id"]
    door.create("subnet", network_id=net, cidr="10.0.0.0/31", gateway_ip=None, enable_dhcp=False)
    told = door.call_error("POST", "/local_ips", {"local_ip": {"network_id": net}})
    text = "This is not supported: ovn does not support a Local IP in the subnet 10.0.0.0/31, which is too small"
    assert told == (501, "HTTPNotImplemented", text)


def test_local_ip_extensions_are_listed(door: NetworkFrontEnd):
    found = {each["alias"]: each for each in door.call_ok("GET", "/extensions")["extensions"]}
    assert (found["local_ip"]["name"], found["local_ip"]["updated"]) == ("Local IP", "2021-07-26T10:00:00-00:00")
    assert "local-ip-fairlead" in found
    assert door.call_ok("GET", "/extensions/local_ip")["extension"] == found["local_ip"]


def test_system_administrator_associates_without_a_project_id(world: LocalIPScene):
    local_ip, port_id = world.local_ip(), world.port("10.0.0.7")
    told = world.door.call_error("POST", path(local_ip), {"port_association": {"fixed_port_id": port_id}}, "sam")
    assert told[:2] == (403, "PolicyNotAuthorized")
    assert world.associate(local_ip, port_id, "root")["fixed_port_id"] == port_id
