"""The load-balancer front end with networks and machines as members that can be probed."""

from pathlib import Path
from typing import Any

import pytest

from fairlead.api import octavia
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import AllocationPool, FixedIP, Network, Port, PortUse, Subnet
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Aggregate
from harness.api import NOON, InProcessServer, play

NET = "11111111-0000-4000-8000-000000000001"
SUBNET = "22222222-0000-4000-8000-000000000001"
SUBNET6 = "22222222-0000-4000-8000-000000000006"
UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"
LBS = "/v2.0/lbaas/loadbalancers"
COMMON: dict[str, Any] = {"project_id": "demo", "created_at": NOON}


def network() -> Network:
    pools = {
        SUBNET: ("10.0.0.0/24", "10.0.0.1", "10.0.0.2", "10.0.0.254"),
        SUBNET6: ("fd00::/64", "fd00::1", "fd00::2", "fd00::ffff"),
    }
    subnets = tuple(
        Subnet(
            id=identity,
            cidr=parse_network(cidr),
            gateway=parse_address(gateway),
            allocation_pools=(AllocationPool(start=parse_address(first), end=parse_address(last)),),
            **COMMON,
        )
        for identity, (cidr, gateway, first, last) in pools.items()
    )
    return Network(id=NET, mtu=1442, subnets=subnets, **COMMON)


MONITOR = {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
FULL_SUBNET = "22222222-0000-4000-8000-000000000030"


def port(number: int, address: str, subnet: str = SUBNET, network_id: str = NET) -> Port:
    return Port(
        id=f"55555555-0000-4000-8000-{number:012}",
        network_id=network_id,
        mac_address=f"02:00:00:00:00:{number:02x}",
        fixed_ips=(FixedIP(subnet_id=subnet, address=parse_address(address)),),
        **COMMON,
    )


def full_network() -> Network:
    """A network with one allocatable address, which a member has."""
    one = parse_address("10.9.0.2")
    subnet = Subnet(
        id=FULL_SUBNET,
        cidr=parse_network("10.9.0.0/30"),
        gateway=parse_address("10.9.0.1"),
        allocation_pools=(AllocationPool(start=one, end=one),),
        **COMMON,
    )
    return Network(id=FULL_SUBNET, mtu=1442, subnets=(subnet,), **COMMON)


WORLD: tuple[Aggregate, ...] = (
    network(),
    full_network(),
    port(1, "10.0.0.11"),
    port(2, "fd00::11", SUBNET6),
    port(3, "10.9.0.2", FULL_SUBNET, FULL_SUBNET),
)


@pytest.fixture
def door(tmp_path: Path):
    def run(story, make=octavia.make_front_end, mount: str = "/load-balancer") -> None:
        async def with_world(place: InProcessServer) -> None:
            await place.model.write(lambda _: Changes(puts=WORLD))
            await place.reconcile()
            await story(place)

        play(make, tmp_path, with_world, mount)

    return run


def tree(*members: object, monitor: dict[str, Any] | None = MONITOR, **more: object) -> dict[str, Any]:
    bodies = [
        {"address": member, "protocol_port": 80} if isinstance(member, str) else {"protocol_port": 80, **member}
        for member in members
    ]
    pool = {
        "name": "p",
        "protocol": "TCP",
        "lb_algorithm": "SOURCE_IP_PORT",
        "members": bodies,
        **({"healthmonitor": monitor} if monitor else {}),
    }
    listener = {"name": "l", "protocol": "TCP", "protocol_port": 80, "default_pool": pool}
    return {"loadbalancer": {"vip_subnet_id": SUBNET, "listeners": [listener], **more}}


def probed_members(place: InProcessServer) -> list[Port]:
    return [each for each in place.model.snapshot.ports.values() if each.device_owner == PortUse.PROBE]
