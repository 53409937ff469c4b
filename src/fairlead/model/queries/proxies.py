"""Proxies: one HAProxy per node for all load balancers of a project with VIPs on one network that need one.

A proxy is modelled as a member with a locality. It has an address of a network (`find_proxy_network`) on its chassis,
and each proxied listener has its own port there. A proxied listener therefore leads clients to the proxy of their own
chassis, as other listeners lead to near members, and to other proxies if the chassis has no serving proxy.

A port that no request created holds the address (`PortUse.PROXY`). The listeners that a proxy serves are a fact,
reported by its agent.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeAlias

from fairlead.model.documents.derived_ids import id_of_name
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import (
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
from fairlead.model.documents.network import Port
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.pool_slot_tables import with_slots
from fairlead.model.documents.proxy_place import ProxyPlace, place_of, place_of_host_proxy, place_of_port, proxy_chassis
from fairlead.model.documents.rendezvous import score
from fairlead.model.documents.status import OperatingStatus
from fairlead.model.queries.host_proxies import derive_host_proxy_status, is_on_hosts
from fairlead.model.queries.locality_tiers import Tiers
from fairlead.model.queries.probes import has_monitors
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion

ProxyUpdate: TypeAlias = Mapping[str, Proxy | None]
"""Id of the proxy's port -> its state; None for a proxy that is not running."""
_NAMESPACE = bytes.fromhex("0f6f8f0e6c1b4d1e9f5a3c7d2b9e4a10")


def proxy_name(snapshot: Snapshot, place: ProxyPlace) -> str:
    """Return the name of the place's proxies, equal on every node: network or router, and the project of guests."""
    network = snapshot.networks.get(place.at)
    is_guest = network is not None and network.project_id != place.project_id
    return f"{place.at}/{place.project_id}" if is_guest else place.at


def proxy_port_id(name: str, chassis: str) -> str:
    """Return the id of the port of this chassis's proxy with this name."""
    return id_of_name(_NAMESPACE, f"{name} {chassis}")


def proxied_listeners(balancer: LoadBalancer) -> tuple[Listener, ...]:
    """Return the listeners that use proxies."""
    return tuple([listener for listener in balancer.listeners if listener.proxy_port])


def uses_proxies(snapshot: Snapshot, listener_id: str) -> bool:
    """Return whether an existing listener uses proxies."""
    balancer = snapshot.load_balancers[snapshot.listener_owner[listener_id]]
    return any(listener.id == listener_id for listener in proxied_listeners(balancer))


def proxy_ports(snapshot: Snapshot, place: ProxyPlace) -> list[Port]:
    """Return the ports of all proxies of the place, sorted by chassis. Duplicates on a chassis, possible on unmanaged
    networks only, are resolved to the lowest id."""
    ports = (snapshot.ports[each] for each in sorted(snapshot.place_proxies.get(place, NO_IDS), reverse=True))
    return [port for _, port in sorted({proxy_chassis(port): port for port in ports}.items())]


def own_proxy(view: Snapshot, place: ProxyPlace) -> Port | None:
    """Return the port of the proxy on the only chassis of this slice; None if it has none."""
    for name in view.chassis:
        return next((port for port in proxy_ports(view, place) if proxy_chassis(port) == name), None)
    return None


def own_proxies(view: Snapshot, at: str) -> list[tuple[ProxyPlace, Port]]:
    """Return the proxies on the only chassis of this slice for VIPs on this network,
    or on the gateway of this router."""
    router = view.routers.get(at)
    if router is not None:
        found = [ProxyPlace(at, router.project_id)]
    else:
        ports = (view.ports[each] for each in view.network_proxies.get(at, NO_IDS))
        found = sorted({place for port in ports if (place := place_of_port(port)) is not None and place.at == at})
    return [(place, port) for place in found if (port := own_proxy(view, place)) is not None]


# Proxies as members


def with_proxy_pools(snapshot: Snapshot, balancer: LoadBalancer) -> LoadBalancer:
    """Return the load balancer as a switch implements it.

    Each proxied listener becomes a TCP listener with a pool of proxies that prefers the client's chassis. Pools used by
    proxies only are removed.
    """
    proxied = proxied_listeners(balancer)
    if not proxied:
        return balancer
    ports = proxy_ports(snapshot, place_of(balancer))
    pools = {listener.id: _pool(listener, ports) for listener in proxied}
    listeners = [
        _listener(listener, pools[listener.id]) if listener.id in pools else listener for listener in balancer.listeners
    ]
    kept = [pool for pool in balancer.pools if _is_used_by_switch(balancer, pool)]
    return replace(balancer, listeners=tuple(listeners), pools=(*kept, *pools.values()))


def without_proxied_listeners(balancer: LoadBalancer) -> LoadBalancer:
    """Return the load balancer without proxied listeners and without pools that only these use."""
    if not proxied_listeners(balancer):
        return balancer
    listeners = tuple(listener for listener in balancer.listeners if not listener.proxy_port)
    pools = tuple(pool for pool in balancer.pools if _is_used_by_switch(balancer, pool))
    return replace(balancer, listeners=listeners, pools=pools)


def _is_used_by_switch(balancer: LoadBalancer, pool: Pool) -> bool:
    """Return whether any listener without a proxy uses the pool, or no listener uses it."""
    leading = listeners_of(balancer, pool.id)
    return not leading or not all(listener.proxy_port for listener in leading)


def find_proxies_not_serving(snapshot: Snapshot, balancer: LoadBalancer) -> frozenset[str]:
    """Return the members of proxy pools that do not serve.

    Their chassis is dead, or their agent has not reported them as serving. A proxy is one member per address; its
    addresses share a state.

    The state of a proxy with an unresponsive agent is unknown, so such proxies are used only if no other proxy serves.
    """
    ports = proxy_ports(snapshot, place_of(balancer))
    found = set[str]()
    for listener in proxied_listeners(balancer):
        serving = {port.id for port in ports if _serves(snapshot, port, listener)}
        known = {
            port.id for port in ports if port.id in serving and not _is_unresponsive(snapshot, proxy_chassis(port))
        }
        found.update(_member_id(listener, port) for port in ports if port.id not in (known or serving))
    return frozenset(found)


def derive_proxy_status(snapshot: Snapshot, balancer: LoadBalancer, listener: Listener) -> OperatingStatus:
    """Return the operating status of a listener that uses proxies.

    * ONLINE: a proxy serves and no node fails. Also ONLINE if no machine of the project is plugged in on the network,
      because no proxy is needed yet: the first machine brings one to its node. Machines of guests do not count, because
      other projects must not influence the status.
    * DEGRADED: a proxy serves and another node reports that it failed.
    * OFFLINE: no proxy serves yet; a new proxy or listener needs a moment.
    * ERROR: no proxy serves and none can, because each node is dead, has no responsive agent or reports a failure, or
      the network's manager rejects the ports.
    """
    if is_on_hosts(snapshot, place_of(balancer)):
        return derive_host_proxy_status(snapshot, balancer, listener)
    ports = proxy_ports(snapshot, place_of(balancer))
    failing = {port.id for port in ports if _has_apply_failure(snapshot, port, balancer, listener)}
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


def required_proxy_ports(snapshot: Snapshot, place: ProxyPlace) -> frozenset[int]:
    """Return the ports where each proxy of the place must accept connections."""
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
    return known is not None and known.alive and agent is not None and agent.is_responsive


def _has_apply_failure(snapshot: Snapshot, port: Port, balancer: LoadBalancer, listener: Listener) -> bool:
    """Return whether the port's node reports a failure for the load balancer, or for the proxy itself. If the proxy
    serves, failures of its network concern another project."""
    agent = snapshot.agents.get(proxy_chassis(port))
    owners = {str(Owner(Kind.LOAD_BALANCER, balancer.id))}
    if not _serves(snapshot, port, listener):
        owners.update(str(Owner(kind, place_of(balancer).at)) for kind in (Kind.NETWORK, Kind.ROUTER))
    return agent is not None and any(each.owner in owners for each in agent.apply_failures)


def proxy_tiers_by_chassis(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[tuple[str, str, Tiers]]:
    """Yield chassis, proxy pool and tiers: the chassis's own proxy, then those in its zones. The load balancer is in
    the form that a switch implements. Chassis with equal tiers share one value."""
    hosts = {port.id: proxy_chassis(port) for port in proxy_ports(snapshot, place_of(balancer))}
    if not hosts:
        return
    near, pools = _tiers_of_hosts(snapshot, frozenset(hosts.values())), {pool.id: pool for pool in balancer.pools}
    for pool in (pools[listener.default_pool_id or ""] for listener in proxied_listeners(balancer)):
        at = [(member, hosts[member.id.partition("/")[2]]) for member in pool.members]
        made = {
            places: tuple(tuple([member for member, host in at if host in place]) for place in places)
            for places in set(near.values())
        }
        for chassis, places in near.items():
            yield chassis, pool.id, made[places]


def _tiers_of_hosts(snapshot: Snapshot, hosts: frozenset[str]) -> Mapping[str, tuple[frozenset[str], ...]]:
    """Return chassis -> tiers of hosts: itself if it is one of `hosts`, then hosts in its zones.
    Chassis with neither are omitted."""
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


def _is_unresponsive(snapshot: Snapshot, chassis: str) -> bool:
    agent = snapshot.agents.get(chassis)
    return agent is not None and (agent.is_disconnected or not agent.is_responsive)


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
        algorithm=Algorithm.ROUND_ROBIN,
        locality=Locality.CHASSIS,
        members=tuple(replace(member, ordinal=number) for number, member in enumerate(members)),
        next_ordinal=len(members),
    )
    return run_to_completion(with_slots(pool, ()))


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


# State that is unknown after a start


def depends_on_agents(snapshot: Snapshot) -> bool:
    """Return whether rows depend on reports of agents, about members or proxies."""
    return snapshot.agents_probe and (has_monitors(snapshot) or bool(snapshot.proxied))


def unreported_proxies(snapshot: Snapshot) -> Iterator[str]:
    """Yield the ports of proxies without a report, on chassis that are alive."""
    for place in snapshot.proxied:
        for port in proxy_ports(snapshot, place):
            node = snapshot.chassis.get(proxy_chassis(port))
            if port.id not in snapshot.proxies and node is not None and node.alive:
                yield port.id


# Placement


def choose_chassis(candidates: Iterable[str], had: Iterable[str], name: str, most: int) -> frozenset[str]:
    """Return at most `most` of these chassis, the same for every caller. Chassis with a proxy keep it; others follow in
    the rendezvous order of the name."""
    wanted, kept = frozenset(candidates), frozenset(had)
    order = sorted(wanted, key=lambda each: (each not in kept, score(each, name), each))
    return frozenset(order[:most])


# Owners that reports of proxies affect


def balancers_of_changed_proxies(old: Snapshot, new: Snapshot, news: ProxyUpdate) -> Iterator[Owner]:
    """Yield load balancers with a listener that a proxy started or stopped serving."""
    for port_id in news:
        place = _place_of_proxy_id(new, port_id)
        numbers = _serving_at(old, port_id) ^ _serving_at(new, port_id)
        found = {new.proxy_ports.get((place, number), "") for number in numbers} if place is not None else ()
        yield from (Owner(Kind.LOAD_BALANCER, each) for each in sorted(found) if each)


def balancers_of_proxy_ports(snapshot: Snapshot, port_ids: Iterable[str]) -> list[Owner]:
    """Return the load balancers that use the proxies behind these ports."""
    places = {
        place for each in port_ids if (port := snapshot.ports.get(each)) is not None and (place := place_of_port(port))
    }
    found = {each for place in places for each in snapshot.proxied.get(place, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def _place_of_proxy_id(snapshot: Snapshot, port_id: str) -> ProxyPlace | None:
    port = snapshot.ports.get(port_id)
    return place_of_host_proxy(port_id) if port is None else place_of_port(port)


def _serving_at(snapshot: Snapshot, port_id: str) -> frozenset[int]:
    found = snapshot.proxies.get(port_id)
    return frozenset() if found is None else found.serving
