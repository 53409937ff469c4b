"""Kinds of documents, each declared once with its key, indexes, claims and dependents.

The snapshot, the store, `affected` and status loop over the declarations.

A new kind needs its class, a member of `Kind`, the snapshot's maps for documents and indexes, and a declaration here.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.balancer_status import update_histories
from fairlead.model.documents.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.documents.enrolment import Node, NodeToken
from fairlead.model.documents.hosts import Block, Host, block_of, prefix_key
from fairlead.model.documents.indexes import AllocationIndex, GroupedIndex, Index, SharedKeyIndex, SumIndex, UniqueIndex
from fairlead.model.documents.loadbalancer import (
    LoadBalancer,
    has_default_target,
    pools_with_locality,
    probed_address,
    selects_per_chassis,
)
from fairlead.model.documents.local_ip import LocalIP, Mode
from fairlead.model.documents.network import FloatingIP, Network, Port, PortUse, Router
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, place_of, place_of_port
from fairlead.model.documents.quota import Quota, count_usage, probe_rates, project_rate
from fairlead.model.documents.trust import Certificate, Project, TrustToken
from fairlead.model.documents.unmanaged import (
    UnmanagedFloatingIP,
    UnmanagedNetwork,
    UnmanagedPort,
    UnmanagedRouter,
    is_managed_elsewhere,
    is_unmanaged,
    row_names,
)
from fairlead.model.documents.unresponsive_nodes import UnresponsiveNode
from fairlead.model.queries.domain import Topology
from fairlead.model.queries.proxy_backends import proxy_servers
from fairlead.model.queries.unmanaged_probe_ports import probe_port_keys
from fairlead.model.registry import dependents
from fairlead.model.snapshot import ANY_PROJECT, ID_SHELF_LENGTH, OTHER_MANAGERS, Aggregate

Dependents = Callable[[Topology, Topology, Owner], Iterable[Owner]]
COMMON_INDEXES: tuple[Index, ...] = (SumIndex("usage", count_usage),)
"""Indexes over documents of every kind."""

PLACE_PROBE_RATES, PROJECT_PROBE_RATES = SumIndex("probed", probe_rates), SumIndex("probing", project_rate)


def _no_claims(document: Any) -> Iterable[str]:
    return ()


def _no_owners(before: Topology, after: Topology, owner: Owner) -> Iterable[Owner]:
    return ()


@dataclass(frozen=True, kw_only=True)
class KindDeclaration:
    document: type[Aggregate]
    key: Callable[[Any], str] = attrgetter("id")
    """Returns the id of the document's owner."""
    indexes: tuple[Index, ...] = ()
    claims: Callable[[Any], Iterable[str]] = _no_claims
    """Returns the document's claims: keys that only one document may have. The store rejects a second one."""
    has_rows: bool = True
    """False for documents that only constrain others:
    no dataplane has rows of them, and the reconciler ignores them."""
    dependents: Dependents = _no_owners
    """Returns the other owners whose rows may differ after a change.
    The result may include too many owners, never too few."""
    touch: Callable[..., Any] | None = None
    """Returns the generations of a document's parts after a new version has replaced an old one."""
    all_indexes: tuple[Index, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "all_indexes", (*COMMON_INDEXES, *self.indexes))


# Ports


def _addresses(port: Port) -> tuple[str, frozenset[IPAddress]]:
    return port.network_id, frozenset(fixed.address for fixed in port.fixed_ips)


def _claims_of_port(port: Port) -> Iterator[str]:
    yield f"mac/{port.mac_address}"
    yield from (f"address/{port.network_id}/{fixed.address}" for fixed in port.fixed_ips)


# Networks


def _segment(network: Network) -> Iterator[Any]:
    if network.segment is not None and not is_unmanaged(network):
        yield network.segment


def _name_keys(network: Network) -> list[tuple[str, str]]:
    """Return the scopes that find the network by name. A network managed by another program is found by the name of its
    row only, not by that program's tenants."""
    if is_managed_elsewhere(network):
        return [(OTHER_MANAGERS, network.name)]
    return [(scope, network.name) for scope in _scopes(network)]


def _scopes(network: Network) -> list[str]:
    """Return the scope that lists the network; none if another API manages it. Announced networks are not listed,
    because LXD has no such type."""
    return (
        [] if is_unmanaged(network) or network.announced else [ANY_PROJECT if network.external else network.project_id]
    )


def _claims_of_network(network: Network) -> Iterator[str]:
    """Yield the claim of a VLAN on a physical network, or of the untagged physical network."""
    yield from (f"segment/{segment.physical_network}/{segment.id}" for segment in _segment(network))


def _claims_of_floating_ip(floating_ip: FloatingIP) -> Iterator[str]:
    """Yield a claim per fixed address on an external network, so it has one floating IP only."""
    if floating_ip.port_id is not None:
        yield f"floating/{floating_ip.network_id}/{floating_ip.port_id}/{floating_ip.fixed_address}"


def _project_gateways(router: Router) -> Iterator[tuple[str, str]]:
    if router.gateway is not None:
        yield router.project_id, router.gateway.network_id


# Hosts


def _prefix_lengths(host: Host) -> Mapping[tuple[int, int], int]:
    return Counter((prefix.cidr.version, prefix.cidr.prefixlen) for prefix in host.prefixes)


def _member_blocks(balancer: LoadBalancer) -> frozenset[Block]:
    """Return the blocks of members, of their monitor addresses and of previous owners of slots. Rows contain the host
    that routes these addresses."""
    members = (member for pool in balancer.pools for member in pool.members)
    there = {address for each in members for address in (each.address, probed_address(each))}
    return frozenset(map(block_of, there | {each.before for each in balancer.moved}))


# Load balancers


def _vip_networks(balancer: LoadBalancer) -> Iterator[str]:
    if balancer.router_id is None:
        yield balancer.vip.network_id


def _solicited_routers(balancer: LoadBalancer) -> Iterator[str]:
    """The gateway's port has the VIPs of any other load balancer."""
    if balancer.router_id is not None and has_default_target(balancer):
        yield from {balancer.router_id for vip in balancer.vips if vip.address.version == 6}


def _claims_of_load_balancer(balancer: LoadBalancer) -> Iterator[str]:
    """Yield the claims of a load balancer: its VIP port, because an unmanaged port has no claim of its own; VIP
    addresses on an external network, except the gateway's own, which its port claims; and ports of proxies."""
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


def _monitored_addresses(balancer: LoadBalancer) -> frozenset[IPAddress]:
    members = (member for pool in balancer.pools if pool.health_monitor for member in pool.members)
    return frozenset(address for each in members for address in (each.address, each.monitor_address) if address)


def _per_chassis_networks(balancer: LoadBalancer) -> Iterable[str]:
    return _vip_networks(balancer) if selects_per_chassis(balancer) else []


def _locality_addresses(balancer: LoadBalancer) -> frozenset[IPAddress]:
    return frozenset(member.address for pool in pools_with_locality(balancer) for member in pool.members)


# Local IPs


def _claims_of_local_ip(local_ip: LocalIP) -> Iterator[str]:
    """Yield the claim of the address."""
    yield f"local-ip/{local_ip.network_id}/{local_ip.address}"


def _per_chassis_network_of_local_ip(local_ip: LocalIP) -> Iterable[str]:
    """Return the network of a translated Local IP. Its rows are a load balancer with a decision per chassis."""
    return [local_ip.network_id] if local_ip.mode is Mode.TRANSLATE else []


KINDS: Mapping[Kind, KindDeclaration] = {
    Kind.NETWORK: KindDeclaration(
        document=Network,
        indexes=(
            UniqueIndex("subnet_network", lambda network: (subnet.id for subnet in network.subnets)),
            UniqueIndex("segments", _segment),
            UniqueIndex("announced", lambda network: [network.id] if network.announced else []),
            UniqueIndex("called", row_names),
            GroupedIndex("project_networks", _scopes),
            GroupedIndex("network_names", _name_keys),
            GroupedIndex("declared_routers", lambda network: [network.router_id]),
        ),
        claims=_claims_of_network,
        dependents=dependents.of_network,
    ),
    Kind.ROUTER: KindDeclaration(
        document=Router,
        indexes=(
            GroupedIndex("network_gateways", lambda router: [router.gateway and router.gateway.network_id]),
            GroupedIndex("project_gateways", _project_gateways),
            UniqueIndex("called", row_names),
        ),
        dependents=dependents.of_router,
    ),
    Kind.PORT: KindDeclaration(
        document=Port,
        indexes=(
            GroupedIndex("network_ports", lambda port: [port.network_id]),
            SharedKeyIndex("addresses", lambda port: ((port.network_id, fixed.address) for fixed in port.fixed_ips)),
            GroupedIndex(
                "machines", lambda port: [(port.network_id, port.project_id)] if port.use is PortUse.MACHINE else []
            ),
            GroupedIndex("network_proxies", lambda port: [port.network_id] if place_of_port(port) else []),
            GroupedIndex("place_proxies", lambda port: [place_of_port(port)]),
            AllocationIndex("taken", _addresses),
            # MACs of unmanaged ports may be duplicates.
            UniqueIndex("macs", lambda port: [] if is_unmanaged(port) else [port.mac_address]),
            UniqueIndex("called", lambda port: row_names(port) if row_names(port) != [port.id] else []),
            GroupedIndex("probe_ports", probe_port_keys),
            GroupedIndex("router_interfaces", lambda port: [port.device_id] if _is_router_interface(port) else []),
            GroupedIndex(
                "network_routers",
                lambda port: [port.network_id] if _is_router_interface(port) else [],
                attrgetter("device_id"),
            ),
        ),
        claims=_claims_of_port,
        dependents=dependents.of_port,
    ),
    Kind.HOST: KindDeclaration(
        document=Host,
        key=attrgetter("name"),
        indexes=(
            UniqueIndex("host_numbers", lambda host: [host.number]),
            UniqueIndex("host_prefixes", lambda host: (prefix_key(prefix.cidr) for prefix in host.prefixes)),
            SumIndex("host_prefix_lengths", _prefix_lengths),
        ),
        claims=lambda host: [f"host-number/{host.number}"],
        dependents=dependents.of_host,
    ),
    Kind.LOAD_BALANCER: KindDeclaration(
        document=LoadBalancer,
        indexes=(
            GroupedIndex("network_vips", _vip_networks),
            GroupedIndex("vip_projects", _vip_networks, attrgetter("project_id")),
            GroupedIndex("router_vips", lambda balancer: [balancer.router_id]),
            GroupedIndex("solicited_vips", _solicited_routers),
            UniqueIndex("near", lambda balancer: [balancer.id] if selects_per_chassis(balancer) else []),
            GroupedIndex("proxied", lambda balancer: {place for place, _ in _proxy_ports(balancer)}),
            UniqueIndex("proxy_ports", _proxy_ports),
            GroupedIndex("near_projects", _per_chassis_networks, attrgetter("project_id")),
            GroupedIndex(
                "near_gateways", lambda balancer: [balancer.router_id] if selects_per_chassis(balancer) else []
            ),
            GroupedIndex("near_members", _locality_addresses),
            GroupedIndex("kept_balancers", lambda balancer: [balancer.id[:ID_SHELF_LENGTH]] if balancer.kept else []),
            GroupedIndex("described_on", lambda balancer: [balancer.described and balancer.described.network_id]),
            GroupedIndex("watched", _monitored_addresses),
            GroupedIndex("member_blocks", _member_blocks),
            GroupedIndex("monitored_places", _monitored_places),
            GroupedIndex("crossing", _crossed_subnets),
            UniqueIndex("pool_owner", lambda balancer: (pool.id for pool in balancer.pools)),
            UniqueIndex("listener_owner", lambda balancer: (listener.id for listener in balancer.listeners)),
            UniqueIndex("monitor_owner", _monitors),
            UniqueIndex("l7policy_owner", _policies),
            UniqueIndex("vip_owner", lambda balancer: [balancer.vip.port_id]),
            UniqueIndex("parting", lambda balancer: [balancer.id] if balancer.parted or balancer.moved else []),
            GroupedIndex("flavor_users", lambda balancer: [balancer.flavor_id]),
            GroupedIndex("zone_users", lambda balancer: [balancer.availability_zone]),
            PLACE_PROBE_RATES,
            PROJECT_PROBE_RATES,
            SumIndex("proxy_servers", proxy_servers),
        ),
        claims=_claims_of_load_balancer,
        dependents=dependents.of_load_balancer,
        touch=update_histories,
    ),
    Kind.FLOATING_IP: KindDeclaration(
        document=FloatingIP,
        indexes=(
            GroupedIndex("router_floating_ips", lambda floating_ip: [floating_ip.router_id]),
            GroupedIndex("port_floating_ips", lambda floating_ip: [floating_ip.port_id]),
        ),
        claims=_claims_of_floating_ip,
        dependents=dependents.of_floating_ip,
    ),
    Kind.LOCAL_IP: KindDeclaration(
        document=LocalIP,
        indexes=(
            GroupedIndex("network_local_ips", lambda local_ip: [local_ip.network_id]),
            GroupedIndex("vip_projects", lambda local_ip: [local_ip.network_id], attrgetter("project_id")),
            GroupedIndex("near_projects", _per_chassis_network_of_local_ip, attrgetter("project_id")),
            GroupedIndex("port_local_ips", lambda local_ip: [local_ip.port_id]),
            GroupedIndex("replica_local_ips", attrgetter("replicas")),
            UniqueIndex("monitored_local_ips", lambda local_ip: [local_ip.id] if local_ip.health_monitor else []),
            PLACE_PROBE_RATES,
            PROJECT_PROBE_RATES,
        ),
        claims=_claims_of_local_ip,
        dependents=dependents.of_local_ip,
    ),
    Kind.FLAVOR: KindDeclaration(document=Flavor, claims=lambda flavor: [f"flavor/{flavor.name}"], has_rows=False),
    Kind.FLAVOR_PROFILE: KindDeclaration(document=FlavorProfile, has_rows=False),
    Kind.AVAILABILITY_ZONE: KindDeclaration(document=AvailabilityZone, key=attrgetter("name"), has_rows=False),
    Kind.AVAILABILITY_ZONE_PROFILE: KindDeclaration(document=AvailabilityZoneProfile, has_rows=False),
    Kind.QUOTA: KindDeclaration(document=Quota, key=attrgetter("project_id"), has_rows=False),
    Kind.PROJECT: KindDeclaration(document=Project, key=attrgetter("name"), has_rows=False),
    Kind.CERTIFICATE: KindDeclaration(document=Certificate, key=attrgetter("fingerprint"), has_rows=False),
    Kind.TRUST_TOKEN: KindDeclaration(document=TrustToken, has_rows=False),
    Kind.NODE: KindDeclaration(
        document=Node,
        key=attrgetter("name"),
        indexes=(UniqueIndex("node_certificates", lambda node: [each.fingerprint for each in node.certificates]),),
        has_rows=False,
    ),
    Kind.NODE_TOKEN: KindDeclaration(document=NodeToken, key=attrgetter("chassis"), has_rows=False),
    Kind.UNRESPONSIVE_NODE: KindDeclaration(document=UnresponsiveNode, key=attrgetter("name"), has_rows=False),
}
"""All kinds except those derived from load balancers (`owner.WITHOUT_DOCUMENTS`)."""
_KIND_OF: Mapping[type[Aggregate], Kind] = {
    **{declared.document: kind for kind, declared in KINDS.items()},
    UnmanagedNetwork: Kind.NETWORK,
    UnmanagedRouter: Kind.ROUTER,
    UnmanagedPort: Kind.PORT,
    UnmanagedFloatingIP: Kind.FLOATING_IP,
}


def _is_router_interface(port: Port) -> bool:
    return port.use is PortUse.ROUTER_INTERFACE


def owner_of(aggregate: Aggregate) -> Owner:
    kind = _KIND_OF[type(aggregate)]
    return Owner(kind, KINDS[kind].key(aggregate))


def claims(aggregate: Aggregate) -> frozenset[str]:
    """Return the document's claims: keys that only one document may have."""
    return frozenset(KINDS[_KIND_OF[type(aggregate)]].claims(aggregate))


def has_rows(kind: Kind) -> bool:
    """Return whether owners of this kind can have rows."""
    return kind not in KINDS or KINDS[kind].has_rows
