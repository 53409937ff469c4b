"""Proxies: one on a node for all load balancers of a project whose VIPs are on one network and ask for one.

A proxy is a member with locality. It has an address of a network (`home_of`) on its chassis, and there each listener
that takes the proxy's path has a port of its own. So such a listener leads each chassis to its own proxy, in the way in
which other listeners lead to members near the client; and a chassis whose proxy does not serve, or that has none, to
others.

A port that nobody asked for holds the address (`PortUse.PROXY`). What a proxy serves is a fact: its agent says it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from fairlead.model.derived_ids import id_of_name
from fairlead.model.host_proxies import hosts_standing, is_on_hosts
from fairlead.model.indexes import NO_IDS
from fairlead.model.loadbalancer import (
    UNLIMITED,
    Algorithm,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Locality,
    Member,
    Pool,
    PoolProtocol,
    listeners_of,
)
from fairlead.model.nearby import Tiers
from fairlead.model.network import Port
from fairlead.model.observed_proxy import Proxy
from fairlead.model.owner import Kind, Owner
from fairlead.model.pool_slots import with_slots
from fairlead.model.probes import asks_for_probes
from fairlead.model.proxy_place import ProxyPlace, place_of, place_of_host_proxy, place_of_port, proxy_chassis
from fairlead.model.rendezvous import score
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import OperatingStatus
from fairlead.model.steps import at_once

ProxyNews: TypeAlias = Mapping[str, Proxy | None]
"""By the id of the proxy's port; None for one that does not run."""
_NAMESPACE = bytes.fromhex("0f6f8f0e6c1b4d1e9f5a3c7d2b9e4a10")


def proxy_name(snapshot: Snapshot, place: ProxyPlace) -> str:
    """What its proxies are called on every node: the network, or the router; and of guests their project too."""
    network = snapshot.networks.get(place.at)
    is_guest = network is not None and network.project_id != place.project_id
    return f"{place.at}/{place.project_id}" if is_guest else place.at


def proxy_port_id(name: str, chassis: str) -> str:
    """Of the port behind which the chassis has the proxy of this name."""
    return id_of_name(_NAMESPACE, f"{name} {chassis}")


def proxied_listeners(balancer: LoadBalancer) -> tuple[Listener, ...]:
    """Those that lead to proxies."""
    return tuple([listener for listener in balancer.listeners if listener.proxy_port])


def leads_to_proxies(snapshot: Snapshot, listener_id: str) -> bool:
    """Of a listener that is there."""
    balancer = snapshot.load_balancers[snapshot.listener_owner[listener_id]]
    return any(listener.id == listener_id for listener in proxied_listeners(balancer))


def proxy_ports(snapshot: Snapshot, place: ProxyPlace) -> list[Port]:
    """Of all proxies of the place, in the order of their chassis. Of two on one chassis, which only others can make,
    the one with the lowest id."""
    ports = (snapshot.ports[each] for each in sorted(snapshot.place_proxies.get(place, NO_IDS), reverse=True))
    return [port for _, port in sorted({proxy_chassis(port): port for port in ports}.items())]


def own_proxy(view: Snapshot, place: ProxyPlace) -> Port | None:
    """The port of the proxy that the one chassis of this slice has."""
    for name in view.chassis:
        return next((port for port in proxy_ports(view, place) if proxy_chassis(port) == name), None)
    return None


def own_proxies(view: Snapshot, at: str) -> list[tuple[ProxyPlace, Port]]:
    """Those that the one chassis of this slice has for VIPs on this network, or on the gateway of this router."""
    router = view.routers.get(at)
    if router is not None:
        found = [ProxyPlace(at, router.project_id)]
    else:
        ports = (view.ports[each] for each in view.network_proxies.get(at, NO_IDS))
        found = sorted({place for port in ports if (place := place_of_port(port)) is not None and place.at == at})
    return [(place, port) for place in found if (port := own_proxy(view, place)) is not None]


# As members


def led_by_proxies(snapshot: Snapshot, balancer: LoadBalancer) -> LoadBalancer:
    """The load balancer as a switch has it: what leads to proxies is a TCP listener with a pool of proxies, of which
    those on the client's chassis go first. Pools to which only proxies lead are not there."""
    proxied = proxied_listeners(balancer)
    if not proxied:
        return balancer
    ports = proxy_ports(snapshot, place_of(balancer))
    pools = {listener.id: _pool(listener, ports) for listener in proxied}
    listeners = [
        _listener(listener, pools[listener.id]) if listener.id in pools else listener for listener in balancer.listeners
    ]
    kept = [pool for pool in balancer.pools if _switch_leads_to(balancer, pool)]
    return replace(balancer, listeners=tuple(listeners), pools=(*kept, *pools.values()))


def without_proxied(balancer: LoadBalancer) -> LoadBalancer:
    """What is left to whoever leads packets: no listener that takes a proxy, and no pool to which only these lead."""
    if not proxied_listeners(balancer):
        return balancer
    listeners = tuple(listener for listener in balancer.listeners if not listener.proxy_port)
    pools = tuple(pool for pool in balancer.pools if _switch_leads_to(balancer, pool))
    return replace(balancer, listeners=listeners, pools=pools)


def _switch_leads_to(balancer: LoadBalancer, pool: Pool) -> bool:
    """Or nobody does yet."""
    leading = listeners_of(balancer, pool.id)
    return not leading or not all(listener.proxy_port for listener in leading)


def absent_proxies(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[str]:
    """The members of such pools that do not serve: their node is dead, or their agent has not said that they do. A
    proxy is one member for each of its addresses, which are one here.

    Whether one serves of which the agent is silent nobody knows: it is led to if there is none but such.
    """
    ports = proxy_ports(snapshot, place_of(balancer))
    found = set[str]()
    for listener in proxied_listeners(balancer):
        serving = {port.id for port in ports if _serves(snapshot, port, listener)}
        known = {port.id for port in ports if port.id in serving and not _is_silent(snapshot, proxy_chassis(port))}
        found.update(_member_id(listener, port) for port in ports if port.id not in (known or serving))
    return frozenset(found)


def proxies_standing(snapshot: Snapshot, balancer: LoadBalancer, listener: Listener) -> OperatingStatus:
    """How a listener stands that leads to proxies.

    DEGRADED while some node says that it cannot serve, ERROR when nobody serves and nobody will: each node that should
    is dead, has no agent that is heard, or says that it cannot; or others refuse the ports. OFFLINE is what nobody
    serves yet: a proxy that was just given its place, or its listener, needs a moment. Where no machine of the project
    runs on the network nobody is to serve, and it is ONLINE: a proxy comes to the node of the first one. A port that is
    plugged in nowhere is no machine yet. Whether guests of others are there changes nothing: nobody makes another
    project's status.
    """
    if is_on_hosts(snapshot, place_of(balancer)):
        return hosts_standing(snapshot, balancer, listener)
    ports = proxy_ports(snapshot, place_of(balancer))
    failing = {port.id for port in ports if _cannot_apply(snapshot, port, balancer, listener)}
    if not ports and place_of(balancer).at in snapshot.refused_proxies:
        return OperatingStatus.ERROR
    if any(_serves(snapshot, port, listener) for port in ports):
        return OperatingStatus.DEGRADED if failing else OperatingStatus.ONLINE
    hosts = [proxy_chassis(port) for port in ports if port.id not in failing] if ports else [*snapshot.agents]
    if not any(_may_serve(snapshot, host) for host in hosts):
        return OperatingStatus.ERROR
    machines = snapshot.machines.get((balancer.vip.network_id, balancer.project_id), NO_IDS)
    is_wanted = ports or any(each in snapshot.plugged for each in machines)
    return OperatingStatus.OFFLINE if is_wanted else OperatingStatus.ONLINE


def wanted_of_proxies(snapshot: Snapshot, place: ProxyPlace) -> frozenset[int]:
    """The ports at which each proxy of the place is to take connections."""
    balancers = (snapshot.load_balancers[each] for each in snapshot.proxied.get(place, NO_IDS))
    return frozenset(
        listener.proxy_port
        for balancer in balancers
        if balancer.admin_state_up
        for listener in proxied_listeners(balancer)
        if listener.admin_state_up
    )


def _may_serve(snapshot: Snapshot, chassis: str) -> bool:
    known, agent = snapshot.chassis.get(chassis), snapshot.agents.get(chassis)
    return known is not None and known.alive and agent is not None and agent.heard


def _cannot_apply(snapshot: Snapshot, port: Port, balancer: LoadBalancer, listener: Listener) -> bool:
    """Whether the node with the port says so, of the load balancer or of the proxy itself. Where the proxy serves, what
    cannot be had on its network is another project's."""
    agent = snapshot.agents.get(proxy_chassis(port))
    owners = {str(Owner(Kind.LOAD_BALANCER, balancer.id))}
    if not _serves(snapshot, port, listener):
        owners.update(str(Owner(kind, place_of(balancer).at)) for kind in (Kind.NETWORK, Kind.ROUTER))
    return agent is not None and any(each.owner in owners for each in agent.unapplied)


def proxies_near(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[str, str, Tiers]]:
    """Of a load balancer as a switch has it: chassis, pool of proxies, and those that are near the clients there: its
    own one, then those in its zones. Chassis that have the same have one value."""
    hosts = {port.id: proxy_chassis(port) for port in proxy_ports(snapshot, place_of(balancer))}
    if not hosts:
        return
    near, pools = _hosts_near(snapshot, frozenset(hosts.values())), {pool.id: pool for pool in balancer.pools}
    for pool in (pools[listener.default_pool_id or ""] for listener in proxied_listeners(balancer)):
        at = [(member, hosts[member.id.partition("/")[2]]) for member in pool.members]
        made = {
            places: tuple(tuple([member for member, host in at if host in place]) for place in places)
            for places in set(near.values())
        }
        for chassis, places in near.items():
            yield chassis, pool.id, made[places]


def _hosts_near(snapshot: Snapshot, hosts: frozenset[str]) -> Mapping[str, tuple[frozenset[str], ...]]:
    """Chassis -> itself, if it is one of these, then those of them in its zones; nothing of one that has neither."""
    zones = {host: snapshot.chassis[host].zones for host in hosts if host in snapshot.chassis}
    shared = dict[frozenset[str], frozenset[str]]()
    found = dict[str, tuple[frozenset[str], ...]]()
    for chassis in snapshot.chassis.values():
        if chassis.zones not in shared:
            shared[chassis.zones] = frozenset(host for host, its in zones.items() if not its.isdisjoint(chassis.zones))
        tiers = (frozenset({chassis.name}) & hosts, shared[chassis.zones])
        if any(tiers):
            found[chassis.name] = tuple(filter(None, tiers))
    return found


def _serves(snapshot: Snapshot, port: Port, listener: Listener) -> bool:
    proxy, chassis = snapshot.proxies.get(port.id), snapshot.chassis.get(proxy_chassis(port))
    return proxy is not None and listener.proxy_port in proxy.serving and chassis is not None and chassis.alive


def _is_silent(snapshot: Snapshot, chassis: str) -> bool:
    agent = snapshot.agents.get(chassis)
    return agent is not None and (agent.away or not agent.heard)


def _member_id(listener: Listener, port: Port) -> str:
    return f"{listener.id}/{port.id}"


def _pool(listener: Listener, ports: Iterable[Port]) -> Pool:
    project_id, created_at = listener.project_id, listener.created_at
    members = [
        Member(
            id=_member_id(listener, port),
            project_id=project_id,
            created_at=created_at,
            address=fixed.address,
            port=listener.proxy_port,
        )
        for port in ports
        for fixed in port.fixed_ips
    ]
    pool = Pool(
        id=f"{listener.id}/proxies",
        project_id=project_id,
        created_at=created_at,
        protocol=PoolProtocol.TCP,
        algorithm=Algorithm.SOURCE_IP_PORT,
        locality=Locality.CHASSIS,
        members=tuple(replace(member, ordinal=number) for number, member in enumerate(members)),
        next_ordinal=len(members),
    )
    return at_once(with_slots(pool, ()))


def _listener(listener: Listener, pool: Pool) -> Listener:
    return replace(
        listener,
        protocol=ListenerProtocol.TCP,
        default_pool_id=pool.id,
        connection_limit=UNLIMITED,
        tls=None,
        http=None,
        raw=None,
        l7policies=(),
    )


# What is not known at the start


def rests_on_agents(snapshot: Snapshot) -> bool:
    """Whether it matters what agents tell: of members that they probe, or of proxies."""
    return snapshot.agents_probe and (asks_for_probes(snapshot) or bool(snapshot.proxied))


def untold_proxies(snapshot: Snapshot) -> Iterator[str]:
    """The ports of proxies of which nobody has said anything, on nodes that live."""
    for place in snapshot.proxied:
        for port in proxy_ports(snapshot, place):
            node = snapshot.chassis.get(proxy_chassis(port))
            if port.id not in snapshot.proxies and node is not None and node.alive:
                yield port.id


# Where they are


def choose_chassis(candidates: Iterable[str], had: Iterable[str], name: str, most: int) -> frozenset[str]:
    """At most so many of these chassis, the same whoever asks: those that had a proxy keep it, others come in the order
    of its name."""
    wanted, kept = frozenset(candidates), frozenset(had)
    order = sorted(wanted, key=lambda each: (each not in kept, score(each, name), each))
    return frozenset(order[:most])


# Whom it concerns what they serve


def led_to(old: Snapshot, new: Snapshot, news: ProxyNews) -> Iterator[Owner]:
    """Who leads to a proxy that serves others of its listeners than before."""
    for port_id in news:
        place = _place_named(new, port_id)
        numbers = _serving_at(old, port_id) ^ _serving_at(new, port_id)
        found = {new.proxy_ports.get((place, number), "") for number in numbers} if place is not None else ()
        yield from (Owner(Kind.LOAD_BALANCER, each) for each in sorted(found) if each)


def led_there(snapshot: Snapshot, port_ids: Iterable[str]) -> list[Owner]:
    """Who leads to proxies behind these ports."""
    places = {
        place for each in port_ids if (port := snapshot.ports.get(each)) is not None and (place := place_of_port(port))
    }
    found = {each for place in places for each in snapshot.proxied.get(place, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def _place_named(snapshot: Snapshot, port_id: str) -> ProxyPlace | None:
    port = snapshot.ports.get(port_id)
    return place_of_host_proxy(port_id) if port is None else place_of_port(port)


def _serving_at(snapshot: Snapshot, port_id: str) -> frozenset[int]:
    found = snapshot.proxies.get(port_id)
    return frozenset() if found is None else found.serving
