"""Each sort of document, declared once: all that is particular to it, for snapshot, store, `affected` and status.

A new sort is its class, a member of `Kind`, the maps of the snapshot that have it and its indexes, and a line here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from fairlead.model import dependents
from fairlead.model.addresses import IPAddress
from fairlead.model.balancer_status import touch
from fairlead.model.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.domain import Topology
from fairlead.model.enrolment import Node, NodeToken
from fairlead.model.foreign import (
    ForeignFloatingIP,
    ForeignNetwork,
    ForeignPort,
    ForeignRouter,
    called,
    is_foreign,
    is_managed_elsewhere,
)
from fairlead.model.foreign_probing import offered_at
from fairlead.model.hosts import Block, Host, block_of, prefix_key
from fairlead.model.indexes import Addresses, Grouped, Held, Index, Summed, Unique
from fairlead.model.loadbalancer import LoadBalancer, decides_on_chassis, near_pools, probed_address
from fairlead.model.local_ip import LocalIP, Mode
from fairlead.model.network import FloatingIP, Network, Port, PortUse, Router
from fairlead.model.owner import Kind, Owner
from fairlead.model.proxy_backends import proxy_servers
from fairlead.model.proxy_place import ProxyPlace, place_of, place_of_port
from fairlead.model.quota import Quota, count, probe_rates, project_rate
from fairlead.model.silence import SilentNode
from fairlead.model.snapshot import EVERYBODY, KEPT_SHELF, MANAGED, Aggregate
from fairlead.model.trust import Certificate, Project, TrustToken

Dependents = Callable[[Topology, Topology, Owner], Iterable[Owner]]
EVERY_KIND: tuple[Index, ...] = (Summed("usage", count),)
"""Indexes that take something of any document."""

PROBED, PROBING = Summed("probed", probe_rates), Summed("probing", project_rate)


def _nothing(document: Any) -> Iterable[str]:
    return ()


def _nobody(before: Topology, after: Topology, owner: Owner) -> Iterable[Owner]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Declaration:
    document: type[Aggregate]
    key: Callable[[Any], str] = attrgetter("id")
    """What its owner's id is."""
    indexes: tuple[Index, ...] = ()
    claims: Callable[[Any], Iterable[str]] = _nothing
    """What only one document may have: the store refuses a second one."""
    has_rows: bool = True
    """Some say only what others may be: no dataplane has anything of them, and the reconciler never hears of them."""
    dependents: Dependents = _nobody
    """Owners besides its own whose rows may differ when it has changed. Too many is allowed, too few never."""
    touch: Callable[..., Any] | None = None
    """What is remembered of its parts when a new version takes the place of an old one: their generations."""
    all_indexes: tuple[Index, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all_indexes", (*EVERY_KIND, *self.indexes))


# Ports


def _addresses(port: Port) -> tuple[str, frozenset[IPAddress]]:
    return port.network_id, frozenset(fixed.address for fixed in port.fixed_ips)


def _claims_of_port(port: Port) -> Iterator[str]:
    yield f"mac/{port.mac_address}"
    yield from (f"address/{port.network_id}/{fixed.address}" for fixed in port.fixed_ips)


# Networks


def _segment(network: Network) -> Iterator[Any]:
    if network.segment is not None and not is_foreign(network):
        yield network.segment


def _names(network: Network) -> list[tuple[str, str]]:
    """Scopes in which it is found by its name. One that another program manages is found by none of that program's
    tenants, but by the name of its row."""
    if is_managed_elsewhere(network):
        return [(MANAGED, network.name)]
    return [(scope, network.name) for scope in _scopes(network)]


def _scopes(network: Network) -> list[str]:
    """Whose list of networks it is in: in nobody's, if another API has it. LXD has no word for announced ones."""
    return [] if is_foreign(network) or network.announced else [EVERYBODY if network.external else network.project_id]


def _claims_of_network(network: Network) -> Iterator[str]:
    """A VLAN of a wire, or the wire as such."""
    yield from (f"segment/{segment.physical_network}/{segment.id}" for segment in _segment(network))


def _claims_of_floating_ip(floating_ip: FloatingIP) -> Iterator[str]:
    """One for a fixed address on an external network."""
    if floating_ip.port_id is not None:
        yield f"floating/{floating_ip.network_id}/{floating_ip.port_id}/{floating_ip.fixed_address}"


def _project_gateways(router: Router) -> Iterator[tuple[str, str]]:
    if router.gateway is not None:
        yield router.project_id, router.gateway.network_id


# Hosts


def _prefix_lengths(host: Host) -> Mapping[tuple[int, int], int]:
    return Counter((prefix.cidr.version, prefix.cidr.prefixlen) for prefix in host.prefixes)


def _member_blocks(balancer: LoadBalancer) -> frozenset[Block]:
    """Of where they are, and are probed, and of those that had slots before: rows say behind which host that is."""
    members = (member for pool in balancer.pools for member in pool.members)
    there = {address for each in members for address in (each.address, probed_address(each))}
    return frozenset(map(block_of, there | {each.before for each in balancer.moved}))


# Load balancers


def _vip_networks(balancer: LoadBalancer) -> Iterator[str]:
    if balancer.router_id is None:
        yield balancer.vip.network_id


def _claims_of_load_balancer(balancer: LoadBalancer) -> Iterator[str]:
    """One for a port: of one that others wrote nothing else says so. One for an address outside: that of a gateway's
    own port is claimed by that port. And the ports of proxies."""
    yield f"vip-port/{balancer.vip.port_id}"
    if balancer.router_id is not None:
        yield from (f"vip-address/{vip.network_id}/{vip.address}" for vip in balancer.vips)
    yield from (f"proxy-port/{place.at}/{place.project_id}/{port}" for place, port in _proxy_ports(balancer))


def _proxy_ports(balancer: LoadBalancer) -> Iterator[tuple[ProxyPlace, int]]:
    return ((place_of(balancer), each.proxy_port) for each in balancer.listeners if each.proxy_port)


def _monitors(balancer: LoadBalancer) -> Iterator[str]:
    return (pool.health_monitor.id for pool in balancer.pools if pool.health_monitor)


def _policies(balancer: LoadBalancer) -> Iterator[str]:
    return (policy.id for listener in balancer.listeners for policy in listener.l7policies)


def _crossed_subnets(balancer: LoadBalancer) -> frozenset[str]:
    members = [member for pool in balancer.pools if pool.health_monitor for member in pool.members]
    found = {balancer.vip.subnet_id, *(member.subnet_id for member in members if member.subnet_id)}
    if balancer.router_id is not None and members:
        found.add(balancer.router_id)
    return frozenset(found) if len(found) > 1 else frozenset()


def _monitored_places(balancer: LoadBalancer) -> frozenset[str]:
    members = [member for pool in balancer.pools if pool.health_monitor for member in pool.members]
    said = {member.subnet_id for member in members if member.subnet_id}
    return frozenset({balancer.vip.network_id, *said}) if members else frozenset()


def _watched_addresses(balancer: LoadBalancer) -> frozenset[IPAddress]:
    members = (member for pool in balancer.pools if pool.health_monitor for member in pool.members)
    return frozenset(address for each in members for address in (each.address, each.monitor_address) if address)


def _near_networks(balancer: LoadBalancer) -> Iterable[str]:
    return _vip_networks(balancer) if decides_on_chassis(balancer) else []


def _near_addresses(balancer: LoadBalancer) -> frozenset[IPAddress]:
    return frozenset(member.address for pool in near_pools(balancer) for member in pool.members)


# Local IPs


def _claims_of_local_ip(local_ip: LocalIP) -> Iterator[str]:
    """One for an address."""
    yield f"local-ip/{local_ip.network_id}/{local_ip.address}"


def _near_network_of_local_ip(local_ip: LocalIP) -> Iterable[str]:
    """Where it is translated a load balancer is that decides on each chassis for itself."""
    return [local_ip.network_id] if local_ip.mode is Mode.TRANSLATE else []


KINDS: Mapping[Kind, Declaration] = {
    Kind.NETWORK: Declaration(
        document=Network,
        indexes=(
            Unique("subnet_network", lambda network: (subnet.id for subnet in network.subnets)),
            Unique("segments", _segment),
            Unique("announced", lambda network: [network.id] if network.announced else []),
            Unique("called", called),
            Grouped("project_networks", _scopes),
            Grouped("network_names", _names),
        ),
        claims=_claims_of_network,
        dependents=dependents.of_network,
    ),
    Kind.ROUTER: Declaration(
        document=Router,
        indexes=(
            Grouped("network_gateways", lambda router: [router.gateway and router.gateway.network_id]),
            Grouped("project_gateways", _project_gateways),
            Unique("called", called),
        ),
        dependents=dependents.of_router,
    ),
    Kind.PORT: Declaration(
        document=Port,
        indexes=(
            Grouped("network_ports", lambda port: [port.network_id]),
            Held("addresses", lambda port: ((port.network_id, fixed.address) for fixed in port.fixed_ips)),
            Grouped(
                "machines", lambda port: [(port.network_id, port.project_id)] if port.use is PortUse.MACHINE else []
            ),
            Grouped("network_proxies", lambda port: [port.network_id] if place_of_port(port) else []),
            Grouped("place_proxies", lambda port: [place_of_port(port)]),
            Addresses("taken", _addresses),
            Unique("macs", lambda port: [] if is_foreign(port) else [port.mac_address]),  # others may give one twice
            Unique("called", lambda port: called(port) if called(port) != [port.id] else []),
            Grouped("probe_ports", offered_at),
            Grouped("router_interfaces", lambda port: [port.device_id] if _joins(port) else []),
            Grouped("network_routers", lambda port: [port.network_id] if _joins(port) else [], attrgetter("device_id")),
        ),
        claims=_claims_of_port,
        dependents=dependents.of_port,
    ),
    Kind.HOST: Declaration(
        document=Host,
        key=attrgetter("name"),
        indexes=(
            Unique("host_numbers", lambda host: [host.number]),
            Unique("host_prefixes", lambda host: (prefix_key(prefix.cidr) for prefix in host.prefixes)),
            Summed("host_prefix_lengths", _prefix_lengths),
        ),
        claims=lambda host: [f"host-number/{host.number}"],
        dependents=dependents.of_host,
    ),
    Kind.LOAD_BALANCER: Declaration(
        document=LoadBalancer,
        indexes=(
            Grouped("network_vips", _vip_networks),
            Grouped("vip_projects", _vip_networks, attrgetter("project_id")),
            Grouped("router_vips", lambda balancer: [balancer.router_id]),
            Unique("near", lambda balancer: [balancer.id] if decides_on_chassis(balancer) else []),
            Grouped("proxied", lambda balancer: {place for place, _ in _proxy_ports(balancer)}),
            Unique("proxy_ports", _proxy_ports),
            Grouped("near_projects", _near_networks, attrgetter("project_id")),
            Grouped("near_gateways", lambda balancer: [balancer.router_id] if decides_on_chassis(balancer) else []),
            Grouped("near_members", _near_addresses),
            Grouped("kept_balancers", lambda balancer: [balancer.id[:KEPT_SHELF]] if balancer.kept else []),
            Grouped("described_on", lambda balancer: [balancer.described and balancer.described.network_id]),
            Grouped("watched", _watched_addresses),
            Grouped("member_blocks", _member_blocks),
            Grouped("monitored_places", _monitored_places),
            Grouped("crossing", _crossed_subnets),
            Unique("pool_owner", lambda balancer: (pool.id for pool in balancer.pools)),
            Unique("listener_owner", lambda balancer: (listener.id for listener in balancer.listeners)),
            Unique("monitor_owner", _monitors),
            Unique("l7policy_owner", _policies),
            Unique("vip_owner", lambda balancer: [balancer.vip.port_id]),
            Unique("parting", lambda balancer: [balancer.id] if balancer.parted or balancer.moved else []),
            Grouped("flavor_users", lambda balancer: [balancer.flavor_id]),
            Grouped("zone_users", lambda balancer: [balancer.availability_zone]),
            PROBED,
            PROBING,
            Summed("proxy_servers", proxy_servers),
        ),
        claims=_claims_of_load_balancer,
        dependents=dependents.of_load_balancer,
        touch=touch,
    ),
    Kind.FLOATING_IP: Declaration(
        document=FloatingIP,
        indexes=(
            Grouped("router_floating_ips", lambda floating_ip: [floating_ip.router_id]),
            Grouped("port_floating_ips", lambda floating_ip: [floating_ip.port_id]),
        ),
        claims=_claims_of_floating_ip,
        dependents=dependents.of_floating_ip,
    ),
    Kind.LOCAL_IP: Declaration(
        document=LocalIP,
        indexes=(
            Grouped("network_local_ips", lambda local_ip: [local_ip.network_id]),
            Grouped("vip_projects", lambda local_ip: [local_ip.network_id], attrgetter("project_id")),
            Grouped("near_projects", _near_network_of_local_ip, attrgetter("project_id")),
            Grouped("port_local_ips", lambda local_ip: [local_ip.port_id]),
            Grouped("replica_local_ips", attrgetter("replicas")),
            Unique("monitored_local_ips", lambda local_ip: [local_ip.id] if local_ip.health_monitor else []),
            PROBED,
            PROBING,
        ),
        claims=_claims_of_local_ip,
        dependents=dependents.of_local_ip,
    ),
    Kind.FLAVOR: Declaration(document=Flavor, claims=lambda flavor: [f"flavor/{flavor.name}"], has_rows=False),
    Kind.FLAVOR_PROFILE: Declaration(document=FlavorProfile, has_rows=False),
    Kind.AVAILABILITY_ZONE: Declaration(document=AvailabilityZone, key=attrgetter("name"), has_rows=False),
    Kind.AVAILABILITY_ZONE_PROFILE: Declaration(document=AvailabilityZoneProfile, has_rows=False),
    Kind.QUOTA: Declaration(document=Quota, key=attrgetter("project_id"), has_rows=False),
    Kind.PROJECT: Declaration(document=Project, key=attrgetter("name"), has_rows=False),
    Kind.CERTIFICATE: Declaration(document=Certificate, key=attrgetter("fingerprint"), has_rows=False),
    Kind.TRUST_TOKEN: Declaration(document=TrustToken, has_rows=False),
    Kind.NODE: Declaration(
        document=Node,
        key=attrgetter("name"),
        indexes=(Unique("node_certificates", lambda node: [each.fingerprint for each in node.certificates]),),
        has_rows=False,
    ),
    Kind.NODE_TOKEN: Declaration(document=NodeToken, key=attrgetter("chassis"), has_rows=False),
    Kind.SILENT_NODE: Declaration(document=SilentNode, key=attrgetter("name"), has_rows=False),
}
"""Every kind but those that are derived from load balancers (`owner.WITHOUT_DOCUMENTS`)."""
_KIND_OF: Mapping[type[Aggregate], Kind] = {
    **{declared.document: kind for kind, declared in KINDS.items()},
    ForeignNetwork: Kind.NETWORK,
    ForeignRouter: Kind.ROUTER,
    ForeignPort: Kind.PORT,
    ForeignFloatingIP: Kind.FLOATING_IP,
}


def _joins(port: Port) -> bool:
    return port.use is PortUse.ROUTER_INTERFACE


def owner_of(aggregate: Aggregate) -> Owner:
    kind = _KIND_OF[type(aggregate)]
    return Owner(kind, KINDS[kind].key(aggregate))


def claims(aggregate: Aggregate) -> frozenset[str]:
    """What only this document may have."""
    return frozenset(KINDS[_KIND_OF[type(aggregate)]].claims(aggregate))


def has_rows(kind: Kind) -> bool:
    """Whether owners of this kind may have rows."""
    return kind not in KINDS or KINDS[kind].has_rows
