"""Values of the model to bodies of the Octavia API. Every status is derived here, at the moment it is asked for."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeAlias

from fairlead.api.door import House, JsonObject
from fairlead.api.fields import Schema, Spec, array_schema, object_schema, or_null, words_schema
from fairlead.api.octavia import limits, specs
from fairlead.api.openapi import IDENTITY, TEXT
from fairlead.model.loadbalancer import Listener, LoadBalancer, Member, Pool
from fairlead.model.network import Resource
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import (
    OperatingStatus,
    ProvisioningStatus,
    derive_member_status,
    derive_provisioning_status,
)

Shown: TypeAlias = Mapping[str, Schema]
"""The attributes of an answer: those that a body may have, and those that are only ever read."""


def _shown(spec: Spec, *hidden: str, **only_read: Schema) -> Shown:
    given = {name: or_null(field.parse.schema) for name, field in spec.items() if name not in hidden}
    return {
        **given,
        "id": IDENTITY,
        "created_at": TEXT,
        "updated_at": or_null(TEXT),
        "provisioning_status": words_schema(ProvisioningStatus),
        "operating_status": words_schema(OperatingStatus),
        **only_read,
    }


def _ids_of(most: int) -> Schema:
    return array_schema(object_schema({"id": IDENTITY}, ["id"]), most)


_ONE = _ids_of(1)
MEMBER = _shown(specs.MEMBER_POST, "request_sriov", vnic_type=TEXT)
POOL = _shown(
    specs.POOL_POST,
    *("healthmonitor", "listener_id", "loadbalancer_id"),
    loadbalancers=_ONE,
    listeners=_ids_of(limits.LISTENERS),
    members=_ids_of(limits.MEMBERS),
)
LISTENER = _shown(specs.LISTENER_POST, "default_pool", "loadbalancer_id", loadbalancers=_ONE)
LOAD_BALANCER = _shown(
    specs.LOAD_BALANCER_POST,
    vip_vnic_type=TEXT,
    listeners=_ids_of(limits.LISTENERS),
    pools=_ids_of(limits.POOLS),
)
LOAD_BALANCER_TREE: Shown = {
    **LOAD_BALANCER,
    "listeners": array_schema(object_schema(LISTENER, LISTENER), limits.LISTENERS),
    "pools": array_schema(
        object_schema({**POOL, "members": array_schema(object_schema(MEMBER, MEMBER), limits.MEMBERS)}, POOL),
        limits.POOLS,
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far the newest version of a load balancer has come. Its parts are applied with it, so they share it."""

    provisioning: ProvisioningStatus

    def of(self, part: Resource) -> ProvisioningStatus:
        """A part that was never changed since it was made is being created, not updated."""
        pending = self.provisioning in (ProvisioningStatus.PENDING_CREATE, ProvisioningStatus.PENDING_UPDATE)
        if pending and part.updated_at is None:
            return ProvisioningStatus.PENDING_CREATE
        return self.provisioning

    def operating(self, part: Resource, *, enabled: bool) -> OperatingStatus:
        there = self.of(part) is not ProvisioningStatus.PENDING_CREATE
        return OperatingStatus.ONLINE if enabled and there else OperatingStatus.OFFLINE


def standing(house: House, snapshot: Snapshot, balancer: LoadBalancer) -> Standing:
    owner = Owner(Kind.LOAD_BALANCER, balancer.id)
    generation = snapshot.generations.get(owner, snapshot.revision)
    return Standing(provisioning=derive_provisioning_status(generation, house.applied(owner)))


def encode_load_balancer(balancer: LoadBalancer, where: Standing) -> JsonObject:
    return {
        **_resource(balancer, where),
        "operating_status": where.operating(balancer, enabled=balancer.admin_state_up),
        "admin_state_up": balancer.admin_state_up,
        "vip_address": str(balancer.vip.address),
        "vip_port_id": balancer.vip.port_id,
        "vip_subnet_id": balancer.vip.subnet_id,
        "vip_network_id": balancer.vip.network_id,
        "vip_sg_ids": [],
        "additional_vips": [
            {"subnet_id": vip.subnet_id, "ip_address": str(vip.address), "port_id": vip.port_id}
            for vip in balancer.additional_vips
        ],
        "listeners": _ids(listener.id for listener in balancer.listeners),
        "pools": _ids(pool.id for pool in balancer.pools),
        "provider": balancer.provider,
        "flavor_id": balancer.flavor_id,
        "vip_qos_policy_id": None,
        "availability_zone": balancer.availability_zone,
        "vip_vnic_type": "normal",
    }


def encode_tree(balancer: LoadBalancer, where: Standing) -> JsonObject:
    """A load balancer with all that it holds: what the single-call create answers."""
    return {
        **encode_load_balancer(balancer, where),
        "listeners": [encode_listener(balancer, listener, where) for listener in balancer.listeners],
        "pools": [
            {
                **encode_pool(balancer, pool, where),
                "members": [encode_member(member, where) for member in pool.members],
            }
            for pool in balancer.pools
        ],
    }


def encode_listener(balancer: LoadBalancer, listener: Listener, where: Standing) -> JsonObject:
    return {
        **_resource(listener, where),
        "operating_status": where.operating(listener, enabled=balancer.admin_state_up and listener.admin_state_up),
        "admin_state_up": listener.admin_state_up,
        "protocol": listener.protocol.value,
        "protocol_port": listener.port,
        "connection_limit": listener.connection_limit,
        "default_pool_id": listener.default_pool_id,
        "loadbalancers": _ids([balancer.id]),
        "l7policies": [],
        "insert_headers": {},
        "timeout_client_data": listener.timeouts.client_data,
        "timeout_member_connect": listener.timeouts.member_connect,
        "timeout_member_data": listener.timeouts.member_data,
        "timeout_tcp_inspect": listener.timeouts.tcp_inspect,
        "allowed_cidrs": [str(cidr) for cidr in listener.allowed_cidrs] or None,
        "default_tls_container_ref": None,
        "sni_container_refs": [],
        "client_ca_tls_container_ref": None,
        "client_authentication": "NONE",
        "client_crl_container_ref": None,
        "tls_ciphers": None,
        "tls_versions": None,
        "alpn_protocols": None,
        "hsts_max_age": None,
        "hsts_include_subdomains": False,
        "hsts_preload": False,
    }


def encode_pool(balancer: LoadBalancer, pool: Pool, where: Standing) -> JsonObject:
    """`healthmonitor_id` is not there while there is no monitor, as in Octavia."""
    return {
        **_resource(pool, where),
        "operating_status": where.operating(pool, enabled=balancer.admin_state_up and pool.admin_state_up),
        "admin_state_up": pool.admin_state_up,
        "protocol": pool.protocol.value,
        "lb_algorithm": pool.algorithm.value,
        "session_persistence": _persistence(pool),
        "loadbalancers": _ids([balancer.id]),
        "listeners": _ids(listener.id for listener in balancer.listeners if listener.default_pool_id == pool.id),
        "members": _ids(member.id for member in pool.members),
        "tls_container_ref": None,
        "ca_tls_container_ref": None,
        "crl_container_ref": None,
        "tls_enabled": False,
        "tls_ciphers": None,
        "tls_versions": None,
        "alpn_protocols": None,
    }


def encode_member(member: Member, where: Standing) -> JsonObject:
    body = {
        **_resource(member, where),
        "operating_status": derive_member_status(member),
        "admin_state_up": member.admin_state_up,
        "address": str(member.address),
        "protocol_port": member.port,
        "weight": member.weight,
        "backup": member.backup,
        "subnet_id": member.subnet_id,
        "monitor_address": str(member.monitor_address) if member.monitor_address else None,
        "monitor_port": member.monitor_port,
        "vnic_type": "normal",
    }
    del body["description"]
    return body


def encode_statuses(balancer: LoadBalancer, where: Standing) -> JsonObject:
    """The status tree. A pool stands under each listener that leads to it; one without a listener is not shown."""
    pools = {pool.id: pool for pool in balancer.pools}
    listeners = []
    for listener in balancer.listeners:
        body = _brief(encode_listener(balancer, listener, where))
        pool = pools.get(listener.default_pool_id or "")
        listeners.append({**body, "pools": [_pool_statuses(balancer, pool, where)] if pool else []})
    return {"loadbalancer": {**_brief(encode_load_balancer(balancer, where)), "listeners": listeners}}


def _pool_statuses(balancer: LoadBalancer, pool: Pool, where: Standing) -> JsonObject:
    members = [encode_member(member, where) for member in pool.members]
    return {
        **_brief(encode_pool(balancer, pool, where)),
        "health_monitor": None,
        "members": [_brief(member, "address", "protocol_port") for member in members],
    }


def _brief(body: JsonObject, *more: str) -> JsonObject:
    return {name: body[name] for name in ("id", "name", "provisioning_status", "operating_status", *more)}


def _resource(resource: Resource, where: Standing) -> JsonObject:
    return {**{name: plain(resource) for name, plain in PLAIN.items()}, "provisioning_status": where.of(resource)}


def _persistence(pool: Pool) -> JsonObject | None:
    if pool.persistence is None:
        return None
    return {
        "type": pool.persistence.type.value,
        "cookie_name": pool.persistence.cookie_name,
        "persistence_timeout": pool.persistence.timeout,
        "persistence_granularity": str(pool.persistence.granularity) if pool.persistence.granularity else None,
    }


PLAIN: Mapping[str, Callable[[Resource], Any]] = {
    "id": attrgetter("id"),
    "name": attrgetter("name"),
    "description": attrgetter("description"),
    "project_id": attrgetter("project_id"),
    "tenant_id": attrgetter("project_id"),
    "created_at": lambda resource: _time(resource.created_at),
    "updated_at": lambda resource: _time(resource.updated_at),
    "tags": attrgetter("tags"),
}
"""Attributes that an answer has as the resource has them."""


def _ids(identities: Iterable[str]) -> list[dict[str, Any]]:
    return [{"id": identity} for identity in identities]


def _time(moment: datetime | None) -> str | None:
    """ISO 8601 without a zone; it is UTC."""
    return None if moment is None else moment.replace(tzinfo=None).isoformat()
