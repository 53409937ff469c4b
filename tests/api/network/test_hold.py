"""Requests do not block the event loop: the longest step of each at its limits, in a site with 10,000 ports."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.api.network.limits import ALLOCATION_POOLS, BULK, FIXED_IPS
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.network import FixedIP, Port
from fairlead.model.documents.sizes import MAX_ASSOCIATIONS
from harness.api import NOON, write_many
from harness.front_ends.network_world import CALLERS, NetworkFrontEnd

PORTS = 10_000


def port_id(number: int) -> str:
    return f"10000000-0000-4000-8000-{number:012d}"


class ManyNetworks:
    """A network with a subnet of each family, and ports with consecutive addresses."""

    def __init__(self, folder: Path) -> None:
        self.door = NetworkFrontEnd(folder)
        self.net = self.door.create("network", name="net")["id"]
        self.four = self._subnet(cidr="10.0.0.0/8")
        self.six = self._subnet(cidr="fd00::/64")
        self.router = self.door.create("router")["id"]
        self.door.run(write_many(self.door.server.model, map(self._port, range(PORTS))))

    def _subnet(self, **attributes: Any) -> str:
        made: str = self.door.create("subnet", network_id=self.net, **attributes)["id"]
        return made

    def _port(self, number: int) -> Port:
        return Port(
            id=port_id(number),
            project_id="one",
            created_at=NOON,
            network_id=self.net,
            mac_address=f"0a:00:00:00:{number >> 8:02x}:{number & 255:02x}",
            fixed_ips=(FixedIP(subnet_id=self.four, address=parse_address("10.1.0.0") + number),),
        )

    def make(self, singular: str) -> str:
        """Create a resource and return its id, without waiting for the dataplane: ten thousand ports are still
        pending."""
        answer = self.door.run(self.door.server.client.post(f"/v2.0/{singular}s", json={singular: {}}))
        made: str = answer.json()[singular]["id"]
        return made

    def send(self, method: str, path: str, body: Any = None) -> int:
        """Send a request and return its status. `harness.step_limits` counts its steps."""
        self.door.server.caller = CALLERS["admin"]
        options = {} if body is None else {"json": body}
        answer = self.door.run(self.door.server.client.request(method, f"/v2.0{path}", **options))
        status: int = answer.status_code
        return status


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManyNetworks]:
    made = ManyNetworks(tmp_path_factory.mktemp("crowd"))
    yield made
    made.door.close()


@pytest.mark.slow
def test_largest_bulk_of_ports_with_all_fixed_ips_does_not_block_the_loop(crowd: ManyNetworks):
    """The largest request for ports: all addresses are in one subnet. With an invalid last port it is rejected, with no
    write."""
    port = {"network_id": crowd.net, "fixed_ips": [{"subnet_id": crowd.four}] * FIXED_IPS}
    wrong = {"network_id": crowd.net, "fixed_ips": [{"ip_address": "192.0.2.1"}]}
    assert crowd.send("POST", "/ports", {"ports": [*[port] * (BULK - 1), wrong]}) == 400
    assert crowd.send("POST", "/ports", {"ports": [port] * BULK}) == 201
    assert crowd.send("POST", "/ports", {"ports": [{"network_id": crowd.net}] * BULK}) == 201


@pytest.mark.slow
def test_allocation_from_full_pools_does_not_block_the_loop(crowd: ManyNetworks):
    """Allocation from full pools is bounded, although each port searches every pool of every subnet."""
    net = crowd.make("network")
    for number in range(3):
        hosts = [f"10.{number}.0.{host}" for host in range(2, 2 + ALLOCATION_POOLS)]
        pools = [{"start": host, "end": host} for host in hosts]
        subnet = {"network_id": net, "cidr": f"10.{number}.0.0/24", "allocation_pools": pools}
        assert crowd.send("POST", "/subnets", {"subnet": subnet}) == 201
    port = {"network_id": net}
    assert crowd.send("POST", "/ports", {"ports": [port] * BULK}) == 201
    assert crowd.send("POST", "/ports", {"ports": [port] * (3 * ALLOCATION_POOLS - BULK)}) == 201
    assert crowd.send("POST", "/ports", {"port": port}) == 409


@pytest.mark.parametrize("plural", ["networks", "routers"])
def test_largest_bulk_of_networks_or_routers_does_not_block_the_loop(crowd: ManyNetworks, plural: str):
    assert crowd.send("POST", f"/{plural}", {plural: [{"name": "x"}] * BULK}) == 201


def test_largest_bulk_of_subnets_does_not_block_the_loop(crowd: ManyNetworks):
    net = crowd.make("network")
    subnets = [{"network_id": net, "cidr": f"10.0.{number}.0/24"} for number in range(BULK)]
    assert crowd.send("POST", "/subnets", {"subnets": subnets}) == 201


@pytest.mark.parametrize(
    "query",
    [
        "ports",
        "ports?network_id={net}",
        "ports?device_id=nothing",
        "ports?fixed_ips=ip_address_substr=77",
        "ports?status=ACTIVE&tags=none",
        "ports?sort_key=mac_address&sort_key=status&sort_key=name&sort_dir=desc&sort_dir=asc&sort_dir=asc",
        "ports?limit=1000&page_reverse=True&marker=10000000-0000-4000-8000-000000009999",
        "networks",
        "subnets",
        "network-ip-availabilities",
        "network-ip-availabilities/{net}",
    ],
)
def test_lists_with_ten_thousand_ports_do_not_block_the_loop(crowd: ManyNetworks, query: str):
    assert crowd.send("GET", f"/{query.format(net=crowd.net)}") == 200


@pytest.mark.slow
def test_maximum_local_ips_and_associations_do_not_block_the_loop(crowd: ManyNetworks):
    """Local IPs at their limits, with a list of all associations of one, and the deletion of a port that is a replica
    of many."""
    ports = [port_id(number) for number in range(1000, 1000 + MAX_ASSOCIATIONS)]
    monitor = {"type": "TCP", "port": 80, "delay": 60}
    made = [{"network_id": crowd.net, "health_monitor": monitor}] * BULK
    assert crowd.send("POST", "/local_ips", {"local_ips": made}) == 201
    (first, *others) = crowd.door.snapshot.local_ips
    path = f"/local_ips/{first}/port_associations"
    for some in range(0, MAX_ASSOCIATIONS, BULK):
        asked = [{"fixed_port_id": port} for port in ports[some : some + BULK]]
        assert crowd.send("POST", path, {"port_associations": asked}) == 201
    assert crowd.send("GET", f"{path}?sort_key=fixed_ip&sort_dir=desc") == 200
    assert crowd.send("POST", path, {"port_association": {"fixed_port_id": port_id(1)}}) == 409
    for other in others[:20]:
        body = {"port_association": {"fixed_port_id": ports[0]}}
        assert crowd.send("POST", f"/local_ips/{other}/port_associations", body) == 201
    assert crowd.send("DELETE", f"/ports/{ports[0]}") == 204
    for each in (first, *others):
        assert crowd.send("DELETE", f"/local_ips/{each}?force=true") == 204


def test_updates_of_a_network_with_ten_thousand_ports_do_not_block_the_loop(crowd: ManyNetworks):
    path = f"/networks/{crowd.net}"
    for changed in ({"shared": True}, {"shared": False}, {"mtu": 1400}, {"router:external": True}):
        assert crowd.send("PUT", path, {"network": changed}) == 200
    assert crowd.send("PUT", path, {"network": {"router:external": False}}) == 200
    assert crowd.send("PUT", f"/subnets/{crowd.four}", {"subnet": {"allocation_pools": []}}) == 200
    assert crowd.send("PUT", f"/routers/{crowd.router}/add_router_interface", {"subnet_id": crowd.four}) == 200
    assert crowd.send("DELETE", path) == 409
    assert crowd.send("DELETE", f"/subnets/{crowd.four}") == 409
