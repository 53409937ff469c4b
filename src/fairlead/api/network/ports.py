"""Ports of the Neutron API: interfaces of workloads and routers, and holders of VIP addresses.

Not implemented and rejected: security groups, address pairs, DHCP options, QoS policies, and VNIC types that bypass the
virtual switch.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fairlead.api.http.listing import Item
from fairlead.api.http.openapi import TEXT
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only, unsupported_attribute
from fairlead.api.network.collection import (
    Collection,
    EncodeContext,
    Filters,
    RequestContext,
    encode_standard,
    indexed,
    present,
    standard_values,
)
from fairlead.changes import access, ports
from fairlead.changes.ports import NewPort, PortChange
from fairlead.model.documents.network import FixedIP, Port, PortUse
from fairlead.model.documents.status import ProvisioningStatus
from fairlead.model.queries.port_bindings import is_plugged
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import as_single_step
from fairlead.schema import Values

STATUS = {
    ProvisioningStatus.ACTIVE: "ACTIVE",
    ProvisioningStatus.ERROR: "ERROR",
    ProvisioningStatus.PENDING_CREATE: "DOWN",
    ProvisioningStatus.PENDING_UPDATE: "DOWN",
}
HIDDEN = frozenset({"binding:host_id", "binding:profile", "binding:vif_details", "binding:vif_type"})
"""Attributes shown only to administrators."""
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
        parse=parsers.only({}, because="no binding profile is supported"), nullable=True, filterable=False
    ),
    "binding:vif_type": read_only(TEXT),
    "binding:vif_details": read_only({"type": "object"}, sifts=False),
    "security_groups": Attribute(
        parse=parsers.only([], because="security groups are not supported; give an empty list"), nullable=True
    ),
    "allowed_address_pairs": Attribute(
        parse=parsers.only([], because="address pairs are not supported"), nullable=True, filterable=False
    ),
    "extra_dhcp_opts": Attribute(
        parse=parsers.only([], because="DHCP options are not supported"), nullable=True, filterable=False
    ),
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "dns_name": unsupported_attribute("", because="DNS names are not supported"),
    "dns_domain": unsupported_attribute("", because="DNS names are not supported"),
    "numa_affinity_policy": unsupported_attribute(because="NUMA affinity is not supported"),
    "device_profile": unsupported_attribute(because="device profiles are not supported", put=False),
    "hints": unsupported_attribute({}, because="hints are not supported"),
    "trunk_details": unsupported_attribute(because="trunks are not supported"),
}


def encode_port(view: EncodeContext, port: Port) -> Item:
    host = port.host or view.snapshot.plugged.get(port.id, "")
    item: dict[str, Any] = {
        **encode_standard(view, port, owner_of(port)),
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


def port_status(view: EncodeContext, port: Port) -> str:
    """Return the status as Neutron with OVN: ACTIVE while OVN reports the port up (ovn-nb(5),
    Logical_Switch_Port:up)."""
    if port.use in (PortUse.FLOATING_IP, PortUse.LOCAL_IP):
        return "N/A"
    if not port.admin_state_up:
        return "DOWN"
    status = STATUS[view.status(owner_of(port))]
    return "DOWN" if status == "ACTIVE" and not is_plugged(view.snapshot, port) else status


def create_port(snapshot: Snapshot, context: RequestContext, values: Values) -> Changes:
    new = NewPort(
        **standard_values(context, values),
        network_id=values["network_id"],
        mac_address=values.get("mac_address"),
        fixed_ips=values.get("fixed_ips"),
        admin_state_up=values.get("admin_state_up", True),
        device_id=values.get("device_id") or "",
        device_owner=values.get("device_owner") or "",
        host=values.get("binding:host_id") or "",
        port_security_enabled=values.get("port_security_enabled"),
        request_fields=policy.fields_of(values) & {"mac_address"},
    )
    return ports.create_port(snapshot, context.caller, new)


def update_port(snapshot: Snapshot, context: RequestContext, port: Port, values: Values) -> Changes:
    fields = present(values, ["name", "description", "admin_state_up", "port_security_enabled"])
    fields |= {name: values[name] or "" for name in ("device_id", "device_owner") if name in values}
    fields["host"] = values.get("binding:host_id", port.host) or ""
    fields["mac_address"] = values.get("mac_address") or port.mac_address
    asked = (values["fixed_ips"] or ()) if "fixed_ips" in values else None
    change = PortChange(port=replace(port, **fields), fixed_ips=asked, request_fields=policy.fields_of(values))
    return ports.update_port(snapshot, context.caller, port, change, context.now)


def _split_filters(filters: Filters) -> tuple[Callable[[Port], bool], Filters]:
    """Split off the filters `fixed_ips=subnet_id=X`, `ip_address=A` and `ip_address_substr=B`; one fixed IP must match
    all of them."""
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


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[Port]:
    return indexed(snapshot.ports, {"network_id": snapshot.network_ports}, filters)


PORTS: Collection[Port] = Collection(
    singular="port",
    plural="ports",
    attributes=ATTRIBUTES,
    find=lambda snapshot, key: snapshot.ports.get(key),
    candidates=_candidates,
    sees=access.can_see_port,
    may_change=access.may_change_port,
    encode=encode_port,
    split_filters=_split_filters,
    create=as_single_step(create_port),
    update=update_port,
    delete=ports.delete_port,
)
