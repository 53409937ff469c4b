"""The whole model, frozen at one revision, with the indexes that compilers and doors ask for.

Maps are persistent (hash array mapped tries): a new snapshot costs what changed, and the old one stays readable.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from immutables import Map

from fairlead.model.addresses import IPAddress
from fairlead.model.balancer_status import BalancerStatus, PartHistories
from fairlead.model.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.chassis import Chassis
from fairlead.model.health import Endpoint, Health, HealthKey
from fairlead.model.indexes import NO_IDS, Ids
from fairlead.model.loadbalancer import LoadBalancer, Member
from fairlead.model.network import ExternalGateway, FloatingIP, Network, Port, PortUse, Router, Segment
from fairlead.model.owner import WITHOUT_DOCUMENTS, Kind, Owner, VipNetwork
from fairlead.model.quota import ProbedAddress, Quota, Usage
from fairlead.model.status import Applied
from fairlead.model.taken import Taken
from fairlead.model.trust import Certificate, Project, TrustToken

Choice: TypeAlias = Flavor | FlavorProfile | AvailabilityZone | AvailabilityZoneProfile
"""What an operator offers."""
Trust: TypeAlias = Project | Certificate | TrustToken
"""What says who may come in, and for which project."""
EVERYBODY = ""
"""Whose the external networks are, where networks are looked for by project: no project has this id."""
Aggregate: TypeAlias = Network | Port | Router | LoadBalancer | FloatingIP | Choice | Quota | Trust


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
    projects: Map[str, Project] = Map()
    """By name."""
    certificates: Map[str, Certificate] = Map()
    """By fingerprint."""
    trust_tokens: Map[str, TrustToken] = Map()
    generations: Map[Owner, int] = Map()

    # Facts (`model/facts.py`): observed, and never stored
    health: Map[Endpoint, Health] = Map()
    """What the probes say, whoever asks for them."""
    chassis: Map[str, Chassis] = Map()
    """By name."""
    plugged: Map[str, str] = Map()
    """Port, whoever owns it -> the host name of the node that has it (`model/plugged.py`)."""
    abilities: frozenset[str] = frozenset()
    """What the dataplane that is there can do beyond what every one can, in words of its driver and its compiler."""
    gateway_chassis: tuple[str, ...] = ()
    """The chassis through which routers may leave; the same in every snapshot of a deployment."""

    # What follows from facts and documents together (`model/probes.py`)
    down: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer -> those of its members that their health monitor calls down, and the ports of members that are
    probed at several."""
    online: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer -> those that it has seen answer. A monitored member in neither is not probed, or not yet: it
    serves."""

    part_histories: Map[str, PartHistories] = Map()
    """Load balancer -> the generations of its parts; nothing for one whose parts are all as old as it."""

    subnet_network: Map[str, str] = Map()
    network_ports: Map[str, Ids] = Map()
    network_vips: Map[str, Ids] = Map()
    """Network -> the load balancers with VIPs there, without those whose VIPs a gateway has."""
    vip_projects: Map[str, Ids] = Map()
    """Network -> the projects that have such a VIP there."""
    router_vips: Map[str, Ids] = Map()
    """Router -> the load balancers whose VIPs its gateway has."""
    project_gateways: Map[tuple[str, str], Ids] = Map()
    """(project, external network) -> the project's routers that have their gateway there."""
    near: Map[str, str] = Map()
    """Load balancers that lead clients to members near them."""
    near_projects: Map[str, Ids] = Map()
    """Network -> the projects that have a VIP of such a load balancer there."""
    near_members: Map[IPAddress, Ids] = Map()
    """Address -> the load balancers that have such a member there."""
    described_on: Map[str, Ids] = Map()
    """Network -> the load balancers that were described for it."""
    network_routers: Map[str, Ids] = Map()
    network_gateways: Map[str, Ids] = Map()
    """External network -> the routers that have their gateway there."""
    router_interfaces: Map[str, Ids] = Map()
    router_floating_ips: Map[str, Ids] = Map()
    port_floating_ips: Map[str, Ids] = Map()
    """Port -> the floating IPs that lead to it."""
    segments: Map[Segment, str] = Map()
    project_networks: Map[str, Ids] = Map()
    """Project -> its networks; `EVERYBODY` has the external ones."""
    network_names: Map[tuple[str, str], Ids] = Map()
    """(project or `EVERYBODY`, name) -> the networks that have the name."""
    addresses: Map[tuple[str, IPAddress], str] = Map()
    """(network, address) -> the port that has it."""
    taken: Taken = Map()
    """The same addresses, to look for a free one (`taken`)."""
    macs: Map[str, str] = Map()
    watched: Map[IPAddress, Ids] = Map()
    """Address -> the load balancers of which a member with a health monitor is, or is probed, there."""
    crossing: Map[str, Ids] = Map()
    """Subnet -> the load balancers with a health monitor that have a VIP or a member there, and a member elsewhere.
    Router -> those with a health monitor whose VIPs its gateway has."""
    pool_owner: Map[str, str] = Map()
    listener_owner: Map[str, str] = Map()
    monitor_owner: Map[str, str] = Map()
    l7policy_owner: Map[str, str] = Map()
    parting: Map[str, str] = Map()
    """Load balancers that remember members which were removed."""
    parting_seconds: int = 3600
    """For how long; the deployment's, and the same in every snapshot."""
    vip_owner: Map[str, str] = Map()
    """Id of a part, or of the port of the VIP -> its load balancer."""
    flavor_users: Map[str, Ids] = Map()
    zone_users: Map[str, Ids] = Map()
    """Flavor, availability zone -> the load balancers that have it."""
    usage: Usage = Map()
    probed: Map[ProbedAddress, int] = Map()
    """Where members are probed -> how often, by all who do: millionths of a probe a second."""
    probing: Map[str, int] = Map()
    """Project -> how often its monitors probe, all together, in the same unit."""

    def find(self, owner: Owner) -> Aggregate | None:
        """The document of this owner; what VIPs share has none."""
        if owner.kind in WITHOUT_DOCUMENTS:
            return None
        found: Aggregate | None = self.documents(owner.kind).get(owner.id)
        return found

    def documents(self, kind: Kind) -> Map[str, Any]:
        """All documents of a kind that has some: the map is named after the kind."""
        found: Map[str, Any] = getattr(self, map_name(kind))
        return found


def map_name(kind: Kind) -> str:
    return f"{kind.name.lower()}s"


def vip_network(snapshot: Snapshot, network_id: str, project_id: str) -> VipNetwork:
    """What the VIPs of this project on this network share."""
    own = snapshot.networks[network_id].project_id == project_id
    return VipNetwork(network_id) if own else VipNetwork(network_id, project_id)


def vip_gateway(snapshot: Snapshot, balancer: LoadBalancer) -> ExternalGateway | None:
    """The gateway that has the VIPs; None where none has them, or its router has not any more."""
    router = snapshot.routers.get(balancer.router_id or "")
    if router is None or router.gateway is None or router.project_id != balancer.project_id:
        return None
    return router.gateway if router.gateway.network_id == balancer.vip.network_id else None


def vip_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """All that a network with VIPs has: first what all of them share, then what a guest's do. What those that lead
    to members nearby share is left out."""
    if network_id in snapshot.network_vips:
        yield VipNetwork(network_id).owner
        for project_id in snapshot.vip_projects[network_id]:
            found = vip_network(snapshot, network_id, project_id)
            if found.guest is not None:
                yield found.owner


def near_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """What those of its load balancers share that lead clients to members near them."""
    projects = snapshot.near_projects.get(network_id, NO_IDS)
    return (vip_network(snapshot, network_id, project_id).near for project_id in projects)


def shares_near(snapshot: Snapshot, where: VipNetwork) -> bool:
    """Whether any load balancer there leads clients to members near them."""
    network = snapshot.networks.get(where.network_id)
    project_id = where.guest if where.guest is not None or network is None else network.project_id
    return project_id in snapshot.near_projects.get(where.network_id, NO_IDS)


def with_health(
    snapshot: Snapshot, balancer_id: str, down: frozenset[HealthKey], online: frozenset[HealthKey] = frozenset()
) -> Snapshot:
    """The snapshot in which just these members of the load balancer are down, and these online."""
    new = _with_ids(snapshot.down, balancer_id, down), _with_ids(snapshot.online, balancer_id, online)
    if new[0] is snapshot.down and new[1] is snapshot.online:
        return snapshot
    return replace(snapshot, down=new[0], online=new[1])


def _with_ids(
    index: Map[str, frozenset[HealthKey]], key: str, ids: frozenset[HealthKey]
) -> Map[str, frozenset[HealthKey]]:
    if index.get(key, frozenset()) == ids:
        return index
    return index.set(key, ids) if ids else index.delete(key)


def balancer_status(snapshot: Snapshot, balancer: LoadBalancer, applied: Applied) -> BalancerStatus:
    """How this load balancer of the snapshot stands, if `applied` is what has arrived of it."""
    return BalancerStatus(
        balancer=balancer,
        generation=snapshot.generations.get(Owner(Kind.LOAD_BALANCER, balancer.id), snapshot.revision),
        histories=snapshot.part_histories.get(balancer.id, Map()),
        applied=applied,
        down=frozenset(_member(key) for key in snapshot.down.get(balancer.id, ())),
        online=snapshot.online.get(balancer.id, frozenset()),
        cannot_answer=lambda member: _cannot_answer(snapshot, balancer, member),
    )


def _member(key: HealthKey) -> str:
    return key if isinstance(key, str) else key[0]


def member_network(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> str:
    """A member that says no subnet is where the VIP is; or, where a gateway has the VIP, on a network that its router
    joins, if somebody has the address there. Empty when its subnet is gone: then it is nowhere."""
    if member.subnet_id is not None:
        return snapshot.subnet_network.get(member.subnet_id, "")
    if balancer.router_id is not None:
        for interface in snapshot.router_interfaces.get(balancer.router_id, NO_IDS):
            network_id = snapshot.ports[interface].network_id
            if (network_id, member.address) in snapshot.addresses:
                return network_id
    return balancer.vip.network_id


def _cannot_answer(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> bool:
    """Whether the VIP has lost its gateway. Or a VIP that was made after the member has its address by now: a
    connection is balanced once."""
    if balancer.router_id is not None and vip_gateway(snapshot, balancer) is None:
        return True
    where = member_network(snapshot, balancer, member), member.address
    port = snapshot.ports.get(snapshot.addresses.get(where, ""))
    return port is not None and port.use is PortUse.VIP
