"""Load balancers as rows of the OVN Northbound database.

There is one row per protocol and selection fields, because both apply to a whole row. A VIP without a live member keeps
its entry, so that OVN rejects connections; without the entry the packet would pass.

Guests: a project with VIPs on another project's network has one group for its own domain, and a second one for the
switch of that network. The rows in the second group have only the VIPs, which are addresses of that network, and only
members that are on that network too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.compilers.ovn.abilities import ABILITIES, abilities_here
from fairlead.compilers.ovn.admission import admission
from fairlead.compilers.ovn.draining import Endpoints, draining_rows
from fairlead.compilers.ovn.groups import Groups, domain_groups, find_vip_network, gateway_groups, guest_groups
from fairlead.compilers.ovn.locality import (
    NearGroups,
    NearServices,
    domain_near_groups,
    gateway_near_groups,
    refuse_locality,
)
from fairlead.compilers.ovn.monitors import monitor_rows
from fairlead.compilers.ovn.proxies import refuse_proxies
from fairlead.compilers.ovn.reply_counters import counting_rows, counting_switches, outside_rows, outside_switches
from fairlead.compilers.ovn.router import router_port_name
from fairlead.compilers.ovn.selection import selection_fields
from fairlead.compilers.ovn.tables import Tables
from fairlead.compilers.ovn.uplink import RESPONDER_OPTIONS, responder_rows
from fairlead.compilers.ovn.vip_networks import vip_router_name
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import (
    GroupMember,
    LoadBalancer,
    OvnRow,
    Pairs,
    PortAddress,
    StockRows,
    VirtualService,
    pairs,
)
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.abilities import find_unsupported_listener_feature, find_unsupported_pool_feature
from fairlead.model.documents.addresses import IPAddress, render_endpoint, render_interface
from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.member_ports import target_ports
from fairlead.model.documents.network import Network, subnet_with
from fairlead.model.documents.port_ranges import expand
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.connection_resets import RESET_PORT, reset_address
from fairlead.model.queries.domain import AddressRanges
from fairlead.model.queries.proxies import find_proxies_not_serving, with_proxy_pools
from fairlead.model.snapshot import (
    Snapshot,
    find_owned_vips,
    floating_ips_of,
    uses_gateway_addresses,
    vip_gateway,
    vip_network,
)

PROVIDER = "ovn"
OPTIONS = pairs({"reject": "true", "neighbor_responder": "none"})


def balancer_rows(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[OvnRow]:
    """Yield the rows. During a pending takeover from the stock provider there are none, but Unsupported is raised."""
    if lb.is_taken_over(balancer):
        yield _displacing(balancer)
    for row in _balancer_rows(snapshot, balancer):
        if not lb.is_prepared(balancer):
            yield row


def _displacing(balancer: lb.LoadBalancer) -> LoadBalancer:
    """Marker row: the stock provider's rows of this load balancer have been deleted.

    It is created in that transaction and kept, so the deletion is not checked again.
    """
    theirs = StockRows(name=balancer.id, vip=str(balancer.vip.address))
    return LoadBalancer(name=f"{balancer.id}-taken", title=balancer.name, services=(), instead_of=theirs)


def _balancer_rows(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[OvnRow]:
    network = find_vip_network(snapshot, balancer.vip.network_id)
    if network.external and balancer.router_id is None:
        raise Unsupported("VIPs on an external network that is not the gateway network of a router", PROVIDER)
    refuse_proxies(balancer, network)
    for each in _switched_pools(snapshot, balancer):
        _refuse_pool(snapshot, each)
        _refuse_translation(each, balancer.ip_versions)
    refuse_locality(balancer)
    if balancer.router_id is not None:
        gateway = vip_gateway(snapshot, balancer)
        if gateway is None:  # the address is not reachable
            return
        vips = find_owned_vips(snapshot, balancer)
        if not uses_gateway_addresses(snapshot, balancer):
            yield from responder_rows(balancer, balancer.router_id, gateway)
    else:
        vips = find_owned_vips(snapshot, balancer)
        if not vips:  # the addresses may have been reassigned
            return
        yield from _answers(vips, network)
    led = with_proxy_pools(snapshot, balancer)
    listeners = lb.listeners_by_pool(led)
    endpoints = {pool.id: _endpoints(listeners.get(pool.id, ()), pool) for pool in led.pools}
    for place in _attachment_sets(snapshot, balancer, network, vips):
        yield from _services(snapshot, led, place, endpoints)
    for each in balancer.pools:
        yield from monitor_rows(snapshot, balancer, each)


def _answers(vips: Iterable[lb.Vip], network: Network) -> Iterator[PortAddress]:
    """Yield the VIPs as addresses of the VIP router.

    The subnet is found by address, because the id of an unmanaged network's subnet may have changed.
    """
    for vip in vips:
        subnet = subnet_with(network, vip.address)
        assert subnet is not None, f"{vip.address} is in no subnet of {network.id}"  # noqa: S101 - ensured by the API
        answering = render_interface(vip.address, subnet.cidr)
        yield PortAddress(port=router_port_name(vip_router_name(network.id)), network=answering)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachmentSet:
    """Set of switches and routers with the same load balancer rows."""

    groups: Groups
    suffix: str = ""
    """Suffix of row names there."""
    addresses: tuple[tuple[lb.Vip, tuple[IPAddress, ...]], ...]
    """Each VIP with all addresses that are served like it (floating IPs)."""
    down: frozenset[HealthKey]
    """Members that are out of service there, entirely or at one port."""
    near: NearGroups | None = None
    """Groups of the rows with per-chassis values."""
    options: Pairs = OPTIONS
    """Options of rows without ports."""
    may_allow: bool = True
    """Whether `allow` ACLs may precede those of other users there."""
    counting: tuple[str, ...] = ()
    """Switches that count the bytes of replies."""
    outside: Mapping[IPAddress, str] = field(default_factory=dict)
    """Address -> switch that counts the bytes of clients outside."""


def _attachment_sets(
    snapshot: Snapshot, balancer: lb.LoadBalancer, network: Network, held: tuple[lb.Vip, ...]
) -> Iterator[AttachmentSet]:
    """Yield the project's domain, and the VIPs' network if it is another project's.

    On that network clients are not sent to addresses outside it, because its own routes decide the destination. For
    VIPs held by a gateway: everything that is reachable from its router.
    """
    down = snapshot.down.get(balancer.id, frozenset()) | find_proxies_not_serving(snapshot, balancer)
    addresses = tuple((vip, (vip.address, *_floating_addresses(snapshot, vip))) for vip in held)
    outside = outside_switches(snapshot, balancer)
    if balancer.router_id is not None:
        groups, near = gateway_groups(balancer.router_id), gateway_near_groups(balancer.router_id)
        counting = counting_switches(snapshot, balancer)
        yield AttachmentSet(
            groups=groups,
            near=near,
            addresses=addresses,
            down=down,
            options=RESPONDER_OPTIONS,
            counting=counting,
            outside=outside,
        )
        return
    where, allows = vip_network(snapshot, network.id, balancer.project_id), not is_unmanaged(network)
    groups, near = domain_groups(where), domain_near_groups(where)
    counting = counting_switches(snapshot, balancer)
    yield AttachmentSet(
        groups=groups, near=near, addresses=addresses, down=down, may_allow=allows, counting=counting, outside=outside
    )
    if where.guest is not None:
        ranges = AddressRanges.of(network)
        members = (member for pool in balancer.pools for member in pool.members)
        elsewhere = frozenset(member.id for member in members if not ranges.contains(member.address))
        vips = tuple((vip, (vip.address,)) for vip in held)
        there = guest_groups(where)
        near, out = NearGroups(switches=there.balancers, routers=None), down | elsewhere
        yield AttachmentSet(groups=there, near=near, suffix="there", addresses=vips, down=out, may_allow=allows)


def _endpoints(listeners: Sequence[lb.Listener], pool: lb.Pool) -> dict[int, tuple[str, ...]]:
    """Member ordinal -> its endpoints as OVN writes them, one for each port on which it takes connections."""
    return {
        member.ordinal: tuple([render_endpoint(member.address, port) for port in target_ports(listeners, member)])
        for member in pool.members
    }


def _services(
    snapshot: Snapshot, balancer: lb.LoadBalancer, place: AttachmentSet, endpoints: Endpoints
) -> Iterator[OvnRow]:
    """Yield the rows of a load balancer with proxies as members (`with_proxy_pools`). `endpoints` are by pool."""
    services: dict[tuple[lb.Transport, tuple[str, ...]], list[VirtualService]] = {}
    tables = Tables(place.down)
    near = NearServices.of(snapshot, balancer, place.near, place.suffix, tables)
    serving: dict[lb.Transport, set[str]] = {}
    for listener in balancer.listeners:
        pool = lb.find_pool(balancer, listener.default_pool_id)
        lacking = find_unsupported_listener_feature(ABILITIES, listener)
        if lacking is not None:
            raise Unsupported(lacking, PROVIDER)
        transport = lb.transport(listener.protocol)
        if transport is lb.Transport.ANY:
            yield from _any_port_rows(balancer, listener, place, tables)
            continue
        serving.setdefault(transport, set())
        if not (balancer.admin_state_up and listener.admin_state_up):
            continue
        for vip, addresses in place.addresses:
            where = (transport, selection_fields(snapshot.abilities, pool, vip.address.version))
            found = dict(zip(expand(listener.ports), tables.backends(listener, pool, vip.address.version), strict=True))
            serving[transport].update(*found.values())
            nobody = _reset_at(snapshot, balancer, place, pool, vip.address.version)
            for port, backends in near.take(where, listener, addresses, found).items():
                services.setdefault(where, []).extend(
                    VirtualService(vip=render_endpoint(address, port), backends=backends or nobody)
                    for address in addresses
                )
            for address in addresses:
                yield from admission(place.groups, place.suffix, listener, address, allows=place.may_allow)
                yield from counting_rows(place.counting, listener, address)
                if address in place.outside:
                    yield from outside_rows(place.outside[address], listener, address)
    for (transport, fields), entries in services.items():
        row = LoadBalancer(
            name="-".join([balancer.id, transport.value, *fields, *([place.suffix] if place.suffix else [])]),
            title=balancer.name,
            protocol=transport.value,
            services=tuple(sorted(entries, key=lambda entry: entry.vip)),
            selection_fields=fields,
            options=OPTIONS,
        )
        yield row
        yield GroupMember(group=place.groups.balancers, load_balancer=row.name)
    yield from near.rows()
    if not place.suffix:  # in the group of the project's routers, which include the gateways
        yield from draining_rows(balancer, endpoints, serving, OPTIONS, place.groups.balancers)


def _reset_at(
    snapshot: Snapshot, balancer: lb.LoadBalancer, place: AttachmentSet, pool: lb.Pool | None, version: int
) -> tuple[str, ...]:
    """Return the backend used while no member is available: agents reset connections to it
    (`model/queries/connection_resets.py`).

    Empty means that OVN rejects. Clients of guests are not sent off the network.
    """
    found = reset_address(snapshot, balancer, pool, version) if pool is not None else None
    if found is None or (place.suffix and found[0] != balancer.vip.network_id):
        return ()
    return (render_endpoint(found[1], RESET_PORT),)


def _any_port_rows(
    balancer: lb.LoadBalancer, listener: lb.Listener, place: AttachmentSet, tables: Tables
) -> Iterator[OvnRow]:
    """Yield the row for packets to an address that match no other listener, of any protocol.

    OVN prefers a VIP with a port to one without (ovn-northd(8)).
    """
    if not (balancer.admin_state_up and lb.is_catch_all(listener)):
        return
    pool = lb.find_pool(balancer, listener.default_pool_id)
    services = list[VirtualService]()
    for vip, leading in place.addresses:
        backends = tables.backends_without_port(pool, vip.address.version)
        services += [VirtualService(vip=str(address), backends=backends) for address in leading]
        for address in leading:
            yield from admission(place.groups, place.suffix, listener, address, allows=place.may_allow)
    row = LoadBalancer(
        name="-".join([balancer.id, lb.Transport.ANY.value, *([place.suffix] if place.suffix else [])]),
        title=balancer.name,
        services=tuple(sorted(services, key=lambda service: service.vip)),
        options=place.options,
    )
    yield row
    yield GroupMember(group=place.groups.balancers, load_balancer=row.name)


def _floating_addresses(snapshot: Snapshot, vip: lb.Vip) -> list[IPAddress]:
    """Return the floating IPs of a VIP, each needed as a VIP too, because OVN translates once per router."""
    return [floating_ip.address for floating_ip in floating_ips_of(snapshot, vip)]


def _switched_pools(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[lb.Pool]:
    """Yield the pools used by a switch. Pools without a listener are left out if the provider has proxies, because a
    proxy may use them later."""
    if balancer.provider not in snapshot.proxied_providers:
        yield from balancer.pools
        return
    switched = {each for listener in balancer.listeners if not listener.proxy_port for each in lb.pools_of(listener)}
    yield from (pool for pool in balancer.pools if pool.id in switched)


def _refuse_pool(snapshot: Snapshot, pool: lb.Pool) -> None:
    """Raise Unsupported for a pool with unsupported features, even before a listener uses it."""
    lacking = find_unsupported_pool_feature(abilities_here(snapshot), pool)
    if lacking is not None:
        raise Unsupported(lacking, PROVIDER)
    if sum(member.takes_connections for member in pool.members) > MAX_SLOTS:
        raise Unsupported(f"more than {MAX_SLOTS} members that accept connections in one pool", PROVIDER)


def _refuse_translation(pool: lb.Pool, versions: frozenset[int]) -> None:
    """Raise Unsupported for mixed IP versions: ovn-nb(5) forbids mapping a VIP to the other address family."""
    if not all(member.address.version in versions for member in pool.members):
        raise Unsupported("members with an IP version that no VIP has", PROVIDER)
