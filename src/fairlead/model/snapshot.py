"""Snapshot: the whole model, immutable at one revision, with the indexes for compilers and API front ends.

Maps are persistent (hash array mapped tries): a new snapshot costs the size of the change, and the old one stays
readable.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from immutables import Map

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.allocations import Allocations
from fairlead.model.documents.balancer_status import PartHistories
from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.enrolment import Node, NodeToken
from fairlead.model.documents.health import Endpoint, Health, HealthKey
from fairlead.model.documents.hosts import Block, Host, PrefixKey
from fairlead.model.documents.indexes import NO_IDS, NO_SHARED_KEYS, Ids, SharedKeys
from fairlead.model.documents.loadbalancer import LoadBalancer, Member, Vip
from fairlead.model.documents.local_ip import LocalIP, Mode
from fairlead.model.documents.network import (
    ExternalGateway,
    FloatingIP,
    Network,
    Port,
    Router,
    Segment,
    subnet_with,
)
from fairlead.model.documents.observed_proxy import Proxy, ProxyPortChanges
from fairlead.model.documents.owner import WITHOUT_DOCUMENTS, Kind, Owner, VipNetwork
from fairlead.model.documents.port_ranges import HOST_PROXY_PORTS, PortRange
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.quota import ProbedAddress, Quota, Usage
from fairlead.model.documents.trust import Certificate, Project, TrustToken
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedRouter, is_unmanaged
from fairlead.model.documents.unresponsive_nodes import UnresponsiveNode

CatalogDocument: TypeAlias = Flavor | FlavorProfile | AvailabilityZone | AvailabilityZoneProfile
"""Documents of the operator's catalog."""
TrustDocument: TypeAlias = Project | Certificate | TrustToken | Node | NodeToken
"""Documents that authenticate clients and nodes, and grant projects."""
ID_SHELF_LENGTH = 2
"""Number of leading characters of an id that form a shelf: 256 shelves list all ids in order."""
OTHER_MANAGERS = "/"
"""Scope of names of networks that another program manages (`network_names`). It is no valid project name."""
ANY_PROJECT = ""
"""Project id of external networks in lookups by project; no project has this id."""
_Key = TypeVar("_Key")
Aggregate: TypeAlias = (
    Network
    | Port
    | Router
    | Host
    | LoadBalancer
    | FloatingIP
    | LocalIP
    | CatalogDocument
    | Quota
    | TrustDocument
    | UnresponsiveNode
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Model at one revision. `generations` has the store's revision of the last write of each document."""

    revision: int = 0
    networks: Map[str, Network] = Map()
    routers: Map[str, Router] = Map()
    ports: Map[str, Port] = Map()
    hosts: Map[str, Host] = Map()
    """Host name -> host."""
    load_balancers: Map[str, LoadBalancer] = Map()
    floating_ips: Map[str, FloatingIP] = Map()
    local_ips: Map[str, LocalIP] = Map()
    flavors: Map[str, Flavor] = Map()
    flavor_profiles: Map[str, FlavorProfile] = Map()
    availability_zones: Map[str, AvailabilityZone] = Map()
    """Name -> availability zone."""
    availability_zone_profiles: Map[str, AvailabilityZoneProfile] = Map()
    quotas: Map[str, Quota] = Map()
    """Project id -> own limits."""
    projects: Map[str, Project] = Map()
    """Name -> project."""
    certificates: Map[str, Certificate] = Map()
    """Fingerprint -> certificate."""
    trust_tokens: Map[str, TrustToken] = Map()
    nodes: Map[str, Node] = Map()
    """Chassis name -> node. Enrolment tokens use the same key."""
    node_tokens: Map[str, NodeToken] = Map()
    unresponsive_nodes: Map[str, UnresponsiveNode] = Map()
    """Chassis name -> last reports of an unresponsive node."""
    generations: Map[Owner, int] = Map()

    # Facts (`model/registry/facts.py`): observed, never stored
    health: Map[Endpoint, Health] = Map()
    """Results of OVN's own probes, for all monitors."""
    sightings: Map[Endpoint, ProbeResult] = Map()
    """Probe results of agents; they have priority over OVN's (`model/queries/delegated_probing.py`)."""
    agents: Map[str, Agent] = Map()
    """Chassis -> its agent; absent without one."""
    covered: Map[str, str] = Map()
    """Place (`covering.place_of`) -> the chassis that probes it as a delegate."""
    covering: Map[str, str] = Map()
    """Network -> the chassis with a port for delegated probes there."""
    chassis: Map[str, Chassis] = Map()
    """Chassis name -> chassis."""
    plugged: Map[str, str] = Map()
    """Port of any owner -> host name of the node where it is plugged in (`model/queries/port_bindings.py`)."""
    abilities: frozenset[str] = frozenset()
    """Optional features of the present dataplane, in the terms of its driver and compiler."""
    agents_probe: bool = False
    """Whether agents probe members and replicas; otherwise OVN does."""
    proxies: Map[str, Proxy] = Map()
    """Port of a proxy, or id of a plain host's proxy (`proxy_place.host_proxy_id`) -> state reported by its agent."""
    wanted_proxies: Map[ProxyPlace, ProxyPortChanges] = Map()
    """Place on an unmanaged network -> ports of proxies to create and delete there
    (`model/queries/unmanaged_proxy_ports.py`)."""
    refused_proxies: Map[str, str] = Map()
    """Unmanaged network -> reason why its manager rejects ports of proxies, as a sentence."""
    given_elsewhere: Map[IPAddress, bool] = Map()
    """External addresses allocated by other programs: for gateways, floating IPs, load balancers and forwards."""
    proxied_providers: frozenset[str] = frozenset()
    """Names of the providers whose load balancers can use proxies."""
    counts_answers: bool = False
    """Whether dataplanes count bytes from members to clients, where that needs rows."""
    lost_hosts: frozenset[str] = frozenset()
    """Plain hosts that this node cannot reach. Empty in servers, because each host checks its own peers."""
    own_addresses: Map[str, frozenset[IPAddress]] = Map()
    """Plain host -> reported own addresses in its prefixes, which no member has (`model/queries/placement.py`)."""
    returned: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer -> members that recovered recently, as this node remembers. Empty in servers."""
    gateway_chassis: tuple[str, ...] = ()
    """Gateway chassis of all routers; equal in all snapshots of a deployment."""

    # Derived from facts and documents together (`model/queries/probes.py`)
    down: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer -> members that are down, and single ports of members that are probed on several. Local IP ->
    replicas that are down."""
    online: Map[str, frozenset[HealthKey]] = Map()
    """Load balancer or Local IP -> members or replicas that responded. Monitored ones in neither map have not been
    probed, and serve."""
    hostless: Map[str, frozenset[str]] = Map()
    """Load balancer -> places (`covering.place_of`) of its monitored members without a port."""

    part_histories: Map[str, PartHistories] = Map()
    """Load balancer -> generations of its parts; absent if all parts are as old as the load balancer."""

    node_certificates: Map[str, str] = Map()
    """Fingerprint -> chassis of the enrolled node."""
    subnet_network: Map[str, str] = Map()
    called: Map[str, str] = Map()
    """Name given by another program to its row -> id of the network, router or port (`foreign.py`)."""
    network_ports: Map[str, Ids] = Map()
    machines: Map[tuple[str, str], Ids] = Map()
    """(network, project) -> the project's ports there with a machine, or without a known use."""
    network_proxies: Map[str, Ids] = Map()
    """Network -> ports of proxies on it, for any place."""
    place_proxies: Map[ProxyPlace, Ids] = Map()
    """Place -> ports of its proxies."""
    proxied: Map[ProxyPlace, Ids] = Map()
    """Place -> load balancers with a listener that uses its proxies."""
    proxy_ports: Map[tuple[ProxyPlace, int], str] = Map()
    """(place, proxy port) -> load balancer of the listener with this port."""
    network_vips: Map[str, Ids] = Map()
    """Network -> load balancers with VIPs there, except VIPs on a router's gateway."""
    vip_projects: Map[str, Ids] = Map()
    """Network -> projects with such a VIP, or a Local IP, there."""
    network_local_ips: Map[str, Ids] = Map()
    port_local_ips: Map[str, Ids] = Map()
    """Port -> Local IPs whose address it has."""
    replica_local_ips: Map[str, Ids] = Map()
    """Port -> Local IPs that it is a replica of."""
    router_vips: Map[str, Ids] = Map()
    """Router -> load balancers with VIPs on its gateway."""
    solicited_vips: Map[str, Ids] = Map()
    """Router -> those load balancers with IPv6 VIPs that are not addresses of the gateway port."""
    project_gateways: Map[tuple[str, str], Ids] = Map()
    """(project, external network) -> the project's routers with a gateway there."""
    near: Map[str, str] = Map()
    """Load balancers with a decision per chassis: they prefer near members, or use proxies."""
    near_projects: Map[str, Ids] = Map()
    """Network -> projects with a VIP of such a load balancer, or a translated Local IP, there."""
    near_gateways: Map[str, Ids] = Map()
    """Router -> such load balancers with VIPs on its gateway."""
    near_members: Map[IPAddress, Ids] = Map()
    """Address -> such load balancers with a near member there."""
    kept_balancers: Map[str, Ids] = Map()
    """Shelf (`ID_SHELF_LENGTH`) of an id -> load balancers that another service also stores."""
    described_on: Map[str, Ids] = Map()
    """Network -> load balancers with a declarative spec for it."""
    network_routers: Map[str, Ids] = Map()
    network_gateways: Map[str, Ids] = Map()
    """External network -> routers with a gateway there."""
    declared_routers: Map[str, Ids] = Map()
    """Router of a declarative network -> that network."""
    router_interfaces: Map[str, Ids] = Map()
    router_floating_ips: Map[str, Ids] = Map()
    port_floating_ips: Map[str, Ids] = Map()
    """Port -> floating IPs that lead to it."""
    segments: Map[Segment, str] = Map()
    announced: Map[str, str] = Map()
    """Announced networks."""
    host_numbers: Map[int, str] = Map()
    host_prefixes: Map[PrefixKey, str] = Map()
    """Prefix -> the host that routes it (`behind.host_of`)."""
    host_prefix_lengths: Map[tuple[int, int], int] = Map()
    """(IP version, prefix length) -> number of such prefixes."""
    member_blocks: Map[Block, Ids] = Map()
    """Block -> load balancers with a member in it (`behind.balancers_behind`)."""
    project_networks: Map[str, Ids] = Map()
    """Project -> its networks; `ANY_PROJECT` has the external ones."""
    network_names: Map[tuple[str, str], Ids] = Map()
    """(project or `ANY_PROJECT`, name) -> networks with the name."""
    addresses: SharedKeys = NO_SHARED_KEYS
    """(network, address) -> the port with the address."""
    taken: Allocations = Map()
    """Allocated addresses, for finding a free one (`taken`)."""
    macs: Map[str, str] = Map()
    monitored_local_ips: Map[str, str] = Map()
    """Local IPs with a health monitor."""
    watched: Map[IPAddress, Ids] = Map()
    """Address -> load balancers with a monitored member there, or a monitor address."""
    monitored_places: Map[str, Ids] = Map()
    """Subnet of a member, or network of a VIP -> monitored load balancers with it."""
    probe_ports: Map[tuple[str, str], Ids] = Map()
    """(unmanaged network, project) -> the project's ports there that may be a source of probes."""
    crossing: Map[str, Ids] = Map()
    """Subnet -> monitored load balancers with a VIP or member there, and a member on another subnet. Router ->
    monitored load balancers with VIPs on its gateway."""
    pool_owner: Map[str, str] = Map()
    listener_owner: Map[str, str] = Map()
    monitor_owner: Map[str, str] = Map()
    l7policy_owner: Map[str, str] = Map()
    parting: Map[str, str] = Map()
    """Load balancers with removed members or moved slots on record."""
    parting_seconds: int = 3600
    """Drain timeout in seconds; equal in all snapshots of a deployment."""
    host_proxy_ports: PortRange = HOST_PROXY_PORTS
    """Range of ports for proxied listeners on plain hosts; set by the deployment."""
    vip_owner: Map[str, str] = Map()
    """Id of a part, or of the VIP's port -> its load balancer."""
    flavor_users: Map[str, Ids] = Map()
    zone_users: Map[str, Ids] = Map()
    """Flavor or availability zone -> load balancers that use it."""
    usage: Usage = Map()
    probed: Map[ProbedAddress, int] = Map()
    """Place of probed members -> total probe rate, in millionths of a probe per second."""
    probing: Map[str, int] = Map()
    """Project -> total probe rate of its monitors, in millionths of a probe per second."""
    proxy_servers: Map[ProxyPlace, int] = Map()
    """Place -> servers of each HAProxy there."""

    def find(self, owner: Owner) -> Aggregate | None:
        """Return the document of this owner; None for kinds without documents."""
        if owner.kind in WITHOUT_DOCUMENTS:
            return None
        found: Aggregate | None = self.documents(owner.kind).get(owner.id)
        return found

    def documents(self, kind: Kind) -> Map[str, Any]:
        """Return all documents of a kind with documents; the map is named after the kind."""
        found: Map[str, Any] = getattr(self, map_name(kind))
        return found


def map_name(kind: Kind) -> str:
    return f"{kind.name.lower()}s"


def vip_network(snapshot: Snapshot, network_id: str, project_id: str) -> VipNetwork:
    """Return the owner that VIPs of this project on this network share. A missing network counts as the project's
    own."""
    network = snapshot.networks.get(network_id)
    is_own = network is None or network.project_id == project_id
    return VipNetwork(network_id) if is_own else VipNetwork(network_id, project_id)


def vip_gateway(snapshot: Snapshot, balancer: LoadBalancer) -> ExternalGateway | None:
    """Return the gateway that has the VIPs; None for VIPs on a network, or if the router has lost that gateway."""
    router = snapshot.routers.get(balancer.router_id or "")
    if router is None or router.gateway is None or router.project_id != balancer.project_id:
        return None
    is_there = router.gateway.network_id == balancer.vip.network_id and has_working_gateway(snapshot, router)
    return router.gateway if is_there else None


def has_working_gateway(snapshot: Snapshot, router: Router | UnmanagedRouter) -> bool:
    """Return whether the router has a gateway with an address. An external network without a subnet gives it none."""
    if router.gateway is None:
        return False
    port = snapshot.ports.get(router.gateway.port_id)
    return port is None or is_unmanaged(port) or bool(port.fixed_ips)


def uses_gateway_addresses(snapshot: Snapshot, balancer: LoadBalancer) -> bool:
    """Return whether the VIPs are addresses of the gateway's own port; the VIP port then has none."""
    port = snapshot.ports.get(balancer.vip.port_id)
    return port is not None and not is_unmanaged(port) and not port.fixed_ips


def gateway_addresses(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[IPAddress]:
    """Return the addresses of the gateway port that has the VIPs."""
    gateway = vip_gateway(snapshot, balancer)
    port = None if gateway is None else snapshot.ports.get(gateway.port_id)
    return frozenset() if port is None else frozenset(fixed.address for fixed in port.fixed_ips)


def find_owned_vips(snapshot: Snapshot, balancer: LoadBalancer) -> tuple[Vip, ...]:
    """Return the VIPs with an address that the load balancer still has.

    On an unmanaged network these are the addresses of its port there: a deleted or changed port releases them, and
    another project may get them. The same applies to VIPs that are addresses of the router's gateway port.
    """
    network = snapshot.networks.get(balancer.vip.network_id)
    if balancer.router_id is not None and uses_gateway_addresses(snapshot, balancer):
        at_gateway = gateway_addresses(snapshot, balancer)
        return tuple(vip for vip in balancer.vips if vip.address in at_gateway)
    if not isinstance(network, UnmanagedNetwork):
        return balancer.vips
    port = snapshot.ports.get(balancer.vip.port_id)
    has = {fixed.address for fixed in port.fixed_ips} if port and port.network_id == network.id else set()
    return tuple(vip for vip in balancer.vips if vip.address in has and subnet_with(network, vip.address))


def vip_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """Yield the owners that VIPs on a network share: first the network's, then one for each guest project. Owners of
    load balancers with a decision per chassis are not included."""
    if network_id in snapshot.vip_projects:
        yield VipNetwork(network_id).owner
        for project_id in snapshot.vip_projects[network_id]:
            found = vip_network(snapshot, network_id, project_id)
            if found.guest is not None:
                yield found.owner


def per_chassis_owners(snapshot: Snapshot, network_id: str) -> Iterator[Owner]:
    """Yield the owners shared by load balancers with a decision per chassis on a network."""
    projects = snapshot.near_projects.get(network_id, NO_IDS)
    return (vip_network(snapshot, network_id, project_id).per_chassis_owner for project_id in projects)


def passthrough_local_ips(snapshot: Snapshot, places: Set[VipNetwork]) -> Iterator[Owner]:
    """Yield Local IPs at these places with rows on routers of their project, in pass-through mode."""
    for network_id in {place.network_id for place in places if place.network_id in snapshot.networks}:
        for identity in snapshot.network_local_ips.get(network_id, NO_IDS):
            found = snapshot.local_ips[identity]
            if found.mode is Mode.PASSTHROUGH and vip_network(snapshot, network_id, found.project_id) in places:
                yield Owner(Kind.LOCAL_IP, identity)


def has_per_chassis_balancer(snapshot: Snapshot, where: VipNetwork) -> bool:
    """Return whether any load balancer with a decision per chassis is at this place."""
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
    """Return the snapshot with exactly these members or replicas down and online, and these places without a port."""
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


def is_unknown_subnet(snapshot: Snapshot, balancer: LoadBalancer, subnet_id: str) -> bool:
    """Return whether only the service that stores the load balancer knows the subnet.

    OVN has no name for an unmanaged subnet without DHCP and router. Its members are on the VIP's network, or
    unreachable.
    """
    if balancer.kept is None or not is_unmanaged(snapshot.networks.get(balancer.vip.network_id)):
        return False
    return subnet_id not in snapshot.subnet_network


def member_network(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> str:
    """Return the network of a member. A member without a subnet is on the VIP's network; for a VIP on a gateway, on a
    network of the router where a port has the address. Empty if the member's subnet is gone."""
    if member.subnet_id is not None and not is_unknown_subnet(snapshot, balancer, member.subnet_id):
        return snapshot.subnet_network.get(member.subnet_id, "")
    if balancer.router_id is not None:
        for interface in snapshot.router_interfaces.get(balancer.router_id, NO_IDS):
            network_id = snapshot.ports[interface].network_id
            if (network_id, member.address) in snapshot.addresses:
                return network_id
    return balancer.vip.network_id


def floating_ips_of(snapshot: Snapshot, vip: Vip) -> Iterator[FloatingIP]:
    """Yield the floating IPs that lead to the VIP, through routers that lead out."""
    for identity in snapshot.port_floating_ips.get(vip.port_id, NO_IDS):
        floating_ip = snapshot.floating_ips[identity]
        router = snapshot.routers.get(floating_ip.router_id or "")
        if floating_ip.fixed_address == vip.address and (router is None or has_working_gateway(snapshot, router)):
            yield floating_ip
