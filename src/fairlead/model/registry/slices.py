"""Slice of one chassis: the part of the model that it needs, as a snapshot that compilers use like the whole one.

A slice has the documents of the places that the chassis reaches by its own ports: networks, routers and the objects on
them. OVN installs the flows of exactly these places there, for all projects. A slice therefore has nothing that the
chassis's machines cannot reach, and no credentials. A declared plain host gets, with or without OVN, all declared
hosts, the state of their proxies, their own addresses, and the announced networks with their load balancers, because
any packet for these may arrive there. The health of members is the server's; the only chassis is its own, so compilers
of rows where a port is plugged in create those of this chassis.

The places of a document follow from the document alone (`places_of`), so a change affects the chassis that reach its
places, and no other document is read.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from immutables import Map

from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import FloatingIP, Port, PortUse
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import place_of_host_proxy
from fairlead.model.queries.local_datapaths import local_places
from fairlead.model.registry.changeset import load_documents
from fairlead.model.snapshot import Aggregate, Snapshot

ALL_HOSTS_PLACE = "/hosts"
"""Place of all plain hosts, which know each other; it is no network and no router."""


def _places_of_balancer(balancer: LoadBalancer) -> tuple[str, ...]:
    network_id = balancer.vip.network_id
    return (balancer.router_id,) if balancer.router_id else (network_id, announced_place(network_id))


def _places_of_floating_ip(floating_ip: FloatingIP) -> tuple[str, ...]:
    return (floating_ip.router_id,) if floating_ip.router_id else ()


def network_only_place(network_id: str) -> str:
    """Return the place with the network's own document and nothing on it. It is for chassis that reach a router with a
    gateway on the network, but not the network itself."""
    return f"{network_id}/"


def announced_place(network_id: str) -> str:
    """Return the place with the network's own document and the load balancers with VIPs there. It is for hosts that
    announce these VIPs without a port on the network."""
    return f"{network_id}/served"


def _places_of_port(port: Port) -> tuple[str, ...]:
    """Return the network of a port; a gateway port is at its router too."""
    gateway = port.use is PortUse.ROUTER_GATEWAY
    return (port.network_id, port.device_id) if gateway else (port.network_id,)


PLACES: Mapping[Kind, Callable[[Any], tuple[str, ...]]] = {
    Kind.NETWORK: lambda network: (network.id, network_only_place(network.id), announced_place(network.id)),
    Kind.ROUTER: lambda router: (router.id,),
    Kind.PORT: _places_of_port,
    Kind.HOST: lambda _: (ALL_HOSTS_PLACE,),
    Kind.LOAD_BALANCER: _places_of_balancer,
    Kind.FLOATING_IP: _places_of_floating_ip,
    Kind.LOCAL_IP: lambda local_ip: (local_ip.network_id,),
}
"""Kind of document in slices -> the places of a document: ids of networks and routers, or derived from them. Other
kinds are in no slice."""


def places_of(snapshot: Snapshot, owner: Owner) -> tuple[str, ...]:
    """Return the places of the owner's document; empty if there is none, or if its kind is in no slice."""
    found = snapshot.find(owner) if owner.kind in PLACES else None
    return () if found is None else PLACES[owner.kind](found)


def owners_at(snapshot: Snapshot, place: str) -> Iterator[Owner]:
    """Yield the owners of documents at this place, whether its network or router exists or not."""
    if place == ALL_HOSTS_PLACE:
        yield from (Owner(Kind.HOST, each) for each in snapshot.hosts)
        return
    network_id, _, part = place.partition("/")
    network, router = snapshot.networks.get(network_id), snapshot.routers.get(place)
    vips_of = network_id if part else place
    if network is not None:
        yield Owner(Kind.NETWORK, network.id)
    if router is not None:
        yield Owner(Kind.ROUTER, router.id)
        if router.gateway is not None and router.gateway.port_id in snapshot.ports:
            yield Owner(Kind.PORT, router.gateway.port_id)
    yield from (Owner(Kind.PORT, each) for each in snapshot.network_ports.get(place, NO_IDS))
    yield from (Owner(Kind.LOAD_BALANCER, each) for each in snapshot.network_vips.get(vips_of, NO_IDS))
    yield from (Owner(Kind.LOAD_BALANCER, each) for each in snapshot.router_vips.get(place, NO_IDS))
    yield from (Owner(Kind.LOCAL_IP, each) for each in snapshot.network_local_ips.get(place, NO_IDS))
    yield from (Owner(Kind.FLOATING_IP, each) for each in snapshot.router_floating_ips.get(place, NO_IDS))


def owners_at_any(snapshot: Snapshot, places: Iterable[str]) -> Iterator[Owner]:
    """Yield the owners at any of these places, without duplicates, in a stable order."""
    seen: set[Owner] = set()
    for place in sorted(places):
        for owner in owners_at(snapshot, place):
            if owner not in seen:
                seen.add(owner)
                yield owner


def joined_places(snapshot: Snapshot, owner: Owner) -> tuple[str, ...]:
    """Return the two places that a router's port connects; empty for other ports.
    A chassis that reaches one may reach the other."""
    port = snapshot.ports.get(owner.id) if owner.kind is Kind.PORT else None
    joins = port is not None and port.use in (PortUse.ROUTER_INTERFACE, PortUse.ROUTER_GATEWAY)
    return (port.network_id, port.device_id) if port is not None and joins else ()


def reached_places(snapshot: Snapshot, chassis: str) -> frozenset[str]:
    """Return the places that a chassis reaches by its own ports;
    a declared host also reaches the announced networks."""
    announced = (
        {ALL_HOSTS_PLACE, *map(announced_place, snapshot.announced)} if chassis in snapshot.hosts else frozenset()
    )
    return _reached_by_ports(snapshot, chassis) | announced


def _reached_by_ports(snapshot: Snapshot, chassis: str) -> frozenset[str]:
    node = snapshot.chassis.get(chassis)
    if node is None:
        return frozenset()
    near = local_places(snapshot, node.ports) - frozenset(node.ports)
    routers = (snapshot.routers[each] for each in near if each in snapshot.routers)
    return near | {network_only_place(router.gateway.network_id) for router in routers if router.gateway is not None}


def own_plugged(snapshot: Snapshot, chassis: Chassis) -> Map[str, str]:
    """Return the entries of `plugged` for the chassis's own ports."""
    return Map(
        {each: snapshot.plugged[each] for each, flows in chassis.ports.items() if flows and each in snapshot.plugged}
    )


def slice_of(snapshot: Snapshot, name: str) -> Snapshot:
    """Return the slice of a chassis. The cost is that of the places that it reaches.
    An unknown chassis reaches none."""
    chassis = snapshot.chassis.get(name, Chassis(name=name))
    owners = {owner for place in reached_places(snapshot, name) for owner in owners_at(snapshot, place)}
    documents = ((_find_document(snapshot, owner), snapshot.generations.get(owner)) for owner in owners)
    facts = Snapshot(
        chassis=Map({name: chassis}),
        plugged=own_plugged(snapshot, chassis),
        covered=Map({place: who for place, who in snapshot.covered.items() if who == name}),
        proxies=_proxies_on_hosts(snapshot) if name in snapshot.hosts else Map(),
        own_addresses=snapshot.own_addresses if name in snapshot.hosts else Map(),
        down=_select_owners(snapshot.down, owners),
        online=_select_owners(snapshot.online, owners),
        abilities=snapshot.abilities,
        agents_probe=snapshot.agents_probe,
        gateway_chassis=snapshot.gateway_chassis,
        parting_seconds=snapshot.parting_seconds,
    )
    return load_documents(facts, documents, snapshot.revision)


def _proxies_on_hosts(snapshot: Snapshot) -> Map[str, Proxy]:
    """Return the state of proxies on plain hosts, because every host forwards packets to all of them."""
    own = {name: snapshot.proxies[name] for name in snapshot.proxies if place_of_host_proxy(name) is not None}
    return Map(own)


def _find_document(snapshot: Snapshot, owner: Owner) -> Aggregate:
    found: Aggregate = snapshot.documents(owner.kind)[owner.id]
    return found


def _select_owners(known: Map[str, frozenset[HealthKey]], owners: Collection[Owner]) -> Map[str, frozenset[HealthKey]]:
    return Map({owner.id: known[owner.id] for owner in owners if owner.id in known})
