"""Ports: an interface of a workload, of a router, or the holder of a VIP's address.

A router's interface and a VIP's port belong to what they serve: their addresses and device change only with it. Not
here, and refused: security groups, address pairs, DHCP options, QoS policies, VNIC types that bypass the switch.
"""

from collections.abc import Callable, Iterable
from typing import Any

from fairlead.api.fields import Values
from fairlead.api.listing import Item
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only, refused
from fairlead.api.network.collection import (
    Call,
    Collection,
    Filters,
    Viewpoint,
    born,
    encode_standard,
    given,
    named,
    network_owner,
    revised,
)
from fairlead.api.openapi import TEXT
from fairlead.changes.addresses import AskedAddress, Holder, choose_fixed_ips, choose_mac
from fairlead.changes.identity import Identity
from fairlead.model.indexes import NONE
from fairlead.model.network import FixedIP, FloatingIP, Network, Port, PortUse, is_reached, release
from fairlead.model.owner import Kind, Owner
from fairlead.model.plugged import is_plugged
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import ProvisioningStatus
from fairlead.model.writing import Changes

STATUS = {
    ProvisioningStatus.ACTIVE: "ACTIVE",
    ProvisioningStatus.ERROR: "ERROR",
    ProvisioningStatus.PENDING_CREATE: "DOWN",
    ProvisioningStatus.PENDING_UPDATE: "DOWN",
}
HIDDEN = frozenset({"binding:host_id", "binding:profile", "binding:vif_details", "binding:vif_type"})
"""Only an administrator sees where and how a port is plugged."""
VIP_DEVICE = "lb-"
OF_NETWORK = (PortUse.ROUTER_INTERFACE, PortUse.ROUTER_GATEWAY, PortUse.FLOATING_IP)
"""Ports of a router or a floating IP, which alone changes them."""
ATTRIBUTES = {
    **STANDARD,
    "network_id": Attribute(parse=parsers.uuid, put=False, required=True),
    "mac_address": Attribute(parse=parsers.mac, nullable=True),
    "fixed_ips": Attribute(parse=parsers.fixed_ips, nullable=True),
    "admin_state_up": Attribute(parse=parsers.boolean),
    "device_id": Attribute(nullable=True),
    "device_owner": Attribute(nullable=True),
    "status": read_only(TEXT),
    "port_security_enabled": Attribute(parse=parsers.boolean),
    "binding:host_id": Attribute(nullable=True),
    "binding:vnic_type": Attribute(
        parse=parsers.only("normal", because="only ports of the virtual switch are supported: normal"), nullable=True
    ),
    "binding:profile": Attribute(
        parse=parsers.only({}, because="no binding profile is supported"), nullable=True, sifts=False
    ),
    "binding:vif_type": read_only(TEXT),
    "binding:vif_details": read_only({"type": "object"}, sifts=False),
    "security_groups": Attribute(
        parse=parsers.only([], because="security groups are not supported; give an empty list"), nullable=True
    ),
    "allowed_address_pairs": Attribute(
        parse=parsers.only([], because="address pairs are not supported"), nullable=True, sifts=False
    ),
    "extra_dhcp_opts": Attribute(
        parse=parsers.only([], because="DHCP options are not supported"), nullable=True, sifts=False
    ),
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "dns_name": refused("", because="DNS names are not supported"),
    "dns_domain": refused("", because="DNS names are not supported"),
    "numa_affinity_policy": refused(because="NUMA affinity is not supported"),
    "device_profile": refused(because="device profiles are not supported", put=False),
    "hints": refused({}, because="hints are not supported"),
    "trunk_details": refused(because="trunks are not supported"),
}


def encode_port(view: Viewpoint, port: Port) -> Item:
    host = port.host or view.snapshot.plugged.get(port.id, "")
    item: dict[str, Any] = {
        **encode_standard(view, port, port_owner(port.id)),
        "network_id": port.network_id,
        "mac_address": port.mac_address,
        "fixed_ips": [{"subnet_id": fixed.subnet_id, "ip_address": str(fixed.address)} for fixed in port.fixed_ips],
        "admin_state_up": port.admin_state_up,
        "device_id": port.device_id,
        "device_owner": port.device_owner,
        "status": port_status(view, port),
        "port_security_enabled": port.port_security_enabled,
        "binding:host_id": host,
        "binding:vnic_type": "normal",
        "binding:profile": {},
        "binding:vif_type": "ovs" if host else "unbound",
        "binding:vif_details": {},
        "security_groups": [],
        "allowed_address_pairs": [],
        "extra_dhcp_opts": [],
        "qos_policy_id": None,
    }
    return item if view.caller.is_admin else {name: item[name] for name in item if name not in HIDDEN}


def port_status(view: Viewpoint, port: Port) -> str:
    """As Neutron has it with OVN: ACTIVE while OVN says that it is up (ovn-nb(5), Logical_Switch_Port:up)."""
    if port.use is PortUse.FLOATING_IP:
        return "N/A"
    if not port.admin_state_up:
        return "DOWN"
    status = STATUS[view.status(port_owner(port.id))]
    return "DOWN" if status == "ACTIVE" and not is_plugged(view.snapshot, port) else status


def create_port(snapshot: Snapshot, call: Call, values: Values) -> Changes:
    network = snapshot.networks.get(values["network_id"])
    if network is None or not policy.sees_network(call.caller, network):
        raise errors.not_found("network", values["network_id"])
    standard = born(call, values)
    policy.check(call.caller.may_change(standard["project_id"]), "create_port")
    policy.check(policy.uses_network(call.caller, network), "create_port")
    _check_policy(call, network, values, "create_port")
    _check_device_owner(values)
    mac = _mac(snapshot, network, values.get("mac_address"), call.new_id)
    holder = Holder(port_id=call.new_id, mac=mac, network=network)
    port = Port(
        **standard,
        network_id=network.id,
        mac_address=mac,
        fixed_ips=choose_fixed_ips(snapshot, holder, values.get("fixed_ips")),
        admin_state_up=values.get("admin_state_up", True),
        device_id=values.get("device_id") or "",
        device_owner=values.get("device_owner") or "",
        host=values.get("binding:host_id") or "",
        port_security_enabled=values.get("port_security_enabled", network.port_security_enabled),
    )
    return Changes(puts=(port,), reads=(network_owner(network.id),))


def update_port(snapshot: Snapshot, call: Call, port: Port, values: Values) -> Changes:
    network = snapshot.networks[port.network_id]
    _check_policy(call, network, values, "update_port")
    fields = given(values, ["name", "description", "admin_state_up", "port_security_enabled"])
    fields |= {name: values[name] or "" for name in ("device_id", "device_owner") if name in values}
    if "binding:host_id" in values:
        fields["host"] = values["binding:host_id"] or ""
    if values.get("mac_address") not in (None, port.mac_address):
        fields["mac_address"] = _mac(snapshot, network, values["mac_address"], port.id)
    if "fixed_ips" in values:
        fields["fixed_ips"] = _new_fixed_ips(snapshot, network, port, values["fixed_ips"])
    changed = revised(port, call.now, fields)
    _check_served(snapshot, port, changed)
    if changed.device_owner != port.device_owner:
        _check_device_owner(values)
    if changed == port:
        return Changes()
    return Changes(puts=(changed, *_freed(snapshot, changed)), reads=(network_owner(network.id),))


def put_port(snapshot: Snapshot, port: Port) -> Changes:
    return Changes() if snapshot.ports.get(port.id) == port else Changes(puts=(port,))


def delete_port(snapshot: Snapshot, port: Port) -> Changes:
    if port.use in OF_NETWORK:
        raise errors.service_port_in_use(port.id, f"has device owner {port.device_owner}")
    if port.use is PortUse.PROBE:
        raise errors.service_port_in_use(port.id, "health monitors need its address; it goes with its subnet")
    balancer_id = vip_holder(snapshot, port)
    if balancer_id is not None:
        raise errors.service_port_in_use(port.id, f"still used by load balancer {balancer_id}")
    return Changes(puts=free_all(snapshot, port.id), deletes=(port_owner(port.id),))


def free_all(snapshot: Snapshot, port_id: str) -> tuple[FloatingIP, ...]:
    """The floating IPs that lead to a port which goes, as they are afterwards."""
    found = snapshot.port_floating_ips.get(port_id, NONE)
    return tuple(release(snapshot.floating_ips[identity]) for identity in found)


def _freed(snapshot: Snapshot, port: Port) -> list[FloatingIP]:
    """Those that led to an address which the port has no more."""
    found = (snapshot.floating_ips[identity] for identity in snapshot.port_floating_ips.get(port.id, NONE))
    return [release(floating_ip) for floating_ip in found if not is_reached(floating_ip, port)]


def vip_holder(snapshot: Snapshot, port: Port) -> str | None:
    """The load balancer whose VIP's address this port has."""
    if port.use is not PortUse.VIP or not port.device_id.startswith(VIP_DEVICE):
        return None
    balancer = snapshot.load_balancers.get(port.device_id.removeprefix(VIP_DEVICE))
    return balancer.id if balancer is not None and balancer.vip.port_id == port.id else None


def port_owner(port_id: str) -> Owner:
    return Owner(Kind.PORT, port_id)


def _mac(snapshot: Snapshot, network: Network, wanted: str | None, port_id: str) -> str:
    """A MAC is free if no port of any network has it, for a router may join any two. Raises ApiError 409."""
    if wanted is None:
        return choose_mac(snapshot, port_id)
    if snapshot.macs.get(wanted, port_id) != port_id:
        raise errors.mac_taken(network.id, wanted)
    return wanted


def _new_fixed_ips(
    snapshot: Snapshot, network: Network, port: Port, wanted: tuple[AskedAddress, ...] | None
) -> tuple[FixedIP, ...]:
    held = Holder(port_id=port.id, mac=port.mac_address, network=network, held=port.fixed_ips)
    return choose_fixed_ips(snapshot, held, wanted or ())


def _check_policy(call: Call, network: Network, values: Values, rule: str) -> None:
    """Where a port is plugged is for the administrator to say, what it may send for the network's owner.

    Raises ApiError 403.
    """
    creating = rule == "create_port"
    asked = {name for name, value in values.items() if value or not creating}
    policy.check_attributes(call.caller.is_admin, rule, asked & {"binding:host_id", "binding:profile"})
    owned = (
        {"mac_address"}
        | _named_addresses(values)
        | ({"port_security_enabled"} if not values.get("port_security_enabled", True) else set())
    )
    if str(values.get("device_owner") or "").startswith("network:"):
        owned.add("device_owner")
    policy.check_attributes(
        call.caller.may_change(network.project_id), rule, owned & (values.keys() | {"fixed_ips:ip_address"})
    )


def _named_addresses(values: Values) -> set[str]:
    """On a network that is only shared, which address a port gets is not for the guest to say."""
    named = any(wanted.address is not None for wanted in values.get("fixed_ips") or ())
    return {"fixed_ips:ip_address"} if named else set()


def _check_device_owner(values: Values) -> None:
    """A port becomes a router's interface by the router alone, for that is where overlaps are found.

    And a VIP by its load balancer alone: a VIP's port has no row of its own in OVN.
    """
    if values.get("device_owner") == PortUse.VIP:
        raise errors.bad_resource("port", f"device_owner {PortUse.VIP} is given by the load balancer")
    if values.get("device_owner") == PortUse.PROBE:
        raise errors.bad_resource("port", f"device_owner {PortUse.PROBE} is given by health monitors")
    if values.get("device_owner") in (PortUse.ROUTER_GATEWAY, PortUse.FLOATING_IP):
        raise errors.bad_resource("port", f"device_owner {values['device_owner']} is given by what it serves")
    if values.get("device_owner") == PortUse.ROUTER_INTERFACE:
        raise errors.bad_resource("port", f"device_owner {PortUse.ROUTER_INTERFACE} is given by add_router_interface")


def _check_served(snapshot: Snapshot, port: Port, changed: Port) -> None:
    """Raises ApiError 409 for a change that the router or the load balancer would not know of."""
    if port.use not in (*OF_NETWORK, PortUse.PROBE) and vip_holder(snapshot, port) is None:
        return
    kept = ("fixed_ips", "device_id", "device_owner")
    if any(getattr(port, name) != getattr(changed, name) for name in kept):
        raise errors.port_in_use(port.id, port.network_id, port.device_id)


def _sift(filters: Filters) -> tuple[Callable[[Port], bool], Filters]:
    """`fixed_ips=subnet_id=X`, `ip_address=A`, `ip_address_substr=B`: one fixed IP has to match all that are given."""
    wanted: dict[str, set[str]] = {}
    for text in filters.get("fixed_ips", ()):
        key, equals, value = text.partition("=")
        if not equals or key not in ("subnet_id", "ip_address", "ip_address_substr"):
            raise errors.bad_request(
                f"'{text}' is not a filter for fixed_ips; give subnet_id=, ip_address= or ip_address_substr="
            )
        wanted.setdefault(key, set()).add(parsers.canonical_address(value) if key == "ip_address" else value)
    rest = {name: texts for name, texts in filters.items() if name not in ("fixed_ips", "security_groups")}
    if "security_groups" in filters:
        return lambda _: False, rest
    return lambda port: not wanted or any(_fits(fixed, wanted) for fixed in port.fixed_ips), rest


def _fits(fixed: FixedIP, wanted: dict[str, set[str]]) -> bool:
    text = str(fixed.address)
    return (
        fixed.subnet_id in wanted.get("subnet_id", {fixed.subnet_id})
        and text in wanted.get("ip_address", {text})
        and any(part in text for part in wanted.get("ip_address_substr", {""}))
    )


def _find(snapshot: Snapshot, port_id: str) -> Port | None:
    return snapshot.ports.get(port_id)


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[Port]:
    if "id" not in filters and "network_id" in filters:
        ids = (port_id for item in filters["network_id"] for port_id in snapshot.network_ports.get(item, NONE))
        return [snapshot.ports[port_id] for port_id in ids]
    return named(snapshot.ports, filters)


def _owner(snapshot: Snapshot, port: Port) -> Owner:
    return port_owner(port.id)


def _may_change(snapshot: Snapshot, caller: Identity, port: Port) -> bool:
    return caller.may_change(port.project_id) or caller.may_change(snapshot.networks[port.network_id].project_id)


PORTS: Collection[Port] = Collection(
    singular="port",
    plural="ports",
    attributes=ATTRIBUTES,
    find=_find,
    candidates=_candidates,
    owner=_owner,
    sees=policy.sees_port,
    may_change=_may_change,
    encode=encode_port,
    sift=_sift,
    create=create_port,
    update=update_port,
    delete=delete_port,
    put=put_port,
)
