"""Requests do not block the event loop, however many networks are attached to an uplink."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from fairlead.model.documents.network import ExternalGateway, FixedIP, Network, Port, PortUse, Router, Subnet
from harness.api import NOON, write_many
from harness.front_ends.lxd_networks import UPLINK, make
from harness.front_ends.lxd_world import CALLERS, LxdFrontEnd

BEHIND = 800


def behind(number: int, uplink: Network) -> list[Network | Port | Router]:
    """Return a network whose router has no SNAT, as another API front end may have created it."""
    cidr = ip_network((int(ip_address("10.0.0.0")) + number * 256, 24))
    ours = {"project_id": "default", "created_at": NOON}
    subnet = Subnet(id=f"s{number}", cidr=cidr, gateway=cidr[1], allocation_pools=(), **ours)
    inside = FixedIP(subnet_id=subnet.id, address=cidr[1])
    outside = FixedIP(subnet_id=uplink.subnets[1].id, address=ip_address("2001:db8::1:0") + number)
    gateway = ExternalGateway(network_id=uplink.id, port_id=f"g{number}", enable_snat=False)
    return [
        Network(id=f"n{number}", mtu=1442, subnets=(subnet,), **ours),
        Router(id=f"r{number}", gateway=gateway, **ours),
        Port(
            **ours,
            id=f"g{number}",
            network_id=uplink.id,
            mac_address=f"0a:00:00:01:{number >> 8:02x}:{number & 255:02x}",
            fixed_ips=(outside,),
            device_id=f"r{number}",
            device_owner=PortUse.ROUTER_GATEWAY.value,
        ),
        Port(
            **ours,
            id=f"i{number}",
            network_id=f"n{number}",
            mac_address=f"0a:00:00:02:{number >> 8:02x}:{number & 255:02x}",
            fixed_ips=(inside,),
            device_id=f"r{number}",
            device_owner=PortUse.ROUTER_INTERFACE.value,
        ),
    ]


@pytest.mark.slow
def test_requests_on_an_uplink_with_many_networks_run_in_short_steps(tmp_path: Path):
    door = LxdFrontEnd(tmp_path)
    make(door, "UPLINK", UPLINK, kind="physical")
    (uplink,) = door.snapshot.networks.values()
    everything = (document for number in range(BEHIND) for document in behind(number, uplink))
    door.run(write_many(door.server.model, everything))
    # stored only: the reconciler does not run while the request waits
    door.server.caller, door.server.is_reconciling = CALLERS["root"], False
    routes = {"config": {"ipv4.routes": "203.0.113.128/25"}}
    bare = {"name": "x", "type": "ovn", "config": {"ipv4.address": "198.51.100.1/24", "ipv6.address": "none"}}
    requests = (
        ("GET", "/networks?recursion=1", None, 200),
        ("GET", "/networks/UPLINK", None, 200),
        ("GET", "/network-allocations", None, 200),
        ("POST", "/networks", bare, 503),
        ("PATCH", "/networks/UPLINK", routes, 400),
        ("PATCH", "/networks/UPLINK", {"description": "long"}, 503),
    )
    for method, path, body, code in requests:
        answer = door.run(door.server.client.request(method, path, json=body))
        assert answer.status_code == code, answer.text
    door.close()
