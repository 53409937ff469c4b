"""The whole model, frozen at one revision, with the indexes that compilers and doors ask for.

Maps are persistent (hash array mapped tries): a new snapshot costs what changed, and the old one stays readable.
`affected` is the one place that knows who depends on whom: it names owners, and may name too many, never too few.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar, assert_never

from immutables import Map

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.network import ROUTER_GATEWAY, ROUTER_INTERFACE, FloatingIP, Network, Port, Router, Segment
from fairlead.model.owner import Kind, Owner, creation_order

Aggregate: TypeAlias = Network | Port | Router | LoadBalancer | FloatingIP
Ids: TypeAlias = Map[str, None]
"""A set of ids, as the keys of a persistent map: adding one to ten thousand copies none of them."""
NONE: Ids = Map()
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`generations` holds, for each document, the revision of the store that wrote it last."""

    revision: int = 0
    networks: Map[str, Network] = Map()
    routers: Map[str, Router] = Map()
    ports: Map[str, Port] = Map()
    load_balancers: Map[str, LoadBalancer] = Map()
    floating_ips: Map[str, FloatingIP] = Map()
    generations: Map[Owner, int] = Map()
    down: Map[str, frozenset[str]] = Map()
    """Load balancer -> those of its members that their health monitor calls down."""
    gateway_chassis: tuple[str, ...] = ()
    """The chassis through which routers may leave; the deployment's, and the same in every snapshot."""

    subnet_network: Map[str, str] = Map()
    network_ports: Map[str, Ids] = Map()
    network_vips: Map[str, Ids] = Map()
    network_routers: Map[str, Ids] = Map()
    network_gateways: Map[str, Ids] = Map()
    """External network -> the routers that have their gateway there."""
    router_interfaces: Map[str, Ids] = Map()
    router_floating_ips: Map[str, Ids] = Map()
    port_floating_ips: Map[str, Ids] = Map()
    """Port -> the floating IPs that lead to it."""
    segments: Map[Segment, str] = Map()
    addresses: Map[tuple[str, IPAddress], str] = Map()
    """(network, address) -> the port that has it."""
    macs: Map[str, str] = Map()
    pool_owner: Map[str, str] = Map()
    listener_owner: Map[str, str] = Map()
    monitor_owner: Map[str, str] = Map()
    l7policy_owner: Map[str, str] = Map()
    vip_owner: Map[str, str] = Map()
    """Id of a part, or of the port of the VIP -> its load balancer."""

    def find(self, owner: Owner) -> Aggregate | None:
        """The document of this owner; a VIP network has none."""
        match owner.kind:
            case Kind.NETWORK:
                return self.networks.get(owner.id)
            case Kind.ROUTER:
                return self.routers.get(owner.id)
            case Kind.PORT:
                return self.ports.get(owner.id)
            case Kind.LOAD_BALANCER:
                return self.load_balancers.get(owner.id)
            case Kind.FLOATING_IP:
                return self.floating_ips.get(owner.id)
            case Kind.VIP_NETWORK:
                return None
            case _:
                assert_never(owner.kind)

    def owners(self) -> list[Owner]:
        """Every owner that may have rows; those that others refer to come first."""
        return [
            *(Owner(Kind.NETWORK, identity) for identity in self.networks),
            *(Owner(Kind.ROUTER, identity) for identity in self.routers),
            *(Owner(Kind.PORT, identity) for identity in self.ports),
            *(Owner(Kind.VIP_NETWORK, identity) for identity in self.network_vips),
            *(Owner(Kind.LOAD_BALANCER, identity) for identity in self.load_balancers),
            *(Owner(Kind.FLOATING_IP, identity) for identity in self.floating_ips),
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """What one write does: documents to put, owners to delete.

    `reads` are owners whose documents must not change meanwhile. `rests_on_absence` says that the decision rests on
    what is *not* there (a network may go because nothing is on it): then nothing at all may change meanwhile.
    """

    puts: tuple[Aggregate, ...] = ()
    deletes: tuple[Owner, ...] = ()
    reads: tuple[Owner, ...] = ()
    rests_on_absence: bool = False

    @property
    def owners(self) -> tuple[Owner, ...]:
        return (*(owner_of(aggregate) for aggregate in self.puts), *self.deletes)


def owner_of(aggregate: Aggregate) -> Owner:
    match aggregate:
        case Network():
            return Owner(Kind.NETWORK, aggregate.id)
        case Router():
            return Owner(Kind.ROUTER, aggregate.id)
        case Port():
            return Owner(Kind.PORT, aggregate.id)
        case LoadBalancer():
            return Owner(Kind.LOAD_BALANCER, aggregate.id)
        case FloatingIP():
            return Owner(Kind.FLOATING_IP, aggregate.id)
        case _:
            assert_never(aggregate)


def apply_changes(snapshot: Snapshot, changes: Changes, revision: int) -> Snapshot:
    """The snapshot after these changes, which the store wrote at `revision`."""
    for owner in changes.deletes:
        snapshot = _without(snapshot, owner)
    for aggregate in changes.puts:
        snapshot = _with(_without(snapshot, owner_of(aggregate)), aggregate, revision)
    return replace(snapshot, revision=revision)


def affected(old: Snapshot, new: Snapshot, changed: Iterable[Owner]) -> tuple[Owner, ...]:
    """The owners whose rows may differ between two snapshots that differ in the documents of `changed`.

    In an order in which they can be applied: what rows refer to is created before them and deleted after them.
    """
    owners: set[Owner] = set()
    for owner in changed:
        owners.add(owner)
        for snapshot in (old, new):
            owners.update(_dependents(snapshot, owner))
        owners.update(_first_or_last_vip(old, new, owner))
    gone = {owner for owner in owners if not _exists(new, owner)}
    return (*sorted(owners - gone, key=creation_order), *sorted(gone, key=creation_order, reverse=True))


def connected(snapshot: Snapshot, network_id: str) -> tuple[frozenset[str], frozenset[str]]:
    """The networks and routers that packets of this network can reach: one connected domain."""
    networks, routers, todo = {network_id}, set[str](), [network_id]
    while todo:
        for router_id in set(snapshot.network_routers.get(todo.pop(), NONE)) - routers:
            routers.add(router_id)
            found = {snapshot.ports[port].network_id for port in snapshot.router_interfaces.get(router_id, NONE)}
            todo.extend(found - networks)
            networks |= found
    return frozenset(networks), frozenset(routers)


def vip_networks(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """The VIP networks of the domain that this network is in."""
    networks, _ = connected(snapshot, network_id)
    return (Owner(Kind.VIP_NETWORK, identity) for identity in networks if identity in snapshot.network_vips)


def claims(aggregate: Aggregate) -> frozenset[str]:
    """What only one document may have: the store refuses a second one.

    An address per network, a MAC anywhere, a VLAN of a wire; and a floating IP per fixed address and external network.
    """
    match aggregate:
        case Port():
            addresses = {f"address/{aggregate.network_id}/{fixed.address}" for fixed in aggregate.fixed_ips}
            return frozenset(addresses | {f"mac/{aggregate.mac_address}"})
        case Network(segment=Segment() as segment):
            return frozenset({f"segment/{segment.physical_network}/{segment.id}"})
        case FloatingIP(port_id=str() as port_id):
            return frozenset({f"floating/{aggregate.network_id}/{port_id}/{aggregate.fixed_address}"})
        case Network() | Router() | LoadBalancer() | FloatingIP():
            return frozenset()
        case _:
            assert_never(aggregate)


def _dependents(snapshot: Snapshot, owner: Owner) -> Iterator[Owner]:
    """Owners whose rows are compiled from this one's document too."""
    match snapshot.find(owner):
        case Network():
            for index in (snapshot.network_routers, snapshot.network_gateways):
                yield from (Owner(Kind.ROUTER, identity) for identity in index.get(owner.id, NONE))
            yield from vip_networks(snapshot, owner.id)
        case Router():
            yield from _vip_networks_of_router(snapshot, owner.id)
            yield from _floating_ips(snapshot.router_floating_ips, owner.id)
        case Port(device_owner=device_owner) as port if device_owner == ROUTER_INTERFACE:
            yield Owner(Kind.ROUTER, port.device_id)
            yield from vip_networks(snapshot, port.network_id)
        case Port(device_owner=device_owner) as port if device_owner == ROUTER_GATEWAY:
            yield Owner(Kind.ROUTER, port.device_id)
        case FloatingIP(port_id=str() as port_id) if port_id in snapshot.vip_owner:
            yield Owner(Kind.LOAD_BALANCER, snapshot.vip_owner[port_id])
        case Port():
            yield from _floating_ips(snapshot.port_floating_ips, owner.id)
        case LoadBalancer() | FloatingIP() | None:
            pass
        case unknown:
            assert_never(unknown)


def _floating_ips(index: Map[str, Ids], key: str) -> Iterator[Owner]:
    return (Owner(Kind.FLOATING_IP, identity) for identity in index.get(key, NONE))


def _vip_networks_of_router(snapshot: Snapshot, router_id: str) -> Iterator[Owner]:
    for port_id in list(snapshot.router_interfaces.get(router_id, NONE))[:1]:  # it joins them all to one domain
        yield from vip_networks(snapshot, snapshot.ports[port_id].network_id)


def _first_or_last_vip(old: Snapshot, new: Snapshot, owner: Owner) -> Iterator[Owner]:
    """A VIP network comes with the first VIP of a network and goes with the last; those between do not touch it."""
    for balancer in (old.load_balancers.get(owner.id), new.load_balancers.get(owner.id)):
        if balancer is not None:
            network_id = balancer.vip.network_id
            if (network_id in old.network_vips) != (network_id in new.network_vips):
                yield Owner(Kind.VIP_NETWORK, network_id)


def _exists(snapshot: Snapshot, owner: Owner) -> bool:
    if owner.kind is Kind.VIP_NETWORK:
        return owner.id in snapshot.network_vips
    return snapshot.find(owner) is not None


def _with(snapshot: Snapshot, aggregate: Aggregate, revision: int) -> Snapshot:
    snapshot = replace(snapshot, generations=snapshot.generations.set(owner_of(aggregate), revision))
    match aggregate:
        case Network(id=identity):
            subnets = snapshot.subnet_network.update({subnet.id: identity for subnet in aggregate.subnets})
            segment = aggregate.segment
            return replace(
                snapshot,
                networks=snapshot.networks.set(identity, aggregate),
                subnet_network=subnets,
                segments=snapshot.segments if segment is None else snapshot.segments.set(segment, identity),
            )
        case Router(id=identity, gateway=gateway):
            gateways = snapshot.network_gateways
            return replace(
                snapshot,
                routers=snapshot.routers.set(identity, aggregate),
                network_gateways=gateways if gateway is None else _joined(gateways, gateway.network_id, identity),
            )
        case FloatingIP(id=identity, port_id=port_id, router_id=router_id):
            routers, ports = snapshot.router_floating_ips, snapshot.port_floating_ips
            return replace(
                snapshot,
                floating_ips=snapshot.floating_ips.set(identity, aggregate),
                router_floating_ips=routers if router_id is None else _joined(routers, router_id, identity),
                port_floating_ips=ports if port_id is None else _joined(ports, port_id, identity),
            )
        case Port():
            return _with_port(snapshot, aggregate)
        case LoadBalancer(id=identity):
            return replace(
                snapshot,
                load_balancers=snapshot.load_balancers.set(identity, aggregate),
                network_vips=_joined(snapshot.network_vips, aggregate.vip.network_id, identity),
                pool_owner=snapshot.pool_owner.update({pool.id: identity for pool in aggregate.pools}),
                listener_owner=snapshot.listener_owner.update({item.id: identity for item in aggregate.listeners}),
                monitor_owner=snapshot.monitor_owner.update(dict.fromkeys(_monitors(aggregate), identity)),
                l7policy_owner=snapshot.l7policy_owner.update(dict.fromkeys(_policies(aggregate), identity)),
                vip_owner=snapshot.vip_owner.set(aggregate.vip.port_id, identity),
            )
        case _:
            assert_never(aggregate)


def _without(snapshot: Snapshot, owner: Owner) -> Snapshot:
    aggregate = snapshot.find(owner)
    if aggregate is None:
        return snapshot
    snapshot = replace(snapshot, generations=snapshot.generations.delete(owner))
    match aggregate:
        case Network(id=identity):
            subnets = _deleted(snapshot.subnet_network, (subnet.id for subnet in aggregate.subnets))
            segments = _deleted(snapshot.segments, [aggregate.segment] if aggregate.segment else ())
            networks = snapshot.networks.delete(identity)
            return replace(snapshot, networks=networks, subnet_network=subnets, segments=segments)
        case Router(id=identity, gateway=gateway):
            gateways = snapshot.network_gateways
            return replace(
                snapshot,
                routers=snapshot.routers.delete(identity),
                network_gateways=gateways if gateway is None else _parted(gateways, gateway.network_id, identity),
            )
        case FloatingIP(id=identity, port_id=port_id, router_id=router_id):
            return replace(
                snapshot,
                floating_ips=snapshot.floating_ips.delete(identity),
                router_floating_ips=_parted(snapshot.router_floating_ips, router_id or "", identity),
                port_floating_ips=_parted(snapshot.port_floating_ips, port_id or "", identity),
            )
        case Port():
            return _without_port(snapshot, aggregate)
        case LoadBalancer(id=identity):
            return replace(
                snapshot,
                load_balancers=snapshot.load_balancers.delete(identity),
                network_vips=_parted(snapshot.network_vips, aggregate.vip.network_id, identity),
                pool_owner=_deleted(snapshot.pool_owner, (pool.id for pool in aggregate.pools)),
                listener_owner=_deleted(snapshot.listener_owner, (item.id for item in aggregate.listeners)),
                monitor_owner=_deleted(snapshot.monitor_owner, _monitors(aggregate)),
                l7policy_owner=_deleted(snapshot.l7policy_owner, _policies(aggregate)),
                vip_owner=_deleted(snapshot.vip_owner, [aggregate.vip.port_id]),
            )
        case _:
            assert_never(aggregate)


def _with_port(snapshot: Snapshot, port: Port) -> Snapshot:
    taken = {(port.network_id, fixed.address): port.id for fixed in port.fixed_ips}
    snapshot = replace(
        snapshot,
        ports=snapshot.ports.set(port.id, port),
        network_ports=_joined(snapshot.network_ports, port.network_id, port.id),
        addresses=snapshot.addresses.update(taken),
        macs=snapshot.macs.set(port.mac_address, port.id),
    )
    if port.device_owner != ROUTER_INTERFACE:
        return snapshot
    return replace(
        snapshot,
        router_interfaces=_joined(snapshot.router_interfaces, port.device_id, port.id),
        network_routers=_joined(snapshot.network_routers, port.network_id, port.device_id),
    )


def _without_port(snapshot: Snapshot, port: Port) -> Snapshot:
    addresses = ((port.network_id, fixed.address) for fixed in port.fixed_ips)
    snapshot = replace(
        snapshot,
        ports=snapshot.ports.delete(port.id),
        network_ports=_parted(snapshot.network_ports, port.network_id, port.id),
        addresses=_deleted(snapshot.addresses, addresses),
        macs=_deleted(snapshot.macs, [port.mac_address]),
    )
    if port.device_owner != ROUTER_INTERFACE:
        return snapshot
    interfaces = _parted(snapshot.router_interfaces, port.device_id, port.id)
    others = (snapshot.ports[other].network_id for other in interfaces.get(port.device_id, NONE))
    routers = snapshot.network_routers
    if port.network_id not in others:
        routers = _parted(routers, port.network_id, port.device_id)
    return replace(snapshot, router_interfaces=interfaces, network_routers=routers)


def _monitors(balancer: LoadBalancer) -> Iterator[str]:
    return (pool.health_monitor.id for pool in balancer.pools if pool.health_monitor)


def _policies(balancer: LoadBalancer) -> Iterator[str]:
    return (policy.id for listener in balancer.listeners for policy in listener.l7policies)


def _joined(index: Map[str, Ids], key: str, identity: str) -> Map[str, Ids]:
    return index.set(key, index.get(key, NONE).set(identity, None))


def _parted(index: Map[str, Ids], key: str, identity: str) -> Map[str, Ids]:
    rest = index.get(key, NONE)
    if identity in rest:
        rest = rest.delete(identity)
        return index.set(key, rest) if rest else index.delete(key)
    return index


def _deleted(index: Map[_T, str], keys: Iterable[_T]) -> Map[_T, str]:
    with index.mutate() as mutation:
        for key in keys:
            mutation.pop(key, None)
    return mutation.finish()


def with_health(snapshot: Snapshot, balancer_id: str, down: frozenset[str]) -> Snapshot:
    """The snapshot in which just these members of the load balancer are down."""
    if down:
        return replace(snapshot, down=snapshot.down.set(balancer_id, down))
    return replace(snapshot, down=snapshot.down.delete(balancer_id)) if balancer_id in snapshot.down else snapshot
