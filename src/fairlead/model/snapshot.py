"""The whole model, frozen at one revision, with the indexes that compilers and doors ask for.

Maps are persistent (hash array mapped tries): a new snapshot costs what changed, and the old one stays readable.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar, assert_never

from immutables import Map

from fairlead.model.addresses import IPAddress
from fairlead.model.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.health import Endpoint, Health
from fairlead.model.loadbalancer import LoadBalancer, Member
from fairlead.model.network import (
    LOAD_BALANCER_VIP,
    ROUTER_INTERFACE,
    FloatingIP,
    Network,
    Port,
    Router,
    Segment,
)
from fairlead.model.owner import Kind, Owner, VipNetwork
from fairlead.model.quota import Place, Quota, Usage, probe_rates, with_more, with_probes, with_rate
from fairlead.model.standing import Stamps, Standing, touch
from fairlead.model.status import Applied
from fairlead.model.taken import Taken, with_addresses, without_addresses

Choice: TypeAlias = Flavor | FlavorProfile | AvailabilityZone | AvailabilityZoneProfile
"""What an operator offers."""
Aggregate: TypeAlias = Network | Port | Router | LoadBalancer | FloatingIP | Choice | Quota
Ids: TypeAlias = Map[str, None]
"""A set of ids, as the keys of a persistent map: adding one to ten thousand copies none of them."""
NONE: Ids = Map()
NOBODY: Map[str, Ids] = Map()
_T = TypeVar("_T")
_K = TypeVar("_K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`generations` holds, for each document, the revision of the store that wrote it last."""

    revision: int = 0
    networks: Map[str, Network] = Map()
    routers: Map[str, Router] = Map()
    ports: Map[str, Port] = Map()
    load_balancers: Map[str, LoadBalancer] = Map()
    floating_ips: Map[str, FloatingIP] = Map()
    flavors: Map[str, Flavor] = Map()
    flavor_profiles: Map[str, FlavorProfile] = Map()
    availability_zones: Map[str, AvailabilityZone] = Map()
    """By name."""
    availability_zone_profiles: Map[str, AvailabilityZoneProfile] = Map()
    quotas: Map[str, Quota] = Map()
    """By project."""
    generations: Map[Owner, int] = Map()
    down: Map[str, frozenset[str]] = Map()
    """Load balancer -> those of its members that their health monitor calls down."""
    gateway_chassis: tuple[str, ...] = ()
    """The chassis through which routers may leave; the deployment's, and the same in every snapshot."""
    abilities: frozenset[str] = frozenset()
    """What the dataplane that is there can do beyond what every one can, in words of its driver and its compiler."""
    online: Map[str, frozenset[str]] = Map()
    """And those that it has seen answer. Of a monitored member in neither nothing is known yet; it serves."""
    observed: Map[Endpoint, Health] = Map()
    """What the probes say, of whomever; `down` and `online` are derived from it (`model/probes.py`)."""
    plugged: Map[str, str] = Map()
    """Port, of whomever -> the node that has it (`model/plugged.py`)."""

    stamps: Map[str, Stamps] = Map()
    """Load balancer -> the generations of its parts; nothing for one whose parts are all as old as it."""

    subnet_network: Map[str, str] = Map()
    network_ports: Map[str, Ids] = Map()
    network_vips: Map[str, Ids] = Map()
    vip_projects: Map[str, Map[str, Ids]] = Map()
    """Network -> project -> its load balancers with a VIP there."""
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
    taken: Taken = Map()
    """The same addresses, for who looks for a free one."""
    macs: Map[str, str] = Map()
    watched: Map[IPAddress, Ids] = Map()
    """Address -> the load balancers of which a member with a health monitor is, or is probed, there."""
    crossing: Map[str, Ids] = Map()
    """Subnet -> the load balancers with a health monitor that have a VIP or a member there, and a member elsewhere."""
    pool_owner: Map[str, str] = Map()
    listener_owner: Map[str, str] = Map()
    monitor_owner: Map[str, str] = Map()
    l7policy_owner: Map[str, str] = Map()
    parting: Ids = NONE
    """Load balancers that remember members which were removed."""
    parting_seconds: int = 3600
    """For how long; the deployment's, and the same in every snapshot."""
    vip_owner: Map[str, str] = Map()
    """Id of a part, or of the port of the VIP -> its load balancer."""
    flavor_users: Map[str, Ids] = Map()
    zone_users: Map[str, Ids] = Map()
    """Flavor, availability zone -> the load balancers that have it."""
    usage: Usage = Map()
    probed: Map[Place, int] = Map()
    """Where members are probed -> how often, by all who do: millionths of a probe a second."""
    probing: Map[str, int] = Map()
    """Project -> how often its monitors probe, all together, in the same unit."""

    def find(self, owner: Owner) -> Aggregate | None:
        """The document of this owner; a VIP network has none."""
        if owner.kind is Kind.VIP_NETWORK:
            return None
        found: Aggregate | None = self.documents(owner.kind).get(owner.id)
        return found

    def documents(self, kind: Kind) -> Map[str, Any]:
        """All documents of a kind that has some."""
        found: Map[str, Any] = getattr(self, _DOCUMENTS[kind])
        return found

    def owners(self) -> list[Owner]:
        """Every owner that may have rows; those that others refer to come first."""
        return [
            *(Owner(Kind.NETWORK, identity) for identity in self.networks),
            *(Owner(Kind.ROUTER, identity) for identity in self.routers),
            *(Owner(Kind.PORT, identity) for identity in self.ports),
            *(owner for identity in self.network_vips for owner in vip_owners(self, identity)),
            *(Owner(Kind.LOAD_BALANCER, identity) for identity in self.load_balancers),
            *(Owner(Kind.FLOATING_IP, identity) for identity in self.floating_ips),
        ]


_DOCUMENTS: Mapping[Kind, str] = {
    Kind.NETWORK: "networks",
    Kind.ROUTER: "routers",
    Kind.PORT: "ports",
    Kind.LOAD_BALANCER: "load_balancers",
    Kind.FLOATING_IP: "floating_ips",
    Kind.FLAVOR: "flavors",
    Kind.FLAVOR_PROFILE: "flavor_profiles",
    Kind.AVAILABILITY_ZONE: "availability_zones",
    Kind.AVAILABILITY_ZONE_PROFILE: "availability_zone_profiles",
    Kind.QUOTA: "quotas",
}
"""The map of the snapshot that has the documents of a kind."""


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
        case Flavor():
            return Owner(Kind.FLAVOR, aggregate.id)
        case FlavorProfile():
            return Owner(Kind.FLAVOR_PROFILE, aggregate.id)
        case AvailabilityZone():
            return Owner(Kind.AVAILABILITY_ZONE, aggregate.name)
        case AvailabilityZoneProfile():
            return Owner(Kind.AVAILABILITY_ZONE_PROFILE, aggregate.id)
        case Quota():
            return Owner(Kind.QUOTA, aggregate.project_id)
        case _:
            assert_never(aggregate)


def apply_changes(snapshot: Snapshot, changes: Changes, revision: int) -> Snapshot:
    """The snapshot after these changes, which the store wrote at `revision`."""
    for owner in changes.deletes:
        snapshot = _without(snapshot, owner)
    for aggregate in changes.puts:
        stamps = _touched(snapshot, aggregate, revision)
        snapshot = _with(_without(snapshot, owner_of(aggregate)), aggregate, revision)
        if stamps is not snapshot.stamps:  # a copy of so many fields takes a while, and most aggregates have no stamps
            snapshot = replace(snapshot, stamps=stamps)
    return replace(snapshot, revision=revision)


def _touched(snapshot: Snapshot, aggregate: Aggregate, revision: int) -> Map[str, Stamps]:
    old = snapshot.load_balancers.get(aggregate.id) if isinstance(aggregate, LoadBalancer) else None
    if not isinstance(aggregate, LoadBalancer) or old is None:
        return snapshot.stamps
    stamps = touch(old, aggregate, snapshot.stamps.get(aggregate.id, Map()), revision)
    return snapshot.stamps.set(aggregate.id, stamps)


def vip_network(snapshot: Snapshot, network_id: str, project_id: str) -> VipNetwork:
    """What the VIPs of this project on this network share."""
    own = snapshot.networks[network_id].project_id == project_id
    return VipNetwork(network_id) if own else VipNetwork(network_id, project_id)


def vip_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """All that a network with VIPs has: first what all of them share, then what a guest's do."""
    if network_id in snapshot.network_vips:
        yield VipNetwork(network_id).owner
        for project_id in snapshot.vip_projects[network_id]:
            found = vip_network(snapshot, network_id, project_id)
            if found.guest is not None:
                yield found.owner


def claims(aggregate: Aggregate) -> frozenset[str]:
    """What only one document may have: the store refuses a second one.

    An address per network, a MAC anywhere, a VLAN of a wire; a floating IP per fixed address and external network; a
    flavor's name.
    """
    match aggregate:
        case Port():
            addresses = {f"address/{aggregate.network_id}/{fixed.address}" for fixed in aggregate.fixed_ips}
            return frozenset(addresses | {f"mac/{aggregate.mac_address}"})
        case Network(segment=Segment() as segment):
            return frozenset({f"segment/{segment.physical_network}/{segment.id}"})
        case FloatingIP(port_id=str() as port_id):
            return frozenset({f"floating/{aggregate.network_id}/{port_id}/{aggregate.fixed_address}"})
        case Flavor():
            return frozenset({f"flavor/{aggregate.name}"})
        case Network() | Router() | LoadBalancer() | FloatingIP() | FlavorProfile():
            return frozenset()
        case AvailabilityZone() | AvailabilityZoneProfile() | Quota():
            return frozenset()
        case _:
            assert_never(aggregate)


def _with(snapshot: Snapshot, aggregate: Aggregate, revision: int) -> Snapshot:
    snapshot = _with_document(snapshot, aggregate, revision)
    match aggregate:
        case Network(id=identity):
            subnets = snapshot.subnet_network.update({subnet.id: identity for subnet in aggregate.subnets})
            segments, segment = snapshot.segments, aggregate.segment
            if segment is not None:
                segments = segments.set(segment, identity)
            return replace(snapshot, subnet_network=subnets, segments=segments)
        case Router(id=identity, gateway=gateway):
            network_id = None if gateway is None else gateway.network_id
            return replace(snapshot, network_gateways=_joined(snapshot.network_gateways, network_id, identity))
        case FloatingIP(id=identity):
            return replace(
                snapshot,
                router_floating_ips=_joined(snapshot.router_floating_ips, aggregate.router_id, identity),
                port_floating_ips=_joined(snapshot.port_floating_ips, aggregate.port_id, identity),
            )
        case Port():
            return _with_port(snapshot, aggregate)
        case LoadBalancer(id=identity):
            return replace(
                snapshot,
                network_vips=_joined(snapshot.network_vips, aggregate.vip.network_id, identity),
                vip_projects=_with_project(snapshot, aggregate),
                watched=_all_joined(snapshot.watched, _watched_addresses(aggregate), identity),
                crossing=_all_joined(snapshot.crossing, _crossed_subnets(aggregate), identity),
                pool_owner=snapshot.pool_owner.update({pool.id: identity for pool in aggregate.pools}),
                listener_owner=snapshot.listener_owner.update({item.id: identity for item in aggregate.listeners}),
                monitor_owner=snapshot.monitor_owner.update(dict.fromkeys(_monitors(aggregate), identity)),
                l7policy_owner=snapshot.l7policy_owner.update(dict.fromkeys(_policies(aggregate), identity)),
                vip_owner=snapshot.vip_owner.set(aggregate.vip.port_id, identity),
                parting=snapshot.parting.set(identity, None) if aggregate.parted else snapshot.parting,
                flavor_users=_joined(snapshot.flavor_users, aggregate.flavor_id, identity),
                zone_users=_joined(snapshot.zone_users, aggregate.availability_zone, identity),
                **_probing(snapshot, aggregate, 1),
            )
        case Flavor() | FlavorProfile() | AvailabilityZone() | AvailabilityZoneProfile() | Quota():
            return snapshot
        case _:
            assert_never(aggregate)


def _without(snapshot: Snapshot, owner: Owner) -> Snapshot:
    aggregate = snapshot.find(owner)
    if aggregate is None:
        return snapshot
    snapshot = _without_document(snapshot, owner, aggregate)
    match aggregate:
        case Network():
            subnets = _deleted(snapshot.subnet_network, (subnet.id for subnet in aggregate.subnets))
            segments = _deleted(snapshot.segments, [aggregate.segment] if aggregate.segment else ())
            return replace(snapshot, subnet_network=subnets, segments=segments)
        case Router(id=identity, gateway=gateway):
            network_id = None if gateway is None else gateway.network_id
            return replace(snapshot, network_gateways=_parted(snapshot.network_gateways, network_id, identity))
        case FloatingIP(id=identity):
            return replace(
                snapshot,
                router_floating_ips=_parted(snapshot.router_floating_ips, aggregate.router_id, identity),
                port_floating_ips=_parted(snapshot.port_floating_ips, aggregate.port_id, identity),
            )
        case Port():
            return _without_port(snapshot, aggregate)
        case LoadBalancer(id=identity):
            return replace(
                snapshot,
                stamps=snapshot.stamps.delete(identity) if identity in snapshot.stamps else snapshot.stamps,
                network_vips=_parted(snapshot.network_vips, aggregate.vip.network_id, identity),
                vip_projects=_without_project(snapshot, aggregate),
                watched=_all_parted(snapshot.watched, _watched_addresses(aggregate), identity),
                crossing=_all_parted(snapshot.crossing, _crossed_subnets(aggregate), identity),
                pool_owner=_deleted(snapshot.pool_owner, (pool.id for pool in aggregate.pools)),
                listener_owner=_deleted(snapshot.listener_owner, (item.id for item in aggregate.listeners)),
                monitor_owner=_deleted(snapshot.monitor_owner, _monitors(aggregate)),
                l7policy_owner=_deleted(snapshot.l7policy_owner, _policies(aggregate)),
                vip_owner=_deleted(snapshot.vip_owner, [aggregate.vip.port_id]),
                parting=snapshot.parting.delete(identity) if aggregate.parted else snapshot.parting,
                flavor_users=_parted(snapshot.flavor_users, aggregate.flavor_id, identity),
                zone_users=_parted(snapshot.zone_users, aggregate.availability_zone, identity),
                **_probing(snapshot, aggregate, -1),
            )
        case Flavor() | FlavorProfile() | AvailabilityZone() | AvailabilityZoneProfile() | Quota():
            return snapshot
        case _:
            assert_never(aggregate)


def _with_document(snapshot: Snapshot, aggregate: Aggregate, revision: int) -> Snapshot:
    owner = owner_of(aggregate)
    name = _DOCUMENTS[owner.kind]
    documents: Any = getattr(snapshot, name).set(owner.id, aggregate)
    generations, usage = snapshot.generations.set(owner, revision), with_more(snapshot.usage, aggregate, 1)
    return replace(snapshot, **{name: documents}, generations=generations, usage=usage)


def _without_document(snapshot: Snapshot, owner: Owner, aggregate: Aggregate) -> Snapshot:
    name = _DOCUMENTS[owner.kind]
    documents: Any = getattr(snapshot, name).delete(owner.id)
    generations, usage = snapshot.generations.delete(owner), with_more(snapshot.usage, aggregate, -1)
    return replace(snapshot, **{name: documents}, generations=generations, usage=usage)


def _with_port(snapshot: Snapshot, port: Port) -> Snapshot:
    taken = {(port.network_id, fixed.address): port.id for fixed in port.fixed_ips}
    snapshot = replace(
        snapshot,
        network_ports=_joined(snapshot.network_ports, port.network_id, port.id),
        addresses=snapshot.addresses.update(taken),
        taken=with_addresses(snapshot.taken, port.network_id, (address for _, address in taken)),
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
    addresses = [fixed.address for fixed in port.fixed_ips]
    snapshot = replace(
        snapshot,
        network_ports=_parted(snapshot.network_ports, port.network_id, port.id),
        addresses=_deleted(snapshot.addresses, ((port.network_id, address) for address in addresses)),
        taken=without_addresses(snapshot.taken, port.network_id, addresses),
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


def _with_project(snapshot: Snapshot, balancer: LoadBalancer) -> Map[str, Map[str, Ids]]:
    projects = snapshot.vip_projects.get(balancer.vip.network_id, NOBODY)
    joined = _joined(projects, balancer.project_id, balancer.id)
    return snapshot.vip_projects.set(balancer.vip.network_id, joined)


def _without_project(snapshot: Snapshot, balancer: LoadBalancer) -> Map[str, Map[str, Ids]]:
    network_id = balancer.vip.network_id
    rest = _parted(snapshot.vip_projects[network_id], balancer.project_id, balancer.id)
    return snapshot.vip_projects.set(network_id, rest) if rest else snapshot.vip_projects.delete(network_id)


def _monitors(balancer: LoadBalancer) -> Iterator[str]:
    return (pool.health_monitor.id for pool in balancer.pools if pool.health_monitor)


def _policies(balancer: LoadBalancer) -> Iterator[str]:
    return (policy.id for listener in balancer.listeners for policy in listener.l7policies)


def _crossed_subnets(balancer: LoadBalancer) -> frozenset[str]:
    members = (member for pool in balancer.pools if pool.health_monitor for member in pool.members)
    found = {balancer.vip.subnet_id, *(member.subnet_id for member in members if member.subnet_id)}
    return frozenset(found) if len(found) > 1 else frozenset()


def _watched_addresses(balancer: LoadBalancer) -> frozenset[IPAddress]:
    members = (member for pool in balancer.pools if pool.health_monitor for member in pool.members)
    return frozenset(address for each in members for address in (each.address, each.monitor_address) if address)


def _probing(snapshot: Snapshot, balancer: LoadBalancer, sign: int) -> dict[str, Any]:
    """Both indexes of probes with or without those of this load balancer."""
    rates = probe_rates(balancer)
    if not rates:
        return {}
    return {
        "probed": with_probes(snapshot.probed, rates, sign),
        "probing": with_rate(snapshot.probing, balancer.project_id, sign * sum(rates.values())),
    }


def _all_joined(index: Map[_K, Ids], keys: Iterable[_K], identity: str) -> Map[_K, Ids]:
    for key in keys:
        index = _joined(index, key, identity)
    return index


def _all_parted(index: Map[_K, Ids], keys: Iterable[_K], identity: str) -> Map[_K, Ids]:
    for key in keys:
        index = _parted(index, key, identity)
    return index


def _joined(index: Map[_K, Ids], key: _K | None, identity: str) -> Map[_K, Ids]:
    """Unchanged where there is no key."""
    if key is None:
        return index
    return index.set(key, index.get(key, NONE).set(identity, None))


def _parted(index: Map[_K, Ids], key: _K | None, identity: str) -> Map[_K, Ids]:
    rest = NONE if key is None else index.get(key, NONE)
    if key is not None and identity in rest:
        rest = rest.delete(identity)
        return index.set(key, rest) if rest else index.delete(key)
    return index


def _deleted(index: Map[_T, str], keys: Iterable[_T]) -> Map[_T, str]:
    with index.mutate() as mutation:
        for key in keys:
            mutation.pop(key, None)
    return mutation.finish()


def with_health(
    snapshot: Snapshot, balancer_id: str, down: frozenset[str], online: frozenset[str] = frozenset()
) -> Snapshot:
    """The snapshot in which just these members of the load balancer are down, and these online."""
    new = _with_ids(snapshot.down, balancer_id, down), _with_ids(snapshot.online, balancer_id, online)
    if new[0] is snapshot.down and new[1] is snapshot.online:
        return snapshot
    return replace(snapshot, down=new[0], online=new[1])


def _with_ids(index: Map[str, frozenset[str]], key: str, ids: frozenset[str]) -> Map[str, frozenset[str]]:
    if index.get(key, frozenset()) == ids:
        return index
    return index.set(key, ids) if ids else index.delete(key)


def standing(snapshot: Snapshot, balancer: LoadBalancer, applied: Applied) -> Standing:
    """How this load balancer of the snapshot stands, if `applied` is what has arrived of it."""
    return Standing(
        balancer=balancer,
        generation=snapshot.generations.get(Owner(Kind.LOAD_BALANCER, balancer.id), snapshot.revision),
        stamps=snapshot.stamps.get(balancer.id, Map()),
        applied=applied,
        down=snapshot.down.get(balancer.id, frozenset()),
        online=snapshot.online.get(balancer.id, frozenset()),
        cannot_answer=lambda member: _leads_to_vip(snapshot, balancer, member),
    )


def member_network(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> str:
    """A member that says no subnet is where the VIP is. Empty when its subnet is gone: then it is nowhere."""
    return balancer.vip.network_id if member.subnet_id is None else snapshot.subnet_network.get(member.subnet_id, "")


def _leads_to_vip(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> bool:
    """Whether a VIP that was made after the member has its address by now: a connection is balanced once."""
    where = member_network(snapshot, balancer, member), member.address
    port = snapshot.ports.get(snapshot.addresses.get(where, ""))
    return port is not None and port.device_owner == LOAD_BALANCER_VIP
