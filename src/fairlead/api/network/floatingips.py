"""Floating IPs: an address of an external network that leads to a fixed address of a port, a VIP's too.

A port of its own holds the address, as in Neutron, so that nobody else gets it. The port that it leads to may go: the
floating IP is then free, and stays its project's. Of IPv4 only: an IPv6 address is reached by routing. Not here, and
refused: port forwardings, QoS policies, DNS names.
"""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID, uuid5

from fairlead.api.door import JsonObject
from fairlead.api.fields import Values
from fairlead.api.listing import Item
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only
from fairlead.api.network.collection import (
    Collection,
    Filters,
    RequestContext,
    Viewpoint,
    by_project,
    encode_standard,
    given,
    named,
    network_owner,
    sift_nothing,
    standard_values,
)
from fairlead.api.network.gateways import is_there_for
from fairlead.api.network.ports import STATUS, port_status
from fairlead.api.network.routers import router_owner
from fairlead.api.openapi import IDENTITY, TEXT
from fairlead.changes import access
from fairlead.changes.addresses import AskedAddress, Holder, choose_fixed_ips, choose_mac
from fairlead.changes.identity import Identity
from fairlead.model.addresses import IPAddress
from fairlead.model.domain import Topology
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import FixedIP, FloatingIP, Network, Port, PortUse, Router, Subnet, find_subnet, release
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

_NO_DNS = "DNS names are not supported"
ATTRIBUTES = {
    **{name: attribute for name, attribute in STANDARD.items() if name != "name"},
    "floating_network_id": Attribute(parse=parsers.uuid, put=False, required=True),
    "floating_ip_address": Attribute(parse=parsers.address, put=False, nullable=True),
    "subnet_id": Attribute(parse=parsers.uuid, put=False, nullable=True, sifts=False),
    "port_id": Attribute(parse=parsers.uuid, nullable=True),
    "fixed_ip_address": Attribute(parse=parsers.address, nullable=True),
    "router_id": read_only({"anyOf": [IDENTITY, {"type": "null"}]}),
    "status": read_only(TEXT),
    "port_details": read_only({"type": ["object", "null"]}, sifts=False),
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "dns_name": Attribute(parse=parsers.only("", because=_NO_DNS), put=False),
    "dns_domain": Attribute(parse=parsers.only("", because=_NO_DNS), put=False),
}
SERVED_BY_NOBODY = ("network:", "neutron:", PortUse.PROBE)
"""Ports of the network itself have no floating IP (neutron, common/utils.py, is_fip_serviced). Nor have
those of probes: no machine is there."""


def encode_floating_ip(view: Viewpoint, floating_ip: FloatingIP) -> Item:
    owner = floating_ip_owner(floating_ip.id)
    port = view.snapshot.ports.get(floating_ip.port_id or "")
    item = {
        **encode_standard(view, floating_ip, owner),
        "floating_network_id": floating_ip.network_id,
        "floating_ip_address": str(floating_ip.address),
        "subnet_id": None,
        "port_id": floating_ip.port_id,
        "fixed_ip_address": None if floating_ip.fixed_address is None else str(floating_ip.fixed_address),
        "router_id": floating_ip.router_id,
        "status": "DOWN" if port is None else STATUS[view.status(owner)],
        "port_details": None if port is None else _details(view, port),
        "qos_policy_id": None,
        "dns_name": "",
        "dns_domain": "",
    }
    return {name: value for name, value in item.items() if name != "name"}


def _details(view: Viewpoint, port: Port) -> JsonObject:
    return {
        "name": port.name,
        "network_id": port.network_id,
        "mac_address": port.mac_address,
        "admin_state_up": port.admin_state_up,
        "status": port_status(view, port),
        "device_id": port.device_id,
        "device_owner": port.device_owner,
    }


def create_floating_ip(snapshot: Snapshot, context: RequestContext, values: Values) -> Changes:
    network = _external_network(snapshot, context, values["floating_network_id"])
    standard = standard_values(context, values)
    access.check_owner(context.caller, standard["project_id"], FloatingIP)
    named_address = {"floating_ip_address"} if values.get("floating_ip_address") is not None else set[str]()
    policy.check_attributes(context.caller.is_admin, "create_floatingip", named_address)
    port = _address_port(snapshot, context, network, values)
    fresh = FloatingIP(**standard, network_id=network.id, address=port.fixed_ips[0].address, address_port_id=port.id)
    made, reads = _associated(snapshot, context, fresh, values)
    return Changes(puts=(port, made), reads=(network_owner(network.id), *reads))


def update_floating_ip(snapshot: Snapshot, context: RequestContext, floating_ip: FloatingIP, values: Values) -> Changes:
    """A body that names no port leaves it where it is; null frees it."""
    described = replace(floating_ip, **given(values, ["description"]))
    if "port_id" in values or values.get("fixed_ip_address") is not None:
        target = {"port_id": floating_ip.port_id, **values}
        changed, reads = _associated(snapshot, context, described, target)
    else:
        changed, reads = described, ()
    if changed == floating_ip:
        return Changes()
    return Changes(puts=(replace(changed, updated_at=context.now),), reads=reads)


def put_floating_ip(snapshot: Snapshot, floating_ip: FloatingIP) -> Changes:
    same = snapshot.floating_ips.get(floating_ip.id) == floating_ip
    return Changes() if same else Changes(puts=(floating_ip,))


def delete_floating_ip(snapshot: Snapshot, floating_ip: FloatingIP) -> Changes:
    return Changes(deletes=(floating_ip_owner(floating_ip.id), Owner(Kind.PORT, floating_ip.address_port_id)))


def floating_ip_owner(identity: str) -> Owner:
    return Owner(Kind.FLOATING_IP, identity)


# The address


def _external_network(snapshot: Snapshot, context: RequestContext, network_id: str) -> Network:
    network = snapshot.networks.get(network_id)
    if network is None or not access.sees_network(context.caller, network):
        raise errors.not_found("network", network_id)
    if not network.external:
        raise errors.bad_resource("floatingip", f"Network {network_id} is not a valid external network")
    if not any(subnet.cidr.version == 4 for subnet in network.subnets):
        raise errors.bad_resource("floatingip", f"Network {network_id} does not contain any IPv4 subnet")
    return network


def _address_port(snapshot: Snapshot, context: RequestContext, network: Network, values: Values) -> Port:
    port_id = str(uuid5(UUID(context.new_id), "port"))
    mac = choose_mac(snapshot, port_id)
    holder = Holder(port_id=port_id, mac=mac, network=network)
    return Port(
        id=port_id,
        project_id="",
        created_at=context.now,
        network_id=network.id,
        mac_address=mac,
        fixed_ips=(_address(snapshot, holder, values),),
        device_id=context.new_id,
        device_owner=PortUse.FLOATING_IP.value,
    )


def _address(snapshot: Snapshot, holder: Holder, values: Values) -> FixedIP:
    address: IPAddress | None = values.get("floating_ip_address")
    subnet_id = values.get("subnet_id")
    if address is not None and address.version != 4:
        raise errors.bad_resource("floatingip", f"{address} is not an IPv4 address")
    if subnet_id is not None or address is not None:
        wanted: tuple[AskedAddress, ...] | None = (AskedAddress(subnet_id=subnet_id, address=address),)
    else:
        wanted = None
    fixed = choose_fixed_ips(snapshot, holder, wanted)
    of_family = [each for each in fixed if each.address.version == 4]
    if not of_family:
        raise errors.bad_resource("floatingip", f"Subnet {subnet_id} has no IPv4 addresses")
    return of_family[0]


# What it leads to


def _associated(
    snapshot: Snapshot, context: RequestContext, floating_ip: FloatingIP, values: Values
) -> tuple[FloatingIP, tuple[Owner, ...]]:
    """As the values say, and the documents that this rests on. Raises ApiError."""
    if values.get("port_id") is None:
        if values.get("fixed_ip_address") is not None:
            raise errors.bad_resource("floatingip", "fixed_ip_address cannot be specified without a port_id")
        return release(floating_ip), ()
    port = _port(snapshot, context, floating_ip, values["port_id"])
    fixed = _fixed(port, values.get("fixed_ip_address"))
    router = _router(snapshot, context, floating_ip, port, fixed)
    for other_id in snapshot.port_floating_ips.get(port.id, NO_IDS):
        other = snapshot.floating_ips[other_id]
        same = (other.fixed_address, other.network_id) == (fixed.address, floating_ip.network_id)
        if same and other.id != floating_ip.id:
            raise errors.floating_ip_already_associated(floating_ip, port.id, fixed.address)
    changed = replace(floating_ip, port_id=port.id, fixed_address=fixed.address, router_id=router.id)
    return changed, (Owner(Kind.PORT, port.id), router_owner(router.id), network_owner(port.network_id))


def _port(snapshot: Snapshot, context: RequestContext, floating_ip: FloatingIP, port_id: str) -> Port:
    port = snapshot.ports.get(port_id)
    if port is None or not access.sees_port(snapshot, context.caller, port):
        raise errors.not_found("port", port_id)
    if port.project_id != floating_ip.project_id and not context.caller.is_admin:
        text = (
            f"Cannot process floating IP association with Port {port_id}, since that port is owned by a different "
            "tenant"
        )
        raise errors.bad_resource("floatingip", text)
    if port.use is not PortUse.VIP and port.device_owner.startswith(SERVED_BY_NOBODY):
        raise errors.bad_resource("floatingip", f"Port {port_id} is unable to be assigned a floating IP")
    return port


def _fixed(port: Port, wanted: IPAddress | None) -> FixedIP:
    """The address of the port that is meant."""
    if wanted is not None and wanted.version != 4:
        text = f"Cannot process floating IP association with {wanted}, since that is not an IPv4 address"
        raise errors.bad_resource("floatingip", text)
    found = [each for each in port.fixed_ips if each.address.version == 4 and wanted in (None, each.address)]
    if wanted is not None and not found:
        raise errors.bad_resource("floatingip", f"Port {port.id} does not have fixed ip {wanted}")
    if not found:
        raise errors.bad_resource(
            "floatingip", f"Cannot add floating IP to port {port.id} that has no fixed IPv4 addresses"
        )
    if len(found) > 1:
        text = (
            f"Port {port.id} has multiple fixed IPv4 addresses.  Must provide a specific IPv4 address when assigning a "
            "floating IP"
        )
        raise errors.bad_resource("floatingip", text)
    return found[0]


def _router(snapshot: Snapshot, context: RequestContext, floating_ip: FloatingIP, port: Port, fixed: FixedIP) -> Router:
    """One that joins both networks and is there for the floating IP's project; first the one that is the gateway of the
    port's subnet. An administrator may have it go through another project's, if there is no other."""
    subnet = find_subnet(snapshot.networks[port.network_id], fixed.subnet_id)
    found = [
        snapshot.routers[router_id]
        for router_id in sorted(snapshot.network_routers.get(port.network_id, NO_IDS))
        if router_id in snapshot.network_gateways.get(floating_ip.network_id, NO_IDS)
        and _addresses(snapshot, router_id, fixed.subnet_id)
    ]
    balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port.id, ""))
    if balancer is not None:  # only there its project's load balancers are
        found = [router for router in found if Topology(snapshot).serves_only(router.id, balancer.project_id)]
    own = [router for router in found if is_there_for(snapshot, router, port, floating_ip.project_id)]
    found = own or (found if context.caller.is_admin else [])
    if not found:
        raise errors.no_gateway_for_floating_ip(floating_ip.network_id, fixed.subnet_id, port.id)
    return next((router for router in found if _is_gateway(snapshot, router, subnet)), found[0])


def _is_gateway(snapshot: Snapshot, router: Router, subnet: Subnet | None) -> bool:
    return subnet is not None and subnet.gateway in _addresses(snapshot, router.id, subnet.id)


def _addresses(snapshot: Snapshot, router_id: str, subnet_id: str) -> list[IPAddress]:
    ports = (snapshot.ports[port_id] for port_id in snapshot.router_interfaces.get(router_id, NO_IDS))
    return [fixed.address for port in ports for fixed in port.fixed_ips if fixed.subnet_id == subnet_id]


def _find(snapshot: Snapshot, identity: str) -> FloatingIP | None:
    return snapshot.floating_ips.get(identity)


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[FloatingIP]:
    if "id" not in filters and "port_id" in filters:
        ids = (found for port_id in filters["port_id"] for found in snapshot.port_floating_ips.get(port_id, NO_IDS))
        return [snapshot.floating_ips[identity] for identity in ids]
    return named(snapshot.floating_ips, filters)


def _owner(snapshot: Snapshot, floating_ip: FloatingIP) -> Owner:
    return floating_ip_owner(floating_ip.id)


def _sees(snapshot: Snapshot, caller: Identity, floating_ip: FloatingIP) -> bool:
    return caller.may_see(floating_ip.project_id)


FLOATING_IPS: Collection[FloatingIP] = Collection(
    singular="floatingip",
    plural="floatingips",
    attributes=ATTRIBUTES,
    find=_find,
    candidates=_candidates,
    owner=_owner,
    sees=_sees,
    may_change=by_project,
    encode=encode_floating_ip,
    sift=sift_nothing,
    create=create_floating_ip,
    update=update_floating_ip,
    delete=delete_floating_ip,
    put=put_floating_ip,
)
