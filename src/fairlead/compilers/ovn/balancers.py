"""Load balancers, as rows of the OVN Northbound database.

A row per protocol and selection fields, because these hold for a whole row. A VIP without a live member keeps its
entry: OVN then rejects; a missing entry would let the packet through.

Guests. A project whose VIPs are on a network of another one has a group of its own for its domain, and a second one for
the switch of that network. There its load balancers have other rows: with the VIPs alone, which are addresses of that
network, and of the members only those that are on it too.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.compilers.ovn.abilities import ABILITIES, abilities_here
from fairlead.compilers.ovn.admission import admission
from fairlead.compilers.ovn.answers import counting_rows, counting_switches, outside_rows, outside_switches
from fairlead.compilers.ovn.groups import Groups, domain_groups, find_vip_network, gateway_groups, guest_groups
from fairlead.compilers.ovn.locality import (
    NearGroups,
    NearServices,
    domain_near_groups,
    gateway_near_groups,
    refuse_locality,
)
from fairlead.compilers.ovn.monitors import monitor_rows
from fairlead.compilers.ovn.parting import Endpoints, parting_rows
from fairlead.compilers.ovn.proxies import refuse_proxies
from fairlead.compilers.ovn.router import router_port_name
from fairlead.compilers.ovn.tables import Tables
from fairlead.compilers.ovn.uplink import ANSWERING, answering_rows
from fairlead.compilers.ovn.vip_networks import vip_router_name
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import (
    SOURCE_IPV6,
    Displaced,
    GroupMember,
    LoadBalancer,
    OvnRow,
    Pairs,
    PortAddress,
    VirtualService,
    pairs,
)
from fairlead.model import loadbalancer as lb
from fairlead.model.abilities import lacking_for_listener, lacking_for_pool
from fairlead.model.addresses import IPAddress, render_endpoint, render_interface
from fairlead.model.domain import AddressRanges
from fairlead.model.foreign import is_foreign
from fairlead.model.health import HealthKey
from fairlead.model.network import Network, subnet_with
from fairlead.model.port_ranges import expand
from fairlead.model.proxies import absent_proxies, led_by_proxies
from fairlead.model.resetting import RESET_PORT, reset_address
from fairlead.model.shares import LARGEST
from fairlead.model.snapshot import Snapshot, floating_ips_of, held_vips, is_at_gateway, vip_gateway, vip_network

PROVIDER = "ovn"
OPTIONS = pairs({"reject": "true", "neighbor_responder": "none"})


def balancer_rows(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[OvnRow]:
    """None while it waits to be taken over; but what cannot be had is refused then already."""
    if lb.is_taken_over(balancer):
        yield _displacing(balancer)
    for row in _balancer_rows(snapshot, balancer):
        if not lb.is_prepared(balancer):
            yield row


def _displacing(balancer: lb.LoadBalancer) -> LoadBalancer:
    """A row that does nothing but stand for this: what the stock provider had of the load balancer is gone. It comes
    with the others, and stays, so whoever reads it later need not look again."""
    theirs = Displaced(name=balancer.id, vip=str(balancer.vip.address))
    return LoadBalancer(name=f"{balancer.id}-taken", title=balancer.name, services=(), instead_of=theirs)


def _balancer_rows(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[OvnRow]:
    network = find_vip_network(snapshot, balancer.vip.network_id)
    if network.external and balancer.router_id is None:
        raise Unsupported("VIPs on an external network without a router that has its gateway there", PROVIDER)
    refuse_proxies(balancer, network)
    for each in _switched_pools(snapshot, balancer):
        _refuse_pool(snapshot, each)
        _refuse_translation(each, balancer.ip_versions)
    refuse_locality(balancer)
    if balancer.router_id is not None:
        gateway = vip_gateway(snapshot, balancer)
        if gateway is None:  # the address leads nowhere
            return
        vips = held_vips(snapshot, balancer)
        if not is_at_gateway(snapshot, balancer):
            yield from answering_rows(balancer, balancer.router_id, gateway)
    else:
        vips = held_vips(snapshot, balancer)
        if not vips:  # others may have the addresses next
            return
        yield from _answers(vips, network)
    led = led_by_proxies(snapshot, balancer)
    listeners = lb.listeners_by_pool(led)
    endpoints = {pool.id: _endpoints(listeners.get(pool.id, ()), pool) for pool in led.pools}
    for place in _places(snapshot, balancer, network, vips):
        yield from _services(snapshot, led, place, endpoints)
    for each in balancer.pools:
        yield from monitor_rows(snapshot, balancer, each)


def _answers(vips: Iterable[lb.Vip], network: Network) -> Iterator[PortAddress]:
    """The subnet is found by the address: of networks of others it may be called otherwise by now."""
    for vip in vips:
        subnet = subnet_with(network, vip.address)
        assert subnet is not None, f"{vip.address} is in no subnet of {network.id}"  # noqa: S101 - the doors keep this true
        answering = render_interface(vip.address, subnet.cidr)
        yield PortAddress(port=router_port_name(vip_router_name(network.id)), network=answering)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Switches and routers on which a load balancer is the same."""

    groups: Groups
    suffix: str = ""
    """Of the names of its rows there."""
    addresses: tuple[tuple[lb.Vip, tuple[IPAddress, ...]], ...]
    """Each VIP with all addresses that lead to what it leads to."""
    out: frozenset[HealthKey]
    """The members that do not serve there, or not at some port."""
    near: NearGroups | None = None
    """Of the rows in which each chassis decides for itself."""
    options: Pairs = OPTIONS
    """Of what leads whole addresses to members."""
    allows: bool = True
    """Whether rules about who may connect may go before rules of others there."""
    counting: tuple[str, ...] = ()
    """The switches on which the bytes of answers are counted."""
    outside: Mapping[IPAddress, str] = field(default_factory=dict)
    """Those on which the bytes of clients outside are, by the address that they connect to."""


def _places(
    snapshot: Snapshot, balancer: lb.LoadBalancer, network: Network, held: tuple[lb.Vip, ...]
) -> Iterator[Place]:
    """The project's domain; and the network that the VIPs are on, if that is another project's. There a client is not
    led to an address that is not of the network: whose that would be is for its own routes to say. Of VIPs that a
    gateway has: what is reached from its router."""
    down = snapshot.down.get(balancer.id, frozenset()) | absent_proxies(snapshot, balancer)
    addresses = tuple((vip, (vip.address, *_floating_addresses(snapshot, vip))) for vip in held)
    outside = outside_switches(snapshot, balancer)
    if balancer.router_id is not None:
        groups, near = gateway_groups(balancer.router_id), gateway_near_groups(balancer.router_id)
        counting = counting_switches(snapshot, balancer)
        yield Place(
            groups=groups,
            near=near,
            addresses=addresses,
            out=down,
            options=ANSWERING,
            counting=counting,
            outside=outside,
        )
        return
    where, allows = vip_network(snapshot, network.id, balancer.project_id), not is_foreign(network)
    groups, near = domain_groups(where), domain_near_groups(where)
    counting = counting_switches(snapshot, balancer)
    yield Place(
        groups=groups, near=near, addresses=addresses, out=down, allows=allows, counting=counting, outside=outside
    )
    if where.guest is not None:
        ranges = AddressRanges.of(network)
        members = (member for pool in balancer.pools for member in pool.members)
        elsewhere = frozenset(member.id for member in members if not ranges.hold(member.address))
        vips = tuple((vip, (vip.address,)) for vip in held)
        there = guest_groups(where)
        near, out = NearGroups(switches=there.balancers, routers=None), down | elsewhere
        yield Place(groups=there, near=near, suffix="there", addresses=vips, out=out, allows=allows)


def _endpoints(listeners: Sequence[lb.Listener], pool: lb.Pool) -> dict[int, tuple[str, ...]]:
    """Of each member, by its ordinal, as OVN writes it: one for each port at which it takes connections."""
    return {
        member.ordinal: tuple([render_endpoint(member.address, port) for port in lb.target_ports(listeners, member)])
        for member in pool.members
    }


def _services(snapshot: Snapshot, balancer: lb.LoadBalancer, place: Place, endpoints: Endpoints) -> Iterator[OvnRow]:
    """Of the load balancer as a switch has it (`led_by_proxies`). `endpoints` are those of each pool."""
    services: dict[tuple[lb.Transport, tuple[str, ...]], list[VirtualService]] = {}
    tables = Tables(place.out)
    near = NearServices.of(snapshot, balancer, place.near, place.suffix, tables)
    serving: dict[lb.Transport, set[str]] = {}
    for listener in balancer.listeners:
        pool = lb.find_pool(balancer, listener.default_pool_id)
        lacking = lacking_for_listener(ABILITIES, listener)
        if lacking is not None:
            raise Unsupported(lacking, PROVIDER)
        transport = lb.transport(listener.protocol)
        if transport is lb.Transport.ANY:
            yield from _whole(balancer, listener, place, tables)
            continue
        serving.setdefault(transport, set())
        if not (balancer.admin_state_up and listener.admin_state_up):
            continue
        for vip, addresses in place.addresses:
            where = (transport, _selection_fields(snapshot.abilities, pool, vip.address.version))
            found = dict(zip(expand(listener.ports), tables.backends(listener, pool, vip.address.version), strict=True))
            serving[transport].update(*found.values())
            nobody = _reset_at(snapshot, balancer, place, pool, vip.address.version)
            for port, backends in near.take(where, listener, addresses, found).items():
                services.setdefault(where, []).extend(
                    VirtualService(vip=render_endpoint(address, port), backends=backends or nobody)
                    for address in addresses
                )
            for address in addresses:
                yield from admission(place.groups, place.suffix, listener, address, allows=place.allows)
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
    if not place.suffix:  # where the project's routers are, and so the gateways
        yield from parting_rows(balancer, endpoints, serving, OPTIONS, place.groups.balancers)


def _reset_at(
    snapshot: Snapshot, balancer: lb.LoadBalancer, place: Place, pool: lb.Pool | None, version: int
) -> tuple[str, ...]:
    """The backend while nobody serves: agents reset what comes there (`model/resetting.py`). Nothing is OVN's own
    refusal. Guests' clients are not led off the network."""
    found = reset_address(snapshot, balancer, pool, version) if pool is not None else None
    if found is None or (place.suffix and found[0] != balancer.vip.network_id):
        return ()
    return (render_endpoint(found[1], RESET_PORT),)


def _whole(balancer: lb.LoadBalancer, listener: lb.Listener, place: Place, tables: Tables) -> Iterator[OvnRow]:
    """What is sent to an address and is for no other listener, of whatever protocol: OVN takes a VIP with a port before
    one without (ovn-northd(8))."""
    if not (balancer.admin_state_up and lb.takes_everything(listener)):
        return
    pool = lb.find_pool(balancer, listener.default_pool_id)
    services = list[VirtualService]()
    for vip, leading in place.addresses:
        backends = tables.whole(pool, vip.address.version)
        services += [VirtualService(vip=str(address), backends=backends) for address in leading]
        for address in leading:
            yield from admission(place.groups, place.suffix, listener, address, allows=place.allows)
    row = LoadBalancer(
        name="-".join([balancer.id, lb.Transport.ANY.value, *([place.suffix] if place.suffix else [])]),
        title=balancer.name,
        services=tuple(sorted(services, key=lambda service: service.vip)),
        options=place.options,
    )
    yield row
    yield GroupMember(group=place.groups.balancers, load_balancer=row.name)


def _floating_addresses(snapshot: Snapshot, vip: lb.Vip) -> list[IPAddress]:
    """OVN translates a packet once on its way through a router: a floating IP that leads to a VIP has to be one too."""
    return [floating_ip.address for floating_ip in floating_ips_of(snapshot, vip)]


def _selection_fields(abilities: frozenset[str], pool: lb.Pool | None, version: int) -> tuple[str, ...]:
    """What the choice of a member depends on; nothing said means the whole 5-tuple (`dp_hash`).

    ROUND_ROBIN is taken for what its users want, evenness: a switch keeps no turn, it spreads by hash. Persistence is
    the same choice as SOURCE_IP, by hash: OVN's own (`affinity_timeout`) drops the first packet of every client to
    learn from it, and in user space all its retransmissions die too. A hash forgets nothing, so a client stays at least
    as long as any time-out asks. OVN passes `ip_src` on as the IPv4 field. Where it has none for IPv6 the MAC
    decides: the load balancer is on the client's own switch, where that is the client's as well.
    """
    if pool is None or not pool.goes_by_source:
        return ()
    if version == 4:
        return ("ip_src",)
    return (SOURCE_IPV6,) if SOURCE_IPV6 in abilities else ("eth_src",)


def _switched_pools(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[lb.Pool]:
    """Those to which a switch leads. To a pool that no listener leads to yet a proxy may come to lead, if any does."""
    if balancer.provider not in snapshot.proxied_providers:
        yield from balancer.pools
        return
    switched = {each for listener in balancer.listeners if not listener.proxy_port for each in lb.pools_of(listener)}
    yield from (pool for pool in balancer.pools if pool.id in switched)


def _refuse_pool(snapshot: Snapshot, pool: lb.Pool) -> None:
    """Whether a listener leads to it yet or not: what cannot be had is said when it is asked for."""
    lacking = lacking_for_pool(abilities_here(snapshot), pool)
    if lacking is not None:
        raise Unsupported(lacking, PROVIDER)
    if sum(member.takes_connections for member in pool.members) > LARGEST:
        raise Unsupported(f"more than {LARGEST} members that take connections in one pool", PROVIDER)


def _refuse_translation(pool: lb.Pool, versions: frozenset[int]) -> None:
    """ovn-nb(5): a VIP of one address family may not be mapped to a destination of another."""
    if not all(member.address.version in versions for member in pool.members):
        raise Unsupported("members whose IP version no VIP has", PROVIDER)
