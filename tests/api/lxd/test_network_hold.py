"""Nobody waits for what one project has much of: the longest step of requests, with many networks behind an uplink."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest

from api.lxd.test_networks import UPLINK, make
from fairlead.api.loop_lag import LONG
from fairlead.model.network import ExternalGateway, FixedIP, Network, Port, PortUse, Router, Subnet
from fairlead.model.writing import Changes
from harness.api import NOON
from harness.front_ends.lxd_world import CALLERS, Door
from harness.hold import as_in_a_server, held

BEHIND = 800


def behind(number: int, uplink: Network) -> list[Network | Port | Router]:
    """A network that is translated by nobody, as another door may have made it."""
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
def test_nobody_waits_for_the_networks_behind_an_uplink(tmp_path: Path):
    door = Door(tmp_path)
    make(door, "UPLINK", UPLINK, kind="physical")
    (uplink,) = door.snapshot.networks.values()
    everything = [document for number in range(BEHIND) for document in behind(number, uplink)]
    door.run(door.place.model.write(lambda _: Changes(puts=tuple(everything))))
    door.place.client.event_hooks = {}  # to hold an answer against its schema takes longer than to give it
    door.place.caller = CALLERS["root"]
    routes = {"config": {"ipv4.routes": "203.0.113.128/25"}}
    bare = {"name": "x", "type": "ovn", "config": {"ipv4.address": "198.51.100.1/24", "ipv6.address": "none"}}
    requests = (
        ("GET", "/networks?recursion=1", None, 200),
        ("GET", "/networks/UPLINK", None, 200),
        ("GET", "/network-allocations", None, 200),
        ("POST", "/networks", bare, 201),
        ("PATCH", "/networks/UPLINK", routes, 400),
        ("PATCH", "/networks/UPLINK", {"description": "long"}, 200),
    )
    with as_in_a_server():
        for method, path, body, code in requests:
            with held() as hold:
                answer = door.run(door.place.client.request(method, path, json=body))
            assert answer.status_code == code, answer.text
            assert hold.longest < LONG, f"{method} {path} held the loop for {hold.longest:.3f} s"
    door.close()
