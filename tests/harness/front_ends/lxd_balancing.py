"""Fixture for load balancers: an uplink with routes, a network `net` with a router on it, and machines.

The uplink is 192.0.2.0/24 and 2001:db8:1::/64; 198.51.100.0/24 and 2001:db8:2::/64 are routed to it. The network is
10.0.0.0/24 and fd00::/64, with machines at 10.0.0.11 to .14 and fd00::11 to ::14. `other` of the project `one`, and
`four`, which has no IPv6, are on the same uplink; `alone` has no uplink.
"""

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from typing import Any

from fairlead.model.documents.network import (
    AllocationPool,
    ExternalGateway,
    FixedIP,
    Network,
    Port,
    PortUse,
    Router,
    Segment,
    SegmentType,
    Subnet,
)
from fairlead.model.snapshot import Aggregate
from harness.api import NOON
from harness.front_ends.lxd_world import LxdFrontEnd

LBS, FORWARDS = "/1.0/networks/net/load-balancers", "/1.0/networks/net/forwards"
LISTEN = "198.51.100.10"
LISTEN6 = "2001:db8:2::10"
BODY: dict[str, Any] = {
    "description": "",
    "config": {},
    "backends": [
        {"name": "a", "description": "", "target_port": "", "target_address": "10.0.0.11"},
        {"name": "b", "description": "", "target_port": "8080", "target_address": "10.0.0.12"},
    ],
    "ports": [{"description": "", "protocol": "tcp", "listen_port": "80", "target_backend": ["a", "b"]}],
}
FORWARD: dict[str, Any] = {
    "description": "",
    "config": {},
    "ports": [
        {
            "description": "",
            "protocol": "tcp",
            "listen_port": "80",
            "target_port": "8080",
            "target_address": "10.0.0.11",
        }
    ],
}


def backend(name: str, **said: Any) -> dict[str, Any]:
    return {"name": name, "description": "", "target_port": "", "target_address": "10.0.0.11", **said}


def port(listen: str, *names: str, **said: Any) -> dict[str, Any]:
    return {"description": "", "protocol": "tcp", "listen_port": listen, "target_backend": [*names], **said}


def _subnet(name: str, cidr: str, project: str, *, pools: tuple[str, ...] | None = None, **more: Any) -> Subnet:
    network = ip_network(cidr)
    ends = (str(network[2]), str(network[-2])) if pools is None else pools
    found = (AllocationPool(start=ip_address(ends[0]), end=ip_address(ends[1])),) if ends else ()
    given = {"gateway": network[1], "enable_dhcp": False} | more
    return Subnet(id=name, project_id=project, created_at=NOON, cidr=network, allocation_pools=found, **given)


def _uplink() -> Network:
    subnets = (
        _subnet("up4", "192.0.2.0/24", "default", pools=("192.0.2.100", "192.0.2.199")),
        _subnet("up6", "2001:db8:1::/64", "default", pools=("2001:db8:1::100", "2001:db8:1::1ff")),
        _subnet("route4", "198.51.100.0/24", "default", pools=(), gateway=None),
        _subnet("route6", "2001:db8:2::/64", "default", pools=(), gateway=None),
    )
    routes = (ip_network("192.0.2.0/24"), ip_network("198.51.100.0/24"), ip_network("2001:db8:2::/64"))
    wire = Segment(type=SegmentType.FLAT, physical_network="physnet")
    return Network(
        id="uplink",
        name="UPLINK",
        project_id="default",
        created_at=NOON,
        mtu=1500,
        external=True,
        segment=wire,
        subnets=subnets,
        routes=routes,
    )


def _routed(name: str, number: int, project: str, *, six: str = "") -> Iterator[Aggregate]:
    """A network with a router on the uplink."""
    cidrs = [f"10.0.{number}.0/24", *filter(None, [six])]
    subnets = tuple(_subnet(f"{name}{ip_network(cidr).version}", cidr, project) for cidr in cidrs)
    common: dict[str, Any] = {"project_id": project, "created_at": NOON}
    yield Network(id=f"{name}-id", name=name, mtu=1442, subnets=subnets, router_id=f"{name}-router", **common)
    gateway = "uplink", PortUse.ROUTER_GATEWAY, "up4", ip_address(f"192.0.2.{100 + number}")
    inside = [(f"{name}-id", PortUse.ROUTER_INTERFACE, subnet.id, subnet.cidr[1]) for subnet in subnets]
    for index, (where, use, subnet_id, address) in enumerate([gateway, *inside]):
        yield Port(
            id=f"{name}-port{index}",
            network_id=where,
            mac_address=f"02:00:00:01:{number:02x}:{index:02x}",
            fixed_ips=(FixedIP(subnet_id=subnet_id, address=address),),
            device_id=f"{name}-router",
            device_owner=use.value,
            **common,
        )
    yield Router(
        id=f"{name}-router", name=name, gateway=ExternalGateway(network_id="uplink", port_id=f"{name}-port0"), **common
    )


def _machines() -> Iterator[Port]:
    for number in range(11, 15):
        yield Port(
            id=f"machine{number}",
            project_id="default",
            created_at=NOON,
            network_id="net-id",
            mac_address=f"02:00:00:00:00:{number:02x}",
            fixed_ips=tuple(
                FixedIP(subnet_id=subnet, address=ip_address(f"{prefix}{number}"))
                for subnet, prefix in (("net4", "10.0.0."), ("net6", "fd00::"))
            ),
        )


def settle(door: LxdFrontEnd) -> None:
    door.write(_uplink())
    door.write(*_routed("net", 0, "default", six="fd00::/64"))
    door.write(*_routed("other", 1, "one"))
    door.write(*_routed("four", 2, "default"))
    door.write(*_machines())
    alone = _subnet("alone4", "10.9.0.0/24", "default")
    door.write(Network(id="alone-id", name="alone", project_id="default", created_at=NOON, mtu=1442, subnets=(alone,)))
