"""Model to rows of the OVN Northbound database.

Load balancers. A row per protocol and selection fields, because these hold for a whole row. A VIP without a live member
keeps its entry: OVN then rejects; a missing entry would let the packet through.

VIP networks. Every network that has a VIP has a load balancer group, which holds the load balancers of that network and
is attached to every switch and router of the project's domain: the translation of a reply happens on the switch of the
client, so the load balancer has to be there too. Rows grow with load balancers plus attachments, never with their
product, and a router that joins two domains moves no load balancer from group to group.

Guests. A project whose VIPs are on a network of another one has a group of its own for its domain, and a second one for
the switch of that network. There its load balancers have other rows: with the VIPs alone, which are addresses of that
network, and of the members only those that are on it too.

The VIP router. OVN answers ARP for a VIP only where a router is, and never answers ping. A hidden router on each VIP
network, with each VIP as an address of its own, answers ARP, neighbour solicitation and echo, and resets connections to
ports without a listener. It is the only one that answers: `neighbor_responder=none` silences the tenant's routers.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from fairlead.compilers.ovn.abilities import ABILITIES
from fairlead.compilers.ovn.groups import Groups, domain_groups, gateway_groups, group_rows, guest_groups
from fairlead.compilers.ovn.locality import (
    NearGroups,
    NearServices,
    domain_near_groups,
    near_network_rows,
    refuse_locality,
)
from fairlead.compilers.ovn.monitors import monitor_rows
from fairlead.compilers.ovn.parting import Endpoints, parting_rows
from fairlead.compilers.ovn.router import (
    floating_ip_rows,
    gateway_attachment,
    interface,
    router_attachment,
    router_port_name,
    router_rows,
    wire_rows,
)
from fairlead.compilers.ovn.tables import Tables
from fairlead.compilers.ovn.uplink import ANSWERING, answering_rows, gateway_rows
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn import (
    SOURCE_IPV6,
    Acl,
    GroupMember,
    LoadBalancer,
    LoadBalancerGroup,
    LogicalRouter,
    LogicalRouterPort,
    LogicalSwitch,
    LogicalSwitchPort,
    OvnRow,
    Pairs,
    PortAddress,
    PortGroup,
    PortGroupPort,
    StaticRoute,
    SwitchGroup,
    VirtualService,
    by_key,
    pairs,
)
from fairlead.dataplane.rows import NO_ROWS, Rows
from fairlead.model import loadbalancer as lb
from fairlead.model.abilities import lacking_for_listener, lacking_for_pool
from fairlead.model.addresses import IPAddress, derive_mac, link_local, render_endpoint
from fairlead.model.catalog import AvailabilityZone, AvailabilityZoneProfile, Flavor, FlavorProfile
from fairlead.model.domain import AddressRanges, Topology
from fairlead.model.health import HealthKey
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import FixedIP, FloatingIP, Network, Port, PortUse, Router
from fairlead.model.owner import Kind, Owner, VipNetwork
from fairlead.model.port_ranges import Ports, expand
from fairlead.model.quota import Quota
from fairlead.model.shares import LARGEST
from fairlead.model.snapshot import Snapshot, vip_gateway, vip_network
from fairlead.model.trust import Certificate, Project, TrustToken

PROVIDER = "ovn"
ACL_PRIORITY = 32_000
"""Near the largest that ovn-nb(5) allows: what a tenant forbids for a listener no rule of anybody else permits."""
OPTIONS = pairs({"reject": "true", "neighbor_responder": "none"})


def compile_owner(snapshot: Snapshot, owner: Owner) -> Rows:
    """All rows of one owner, none for one that is gone. Raises Unsupported."""
    if owner.kind is Kind.VIP_NETWORK:
        return by_key(_vip_network(snapshot, VipNetwork.of(owner)))
    if owner.kind is Kind.VIP_GATEWAY:
        return by_key(gateway_rows(snapshot, owner.id))
    if owner.kind is Kind.NEAR_NETWORK:
        return by_key(near_network_rows(snapshot, VipNetwork.of(owner)))
    match snapshot.find(owner):
        case None | Flavor() | FlavorProfile() | AvailabilityZone() | AvailabilityZoneProfile() | Quota():
            return NO_ROWS
        case Project() | Certificate() | TrustToken():
            return NO_ROWS
        case Network() as network:
            return by_key([LogicalSwitch(name=network.id, title=network.name), *wire_rows(network)])
        case Router() as router:
            return by_key(router_rows(snapshot, router))
        case Port() as port:
            return by_key(_port(port))
        case lb.LoadBalancer() as balancer:
            try:
                return by_key(_load_balancer(snapshot, balancer))
            except Unsupported as refused:  # in the name that the tenant knows
                raise Unsupported(refused.asked, balancer.provider) from None
        case FloatingIP() as floating_ip:
            return by_key(floating_ip_rows(snapshot, floating_ip))
        case unknown:
            assert_never(unknown)


def vip_router_name(network_id: str) -> str:
    return f"vip-{network_id}"


def _port(port: Port) -> Iterator[LogicalSwitchPort]:
    """A VIP's port has no row: after translation a frame would still carry that port's MAC, and be delivered to it.

    Nor has one that only holds the address of probes or of a floating IP: OVN answers ARP for these by itself.
    """
    if port.use in (PortUse.VIP, PortUse.PROBE, PortUse.FLOATING_IP):
        return
    if port.use is PortUse.ROUTER_GATEWAY:
        yield gateway_attachment(port)
        return
    if port.use is PortUse.ROUTER_INTERFACE:
        yield router_attachment(port.id, switch=port.network_id, router_port=router_port_name(port.id))
        return
    own = " ".join([port.mac_address, *(str(fixed.address) for fixed in port.fixed_ips)])
    yield LogicalSwitchPort(
        name=port.id,
        switch=port.network_id,
        title=port.name,
        addresses=(own,),
        port_security=(own,) if port.port_security_enabled else (),
        options=pairs({"requested-chassis": port.host}) if port.host else (),
        enabled=port.admin_state_up,
    )


def _vip_network(snapshot: Snapshot, where: VipNetwork) -> Iterator[OvnRow]:
    """What all VIPs of a network share, and those of its own project; or those of a guest. The first stays as long as
    there is any VIP, so that the last one of the network's project leaves nothing that refers to what goes."""
    projects = snapshot.vip_projects.get(where.network_id, NO_IDS)
    if not projects or where.guest not in (None, *projects):
        return
    network = snapshot.networks[where.network_id]
    topology = Topology(snapshot)
    if where.guest is None:
        yield from _vip_router(network)
        groups = domain_groups(where)
        yield from group_rows(snapshot, groups, topology.domain(network.id, network.project_id))
        yield PortGroupPort(group=groups.inside, port=vip_router_name(network.id))
        return
    yield from group_rows(snapshot, domain_groups(where), topology.domain(network.id, where.guest))
    there = guest_groups(where)
    yield LoadBalancerGroup(name=there.balancers)
    yield SwitchGroup(switch=network.id, group=there.balancers)
    yield PortGroup(name=there.inside)
    yield PortGroupPort(group=there.inside, port=vip_router_name(network.id))


def _vip_router(network: Network) -> Iterator[OvnRow]:
    """Its own address is the link-local one: ovn-nb(5) wants one at least, and this one takes none from a pool."""
    name, mac = vip_router_name(network.id), derive_mac(network.id)
    yield LogicalRouter(name=name)
    yield LogicalRouterPort(name=router_port_name(name), router=name, mac=mac, networks=(f"{link_local(mac)}/64",))
    yield router_attachment(name, switch=network.id, router_port=router_port_name(name))
    for subnet in network.subnets:
        if subnet.gateway:
            # What a VIP answers leaves by the gateway of its own subnet; OVN passes over the routes of the others.
            yield StaticRoute(router=name, ip_prefix=str(subnet.cidr), nexthop=str(subnet.gateway), policy="src-ip")


def _load_balancer(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Iterator[OvnRow]:
    network = snapshot.networks[balancer.vip.network_id]
    if network.external and balancer.router_id is None:
        raise Unsupported("VIPs on an external network without a router that has its gateway there", PROVIDER)
    for each in balancer.pools:
        _refuse_pool(each)
        _refuse_translation(each, balancer.ip_versions)
    refuse_locality(balancer)
    if balancer.router_id is not None:
        gateway = vip_gateway(snapshot, balancer)
        if gateway is None:  # the address leads nowhere
            return
        yield from answering_rows(balancer, balancer.router_id, gateway)
    else:
        yield from _answers(balancer, network)
    endpoints = {pool.id: _endpoints(balancer, pool) for pool in balancer.pools}
    for place in _places(snapshot, balancer, network):
        yield from _services(snapshot, balancer, place, endpoints)
    for each in balancer.pools:
        yield from monitor_rows(snapshot, balancer, each)


def _answers(balancer: lb.LoadBalancer, network: Network) -> Iterator[PortAddress]:
    for vip in balancer.vips:
        fixed = FixedIP(subnet_id=vip.subnet_id, address=vip.address)
        yield PortAddress(port=router_port_name(vip_router_name(network.id)), network=interface(network, fixed))


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


def _places(snapshot: Snapshot, balancer: lb.LoadBalancer, network: Network) -> Iterator[Place]:
    """The project's domain; and the network that the VIPs are on, if that is another project's. There a client is not
    led to an address that is not of the network: whose that would be is for its own routes to say. Of VIPs that a
    gateway has: what is reached from its router."""
    down = snapshot.down.get(balancer.id, frozenset())
    addresses = tuple((vip, (vip.address, *_floating_addresses(snapshot, vip))) for vip in balancer.vips)
    if balancer.router_id is not None:
        yield Place(groups=gateway_groups(balancer.router_id), addresses=addresses, out=down, options=ANSWERING)
        return
    where = vip_network(snapshot, network.id, balancer.project_id)
    yield Place(groups=domain_groups(where), near=domain_near_groups(where), addresses=addresses, out=down)
    if where.guest is not None:
        ranges = AddressRanges.of(network)
        members = (member for pool in balancer.pools for member in pool.members)
        elsewhere = frozenset(member.id for member in members if not ranges.hold(member.address))
        vips = tuple((vip, (vip.address,)) for vip in balancer.vips)
        there = guest_groups(where)
        near = NearGroups(switches=there.balancers, routers=None)
        yield Place(groups=there, near=near, suffix="there", addresses=vips, out=down | elsewhere)


def _endpoints(balancer: lb.LoadBalancer, pool: lb.Pool) -> dict[int, tuple[str, ...]]:
    """Of each member, by its ordinal, as OVN writes it: one for each port at which it takes connections."""
    return {
        member.ordinal: tuple(
            [render_endpoint(member.address, port) for port in lb.target_ports(balancer, pool, member)]
        )
        for member in pool.members
    }


def _services(snapshot: Snapshot, balancer: lb.LoadBalancer, place: Place, endpoints: Endpoints) -> Iterator[OvnRow]:
    """`endpoints` are those of each pool."""
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
            for port, backends in near.take(where, listener, addresses, found).items():
                services.setdefault(where, []).extend(
                    VirtualService(vip=render_endpoint(address, port), backends=backends) for address in addresses
                )
            for address in addresses:
                yield from _admission(place, listener, address)
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
            yield from _admission(place, listener, address)
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
    found = (snapshot.floating_ips[identity] for identity in snapshot.port_floating_ips.get(vip.port_id, NO_IDS))
    return [floating_ip.address for floating_ip in found if floating_ip.fixed_address == vip.address]


def _admission(place: Place, listener: lb.Listener, address: IPAddress) -> Iterator[Acl]:
    """Refuses whom the listener does not allow, before OVN looks at load balancers, without an answer.

    Only new connections: the packets of an established one have its member's address by then. Who comes from outside is
    refused where he enters a router: on an external switch, where another tenant may have the same address behind his.
    """
    family = f"ip{address.version}"
    cidrs = sorted(str(cidr) for cidr in listener.allowed_cidrs if cidr.version == address.version)
    if not listener.allowed_cidrs or any(cidr.endswith("/0") for cidr in cidrs):
        return
    transport = lb.transport(listener.protocol).value
    words = [f"{family}.dst == {address}", *([_port_match(transport, listener.ports)] if listener.ports else [])]
    if cidrs:
        words.append(f"{family}.src != {{{', '.join(cidrs)}}}")
    name = f"{listener.id} {address} {place.suffix}".rstrip()
    yield Acl(name=name, group=place.groups.inside, match=" && ".join(words), priority=ACL_PRIORITY)
    outside = place.groups.outside
    if outside is None:
        return
    words.insert(0, f"outport == @{outside}")
    match = " && ".join(words)
    yield Acl(name=f"{name} outside", group=outside, match=match, priority=ACL_PRIORITY, direction="to-lport")


def _port_match(transport: str, ports: Ports) -> str:
    """ovn-sb(5), Logical_Flow:match."""
    matches = [
        f"{transport}.dst == {each.first}"
        if each.first == each.last
        else f"({transport}.dst >= {each.first} && {transport}.dst <= {each.last})"
        for each in ports
    ]
    return matches[0] if len(matches) == 1 else f"({' || '.join(matches)})"


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


def _refuse_pool(pool: lb.Pool) -> None:
    """Whether a listener leads to it yet or not: what cannot be had is said when it is asked for."""
    lacking = lacking_for_pool(ABILITIES, pool)
    if lacking is not None:
        raise Unsupported(lacking, PROVIDER)
    if sum(member.takes_connections for member in pool.members) > LARGEST:
        raise Unsupported(f"more than {LARGEST} members that take connections in one pool", PROVIDER)


def _refuse_translation(pool: lb.Pool, versions: frozenset[int]) -> None:
    """ovn-nb(5): a VIP of one address family may not be mapped to a destination of another."""
    if not all(member.address.version in versions for member in pool.members):
        raise Unsupported("members whose IP version no VIP has", PROVIDER)
