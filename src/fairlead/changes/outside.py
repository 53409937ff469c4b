"""What is behind an external network without translation: tenants' subnets, and addresses of its routes.

Outside, such an address is one machine's or one network's: whatever two would have is refused to the second.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.changes.identity import Identity
from fairlead.changes.networks import ports_on
from fairlead.changes.ports import VIP_DEVICE
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.addresses import IPAddress, IPNetwork, is_inside, overlaps
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import Network, Port, PortUse, Router, find_subnet
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps, at_once


@dataclass(frozen=True, slots=True, kw_only=True)
class NotInRoutes(Refusal):
    """Nothing leads there from outside."""

    cidr: IPNetwork
    uplink_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UsedOutside(Refusal):
    """Something else behind the external network has addresses of it: what, is not said, for it may be a stranger's."""

    cidr: IPNetwork
    uplink_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotGranted(Refusal):
    """Only an administrator says which project has a prefix of an uplink's routes."""

    cidr: IPNetwork
    uplink: str
    """Its name."""
    project_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNeeded(Refusal):
    """An address, or a tenant's whole subnet, is reached by a route that would go."""

    needed: IPAddress | IPNetwork
    network: Network
    """That has it."""


def check_untranslated(snapshot: Snapshot, uplink: Network, network_id: str, cidr: IPNetwork) -> Steps[None]:
    """Whether a network may have this subnet, and be seen outside as it is. Raises Refused.

    All that is on the external network is looked at: as many as it has addresses to give.
    """
    if not any(is_inside(cidr, route) for route in uplink.routes):
        raise Refused(NotInRoutes(cidr=cidr, uplink_id=uplink.id))
    for port in ports_on(snapshot, uplink):
        yield
        used = any(fixed.address in cidr for fixed in port.fixed_ips)
        if used or any(
            overlaps(other, cidr) for _, other in untranslated(snapshot, port, cidr.version, but=network_id)
        ):
            raise Refused(UsedOutside(cidr=cidr, uplink_id=uplink.id))


def granted(snapshot: Snapshot, project_id: str, uplink: Network) -> list[IPNetwork]:
    """The prefixes of its routes that are the project's."""
    project = snapshot.projects.get(project_id)
    return [each.cidr for each in project.prefixes if each.uplink == uplink.name] if project else []


def check_granted(snapshot: Snapshot, asker: Identity, project_id: str, uplink: Network, cidr: IPNetwork) -> None:
    """Whether a network of this project may take the prefix for itself. Raises Refused."""
    if asker.is_admin or any(is_inside(cidr, prefix) for prefix in granted(snapshot, project_id, uplink)):
        return
    raise Refused(NotGranted(cidr=cidr, uplink=uplink.name, project_id=project_id))


def check_joined(
    snapshot: Snapshot, asker: Identity, router: Router, joined: Iterable[tuple[Network, IPNetwork]]
) -> None:
    """Whether these subnets may be behind the router. Where an uplink has routes, a tenant shows nothing there as it is
    but what these lead to, and what they were granted of that. Raises Refused."""
    gateway = router.gateway
    if gateway is None or asker.is_admin:
        return
    uplink = snapshot.networks[gateway.network_id]
    for network, cidr in joined:
        if _is_seen(uplink, cidr) and not is_translated(router, cidr.version):
            at_once(check_untranslated(snapshot, uplink, network.id, cidr))
            check_granted(snapshot, asker, network.project_id, uplink, cidr)


def _is_seen(uplink: Network, cidr: IPNetwork) -> bool:
    """Where an uplink has routes. A prefix of IPv6 to which none leads is nobody's outside: machines may have such ones
    beside others."""
    return bool(uplink.routes) and (cidr.version == 4 or any(overlaps(route, cidr) for route in uplink.routes))


def check_reached(snapshot: Snapshot, uplink: Network, routes: Iterable[IPNetwork]) -> Steps[None]:
    """Whether these routes may be those of the external network from now on. Raises Refused."""
    gone, there = [route for route in uplink.routes if route not in routes], list(routes)
    for port in ports_on(snapshot, uplink) if gone else ():
        yield
        addresses = [fixed.address for fixed in port.fixed_ips] if port.use is PortUse.VIP else []
        for address in addresses:
            if any(address in route for route in gone) and not any(address in route for route in there):
                raise Refused(RouteNeeded(needed=address, network=_holder(snapshot, port)))
        for network, cidr in (each for version in (4, 6) for each in untranslated(snapshot, port, version)):
            if any(is_inside(cidr, route) for route in gone) and not any(is_inside(cidr, route) for route in there):
                raise Refused(RouteNeeded(needed=cidr, network=network))


def untranslated(snapshot: Snapshot, port: Port, version: int, but: str = "") -> Iterator[tuple[Network, IPNetwork]]:
    """(network, subnet) that is seen outside as it is through this port, if that is a router's gateway."""
    router = snapshot.routers.get(port.device_id) if port.use is PortUse.ROUTER_GATEWAY else None
    if router is None or is_translated(router, version):
        return
    for port_id in snapshot.router_interfaces.get(router.id, NO_IDS):
        interface = snapshot.ports[port_id]
        network = snapshot.networks[interface.network_id]
        for fixed in interface.fixed_ips if network.id != but else ():
            subnet = find_subnet(network, fixed.subnet_id)
            if subnet is not None and subnet.cidr.version == version:
                yield network, subnet.cidr


def is_translated(router: Router, version: int) -> bool:
    """Whether what leaves by the router's gateway has an address of the gateway."""
    gateway = router.gateway
    return gateway is not None and (gateway.enable_snat if version == 4 else gateway.enable_snat_ipv6)


def _holder(snapshot: Snapshot, port: Port) -> Network:
    """The tenant's network that the port's address is for; its own network, where there is none."""
    found = port.network_id
    if port.use is PortUse.VIP:
        balancer = snapshot.load_balancers.get(port.device_id.removeprefix(VIP_DEVICE))
        if balancer is not None and balancer.described is not None:
            found = balancer.described.network_id
    if port.use is PortUse.ROUTER_GATEWAY:
        interfaces = sorted(snapshot.router_interfaces.get(port.device_id, NO_IDS))
        found = next((snapshot.ports[each].network_id for each in interfaces), found)
    return snapshot.networks[found]
