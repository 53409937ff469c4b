"""Statuses of a service's load balancers: each part by kind and id, in the form of octavia-lib.

The statuses are those of the Octavia front end; both use `model/documents/balancer_status.py`.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fairlead.api.http.front_end import JsonObject, Services
from fairlead.api.http.openapi import FLAG, IDENTITY, NUMBER, TEXT
from fairlead.api.octavia import encode
from fairlead.model.documents import sizes
from fairlead.model.documents.addresses import IPNetwork
from fairlead.model.documents.balancer_status import BalancerStatus
from fairlead.model.documents.loadbalancer import LoadBalancer, MigrationStage
from fairlead.model.documents.network import Resource
from fairlead.model.documents.proxy_place import place_of
from fairlead.model.documents.status import OperatingStatus, ProvisioningStatus
from fairlead.model.queries.unmanaged_probe_ports import (
    is_probe_port_ready,
    required_probe_ports,
    required_probe_subnets,
)
from fairlead.model.queries.unmanaged_proxy_ports import proxied_network
from fairlead.model.snapshot import ID_SHELF_LENGTH, Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Schema, array_schema, enum_schema, object_schema, or_null

MAX_PER_PAGE = 50
"""Maximum load balancers in one response."""
BALANCERS = "loadbalancers"
_PART: Mapping[str, Schema] = {
    "id": IDENTITY,
    "provisioning_status": enum_schema(ProvisioningStatus),
    "operating_status": enum_schema(OperatingStatus),
    "created_at": TEXT,
}
MAX_PARTS = {
    "listeners": sizes.MAX_LISTENERS,
    "pools": sizes.MAX_POOLS,
    "members": sizes.MAX_MEMBERS,
    "healthmonitors": sizes.MAX_POOLS,
    "l7policies": sizes.MAX_LISTENERS * sizes.MAX_L7POLICIES,
    "l7rules": sizes.MAX_LISTENERS * sizes.MAX_L7POLICIES * sizes.MAX_L7RULES,
}
_IN_PARENT: Mapping[str, Schema] = {**_PART, "parent": IDENTITY}
"""Parent of a part, needed to find the part in the API: a member's pool or a rule's policy."""
_SCHEMAS = {plural: _IN_PARENT if plural in ("members", "l7rules") else _PART for plural in MAX_PARTS}
CIDRS = array_schema(TEXT, sizes.MAX_MEMBERS * sizes.MAX_POOLS)
"""Subnets of members without duplicates."""
_PROBED: Mapping[str, Schema] = {"id": IDENTITY, "cidrs": CIDRS, "is_ready": FLAG}
PROXIED_NETWORK: Mapping[str, Schema] = {"id": IDENTITY, "is_ready": FLAG}
_SHOWN: Mapping[str, Schema] = {
    **_PART,
    "takeover": or_null(enum_schema(MigrationStage)),
    "revision": NUMBER,  # changes with each write of the load balancer
    # unmanaged networks that need a port for probes, with an address in each of these subnets
    "probed_networks": array_schema(object_schema(_PROBED, _PROBED), sizes.MAX_MEMBERS),
    # unmanaged networks that need ports of the load balancer's proxies
    "proxied_networks": array_schema(object_schema(PROXIED_NETWORK, PROXIED_NETWORK), 1),
    **{
        plural: array_schema(object_schema(_SCHEMAS[plural], _SCHEMAS[plural]), most)
        for plural, most in MAX_PARTS.items()
    },
}
STATUSES = object_schema(_SHOWN, _SHOWN)


class StatusPage(NamedTuple):
    shown: list[JsonObject]
    next: str | None
    """Id after which the next page begins; None for the last page."""


def is_of_plugin(balancer: LoadBalancer) -> bool:
    return balancer.kept is not None


def page_of(services: Services, after: str) -> Steps[StatusPage]:
    """Return a page of load balancers after this id, from one snapshot."""
    snapshot = services.model.snapshot
    later = list[str]()
    for shelf in sorted(each for each in snapshot.kept_balancers if each >= after[:ID_SHELF_LENGTH]):
        later += sorted(each for each in snapshot.kept_balancers[shelf] if each > after)
        yield
        if len(later) > MAX_PER_PAGE:
            break
    shown = list[JsonObject]()
    first = later[:MAX_PER_PAGE]
    for balancer_id in first:
        where = encode.status_in(services, snapshot, snapshot.load_balancers[balancer_id])
        shown.append((yield from encode_statuses(snapshot, where)))
    return StatusPage(shown, first[-1] if len(later) > len(first) else None)


def encode_statuses(snapshot: Snapshot, where: BalancerStatus) -> Steps[JsonObject]:
    """Encode a load balancer and its parts by kind."""
    balancer = where.balancer
    found: dict[str, list[JsonObject]] = {plural: [] for plural in MAX_PARTS}

    def add(plural: str, part: Resource, operating: OperatingStatus, **parent: str) -> None:
        found[plural].append({**_one(where, part, operating), **parent})

    for pool in balancer.pools:
        add("pools", pool, where.of_pool(pool))
        if pool.health_monitor is not None:
            add("healthmonitors", pool.health_monitor, where.of_monitor(pool, pool.health_monitor))
        yield
        for member in pool.members:
            add("members", member, where.of_member(pool, member), parent=pool.id)
            yield
    for listener in balancer.listeners:
        add("listeners", listener, where.of_listener(listener))
        for policy in listener.l7policies:
            add("l7policies", policy, where.of_policy(listener, policy))
            for rule in policy.rules:
                add("l7rules", rule, where.of_rule(listener, policy, rule), parent=policy.id)
        yield
    takeover = balancer.kept.takeover if balancer.kept else None
    wanted = yield from required_probe_ports(snapshot, balancer)
    about: JsonObject = {"revision": where.generation, "takeover": takeover}
    about["probed_networks"] = [
        {"id": network_id, "cidrs": _in_order(cidrs), "is_ready": is_probe_port_ready(snapshot, network_id, cidrs)}
        for network_id, cidrs in sorted(wanted.items())
    ]
    proxied, is_placed = proxied_network(snapshot, balancer), place_of(balancer) not in snapshot.wanted_proxies
    about["proxied_networks"] = [] if proxied is None else [{"id": proxied, "is_ready": is_placed}]
    return {**_one(where, balancer, where.of_balancer()), **about, **found}


def probed_on(services: Services, network_id: str) -> Steps[list[str] | None]:
    """Return the IPv4 subnets (CIDRs) where the probe port on this network needs an address; None if no load
    balancer needs a port there."""
    found = yield from required_probe_subnets(services.model.snapshot, network_id)
    return None if found is None else _in_order(found)


def _in_order(cidrs: Iterable[IPNetwork]) -> list[str]:
    return [str(each) for each in sorted(cidrs, key=lambda cidr: (int(cidr.network_address), cidr.prefixlen))]


def statistics_of(services: Services, balancer_ids: Iterable[str]) -> Steps[list[JsonObject]]:
    """Return the counters of the load balancers' listeners, where a node has reported any."""
    snapshot = services.model.snapshot
    shown = list[JsonObject]()
    for balancer_id in dict.fromkeys(balancer_ids):
        balancer = snapshot.load_balancers.get(balancer_id)
        for listener in balancer.listeners if balancer is not None and is_of_plugin(balancer) else ():
            figures = services.node_counts.total([listener.id])
            if figures is not None:
                shown.append({"id": listener.id, **encode.encode_statistics(figures)})
            yield
    return shown


def _one(where: BalancerStatus, part: Resource, operating: OperatingStatus) -> JsonObject:
    return {
        "id": part.id,
        "provisioning_status": where.provisioning_status(part),
        "operating_status": operating,
        "created_at": part.created_at.isoformat(),
    }
