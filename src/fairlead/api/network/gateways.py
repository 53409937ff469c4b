"""The way out of a router, through a port on an external network; and which subnets a router joins."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fairlead.api.door import JsonObject
from fairlead.api.fields import object_schema, reads
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.collection import RequestContext, network_owner
from fairlead.api.network.limits import INTERFACES
from fairlead.changes import access
from fairlead.changes.addresses import AskedAddress, Holder, choose_fixed_ips, choose_mac
from fairlead.changes.resources import revised
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import (
    ExternalGateway,
    FloatingIP,
    Network,
    Port,
    PortUse,
    Router,
    Subnet,
    find_subnet,
    release,
)
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """What a caller wants: None means what is not said. Without a network there shall be no gateway."""

    network_id: str | None = None
    enable_snat: bool | None = None
    fixed_ips: tuple[AskedAddress, ...] | None = None


_KEYS = ("network_id", "enable_snat", "external_fixed_ips")


@reads(
    object_schema(
        {
            "network_id": parsers.uuid.schema,
            "enable_snat": parsers.boolean.schema,
            "external_fixed_ips": parsers.fixed_ips.schema,
        }
    )
)
def read_way(value: object) -> Way:
    """Of `external_gateway_info`. An empty one takes the gateway away, as in Neutron."""
    if not isinstance(value, dict):
        raise ValueError(f"'{value}' is not a dictionary")
    unknown = sorted(str(key) for key in value if key not in _KEYS)
    if unknown:
        raise ValueError(f"Unexpected keys supplied: {', '.join(unknown)}")
    if value and value.get("network_id") is None and set(value) != {"network_id"}:
        raise ValueError("Validation of dictionary's keys failed. Expected keys: {'network_id'}")
    snat, fixed_ips = value.get("enable_snat"), value.get("external_fixed_ips")
    return Way(
        network_id=None if value.get("network_id") is None else parsers.uuid(value["network_id"]),
        enable_snat=None if snat is None else parsers.boolean(snat),
        fixed_ips=None if not fixed_ips else parsers.fixed_ips(fixed_ips),
    )


def encode_gateway(snapshot: Snapshot, router: Router) -> JsonObject | None:
    gateway = router.gateway
    if gateway is None:
        return None
    port = snapshot.ports[gateway.port_id]
    fixed = [{"subnet_id": each.subnet_id, "ip_address": str(each.address)} for each in port.fixed_ips]
    return {"network_id": gateway.network_id, "enable_snat": gateway.enable_snat, "external_fixed_ips": fixed}


def check_way(context: RequestContext, way: Way | None, rule: str) -> None:
    """How the deployment's addresses are used outside is for its administrator to say. Raises ApiError 403."""
    asked = {
        f"external_gateway_info:{name}"
        for name, value in (("enable_snat", way and way.enable_snat), ("external_fixed_ips", way and way.fixed_ips))
        if value is not None
    }
    policy.check_attributes(context.caller.is_admin, rule, asked)


def set_gateway(snapshot: Snapshot, context: RequestContext, router: Router, way: Way | None, port_id: str) -> Changes:
    """What is to be written besides the router, with the router as it is then first. Raises ApiError."""
    if way is None or way.network_id is None:
        deletes, freed = _without_gateway(snapshot, router)
        return Changes(puts=(replace(router, gateway=None), *freed), deletes=deletes, rests_on_absence=bool(deletes))
    network = _external_network(snapshot, context, way.network_id)
    _check_addresses(network, way)
    old = router.gateway
    deletes, freed = (), ()
    if old is not None and old.network_id == network.id:
        port = _moved(snapshot, context, network, snapshot.ports[old.port_id], way)
    else:
        deletes, freed = _without_gateway(snapshot, router)
        port = _new_port(snapshot, context, network, router, way, port_id)
        check_new_subnets(snapshot, replace(router, gateway=None), subnets_of(snapshot, port))
    snat = True if way.enable_snat is None else way.enable_snat
    changed = replace(router, gateway=ExternalGateway(network_id=network.id, port_id=port.id, enable_snat=snat))
    ports = () if snapshot.ports.get(port.id) == port else (port,)
    reads = (network_owner(network.id),)
    return Changes(puts=(changed, *ports, *freed), deletes=deletes, reads=reads, rests_on_absence=bool(deletes))


def _external_network(snapshot: Snapshot, context: RequestContext, network_id: str) -> Network:
    network = snapshot.networks.get(network_id)
    if network is None or not access.sees_network(context.caller, network):
        raise errors.not_found("network", network_id)
    if not network.external:
        raise errors.bad_resource("router", f"Network {network_id} is not an external network")
    return network


def _check_addresses(network: Network, way: Way) -> None:
    gateways = {subnet.gateway for subnet in network.subnets if subnet.gateway is not None}
    for wanted in way.fixed_ips or ():
        if wanted.address in gateways:
            raise errors.bad_resource("router", f"External IP {wanted.address} is the same as the gateway IP")


def _without_gateway(snapshot: Snapshot, router: Router) -> tuple[tuple[Owner, ...], tuple[FloatingIP, ...]]:
    """The port of the gateway, if it may go, and the floating IPs that are free then. Raises ApiError 409."""
    if router.gateway is None:
        return (), ()
    through = floating_ips_through(snapshot, router)
    if any(keeps(snapshot, router, each) for each in through):
        raise errors.gateway_in_use_by_floating_ip(router.id, router.gateway.network_id)
    return (Owner(Kind.PORT, router.gateway.port_id),), tuple(release(each) for each in through)


def floating_ips_through(snapshot: Snapshot, router: Router) -> list[FloatingIP]:
    return [snapshot.floating_ips[each] for each in snapshot.router_floating_ips.get(router.id, NO_IDS)]


def keeps(snapshot: Snapshot, router: Router, floating_ip: FloatingIP) -> bool:
    """Whether the router has to stay as it is for the floating IP's sake. A stranger's leads nowhere instead."""
    port = snapshot.ports.get(floating_ip.port_id or "")
    return port is not None and is_there_for(snapshot, router, port, floating_ip.project_id)


def is_there_for(snapshot: Snapshot, router: Router, port: Port, project_id: str) -> bool:
    """Whether a floating IP of the project may go through the router to a port: it is the project's, or on a network
    that is the project's alone, where nobody but an administrator can have put it."""
    network = snapshot.networks[port.network_id]
    return router.project_id == project_id or (network.project_id == project_id and not network.shared)


def _moved(snapshot: Snapshot, context: RequestContext, network: Network, port: Port, way: Way) -> Port:
    """The port with the addresses that are wanted; those that it has, if none are."""
    if way.fixed_ips is None:
        return port
    holder = Holder(port_id=port.id, mac=port.mac_address, network=network, held=port.fixed_ips)
    return revised(port, replace(port, fixed_ips=choose_fixed_ips(snapshot, holder, way.fixed_ips)), context.now)


def _new_port(
    snapshot: Snapshot, context: RequestContext, network: Network, router: Router, way: Way, port_id: str
) -> Port:
    """It has no project, as in Neutron: it is not the tenant's to see or to change."""
    mac = choose_mac(snapshot, port_id)
    fixed = choose_fixed_ips(snapshot, Holder(port_id=port_id, mac=mac, network=network), way.fixed_ips)
    if not fixed:
        raise errors.bad_resource("router", f"No IPs available for external network {network.id}")
    return Port(
        id=port_id,
        project_id="",
        created_at=context.now,
        network_id=network.id,
        mac_address=mac,
        fixed_ips=fixed,
        device_id=router.id,
        device_owner=PortUse.ROUTER_GATEWAY.value,
    )


# Subnets


def subnets_of(snapshot: Snapshot, port: Port) -> list[Subnet]:
    network = snapshot.networks[port.network_id]
    found = (find_subnet(network, fixed.subnet_id) for fixed in port.fixed_ips)
    return [subnet for subnet in found if subnet is not None]


def router_ports(snapshot: Snapshot, router: Router) -> list[Port]:
    """Its interfaces, and its gateway if it has one already."""
    ids = [*snapshot.router_interfaces.get(router.id, NO_IDS), *([router.gateway.port_id] if router.gateway else ())]
    return [snapshot.ports[port_id] for port_id in ids if port_id in snapshot.ports]


def router_subnets(snapshot: Snapshot, router: Router) -> Iterator[Subnet]:
    for port in router_ports(snapshot, router):
        yield from subnets_of(snapshot, port)


def check_new_subnets(snapshot: Snapshot, router: Router, subnets: list[Subnet]) -> None:
    """A router can tell two subnets apart only if they do not overlap. Raises ApiError 400."""
    if len(snapshot.router_interfaces.get(router.id, NO_IDS)) >= INTERFACES:
        raise errors.bad_resource("router", f"A router has at most {INTERFACES} interfaces")
    for old in router_subnets(snapshot, router):
        for new in subnets:
            if old.id == new.id:
                raise errors.bad_resource("router", f"Router already has a port on subnet {new.id}")
            if old.cidr.version == new.cidr.version and old.cidr.overlaps(new.cidr):
                text = f"Cidr {new.cidr} of subnet {new.id} overlaps with cidr {old.cidr} of subnet {old.id}"
                raise errors.bad_resource("router", text)
