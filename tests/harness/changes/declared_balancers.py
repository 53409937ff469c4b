"""Fixtures for tests of declared load balancers: a tenant's network behind a router on an uplink with routes."""

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from fairlead.changes.balancer_spec_checks import BalancerSpec, SpecPort
from fairlead.changes.balancer_specs import create_from_spec
from fairlead.changes.caller import ChangeContext
from fairlead.changes.listen_addresses import AnyAddress
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Backend, ListenerProtocol, LoadBalancer, SpecPurpose
from fairlead.model.documents.network import AllocationPool, ExternalGateway, Network, Port, PortUse, Router
from fairlead.model.documents.port_ranges import PortRange, Ports, one_port
from fairlead.model.snapshot import Snapshot
from harness.changes.balancing import ASKER, apply_work
from harness.changes.world import OWNERS, fixed, snapshot_with, subnet

ADMINS: dict[str, Any] = {**OWNERS, "project_id": "admin"}
TENANT_NETWORK = Network(
    id="net",
    name="ovn0",
    mtu=1442,
    router_id="router",
    subnets=(subnet("four", "10.0.0.0/24"), subnet("six", "fd00::/64")),
    **OWNERS,
)
RANGE = AllocationPool(start=ip_address("192.0.2.10"), end=ip_address("192.0.2.20"))
UPLINK_SUBNET = replace(subnet("wire", "192.0.2.0/24", project_id="admin"), allocation_pools=(RANGE,))
UPLINK = Network(
    id="uplink",
    name="UPLINK",
    mtu=1500,
    external=True,
    routes=(ip_network("192.0.2.0/24"), ip_network("198.51.100.0/30"), ip_network("2001:db8:1::/64")),
    subnets=(
        UPLINK_SUBNET,
        subnet("route", "198.51.100.0/30", gateway=None, allocation_pools=(), project_id="admin"),
        subnet("route6", "2001:db8:1::/64", gateway=None, allocation_pools=(), project_id="admin"),
    ),
    **ADMINS,
)
GATEWAY = Port(
    id="gateway",
    network_id="uplink",
    mac_address="fa:16:3e:00:00:11",
    fixed_ips=(fixed("wire", "192.0.2.10"),),
    device_id="router",
    device_owner=PortUse.ROUTER_GATEWAY.value,
    **ADMINS,
)
INTERFACE = Port(
    id="interface",
    network_id="net",
    mac_address="fa:16:3e:00:00:12",
    fixed_ips=(fixed("four", "10.0.0.1"), fixed("six", "fd00::1")),
    device_id="router",
    device_owner=PortUse.ROUTER_INTERFACE.value,
    **OWNERS,
)
MACHINE = Port(
    id="vm1", network_id="net", mac_address="fa:16:3e:00:00:13", fixed_ips=(fixed("four", "10.0.0.11"),), **OWNERS
)
ROUTER = Router(
    id="router", gateway=ExternalGateway(network_id="uplink", port_id="gateway", enable_snat_ipv6=True), **OWNERS
)
WORLD = snapshot_with(TENANT_NETWORK, UPLINK, ROUTER, GATEWAY, INTERFACE, MACHINE)


def backend(name: str, address: str = "10.0.0.11", port: int | Ports | None = None) -> Backend:
    return Backend(name=name, address=ip_address(address), port=port)


def port(*backends: str, ports: Ports = one_port(80), **fields: Any) -> SpecPort:  # noqa: B008 - a value
    return SpecPort(**{"protocol": ListenerProtocol.TCP, "ports": ports, "backends": backends} | fields)


def port_requests(*backends: Backend, ports: tuple[SpecPort, ...] = (), **fields: Any) -> BalancerSpec:
    given = {"network_id": "net", "use": SpecPurpose.LOAD_BALANCER} | fields
    return BalancerSpec(backends=backends, ports=ports, **given)


def ids() -> Iterator[str]:
    return (f"id-{number}" for number in range(1000))


def declare_balancer(
    snapshot: Snapshot, wanted: BalancerSpec, listen: str | AnyAddress = "192.0.2.100", asker: ChangeContext = ASKER
) -> Snapshot:
    address: IPAddress | AnyAddress = ip_address(listen) if isinstance(listen, str) else listen
    numbers = ids()
    return apply_work(snapshot, create_from_spec(snapshot, asker, "lb", lambda: next(numbers), wanted, address))


def balancer(snapshot: Snapshot) -> LoadBalancer:
    return snapshot.load_balancers["lb"]


def declaration_error(snapshot: Snapshot, wanted: BalancerSpec, listen: str | AnyAddress = "192.0.2.100") -> Refusal:
    with pytest.raises(Refused) as found:
        declare_balancer(snapshot, wanted, listen)
    return found.value.why


def ranges(*ends: tuple[int, int]) -> Ports:
    return tuple(PortRange(*each) for each in ends)
