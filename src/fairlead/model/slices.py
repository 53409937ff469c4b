"""What one chassis is given of the model: a snapshot like the whole one, so that compilers tell no difference.

A slice has the documents of the places that the chassis reaches by its own ports: networks, routers and what is on
them. These are the places of which OVN gives it the flows, whoever owns them. So it sees nothing that its own machines
could not meet, and nothing of what says who may come in. A plain host that an operator has declared is given, whether
OVN knows it or not, all declared hosts, what their proxies serve, which addresses they have themselves, and the
announced networks with their load balancers: any packet for these may come to it. Who is down it has as the server
knows it, and of all chassis only its own: a compiler that makes rows where a port is plugged in makes those of this
chassis.

Where a document is can be told from itself (`places_of`). So a change of one concerns the chassis that reach its
places, and looks at no other document.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

from immutables import Map

from fairlead.model.chassis import Chassis
from fairlead.model.health import HealthKey
from fairlead.model.indexes import NO_IDS
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.locality import local_places
from fairlead.model.network import FloatingIP, Port, PortUse
from fairlead.model.observed_proxy import Proxy
from fairlead.model.owner import Kind, Owner
from fairlead.model.proxy_place import place_of_host_proxy
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.model.writing import load_documents

HOSTS = "/hosts"
"""A place that is no network's or router's: plain hosts are there, and know of each other."""


def _places_of_balancer(balancer: LoadBalancer) -> tuple[str, ...]:
    network_id = balancer.vip.network_id
    return (balancer.router_id,) if balancer.router_id else (network_id, served(network_id))


def _places_of_floating_ip(floating_ip: FloatingIP) -> tuple[str, ...]:
    return (floating_ip.router_id,) if floating_ip.router_id else ()


def alone(network_id: str) -> str:
    """A place at which there is the network's own document and nothing that is on it: for who reaches a router whose
    gateway is there, and not the network."""
    return f"{network_id}/"


def served(network_id: str) -> str:
    """A place at which there is the network's own document, and the load balancers that have VIPs there: for hosts that
    announce these, to which ports say nothing."""
    return f"{network_id}/served"


def _places_of_port(port: Port) -> tuple[str, ...]:
    """A gateway is where its router is too."""
    gateway = port.use is PortUse.ROUTER_GATEWAY
    return (port.network_id, port.device_id) if gateway else (port.network_id,)


PLACES: Mapping[Kind, Callable[[Any], tuple[str, ...]]] = {
    Kind.NETWORK: lambda network: (network.id, alone(network.id), served(network.id)),
    Kind.ROUTER: lambda router: (router.id,),
    Kind.PORT: _places_of_port,
    Kind.HOST: lambda _: (HOSTS,),
    Kind.LOAD_BALANCER: _places_of_balancer,
    Kind.FLOATING_IP: _places_of_floating_ip,
    Kind.LOCAL_IP: lambda local_ip: (local_ip.network_id,),
}
"""The kinds of documents that nodes see, and where one is: ids of networks and routers, and what is made of them here.
Nobody sees the others."""


def places_of(snapshot: Snapshot, owner: Owner) -> tuple[str, ...]:
    """Where its document is; nowhere if there is none, or none that nodes see."""
    found = snapshot.find(owner) if owner.kind in PLACES else None
    return () if found is None else PLACES[owner.kind](found)


def owners_at(snapshot: Snapshot, place: str) -> Iterator[Owner]:
    """The documents that are at this place, whether the network or router itself is there or not."""
    if place == HOSTS:
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
    """Those that are at one of these places: each once, in an order that is always the same."""
    seen: set[Owner] = set()
    for place in sorted(places):
        for owner in owners_at(snapshot, place):
            if owner not in seen:
                seen.add(owner)
                yield owner


def joined_places(snapshot: Snapshot, owner: Owner) -> tuple[str, ...]:
    """What a port joins, if it is a router's: who reaches one of them may reach the other."""
    port = snapshot.ports.get(owner.id) if owner.kind is Kind.PORT else None
    joins = port is not None and port.use in (PortUse.ROUTER_INTERFACE, PortUse.ROUTER_GATEWAY)
    return (port.network_id, port.device_id) if port is not None and joins else ()


def reached_places(snapshot: Snapshot, chassis: str) -> frozenset[str]:
    """What a chassis reaches by its own ports; and, if it is a declared host, by what routers bring to hosts."""
    announced = {HOSTS, *map(served, snapshot.announced)} if chassis in snapshot.hosts else frozenset()
    return _reached_by_ports(snapshot, chassis) | announced


def _reached_by_ports(snapshot: Snapshot, chassis: str) -> frozenset[str]:
    node = snapshot.chassis.get(chassis)
    if node is None:
        return frozenset()
    near = local_places(snapshot, node.ports) - frozenset(node.ports)
    routers = (snapshot.routers[each] for each in near if each in snapshot.routers)
    return near | {alone(router.gateway.network_id) for router in routers if router.gateway is not None}


def own_plugged(snapshot: Snapshot, chassis: Chassis) -> Map[str, str]:
    """What `plugged` says of the chassis's own ports."""
    return Map(
        {each: snapshot.plugged[each] for each, flows in chassis.ports.items() if flows and each in snapshot.plugged}
    )


def slice_of(snapshot: Snapshot, name: str) -> Snapshot:
    """It costs as much as the chassis reaches. One that nobody has observed or declared reaches nothing."""
    chassis = snapshot.chassis.get(name, Chassis(name=name))
    owners = {owner for place in reached_places(snapshot, name) for owner in owners_at(snapshot, place)}
    documents = ((_found(snapshot, owner), snapshot.generations.get(owner)) for owner in owners)
    facts = Snapshot(
        chassis=Map({name: chassis}),
        plugged=own_plugged(snapshot, chassis),
        covered=Map({place: who for place, who in snapshot.covered.items() if who == name}),
        proxies=_of_hosts(snapshot) if name in snapshot.hosts else Map(),
        own_addresses=snapshot.own_addresses if name in snapshot.hosts else Map(),
        down=_of_these(snapshot.down, owners),
        online=_of_these(snapshot.online, owners),
        abilities=snapshot.abilities,
        agents_probe=snapshot.agents_probe,
        gateway_chassis=snapshot.gateway_chassis,
        parting_seconds=snapshot.parting_seconds,
    )
    return load_documents(facts, documents, snapshot.revision)


def _of_hosts(snapshot: Snapshot) -> Map[str, Proxy]:
    """What proxies on plain hosts serve: each of these leads packets to all of them."""
    own = {name: snapshot.proxies[name] for name in snapshot.proxies if place_of_host_proxy(name) is not None}
    return Map(own)


def _found(snapshot: Snapshot, owner: Owner) -> Aggregate:
    found: Aggregate = snapshot.documents(owner.kind)[owner.id]
    return found


def _of_these(known: Map[str, frozenset[HealthKey]], owners: Collection[Owner]) -> Map[str, frozenset[HealthKey]]:
    return Map({owner.id: known[owner.id] for owner in owners if owner.id in known})
