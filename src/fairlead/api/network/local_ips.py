"""Local IPs of the Neutron API (neutron-lib, api/definitions/local_ip.py), and the extension `local-ip-fairlead`:
fallback, health of replicas, IPv6, and a mutable mode."""

from collections.abc import Iterable
from dataclasses import replace
from uuid import UUID, uuid5

from fairlead import schema
from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.listing import Item
from fairlead.api.network import parsers
from fairlead.api.network.attributes import STANDARD, Attribute
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
from fairlead.api.network.limits import MAX_DELAY_SECONDS, MAX_LOCAL_IP_DESCRIPTION_LENGTH
from fairlead.changes import local_ips
from fairlead.changes.local_ips import NewLocalIP
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.model.documents.local_ip import Fallback, LocalIP, Mode, ReplicaMonitor
from fairlead.model.documents.sizes import MAX_RETRIES
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import as_single_step
from fairlead.schema import BadField, Field, MissingField, Spec, UnknownField, Values, fields_schema, reads


@reads(schema.enum_schema(Mode))
def _mode(value: object) -> Mode:
    if not isinstance(value, str) or value not in set(Mode):
        raise ValueError(f"{value} is not in valid_values")
    return Mode(value)


_WITHOUT = frozenset(MonitorType) - {MonitorType.TCP, MonitorType.UDP_CONNECT}
_MONITOR: Spec = {
    "type": Field(parse=schema.enum_of(MonitorType, but=_WITHOUT), nullable=False),
    "port": Field(parse=schema.integer(1, 65535), required=True),
    "delay": Field(parse=schema.integer(1, MAX_DELAY_SECONDS), nullable=False),
    "timeout": Field(parse=schema.integer(1, MAX_DELAY_SECONDS), nullable=False),
    "max_retries": Field(parse=schema.integer(1, MAX_RETRIES), nullable=False),
    "max_retries_down": Field(parse=schema.integer(1, MAX_RETRIES), nullable=False),
}


@reads(fields_schema(_MONITOR))
def _monitor(value: object) -> ReplicaMonitor:
    if not isinstance(value, dict):
        raise ValueError(f"'{value}' is not a dictionary")
    try:
        return ReplicaMonitor(**schema.read_fields(_MONITOR, value))
    except UnknownField as error:
        raise ValueError(f"Unexpected keys supplied: {error}") from None
    except MissingField as error:
        raise ValueError(f"'{error.name}' is required") from None
    except BadField as error:
        raise ValueError(str(error)) from None


ATTRIBUTES = {
    **{name: attribute for name, attribute in STANDARD.items() if name != "tags"},
    "description": Attribute(parse=parsers.string(MAX_LOCAL_IP_DESCRIPTION_LENGTH)),
    "local_port_id": Attribute(parse=parsers.uuid, put=False),
    "network_id": Attribute(parse=parsers.uuid, put=False),
    "local_ip_address": Attribute(parse=parsers.address, put=False, nullable=True),
    "ip_mode": Attribute(parse=_mode),
    "fallback": Attribute(parse=parsers.enum_of(Fallback)),
    "health_monitor": Attribute(parse=_monitor, nullable=True, filterable=False),
}


def encode_local_ip(view: EncodeContext, local_ip: LocalIP) -> Item:
    item = {
        **encode_standard(view, local_ip, owner_of(local_ip)),
        "local_port_id": local_ip.port_id,
        "network_id": local_ip.network_id,
        "local_ip_address": str(local_ip.address),
        "ip_mode": local_ip.mode.value,
        "fallback": local_ip.fallback.value,
        "health_monitor": local_ip.health_monitor and _encode_monitor(local_ip.health_monitor),
    }
    return {name: value for name, value in item.items() if name != "tags"}


def _encode_monitor(monitor: ReplicaMonitor) -> JsonObject:
    return {name: getattr(monitor, name) for name in _MONITOR}


def create_local_ip(snapshot: Snapshot, context: RequestContext, values: Values) -> Changes:
    new = NewLocalIP(
        **standard_values(context, values),
        port_id=values.get("local_port_id"),
        network_id=values.get("network_id"),
        new_port_id=str(uuid5(UUID(context.new_id), "port")),
        address=values.get("local_ip_address"),
        mode=values.get("ip_mode", Mode.TRANSLATE),
        fallback=values.get("fallback", Fallback.FORWARD),
        health_monitor=values.get("health_monitor"),
    )
    return local_ips.create_local_ip(snapshot, context.caller, new)


def update_local_ip(snapshot: Snapshot, context: RequestContext, local_ip: LocalIP, values: Values) -> Changes:
    changed = present(values, ["name", "description", "fallback", "health_monitor"])
    if "ip_mode" in values:
        changed["mode"] = values["ip_mode"]
    return local_ips.update_local_ip(snapshot, context.caller, local_ip, replace(local_ip, **changed), context.now)


def _candidates(snapshot: Snapshot, filters: Filters) -> Iterable[LocalIP]:
    indexes = {"local_port_id": snapshot.port_local_ips, "network_id": snapshot.network_local_ips}
    return indexed(snapshot.local_ips, indexes, filters)


LOCAL_IPS: Collection[LocalIP] = Collection(
    singular="local_ip",
    plural="local_ips",
    attributes=ATTRIBUTES,
    find=lambda snapshot, key: snapshot.local_ips.get(key),
    candidates=_candidates,
    encode=encode_local_ip,
    create=as_single_step(create_local_ip),
    update=update_local_ip,
    delete=local_ips.delete_local_ip,
)
