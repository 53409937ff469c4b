"""Addresses behind an external network without NAT: subnets of tenants, and addresses of its routes.

Outside, such an address belongs to one machine or network, so a second use of it is rejected.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairlead.changes.identity import Identity
from fairlead.changes.networks import ports_on
from fairlead.changes.ports import VIP_DEVICE
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress, IPNetwork, is_inside, overlaps
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network, Port, PortUse, Router, find_subnet
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixNotInRoutes(Refusal):
    """No route of the uplink contains the prefix."""

    cidr: IPNetwork
    uplink_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixInUseOutside(Refusal):
    """Another object behind the external network uses addresses of the prefix. It is not disclosed, because it may
    belong to another project."""

    cidr: IPNetwork
    uplink_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixNotGranted(Refusal):
    """The project has no grant for the prefix; only an administrator grants prefixes of an uplink's routes."""

    cidr: IPNetwork
    uplink: str
    """Name of the uplink."""
    project_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteNeeded(Refusal):
    """A removed route is needed by an address, or by a tenant's subnet."""

    needed: IPAddress | IPNetwork
    network: Network
    """Network that needs the route."""


def check_untranslated(snapshot: Snapshot, uplink: Network, network_id: str, cidr: IPNetwork) -> Steps[None]:
    """Check that a network can have this subnet without NAT. Raises Refused.

    All ports of the external network are scanned; their number is bounded by its addresses.
    """
    if not any(is_inside(cidr, route) for route in uplink.routes):
        raise Refused(PrefixNotInRoutes(cidr=cidr, uplink_id=uplink.id))
    for port in ports_on(snapshot, uplink):
        yield
        used = any(fixed.address in cidr for fixed in port.fixed_ips)
        if used or any(
            overlaps(other, cidr) for _, other in untranslated(snapshot, port, cidr.version, but=network_id)
        ):
            raise Refused(PrefixInUseOutside(cidr=cidr, uplink_id=uplink.id))


def granted(snapshot: Snapshot, project_id: str, uplink: Network) -> list[IPNetwork]:
    """Return the prefixes of the uplink's routes that are granted to the project."""
    project = snapshot.projects.get(project_id)
    return [each.cidr for each in project.prefixes if each.uplink == uplink.name] if project else []


def check_granted(snapshot: Snapshot, asker: Identity, project_id: str, uplink: Network, cidr: IPNetwork) -> None:
    """Check that a network of this project may use the prefix. Raises Refused."""
    if asker.is_admin or any(is_inside(cidr, prefix) for prefix in granted(snapshot, project_id, uplink)):
        return
    raise Refused(PrefixNotGranted(cidr=cidr, uplink=uplink.name, project_id=project_id))


def check_untranslated_subnets(
    snapshot: Snapshot, asker: Identity, router: Router, joined: Iterable[tuple[Network, IPNetwork]]
) -> None:
    """Check that these subnets may be behind the router. If the uplink has routes, a tenant's subnet without NAT must
    be inside these routes and inside the project's grants. Raises Refused."""
    gateway = router.gateway
    if gateway is None or asker.is_admin:
        return
    uplink = snapshot.networks[gateway.network_id]
    for network, cidr in joined:
        if _is_visible_on(uplink, cidr) and not is_translated(router, cidr.version):
            run_to_completion(check_untranslated(snapshot, uplink, network.id, cidr))
            check_granted(snapshot, asker, network.project_id, uplink, cidr)


def _is_visible_on(uplink: Network, cidr: IPNetwork) -> bool:
    """Return whether the subnet is visible on an uplink with routes. An IPv6 prefix outside all routes is not reachable
    from outside, so machines may have such addresses in addition to others."""
    return bool(uplink.routes) and (cidr.version == 4 or any(overlaps(route, cidr) for route in uplink.routes))


def check_routes_not_needed(snapshot: Snapshot, uplink: Network, routes: Iterable[IPNetwork]) -> Steps[None]:
    """Check that these routes can replace those of the external network. Raises Refused."""
    gone, there = [route for route in uplink.routes if route not in routes], list(routes)
    for port in ports_on(snapshot, uplink) if gone else ():
        yield
        addresses = [fixed.address for fixed in port.fixed_ips] if port.use is PortUse.VIP else []
        for address in addresses:
            if any(address in route for route in gone) and not any(address in route for route in there):
                raise Refused(RouteNeeded(needed=address, network=_find_served_network(snapshot, port)))
        for network, cidr in (each for version in (4, 6) for each in untranslated(snapshot, port, version)):
            if any(is_inside(cidr, route) for route in gone) and not any(is_inside(cidr, route) for route in there):
                raise Refused(RouteNeeded(needed=cidr, network=network))


def untranslated(snapshot: Snapshot, port: Port, version: int, but: str = "") -> Iterator[tuple[Network, IPNetwork]]:
    """Yield (network, subnet) that is visible outside without NAT through this port, if it is a router's gateway."""
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
    """Return whether traffic that leaves by the router's gateway gets an address of the gateway."""
    gateway = router.gateway
    return gateway is not None and (gateway.enable_snat if version == 4 else gateway.enable_snat_ipv6)


def _find_served_network(snapshot: Snapshot, port: Port) -> Network:
    """Return the tenant's network that the port's address serves; the port's own network if there is none."""
    found = port.network_id
    if port.use is PortUse.VIP:
        balancer = snapshot.load_balancers.get(port.device_id.removeprefix(VIP_DEVICE))
        if balancer is not None and balancer.described is not None:
            found = balancer.described.network_id
    if port.use is PortUse.ROUTER_GATEWAY:
        interfaces = sorted(snapshot.router_interfaces.get(port.device_id, NO_IDS))
        found = next((snapshot.ports[each].network_id for each in interfaces), found)
    return snapshot.networks[found]
