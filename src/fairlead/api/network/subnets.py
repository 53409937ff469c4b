"""Subnets of the Neutron API. A subnet is part of its network's document, so overlaps are detected atomically.

IPv6 address modes are stored, shown, and used to select port addresses. Not implemented and rejected: subnet pools,
segments, service types, prefix delegation.
"""

from collections.abc import Iterable
from dataclasses import replace

from fairlead.api.http.listing import Item
from fairlead.api.network import errors, parsers
from fairlead.api.network.attributes import STANDARD, Attribute, unsupported_attribute
from fairlead.api.network.collection import (
    Collection,
    EncodeContext,
    Filters,
    RequestContext,
    encode_standard,
    present,
    standard_values,
)
from fairlead.changes import access, declarative_uplinks, subnets
from fairlead.changes.access import network_of, subnet_of
from fairlead.changes.addresses import default_gateway, default_pools
from fairlead.changes.identity import Identity
from fairlead.model.documents.addresses import IPNetwork
from fairlead.model.documents.network import Ipv6Mode, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Values

_NO_POOLS = "subnet pools are not supported; give a cidr"
ATTRIBUTES = {
    **STANDARD,
    "network_id": Attribute(parse=parsers.uuid, put=False, required=True),
    "cidr": Attribute(parse=parsers.cidr, put=False, nullable=True),
    "ip_version": Attribute(parse=parsers.ip_version, put=False),
    "gateway_ip": Attribute(parse=parsers.address, nullable=True),
    "allocation_pools": Attribute(parse=parsers.allocation_pools, nullable=True, filterable=False),
    "dns_nameservers": Attribute(parse=parsers.nameservers, nullable=True, filterable=False),
    "host_routes": Attribute(parse=parsers.routes(), nullable=True, filterable=False),
    "enable_dhcp": Attribute(parse=parsers.boolean),
    "ipv6_address_mode": Attribute(parse=parsers.enum_of(Ipv6Mode), put=False, nullable=True),
    "ipv6_ra_mode": Attribute(parse=parsers.enum_of(Ipv6Mode), put=False, nullable=True),
    "subnetpool_id": Attribute(parse=parsers.only(because=_NO_POOLS), put=False, nullable=True),
    "use_default_subnetpool": Attribute(parse=parsers.only(False, because=_NO_POOLS), put=False),
    "prefixlen": unsupported_attribute(because=_NO_POOLS, put=False),
    "dns_publish_fixed_ip": unsupported_attribute(False, because="DNS names are not supported"),
    "segment_id": Attribute(parse=parsers.only(because="segments are not supported"), nullable=True),
    "service_types": Attribute(parse=parsers.only([], because="service types are not supported"), filterable=False),
}


def encode_subnet(view: EncodeContext, subnet: Subnet) -> Item:
    network_id = view.snapshot.subnet_network[subnet.id]
    return {
        **encode_standard(view, subnet, Owner(Kind.NETWORK, network_id)),
        "network_id": network_id,
        "cidr": str(subnet.cidr),
        "ip_version": subnet.cidr.version,
        "gateway_ip": None if subnet.gateway is None else str(subnet.gateway),
        "allocation_pools": [{"start": str(pool.start), "end": str(pool.end)} for pool in subnet.allocation_pools],
        "dns_nameservers": [str(server) for server in subnet.dns_nameservers],
        "host_routes": [parsers.encode_route(route) for route in subnet.host_routes],
        "enable_dhcp": subnet.enable_dhcp,
        "ipv6_address_mode": subnet.ipv6_address_mode,
        "ipv6_ra_mode": subnet.ipv6_ra_mode,
        "subnetpool_id": None,
        "use_default_subnetpool": False,
        "segment_id": None,
        "service_types": [],
    }


def create_subnet(snapshot: Snapshot, context: RequestContext, values: Values) -> Steps[Changes]:
    standard, cidr = standard_values(context, values), _cidr(values)
    gateway = values["gateway_ip"] if "gateway_ip" in values else default_gateway(cidr)
    pools = values.get("allocation_pools")
    subnet = Subnet(
        **standard,
        cidr=cidr,
        gateway=gateway,
        allocation_pools=default_pools(cidr, gateway) if pools is None else pools,
        enable_dhcp=values.get("enable_dhcp", True),
        dns_nameservers=values.get("dns_nameservers") or (),
        host_routes=values.get("host_routes") or (),
        ipv6_address_mode=values.get("ipv6_address_mode"),
        ipv6_ra_mode=values.get("ipv6_ra_mode"),
    )
    return (yield from declarative_uplinks.create_subnet(snapshot, context.caller, values["network_id"], subnet))


def update_subnet(snapshot: Snapshot, context: RequestContext, subnet: Subnet, values: Values) -> Changes:
    fields = present(values, ["name", "description", "enable_dhcp"])
    fields |= {name: values[name] or () for name in ("dns_nameservers", "host_routes") if name in values}
    gateway = fields["gateway"] = values.get("gateway_ip", subnet.gateway)
    if "allocation_pools" in values:
        pools = values["allocation_pools"]
        fields["allocation_pools"] = default_pools(subnet.cidr, gateway) if pools is None else pools
    return subnets.update_subnet(snapshot, context.caller, subnet, replace(subnet, **fields), context.now)


def _cidr(values: Values) -> IPNetwork:
    """Return the CIDR of the body. Raises ApiError 400, and Refused."""
    cidr: IPNetwork | None = values.get("cidr")
    if cidr is None:
        raise errors.bad_resource("subnets", "a subnetpool must be specified in the absence of a cidr")
    subnets.check_version(cidr, values.get("ip_version", cidr.version), "cidr")
    return cidr


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[Subnet]:
    if "id" in filters:
        return [found for subnet_id in filters["id"] if (found := subnet_of(snapshot, subnet_id)) is not None]
    if "network_id" in filters:
        networks = [snapshot.networks[item] for item in filters["network_id"] if item in snapshot.networks]
        return [subnet for network in networks for subnet in network.subnets]
    return [subnet for network in snapshot.networks.values() for subnet in network.subnets]


def _owner(snapshot: Snapshot, subnet: Subnet) -> Owner:
    return Owner(Kind.NETWORK, snapshot.subnet_network[subnet.id])


def _sees(snapshot: Snapshot, caller: Identity, subnet: Subnet) -> bool:
    return access.can_see_subnet(caller, network_of(snapshot, subnet), subnet)


SUBNETS: Collection[Subnet] = Collection(
    singular="subnet",
    plural="subnets",
    attributes=ATTRIBUTES,
    find=subnet_of,
    candidates=_candidates,
    owner=_owner,
    sees=_sees,
    may_change=access.may_change_subnet,
    encode=encode_subnet,
    create=create_subnet,
    update=update_subnet,
    delete=subnets.delete_subnet,
    put=subnets.put_subnet,
)
