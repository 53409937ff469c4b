"""Description of a resource collection, as values and pure functions, common to all Neutron resources."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Generic, TypeVar

from immutables import Map

from fairlead.api.http.listing import Item
from fairlead.api.network.attributes import Attributes, project_of
from fairlead.changes.identity import Identity
from fairlead.changes.resources import put_if_changed
from fairlead.model.documents.indexes import NO_IDS, Ids
from fairlead.model.documents.network import Resource
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.status import AppliedState, ProvisioningStatus, derive_provisioning_status
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from fairlead.schema import Values

R = TypeVar("R", bound=Resource)
Filters = Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Caller and time of a write, and defaults of a new resource."""

    caller: Identity
    now: datetime
    new_id: str
    mtu: int
    """MTU in bytes of a network without one in its body."""
    external_mtu: int
    """MTU in bytes of an external network without one in its body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EncodeContext:
    """Inputs of an encoder."""

    snapshot: Snapshot
    applied: Callable[[Owner], AppliedState]
    caller: Identity

    def status(self, owner: Owner) -> ProvisioningStatus:
        return derive_provisioning_status(self.snapshot.generations[owner], self.applied(owner))


def own_document(snapshot: Snapshot, resource: Any) -> Owner:
    return owner_of(resource)


def seen_by_project(snapshot: Snapshot, caller: Identity, resource: Resource) -> bool:
    return caller.may_see(resource.project_id)


def changed_by_project(snapshot: Snapshot, caller: Identity, resource: Resource) -> bool:
    return caller.may_change(resource.project_id)


def put_document(snapshot: Snapshot, resource: Any) -> Changes:
    return put_if_changed(snapshot, resource)


def no_special_filters(filters: Filters) -> tuple[Callable[[Any], bool], Filters]:
    return lambda _: True, filters


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection(Generic[R]):
    """Collection of one resource type. Changes are decided on a snapshot, raise ApiError, and list the other documents
    they depend on in `Changes.reads`."""

    singular: str
    plural: str
    attributes: Attributes
    find: Callable[[Snapshot, str], R | None]
    candidates: Callable[[Snapshot, Filters], Iterable[R]]
    """Return a superset of the resources that match the filters; from an index where there is one."""
    owner: Callable[[Snapshot, R], Owner] = own_document
    """Return the document that contains the resource."""
    sees: Callable[[Snapshot, Identity, R], bool] = seen_by_project
    may_change: Callable[[Snapshot, Identity, R], bool] = changed_by_project
    encode: Callable[[EncodeContext, R], Item]
    split_filters: Callable[[Filters], tuple[Callable[[R], bool], Filters]] = no_special_filters
    """Return a predicate for filters that need more than one attribute, and the remaining filters."""
    create: Callable[[Snapshot, RequestContext, Values], Steps[Changes]]
    update: Callable[[Snapshot, RequestContext, R, Values], Changes]
    delete: Callable[[Snapshot, Identity, R], Changes]
    put: Callable[[Snapshot, R], Changes] = put_document
    """Store a resource with changed values."""


def named(found: Mapping[str, R], filters: Filters) -> Iterable[R]:
    """Return the resources with the ids in the filters, or all."""
    if "id" in filters:
        return [found[identity] for identity in filters["id"] if identity in found]
    return found.values()


def indexed(found: Mapping[str, R], indexes: Mapping[str, Map[str, Ids]], filters: Filters) -> Iterable[R]:
    """Return the resources of the first index with a filter; otherwise those with the ids in the filters, or all."""
    by = next((name for name in indexes if name in filters), None)
    if by is None or "id" in filters:
        return named(found, filters)
    return [found[identity] for key in filters[by] for identity in indexes[by].get(key, NO_IDS)]


def standard_values(context: RequestContext, values: Values) -> dict[str, Any]:
    """Return the standard attributes of a new resource. Raises ApiError 400."""
    return {
        "id": context.new_id,
        "project_id": project_of(context.caller, values),
        "name": values.get("name", ""),
        "description": values.get("description", ""),
        "tags": values.get("tags", ()),
        "created_at": context.now,
    }


def present(values: Values, names: Iterable[str]) -> dict[str, Any]:
    """Return those of the named attributes that the body has."""
    return {name: values[name] for name in names if name in values}


def encode_standard(view: EncodeContext, resource: Resource, owner: Owner) -> dict[str, Any]:
    return {
        "id": resource.id,
        "name": resource.name,
        "description": resource.description,
        "project_id": resource.project_id,
        "tenant_id": resource.project_id,
        "tags": resource.tags,
        "created_at": _time(resource.created_at),
        "updated_at": _time(resource.updated_at or resource.created_at),
        "revision_number": view.snapshot.generations[owner],
    }


BUILD_STATUS: Mapping[ProvisioningStatus, str] = {
    ProvisioningStatus.ACTIVE: "ACTIVE",
    ProvisioningStatus.ERROR: "ERROR",
    ProvisioningStatus.PENDING_CREATE: "BUILD",
    ProvisioningStatus.PENDING_UPDATE: "BUILD",
}
"""Neutron's status of networks and routers (neutron-lib, constants.py)."""


def _time(when: datetime) -> str:
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
