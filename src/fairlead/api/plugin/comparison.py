"""Comparison of a service's load balancer with the stored one: parts and attributes that differ.

Both are encoded as by the Octavia front end before the comparison, so a difference has Octavia's names and values.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.openapi import FLAG, IDENTITY
from fairlead.api.octavia import encode
from fairlead.api.plugin.statuses import BALANCERS, MAX_PARTS
from fairlead.model.documents.balancer_status import BalancerStatus
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Resource
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, array_schema, object_schema

_NOT_SENT = frozenset(
    {"provisioning_status", "operating_status", "created_at", "updated_at", "tags", "locality", "down_member", "raw"}
)
"""Attributes that services do not send."""
_OF_OTHERS = frozenset(
    {"listeners", "pools", "members", "healthmonitor_id", "loadbalancers", "l7policies", "rules", "listener_id"}
)
"""Attributes that list other parts."""
DIFFERENCE: Mapping[str, Schema] = {
    "kind": {"enum": [BALANCERS, *MAX_PARTS]},
    "id": IDENTITY,
    "missing": FLAG,
    "attributes": {
        "type": "object",
        "additionalProperties": object_schema({"said": {}, "stored": {}}, ["said", "stored"]),
    },
}
DIFFERENCES = array_schema(object_schema(DIFFERENCE, DIFFERENCE), 1 + sum(MAX_PARTS.values()))


class _Part(NamedTuple):
    kind: str
    part: Resource
    shown: Callable[[], JsonObject]


def differences_of(where: BalancerStatus, said: LoadBalancer) -> Steps[list[JsonObject]]:
    """Return the differences. Stored parts that the service did not send are ignored."""
    stored = {part.id: (part, shown) for _, part, shown in _parts(where)}
    found = list[JsonObject]()
    for kind, part, shown in _parts(replace(where, balancer=said)):
        before = stored.get(part.id)
        if before is None:
            found.append(_difference(kind, part, {}, missing=True))
        elif before[0] is not part:
            attributes = _attributes(before[1](), shown())
            if attributes:
                found.append(_difference(kind, part, attributes, missing=False))
        yield
    return found


def _difference(kind: str, part: Resource, attributes: Mapping[str, Any], *, missing: bool) -> JsonObject:
    return {"kind": kind, "id": part.id, "missing": missing, "attributes": attributes}


def _attributes(stored: JsonObject, said: JsonObject) -> Mapping[str, Any]:
    names = sorted({*stored, *said} - _NOT_SENT - _OF_OTHERS)
    both = ((name, stored.get(name), said.get(name)) for name in names)
    return {name: {"said": new, "stored": old} for name, old, new in both if old != new}


def _parts(where: BalancerStatus) -> Iterator[_Part]:
    balancer = where.balancer
    yield _Part(BALANCERS, balancer, partial(encode.encode_load_balancer, where))
    for pool in balancer.pools:
        yield _Part("pools", pool, partial(encode.encode_pool, where, pool))
        monitor = pool.health_monitor
        if monitor is not None:
            yield _Part("healthmonitors", monitor, partial(encode.encode_monitor, where, pool, monitor))
        for member in pool.members:
            yield _Part("members", member, partial(encode.encode_member, where, pool, member))
    for listener in balancer.listeners:
        yield _Part("listeners", listener, partial(encode.encode_listener, where, listener))
        for policy in listener.l7policies:
            yield _Part("l7policies", policy, partial(encode.encode_policy, where, listener, policy))
            for rule in policy.rules:
                yield _Part("l7rules", rule, partial(encode.encode_rule, where, listener, policy, rule))
