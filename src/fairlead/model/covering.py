"""Which node probes what, and who does it in the place of a node that is silent.

A node probes what it hosts. Where its agent is stale nobody knows what became of the machines there: each of their
places is *covered* by the agent of another node, until the node's own is heard again. A place where nobody has a port
is covered for ever. What was seen last holds until whoever covers it has seen it, so nothing flaps:

* the agent was lost alone: whoever covers sees the member answer, and it never went down;
* the node lost its power: whoever covers sees it fail, and it is down;
* nobody can cover it: what was seen last holds, unless OVN calls the chassis dead (ADR 9).

Who is behind a plain host is probed by that host alone: nobody else may have a way to it.

All places of a network are covered by one chassis, which has an ordinary port there for it (ADR 46): what a localport
sends stays on its node. Nobody covers networks that others wrote: there is no address to be had from them.

Servers and agents ask the same functions: the agent what to probe, the server what to believe.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from fairlead.model.behind import host_of
from fairlead.model.foreign import is_foreign
from fairlead.model.health import Endpoint, Health
from fairlead.model.indexes import NO_IDS
from fairlead.model.rendezvous import score
from fairlead.model.snapshot import Snapshot

Near: TypeAlias = Callable[[str], Collection[str]]
"""A network -> the chassis that reach it by their own ports (`model/locality.py`)."""
MOST_COVERED = 10_000
"""Places that servers have covered at once: those that come first by name. A rack that loses its power has fewer."""


def place_of(endpoint: Endpoint) -> str:
    """What is covered as one: all endpoints of a port, or of an address that no port has."""
    return endpoint.port_id or f"{endpoint.network_id}/{endpoint.address}"


def probes_here(snapshot: Snapshot, chassis: str, endpoint: Endpoint) -> bool:
    """Whether it is for this chassis to probe this endpoint, and to tell what it saw."""
    if endpoint.network_id in snapshot.announced:
        host = host_of(snapshot, endpoint.address)
        return host is not None and host[0].name == chassis
    node = snapshot.chassis.get(chassis)
    hosted = node is not None and bool(endpoint.port_id) and endpoint.port_id in node.ports
    return hosted or snapshot.covered.get(place_of(endpoint)) == chassis


def choose(candidates: Iterable[str], network_id: str) -> str | None:
    """One of these chassis, the same one whoever asks."""
    return max(candidates, key=lambda name: (score(name, network_id), name), default=None)


def stale_nodes(snapshot: Snapshot) -> Iterator[str]:
    """The chassis whose agents are silent."""
    return (name for name, agent in snapshot.agents.items() if not agent.heard and name in snapshot.chassis)


def watched_places(snapshot: Snapshot, chassis: str) -> Iterator[tuple[str, str]]:
    """The places of this chassis that somebody may want to have probed, each with its network."""
    for port_id in snapshot.chassis[chassis].ports:
        if _is_watched_port(snapshot, port_id):
            yield port_id, snapshot.ports[port_id].network_id


def hostless_places(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """The places where nobody has a port and somebody is to be probed, each with its network. They are kept by load
    balancer: it costs what there are."""
    for places in snapshot.hostless.values():
        for place in places:
            yield place, place.partition("/")[0]


def _is_watched(snapshot: Snapshot, port_id: str, address: object) -> bool:
    replicas = snapshot.replica_local_ips.get(port_id, NO_IDS)
    return address in snapshot.watched or any(each in snapshot.monitored_local_ips for each in replicas)


def is_wanted(snapshot: Snapshot, endpoint: Endpoint) -> bool:
    """Whether anybody may ask for it: a member with a monitor is at its address, or a monitored replica at its port."""
    return _is_watched(snapshot, endpoint.port_id, endpoint.address)


def find_cover(snapshot: Snapshot, network_id: str, near: Near) -> str | None:
    """The chassis that covers the places of this network, if any can: its agent is heard, and it reaches the network,
    which is nobody else's."""
    if is_foreign(snapshot.networks.get(network_id)):
        return None
    return choose((name for name in near(network_id) if is_heard(snapshot, name)), network_id)


def is_heard(snapshot: Snapshot, chassis: str) -> bool:
    agent = snapshot.agents.get(chassis)
    return agent is not None and agent.heard


def known_of(snapshot: Snapshot, endpoint: Endpoint) -> Health:
    """What is known of an endpoint, whoever says it: an agent's word goes before that of OVN's own monitors. An address
    that nobody's port has is nobody's until somebody has seen it answer."""
    sighting = snapshot.sightings.get(endpoint)
    if sighting is None:
        is_announced = endpoint.network_id in snapshot.announced
        is_hostless = bool(endpoint.asker) and not endpoint.port_id and not is_announced
        return Health.GONE if is_hostless else snapshot.health.get(endpoint, Health.UNPROBED)
    node = snapshot.chassis.get(sighting.chassis)
    hosted = node is None or not endpoint.port_id or endpoint.port_id in node.ports
    if not hosted and endpoint.port_id not in snapshot.plugged:
        return Health.UNPLUGGED
    if node is not None and not node.alive:
        return Health.STRANDED
    return sighting.health


def silent_nodes(snapshot: Snapshot) -> Iterator[str]:
    """The chassis that have somebody to probe, and whose agents nobody has heard yet."""
    if snapshot.agents_probe:
        for name, node in snapshot.chassis.items():
            if name not in snapshot.agents and any(_is_watched_port(snapshot, each) for each in node.ports):
                yield name


def untold_nodes(snapshot: Snapshot) -> Iterator[str]:
    """The chassis that have somebody to probe, and whose agents have not told all that they see: they may be heard
    before it is known what their nodes have, and one that has just begun may have seen nobody yet."""
    if snapshot.agents_probe:
        seen = {each.chassis for each in snapshot.sightings.values()}
        for name, node in snapshot.chassis.items():
            agent = snapshot.agents.get(name)
            is_told = agent is not None and agent.told and name in seen
            if not is_told and any(_is_watched_port(snapshot, each) for each in node.ports):
                yield name


def _is_watched_port(snapshot: Snapshot, port_id: str) -> bool:
    port = snapshot.ports.get(port_id)
    return port is not None and any(_is_watched(snapshot, port_id, fixed.address) for fixed in port.fixed_ips)


def has_agent(snapshot: Snapshot, port_id: str) -> bool:
    """Whether the chassis that has this port has an agent, if only a stale one: then OVN need not probe there."""
    return any(port_id in node.ports for name in snapshot.agents if (node := snapshot.chassis.get(name)) is not None)
