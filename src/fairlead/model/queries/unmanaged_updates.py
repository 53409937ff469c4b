"""Updates of unmanaged networks, and the part of them that can be in a snapshot.

Objects are complete or absent: a port requires its network, and an interface requires its router.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner, VipNetwork
from fairlead.model.documents.unmanaged import Foreign, ForeignPort, ForeignRouter, is_foreign
from fairlead.model.snapshot import Aggregate, Snapshot

ForeignNews: TypeAlias = Mapping[Owner, Foreign | None]
"""Owner -> its document; None if the owner was deleted."""
_KINDS = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)


def admitted(snapshot: Snapshot, news: ForeignNews) -> Iterator[tuple[Owner, Aggregate | None]]:
    """Yield the puts and deletes in an order that keeps every reference valid.

    Documents with the id of a stored document are skipped, because they must not replace it. Ports without their
    network or router are skipped, and routers without their gateway port lose the gateway. The observer must send
    related objects together, or send them again.
    """
    gone = {owner for owner, document in news.items() if document is None and is_foreign(snapshot.find(owner))}
    gone |= set(_ports_of(snapshot, gone))
    told = {owner: each for owner, each in news.items() if each is not None and _is_free(snapshot, owner)}
    told |= {owner: each for owner, each in _left_without_gateway(snapshot, gone) if owner not in told}
    yield from ((owner, None) for owner in sorted(gone, key=lambda owner: _KINDS.index(owner.kind), reverse=True))
    there = _There(snapshot, gone, told)
    for kind in _KINDS:
        for owner, document in told.items():
            if owner.kind is kind and (found := there.placed(document)) is not None:
                yield owner, found


@dataclass(frozen=True, slots=True)
class _There:
    """Objects that exist once the news are applied."""

    snapshot: Snapshot
    gone: Set[Owner]
    told: Mapping[Owner, Foreign]

    def placed(self, document: Foreign) -> Foreign | None:
        """Return the document without references that do not exist; None if it cannot exist without them."""
        if isinstance(document, ForeignRouter) and document.gateway is not None:
            has_network = self._has(Kind.NETWORK, document.gateway.network_id)
            is_whole = has_network and self._has_port(document.gateway.port_id)
            return document if is_whole else replace(document, gateway=None)
        if isinstance(document, ForeignPort):
            return document if self._has_place(document) else None
        return document

    def _has(self, kind: Kind, identity: str) -> bool:
        """Return whether a network or router exists; these have no references of their own."""
        owner = Owner(kind, identity)
        return owner in self.told or (owner not in self.gone and self.snapshot.find(owner) is not None)

    def _has_port(self, identity: str) -> bool:
        owner = Owner(Kind.PORT, identity)
        port = self.told.get(owner)
        if isinstance(port, ForeignPort) and self._has_place(port):
            return True
        return owner not in self.gone and identity in self.snapshot.ports

    def _has_place(self, port: ForeignPort) -> bool:
        has_router = port.use is not PortUse.ROUTER_INTERFACE or self._has(Kind.ROUTER, port.device_id)
        return has_router and self._has(Kind.NETWORK, port.network_id)


def _is_free(snapshot: Snapshot, owner: Owner) -> bool:
    old = snapshot.find(owner)
    return old is None or is_foreign(old)


def _ports_of(snapshot: Snapshot, gone: Set[Owner]) -> Iterator[Owner]:
    """Yield the ports of deleted networks and routers."""
    for owner in gone:
        if owner.kind is Kind.NETWORK:
            found = snapshot.network_ports.get(owner.id, NO_IDS)
        elif owner.kind is Kind.ROUTER:
            found = snapshot.router_interfaces.get(owner.id, NO_IDS)
        else:
            continue
        yield from (Owner(Kind.PORT, each) for each in found if is_foreign(snapshot.ports.get(each)))


def _left_without_gateway(snapshot: Snapshot, gone: Set[Owner]) -> Iterator[tuple[Owner, Foreign]]:
    """Yield the routers whose gateway port is deleted, without their gateway."""
    for owner in gone:
        port = snapshot.ports.get(owner.id) if owner.kind is Kind.PORT else None
        router = snapshot.routers.get(port.device_id) if port is not None else None
        if isinstance(router, ForeignRouter) and router.gateway and router.gateway.port_id == owner.id:
            where = Owner(Kind.ROUTER, router.id)
            if where not in gone:
                yield where, replace(router, gateway=None)


def rests_on_others(snapshot: Snapshot) -> bool:
    """Return whether any load balancer is on an unmanaged network, or on the gateway of an unmanaged router."""
    networks = (_is_theirs(snapshot, Owner(Kind.NETWORK, each)) for each in snapshot.vip_projects)
    routers = (_is_theirs(snapshot, Owner(Kind.ROUTER, each)) for each in snapshot.router_vips)
    return any(networks) or any(routers)


def is_on_others(snapshot: Snapshot, owner: Owner) -> bool:
    """Return whether the owner's rows depend on an unmanaged network or router."""
    if owner.kind in (Kind.VIP_NETWORK, Kind.NEAR_NETWORK):
        return _is_theirs(snapshot, Owner(Kind.NETWORK, VipNetwork.of(owner).network_id))
    if owner.kind in (Kind.VIP_GATEWAY, Kind.NEAR_GATEWAY):
        return _is_theirs(snapshot, Owner(Kind.ROUTER, owner.id))
    balancer = snapshot.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None
    if balancer is None:
        return False
    if balancer.router_id is not None:
        return _is_theirs(snapshot, Owner(Kind.ROUTER, balancer.router_id))
    return _is_theirs(snapshot, Owner(Kind.NETWORK, balancer.vip.network_id))


def _is_theirs(snapshot: Snapshot, owner: Owner) -> bool:
    """Return whether the owner is not a stored document. A missing document counts as unmanaged, because all stored
    documents are loaded before the first reconciliation."""
    document = snapshot.find(owner)
    return document is None or is_foreign(document)
