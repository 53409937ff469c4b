"""The whole model, frozen at one revision, with the indexes that compilers and doors ask for.

Maps are persistent (hash array mapped tries): a new snapshot costs what changed, and the old one stays readable.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from immutables import Map

from fairlead.model.addresses import IPAddress
from fairlead.model.agent import Agent
from fairlead.model.balancer_status import PartHistories
from fairlead.model.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.chassis import Chassis
from fairlead.model.enrolment import Node, NodeToken
from fairlead.model.foreign import ForeignNetwork, is_foreign
from fairlead.model.health import Endpoint, Health, HealthKey
from fairlead.model.hosts import Block, Host, PrefixKey
from fairlead.model.indexes import NO_HOLDERS, NO_IDS, Holders, Ids
from fairlead.model.loadbalancer import LoadBalancer, Member, Vip
from fairlead.model.local_ip import LocalIP, Mode
from fairlead.model.network import (
    ExternalGateway,
    FloatingIP,
    Network,
    Port,
    Router,
    Segment,
    subnet_with,
)
from fairlead.model.observed_proxy import Proxy, WantedProxies
from fairlead.model.owner import WITHOUT_DOCUMENTS, Kind, Owner, VipNetwork
from fairlead.model.port_ranges import HOST_PROXY_PORTS, PortRange
from fairlead.model.proxy_place import ProxyPlace
from fairlead.model.quota import ProbedAddress, Quota, Usage
from fairlead.model.sighting import Sighting
from fairlead.model.silence import SilentNode
from fairlead.model.taken import Taken
from fairlead.model.trust import Certificate, Project, TrustToken

Choice: TypeAlias = Flavor | FlavorProfile | AvailabilityZone | AvailabilityZoneProfile
"""What an operator offers."""
Trust: TypeAlias = Project | Certificate | TrustToken | Node | NodeToken
"""What says who may come in, and for which project."""
KEPT_SHELF = 2
"""Characters of an id: all are listed in the order of ids, by 256 shelves."""
MANAGED = "/"
"""Scope of names of networks that another program manages (`network_names`). No project is called so."""
EVERYBODY = ""
"""Whose the external networks are, where networks are looked for by project: no project has this id."""
_Key = TypeVar("_Key")
Aggregate: TypeAlias = (
    Network | Port | Router | Host | LoadBalancer | FloatingIP | LocalIP | Choice | Quota | Trust | SilentNode
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`generations` holds, for each document, the revision of the store that wrote it last."""

    revision: int = 0
    networks: Map[str, Network] = Map()
    routers: Map[str, Router] = Map()
    ports: Map[str, Port] = Map()
    hosts: Map[str, Host] = Map()
    """By name."""
    load_balancers: Map[str, LoadBalancer] = Map()
    floating_ips: Map[str, FloatingIP] = Map()
    local_ips: Map[str, LocalIP] = Map()
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
    nodes: Map[str, Node] = Map()
    """By the name of the chassis; so are the tokens by which nodes are enrolled."""
    node_tokens: Map[str, NodeToken] = Map()
    silent_nodes: Map[str, SilentNode] = Map()
    """By the name of the chassis."""
    generations: Map[Owner, int] = Map()

    # Facts (`model/facts.py`): observed, and never stored
    health: Map[Endpoint, Health] = Map()
    """What OVN's own probes say, whoever asks for them."""
    sightings: Map[Endpoint, Sighting] = Map()
    """What agents see that probe; it goes before what OVN says (`model/covering.py`)."""
    agents: Map[str, Agent] = Map()
    """Chassis -> its agent, where there is one."""
    covered: Map[str, str] = Map()
    """Place (`covering.place_of`) -> the chassis that probes there in the place of another one, or of none."""
    covering: Map[str, str] = Map()
    """Network -> the chassis that has a port there to probe those places from."""
    chassis: Map[str, Chassis] = Map()
    """By name."""
    plugged: Map[str, str] = Map()
    """Port, whoever owns it -> the host name of the node that has it (`model/plugged.py`)."""
    abilities: frozenset[str] = frozenset()
    """What the dataplane that is there can do beyond what every one can, in words of its driver and its compiler."""
    agents_probe: bool = False
    """Whether agents probe members and replicas, and OVN does not."""
    proxies: Map[str, Proxy] = Map()
    """Port of a proxy, or name of a plain host's (`proxy_place.host_proxy_id`) -> what its agent says of it."""
    wanted_proxies: Map[ProxyPlace, WantedProxies] = Map()
    """Place on a network of others -> how its proxies' ports have to change there (`model/foreign_proxies.py`)."""
    refused_proxies: Map[str, str] = Map()
    """Network of others -> why they refuse the ports of proxies: a sentence."""
    given_elsewhere: Map[IPAddress, bool] = Map()
    """Addresses outside that other programs gave out: of routers' gateways, floating IPs, load balancers, forwards."""
    proxied_providers: frozenset[str] = frozenset()
    """The names of those whose load balancers may lead to proxies."""
    counts_answers: bool = False
    """Whether dataplanes count the bytes of what load balancers answer, where that takes rows."""
    lost_hosts: frozenset[str] = frozenset()
    """Plain hosts that this node does not reach. A server knows of none: each host sees for itself."""
    own_addresses: Map[str, frozenset[IPAddress]] = Map()
    """Plain host -> the addresses behind it that are its own, as it says: nobody else is there (`model/behind.py`)."""
    returned: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer -> those of its members that were down until lately, as this node remembers. No server does."""
    gateway_chassis: tuple[str, ...] = ()
    """The chassis through which routers may leave; the same in every snapshot of a deployment."""

    # What follows from facts and documents together (`model/probes.py`)
    down: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer -> those of its members that their health monitor calls down, and the ports of members that are
    probed at several. Local IP -> its replicas that are down."""
    online: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer, Local IP -> those that it has seen answer. Who is monitored and in neither is not probed, or not
    yet: it serves."""
    hostless: Map[str, frozenset[str]] = Map()
    """Load balancer -> the places (`covering.place_of`) of its monitored members that nobody's port has."""

    part_histories: Map[str, PartHistories] = Map()
    """Load balancer -> the generations of its parts; nothing for one whose parts are all as old as it."""

    node_certificates: Map[str, str] = Map()
    """Fingerprint -> the chassis that has the certificate."""
    subnet_network: Map[str, str] = Map()
    called: Map[str, str] = Map()
    """The name that others gave a row of theirs -> the id of the network, router or port that it is (`foreign.py`)."""
    network_ports: Map[str, Ids] = Map()
    machines: Map[tuple[str, str], Ids] = Map()
    """(network, project) -> the ports of the project there that are machines', or have no use that is known."""
    network_proxies: Map[str, Ids] = Map()
    """Network -> the ports of proxies on it, whomever these serve."""
    place_proxies: Map[ProxyPlace, Ids] = Map()
    """-> the ports of its proxies."""
    proxied: Map[ProxyPlace, Ids] = Map()
    """-> the load balancers that have a listener which leads to its proxies."""
    proxy_ports: Map[tuple[ProxyPlace, int], str] = Map()
    """(place, port of its proxies) -> the load balancer whose listener has it."""
    network_vips: Map[str, Ids] = Map()
    """Network -> the load balancers with VIPs there, without those whose VIPs a gateway has."""
    vip_projects: Map[str, Ids] = Map()
    """Network -> the projects that have such a VIP there, or a Local IP."""
    network_local_ips: Map[str, Ids] = Map()
    port_local_ips: Map[str, Ids] = Map()
    """Port -> the Local IPs of which it has the address."""
    replica_local_ips: Map[str, Ids] = Map()
    """Port -> the Local IPs of which it is a replica."""
    router_vips: Map[str, Ids] = Map()
    """Router -> the load balancers whose VIPs its gateway has."""
    project_gateways: Map[tuple[str, str], Ids] = Map()
    """(project, external network) -> the project's routers that have their gateway there."""
    near: Map[str, str] = Map()
    """Load balancers that lead clients to members near them, or to proxies."""
    near_projects: Map[str, Ids] = Map()
    """Network -> the projects that have a VIP of such a load balancer there, or a Local IP that is translated."""
    near_gateways: Map[str, Ids] = Map()
    """Router whose gateway has the VIPs of such load balancers -> these."""
    near_members: Map[IPAddress, Ids] = Map()
    """Address -> the load balancers that have such a member there."""
    kept_balancers: Map[str, Ids] = Map()
    """How an id begins (`KEPT_SHELF`) -> the load balancers that another service has too, and whose ids begin so."""
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
    announced: Map[str, str] = Map()
    """The networks whose addresses hosts announce."""
    host_numbers: Map[int, str] = Map()
    host_prefixes: Map[PrefixKey, str] = Map()
    """Prefix -> the host that its machines are behind (`behind.host_of`)."""
    host_prefix_lengths: Map[tuple[int, int], int] = Map()
    """(IP version, length) -> how many such prefixes there are."""
    member_blocks: Map[Block, Ids] = Map()
    """-> the load balancers that have a member there (`behind.balancers_behind`)."""
    project_networks: Map[str, Ids] = Map()
    """Project -> its networks; `EVERYBODY` has the external ones."""
    network_names: Map[tuple[str, str], Ids] = Map()
    """(project or `EVERYBODY`, name) -> the networks that have the name."""
    addresses: Holders = NO_HOLDERS
    """(network, address) -> the port that has it."""
    taken: Taken = Map()
    """The same addresses, to look for a free one (`taken`)."""
    macs: Map[str, str] = Map()
    monitored_local_ips: Map[str, str] = Map()
    """Those that have a health monitor."""
    watched: Map[IPAddress, Ids] = Map()
    """Address -> the load balancers of which a member with a health monitor is, or is probed, there."""
    monitored_places: Map[str, Ids] = Map()
    """Subnet that a member says, network of a VIP -> the load balancers with a health monitor that have these."""
    probe_ports: Map[tuple[str, str], Ids] = Map()
    """(network of others, project) -> the project's ports there from which members may be probed."""
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
    host_proxy_ports: PortRange = HOST_PROXY_PORTS
    """From which listeners with proxies on plain hosts get theirs; the deployment's."""
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
    proxy_servers: Map[ProxyPlace, int] = Map()
    """Place -> servers that each HAProxy there has."""

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
    """What the VIPs of this project on this network share; on one that is not there, what those of its own do."""
    network = snapshot.networks.get(network_id)
    is_own = network is None or network.project_id == project_id
    return VipNetwork(network_id) if is_own else VipNetwork(network_id, project_id)


def vip_gateway(snapshot: Snapshot, balancer: LoadBalancer) -> ExternalGateway | None:
    """The gateway that has the VIPs; None where none has them, or its router has not any more."""
    router = snapshot.routers.get(balancer.router_id or "")
    if router is None or router.gateway is None or router.project_id != balancer.project_id:
        return None
    return router.gateway if router.gateway.network_id == balancer.vip.network_id else None


def is_at_gateway(snapshot: Snapshot, balancer: LoadBalancer) -> bool:
    """Whether its VIPs are addresses of the gateway's own port: then its own port has none."""
    port = snapshot.ports.get(balancer.vip.port_id)
    return port is not None and not is_foreign(port) and not port.fixed_ips


def gateway_addresses(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[IPAddress]:
    """Those of the port of the gateway that has the VIPs."""
    gateway = vip_gateway(snapshot, balancer)
    port = None if gateway is None else snapshot.ports.get(gateway.port_id)
    return frozenset() if port is None else frozenset(fixed.address for fixed in port.fixed_ips)


def held_vips(snapshot: Snapshot, balancer: LoadBalancer) -> tuple[Vip, ...]:
    """Those whose addresses are the load balancer's. On a network of others they are what its port there has now: who
    deletes that port, or gives it other addresses, gives these back, and they may be another project's next. The same
    holds for a VIP whose port has no address, because the router's gateway has it."""
    network = snapshot.networks.get(balancer.vip.network_id)
    if balancer.router_id is not None and is_at_gateway(snapshot, balancer):
        at_gateway = gateway_addresses(snapshot, balancer)
        return tuple(vip for vip in balancer.vips if vip.address in at_gateway)
    if not isinstance(network, ForeignNetwork):
        return balancer.vips
    port = snapshot.ports.get(balancer.vip.port_id)
    has = {fixed.address for fixed in port.fixed_ips} if port and port.network_id == network.id else set()
    return tuple(vip for vip in balancer.vips if vip.address in has and subnet_with(network, vip.address))


def vip_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """All that a network with VIPs has: first what all of them share, then what a guest's do. What those that lead
    to members nearby share is left out."""
    if network_id in snapshot.vip_projects:
        yield VipNetwork(network_id).owner
        for project_id in snapshot.vip_projects[network_id]:
            found = vip_network(snapshot, network_id, project_id)
            if found.guest is not None:
                yield found.owner


def near_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """What those of its load balancers share that lead clients to members near them."""
    projects = snapshot.near_projects.get(network_id, NO_IDS)
    return (vip_network(snapshot, network_id, project_id).near for project_id in projects)


def passing_local_ips(snapshot: Snapshot, places: Set[VipNetwork]) -> Iterator[Owner]:
    """Those there that have rows on routers of their project: their packets pass unchanged."""
    for network_id in {place.network_id for place in places if place.network_id in snapshot.networks}:
        for identity in snapshot.network_local_ips.get(network_id, NO_IDS):
            found = snapshot.local_ips[identity]
            if found.mode is Mode.PASSTHROUGH and vip_network(snapshot, network_id, found.project_id) in places:
                yield Owner(Kind.LOCAL_IP, identity)


def shares_near(snapshot: Snapshot, where: VipNetwork) -> bool:
    """Whether any load balancer there leads clients to members near them."""
    network = snapshot.networks.get(where.network_id)
    project_id = where.guest if where.guest is not None or network is None else network.project_id
    return project_id in snapshot.near_projects.get(where.network_id, NO_IDS)


def with_health(
    snapshot: Snapshot,
    identity: str,
    down: frozenset[HealthKey],
    online: frozenset[HealthKey] = frozenset(),
    hostless: frozenset[str] = frozenset(),
) -> Snapshot:
    """The snapshot in which just these members of the load balancer, or replicas of the Local IP, are down, these
    online, and these places nobody's."""
    before = snapshot.down, snapshot.online, snapshot.hostless
    new = (
        _with_ids(snapshot.down, identity, down),
        _with_ids(snapshot.online, identity, online),
        _with_ids(snapshot.hostless, identity, hostless),
    )
    if all(one is other for one, other in zip(before, new, strict=True)):
        return snapshot
    return replace(snapshot, down=new[0], online=new[1], hostless=new[2])


def _with_ids(index: Map[str, frozenset[_Key]], key: str, ids: frozenset[_Key]) -> Map[str, frozenset[_Key]]:
    if index.get(key, frozenset()) == ids:
        return index
    return index.set(key, ids) if ids else index.delete(key)


def is_unnamed(snapshot: Snapshot, balancer: LoadBalancer, subnet_id: str) -> bool:
    """Whether only the service that keeps the load balancer knows the subnet: OVN has no name for one of others without
    DHCP that no router joins. Who is there is on the VIP's network, or nobody meets them."""
    if balancer.kept is None or not is_foreign(snapshot.networks.get(balancer.vip.network_id)):
        return False
    return subnet_id not in snapshot.subnet_network


def member_network(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> str:
    """A member that says no subnet is where the VIP is; or, where a gateway has the VIP, on a network that its router
    joins, if somebody has the address there. Empty when its subnet is gone: then it is nowhere."""
    if member.subnet_id is not None and not is_unnamed(snapshot, balancer, member.subnet_id):
        return snapshot.subnet_network.get(member.subnet_id, "")
    if balancer.router_id is not None:
        for interface in snapshot.router_interfaces.get(balancer.router_id, NO_IDS):
            network_id = snapshot.ports[interface].network_id
            if (network_id, member.address) in snapshot.addresses:
                return network_id
    return balancer.vip.network_id


def floating_ips_of(snapshot: Snapshot, vip: Vip) -> Iterator[FloatingIP]:
    """Those that lead to the VIP."""
    for identity in snapshot.port_floating_ips.get(vip.port_id, NO_IDS):
        floating_ip = snapshot.floating_ips[identity]
        if floating_ip.fixed_address == vip.address:
            yield floating_ip
