"""What somebody has seen of networks of others, and what of it may stand in a snapshot.

One never stands there by halves: a port goes with its network, and an interface with its router.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.model.foreign import Foreign, ForeignPort, ForeignRouter, is_foreign
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import PortUse
from fairlead.model.owner import Kind, Owner, VipNetwork
from fairlead.model.snapshot import Aggregate, Snapshot

ForeignNews: TypeAlias = Mapping[Owner, Foreign | None]
"""None: it is gone."""
_KINDS = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)


def admitted(snapshot: Snapshot, news: ForeignNews) -> Iterator[tuple[Owner, Aggregate | None]]:
    """What of the news is to be put and taken away, in an order in which nothing ever refers to what is not there.

    What has the id of a stored document is left out: others cannot take its place. So is a port without its network, or
    without its router; and a router has no gateway without the port. Who observes tells what belongs together at once,
    or again.
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
    """What will be there when the news are taken in."""

    snapshot: Snapshot
    gone: Set[Owner]
    told: Mapping[Owner, Foreign]

    def placed(self, document: Foreign) -> Foreign | None:
        """With what it refers to, as far as that is there; None if it cannot be without it."""
        if isinstance(document, ForeignRouter) and document.gateway is not None:
            has_network = self._has(Kind.NETWORK, document.gateway.network_id)
            is_whole = has_network and self._has_port(document.gateway.port_id)
            return document if is_whole else replace(document, gateway=None)
        if isinstance(document, ForeignPort):
            return document if self._has_place(document) else None
        return document

    def _has(self, kind: Kind, identity: str) -> bool:
        """Of networks and routers, which need nobody."""
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
    """Those that are on a network, or of a router, that goes."""
    for owner in gone:
        if owner.kind is Kind.NETWORK:
            found = snapshot.network_ports.get(owner.id, NO_IDS)
        elif owner.kind is Kind.ROUTER:
            found = snapshot.router_interfaces.get(owner.id, NO_IDS)
        else:
            continue
        yield from (Owner(Kind.PORT, each) for each in found if is_foreign(snapshot.ports.get(each)))


def _left_without_gateway(snapshot: Snapshot, gone: Set[Owner]) -> Iterator[tuple[Owner, Foreign]]:
    """The routers whose gateway goes."""
    for owner in gone:
        port = snapshot.ports.get(owner.id) if owner.kind is Kind.PORT else None
        router = snapshot.routers.get(port.device_id) if port is not None else None
        if isinstance(router, ForeignRouter) and router.gateway and router.gateway.port_id == owner.id:
            where = Owner(Kind.ROUTER, router.id)
            if where not in gone:
                yield where, replace(router, gateway=None)


def rests_on_others(snapshot: Snapshot) -> bool:
    """Whether any load balancer is on a network, or on the gateway of a router, that is not stored."""
    networks = (_is_theirs(snapshot, Owner(Kind.NETWORK, each)) for each in snapshot.vip_projects)
    routers = (_is_theirs(snapshot, Owner(Kind.ROUTER, each)) for each in snapshot.router_vips)
    return any(networks) or any(routers)


def is_on_others(snapshot: Snapshot, owner: Owner) -> bool:
    """Whether the owner's rows depend on such a network or router."""
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
    """What is not there is no document of ours: those were all read before anything is looked at."""
    document = snapshot.find(owner)
    return document is None or is_foreign(document)
