"""Health of a load balancer's backends in Incus's form, by target port."""

from collections.abc import Mapping
from typing import TypeAlias

from fairlead.api.http.front_end import JsonObject
from fairlead.api.lxd.apply_status import PROGRESS
from fairlead.changes.balancer_specs import backend_names
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.health import Health, HealthKey
from fairlead.model.documents.member_ports import target_ports
from fairlead.model.queries.probes import enabled_monitor, members_health
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import NULL, Schema, object_schema

STATUSES: Mapping[Health, str] = {
    Health.ONLINE: "online",
    Health.PARTLY: "offline",
    Health.ERROR: "offline",
    Health.UNPLUGGED: "offline",
    Health.STRANDED: "offline",
    Health.UNREACHABLE: "error",
    Health.GONE: "error",
    Health.UNPROBED: "unknown",
    Health.UNPROBEABLE: "unknown",
}
"""OVN's states, which Incus passes on: `offline` does not answer, `error` cannot be probed."""
_TEXT: Schema = {"type": "string"}
_PORT = {
    "protocol": _TEXT,
    "port": {"type": "integer", "minimum": 1, "maximum": 65535},
    "status": {"enum": sorted({*STATUSES.values()})},
}
_BACKEND = {"address": _TEXT, "ports": {"type": "array", "items": object_schema(_PORT, _PORT)}}
_BACKENDS = {"type": "object", "additionalProperties": object_schema(_BACKEND, _BACKEND)}
_STATE: Mapping[str, Schema] = {"backend_health": {"anyOf": [_BACKENDS, NULL]}, "status": {"enum": [*PROGRESS]}}
STATE = object_schema(_STATE, _STATE)
_Ports: TypeAlias = dict[tuple[str, int], str]


def encode_state(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Steps[JsonObject]:
    """Encode the health. `backend_health` is null without health checks; a backend without a port is omitted."""
    if not any(enabled_monitor(balancer, pool) for pool in balancer.pools):
        return {"backend_health": None}
    health, names = dict(members_health(snapshot, balancer)), backend_names(balancer)
    found, addresses = dict[str, _Ports](), dict[str, str]()
    listeners, pools = lb.listeners_by_pool(balancer), {pool.id: pool for pool in balancer.pools}
    for listener in balancer.listeners:
        protocol = lb.transport(listener.protocol).value
        for pool in [pools[pool_id] for pool_id in lb.pools_of(listener)]:
            for member in pool.members:
                name = names[member.id]
                addresses[name] = str(member.address)
                for number in target_ports(listeners[pool.id], member):
                    found.setdefault(name, {})[protocol, number] = _status(health, member, number)
                yield
    return {"backend_health": {name: _encode(addresses[name], found[name]) for name in sorted(found)}}


def _status(health: Mapping[HealthKey, Health], member: lb.Member, number: int) -> str:
    whole = health.get(member.id, Health.UNPROBED)
    return STATUSES[health.get((member.id, number), whole)]


def _encode(address: str, ports: _Ports) -> JsonObject:
    found = [
        {"protocol": protocol, "port": number, "status": status} for (protocol, number), status in sorted(ports.items())
    ]
    return {"address": address, "ports": found}
