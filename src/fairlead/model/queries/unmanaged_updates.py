"""Updates of unmanaged networks, and the part of them that can be in a snapshot.

Objects are complete or absent: a port requires its network, and an interface requires its router.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner, VipNetwork
from fairlead.model.documents.unmanaged import UnmanagedObject, UnmanagedPort, UnmanagedRouter, is_unmanaged
from fairlead.model.snapshot import Aggregate, Snapshot

UnmanagedUpdate: TypeAlias = Mapping[Owner, UnmanagedObject | None]
"""Owner -> its document; None if the owner was deleted."""
_KINDS = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)


def consistent_updates(snapshot: Snapshot, news: UnmanagedUpdate) -> Iterator[tuple[Owner, Aggregate | None]]:
    """Yield the puts and deletes in an order that keeps every reference valid.

    Documents with the id of a stored document are skipped, because they must not replace it. Ports without their
    network or router are skipped, and routers without their gateway port lose the gateway. The observer must send
    related objects together, or send them again.
    """
    gone = {owner for owner, document in news.items() if document is None and is_unmanaged(snapshot.find(owner))}
    gone |= set(_ports_of(snapshot, gone))
    told = {owner: each for owner, each in news.items() if each is not None and _may_be_replaced(snapshot, owner)}
    told |= {owner: each for owner, each in _routers_without_gateway(snapshot, gone) if owner not in told}
    yield from ((owner, None) for owner in sorted(gone, key=lambda owner: _KINDS.index(owner.kind), reverse=True))
    there = _ObjectsAfterUpdate(snapshot, gone, told)
    for kind in _KINDS:
        for owner, document in told.items():
            if owner.kind is kind and (found := there.resolve(document)) is not None:
                yield owner, found


@dataclass(frozen=True, slots=True)
class _ObjectsAfterUpdate:
    """Objects that exist once the news are applied."""

    snapshot: Snapshot
    deleted: Set[Owner]
    updated: Mapping[Owner, UnmanagedObject]

    def resolve(self, document: UnmanagedObject) -> UnmanagedObject | None:
        """Return the document without references that do not exist; None if it cannot exist without them."""
        if isinstance(document, UnmanagedRouter) and document.gateway is not None:
            has_network = self._has(Kind.NETWORK, document.gateway.network_id)
            is_whole = has_network and self._has_port(document.gateway.port_id)
            return document if is_whole else replace(document, gateway=None)
        if isinstance(document, UnmanagedPort):
            return document if self._has_references(document) else None
        return document

    def _has(self, kind: Kind, identity: str) -> bool:
        """Return whether a network or router exists; these have no references of their own."""
        owner = Owner(kind, identity)
        return owner in self.updated or (owner not in self.deleted and self.snapshot.find(owner) is not None)

    def _has_port(self, identity: str) -> bool:
        owner = Owner(Kind.PORT, identity)
        port = self.updated.get(owner)
        if isinstance(port, UnmanagedPort) and self._has_references(port):
            return True
        return owner not in self.deleted and identity in self.snapshot.ports

    def _has_references(self, port: UnmanagedPort) -> bool:
        has_router = port.use is not PortUse.ROUTER_INTERFACE or self._has(Kind.ROUTER, port.device_id)
        return has_router and self._has(Kind.NETWORK, port.network_id)


def _may_be_replaced(snapshot: Snapshot, owner: Owner) -> bool:
    old = snapshot.find(owner)
    return old is None or is_unmanaged(old)


def _ports_of(snapshot: Snapshot, gone: Set[Owner]) -> Iterator[Owner]:
    """Yield the ports of deleted networks and routers."""
    for owner in gone:
        if owner.kind is Kind.NETWORK:
            found = snapshot.network_ports.get(owner.id, NO_IDS)
        elif owner.kind is Kind.ROUTER:
            found = snapshot.router_interfaces.get(owner.id, NO_IDS)
        else:
            continue
        yield from (Owner(Kind.PORT, each) for each in found if is_unmanaged(snapshot.ports.get(each)))


def _routers_without_gateway(snapshot: Snapshot, gone: Set[Owner]) -> Iterator[tuple[Owner, UnmanagedObject]]:
    """Yield the routers whose gateway port is deleted, without their gateway."""
    for owner in gone:
        port = snapshot.ports.get(owner.id) if owner.kind is Kind.PORT else None
        router = snapshot.routers.get(port.device_id) if port is not None else None
        if isinstance(router, UnmanagedRouter) and router.gateway and router.gateway.port_id == owner.id:
            where = Owner(Kind.ROUTER, router.id)
            if where not in gone:
                yield where, replace(router, gateway=None)


def has_unmanaged_vips(snapshot: Snapshot) -> bool:
    """Return whether any load balancer is on an unmanaged network, or on the gateway of an unmanaged router."""
    networks = (_is_unmanaged_or_missing(snapshot, Owner(Kind.NETWORK, each)) for each in snapshot.vip_projects)
    routers = (_is_unmanaged_or_missing(snapshot, Owner(Kind.ROUTER, each)) for each in snapshot.router_vips)
    return any(networks) or any(routers)


def is_on_unmanaged(snapshot: Snapshot, owner: Owner) -> bool:
    """Return whether the owner's rows depend on an unmanaged network or router."""
    if owner.kind in (Kind.VIP_NETWORK, Kind.PER_CHASSIS_NETWORK):
        return _is_unmanaged_or_missing(snapshot, Owner(Kind.NETWORK, VipNetwork.of(owner).network_id))
    if owner.kind in (Kind.VIP_GATEWAY, Kind.PER_CHASSIS_GATEWAY):
        return _is_unmanaged_or_missing(snapshot, Owner(Kind.ROUTER, owner.id))
    balancer = snapshot.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None
    if balancer is None:
        return False
    if balancer.router_id is not None:
        return _is_unmanaged_or_missing(snapshot, Owner(Kind.ROUTER, balancer.router_id))
    return _is_unmanaged_or_missing(snapshot, Owner(Kind.NETWORK, balancer.vip.network_id))


def _is_unmanaged_or_missing(snapshot: Snapshot, owner: Owner) -> bool:
    """Return whether the owner is not a stored document. A missing document counts as unmanaged, because all stored
    documents are loaded before the first reconciliation."""
    document = snapshot.find(owner)
    return document is None or is_unmanaged(document)
