"""Floating IPs of the Neutron API. Port forwardings, QoS policies and DNS names are not implemented and are
rejected."""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID, uuid5

from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.listing import Item
from fairlead.api.http.openapi import IDENTITY, TEXT
from fairlead.api.network import parsers
from fairlead.api.network.attributes import STANDARD, Attribute, read_only
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
from fairlead.api.network.ports import STATUS, port_status
from fairlead.changes import floatingips
from fairlead.changes.floatingips import Destination, NewFloatingIP
from fairlead.model.documents.network import FloatingIP, Port
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot, has_working_gateway
from fairlead.runtime.steps import as_single_step
from fairlead.schema import Values

_NO_DNS = "DNS names are not supported"
ATTRIBUTES = {
    **{name: attribute for name, attribute in STANDARD.items() if name != "name"},
    "floating_network_id": Attribute(parse=parsers.uuid, put=False, required=True),
    "floating_ip_address": Attribute(parse=parsers.address, put=False, nullable=True),
    "subnet_id": Attribute(parse=parsers.uuid, put=False, nullable=True, filterable=False),
    "port_id": Attribute(parse=parsers.uuid, nullable=True),
    "fixed_ip_address": Attribute(parse=parsers.address, nullable=True),
    "router_id": read_only({"anyOf": [IDENTITY, {"type": "null"}]}),
    "status": read_only(TEXT),
    "port_details": read_only({"type": ["object", "null"]}, sifts=False),
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "dns_name": Attribute(parse=parsers.only("", because=_NO_DNS), put=False),
    "dns_domain": Attribute(parse=parsers.only("", because=_NO_DNS), put=False),
}


def encode_floating_ip(view: EncodeContext, floating_ip: FloatingIP) -> Item:
    owner = owner_of(floating_ip)
    port = view.snapshot.ports.get(floating_ip.port_id or "")
    router = view.snapshot.routers.get(floating_ip.router_id or "")
    leads = port is not None and (router is None or has_working_gateway(view.snapshot, router))
    item = {
        **encode_standard(view, floating_ip, owner),
        "floating_network_id": floating_ip.network_id,
        "floating_ip_address": str(floating_ip.address),
        "subnet_id": None,
        "port_id": floating_ip.port_id,
        "fixed_ip_address": None if floating_ip.fixed_address is None else str(floating_ip.fixed_address),
        "router_id": floating_ip.router_id,
        "status": STATUS[view.status(owner)] if leads else "DOWN",
        "port_details": None if port is None else _details(view, port),
        "qos_policy_id": None,
        "dns_name": "",
        "dns_domain": "",
    }
    return {name: value for name, value in item.items() if name != "name"}


def _details(view: EncodeContext, port: Port) -> JsonObject:
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
    new = NewFloatingIP(
        **standard_values(context, values),
        network_id=values["floating_network_id"],
        address_port_id=str(uuid5(UUID(context.new_id), "port")),
        subnet_id=values.get("subnet_id"),
        address=values.get("floating_ip_address"),
        destination=Destination(port_id=values.get("port_id"), fixed_address=values.get("fixed_ip_address")),
    )
    return floatingips.create_floating_ip(snapshot, context.caller, new)


def update_floating_ip(snapshot: Snapshot, context: RequestContext, floating_ip: FloatingIP, values: Values) -> Changes:
    """Update a floating IP. A body without `port_id` keeps the association; null removes it."""
    fixed, destination = values.get("fixed_ip_address"), None
    if "port_id" in values or fixed is not None:
        destination = Destination(port_id=values.get("port_id", floating_ip.port_id), fixed_address=fixed)
    described = replace(floating_ip, **present(values, ["description"]))
    return floatingips.update_floating_ip(snapshot, context.caller, floating_ip, described, destination, context.now)


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[FloatingIP]:
    return indexed(snapshot.floating_ips, {"port_id": snapshot.port_floating_ips}, filters)


FLOATING_IPS: Collection[FloatingIP] = Collection(
    singular="floatingip",
    plural="floatingips",
    attributes=ATTRIBUTES,
    find=lambda snapshot, key: snapshot.floating_ips.get(key),
    candidates=_candidates,
    encode=encode_floating_ip,
    create=as_single_step(create_floating_ip),
    update=update_floating_ip,
    delete=floatingips.delete_floating_ip,
)
