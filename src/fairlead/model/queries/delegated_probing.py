"""Delegated probing: selects the node that probes each endpoint, and a substitute for nodes with a stale agent.

A node probes its own ports. If its agent is stale, the state of its ports is unknown, so another node's agent probes
them until the agent is responsive again. Addresses without a port are always probed by a delegate. The last result is
valid until the delegate has its own, so a member does not flap:

* only the agent failed: the delegate sees the member answer, and the member never goes down;
* the node lost power: the delegate sees the probe fail, and the member goes down;
* no delegate is available: the last result is valid, unless OVN reports the chassis as dead (ADR 9).

Addresses behind a plain host are probed by that host only, because no other node may have a route to them.

One chassis probes all delegated endpoints of a network from an ordinary port there (ADR 46), because packets of a
localport never leave their node. Unmanaged networks have no delegate, because Fairlead cannot allocate an address
there.

Servers and agents call the same functions: agents to select targets, servers to select valid results.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.rendezvous import score
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.placement import find_routing_host
from fairlead.model.snapshot import Snapshot

ChassisByNetwork: TypeAlias = Callable[[str], Collection[str]]
"""Network id -> chassis that reach the network by their own ports (`model/queries/local_datapaths.py`)."""
MAX_DELEGATED_PLACES = 10_000
"""Maximum delegated places, sorted by name. A rack that loses power has fewer."""


def probe_place(endpoint: Endpoint) -> str:
    """Return the place of an endpoint, the unit of delegation: a port, or a network and address without a port."""
    return endpoint.port_id or f"{endpoint.network_id}/{endpoint.address}"


def probes_here(snapshot: Snapshot, chassis: str, endpoint: Endpoint) -> bool:
    """Return whether this chassis probes the endpoint and reports its result."""
    if endpoint.network_id in snapshot.announced:
        host = find_routing_host(snapshot, endpoint.address)
        return host is not None and host[0].name == chassis
    node = snapshot.chassis.get(chassis)
    hosted = node is not None and bool(endpoint.port_id) and endpoint.port_id in node.ports
    return hosted or snapshot.covered.get(probe_place(endpoint)) == chassis


def select_by_rendezvous(candidates: Iterable[str], network_id: str) -> str | None:
    """Select one chassis by rendezvous hashing, so every caller selects the same one."""
    return max(candidates, key=lambda name: (score(name, network_id), name), default=None)


def stale_nodes(snapshot: Snapshot) -> Iterator[str]:
    """Yield the chassis with a stale agent."""
    return (name for name, agent in snapshot.agents.items() if not agent.is_responsive and name in snapshot.chassis)


def list_monitored_places(snapshot: Snapshot, chassis: str) -> Iterator[tuple[str, str]]:
    """Yield the places of this chassis that may need probes, each with its network."""
    for port_id in snapshot.chassis[chassis].ports:
        if _is_monitored_port(snapshot, port_id):
            yield port_id, snapshot.ports[port_id].network_id


def list_places_without_port(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Yield the probed places without a port, each with its network. The index is by load balancer, so the cost is that
    of the number of places."""
    for places in snapshot.hostless.values():
        for place in places:
            yield place, place.partition("/")[0]


def _is_monitored(snapshot: Snapshot, port_id: str, address: object) -> bool:
    replicas = snapshot.replica_local_ips.get(port_id, NO_IDS)
    return address in snapshot.watched or any(each in snapshot.monitored_local_ips for each in replicas)


def is_endpoint_monitored(snapshot: Snapshot, endpoint: Endpoint) -> bool:
    """Return whether a monitored member has the endpoint's address, or a monitored replica has its port."""
    return _is_monitored(snapshot, endpoint.port_id, endpoint.address)


def find_delegate(snapshot: Snapshot, network_id: str, near: ChassisByNetwork) -> str | None:
    """Return the chassis that probes the delegated places of this network; None if none can. It needs a responsive
    agent and a port on the network, and the network must be managed."""
    if is_unmanaged(snapshot.networks.get(network_id)):
        return None
    return select_by_rendezvous((name for name in near(network_id) if is_responsive(snapshot, name)), network_id)


def is_responsive(snapshot: Snapshot, chassis: str) -> bool:
    agent = snapshot.agents.get(chassis)
    return agent is not None and agent.is_responsive


def derive_endpoint_health(snapshot: Snapshot, endpoint: Endpoint) -> Health:
    """Return the health of an endpoint. A probe result of an agent has priority over OVN's own monitors. An address
    without a port is GONE until a probe has succeeded there."""
    sighting = snapshot.sightings.get(endpoint)
    if sighting is None:
        is_announced = endpoint.network_id in snapshot.announced
        is_hostless = bool(endpoint.monitor_id) and not endpoint.port_id and not is_announced
        return Health.GONE if is_hostless else snapshot.health.get(endpoint, Health.UNPROBED)
    node = snapshot.chassis.get(sighting.chassis)
    hosted = node is None or not endpoint.port_id or endpoint.port_id in node.ports
    if not hosted and endpoint.port_id not in snapshot.plugged:
        return Health.UNPLUGGED
    if node is not None and not node.alive:
        return Health.STRANDED
    return sighting.health


def nodes_without_agent(snapshot: Snapshot) -> Iterator[str]:
    """Yield the chassis that have endpoints to probe and no known agent."""
    if snapshot.agents_probe:
        for name, node in snapshot.chassis.items():
            if name not in snapshot.agents and any(_is_monitored_port(snapshot, each) for each in node.ports):
                yield name


def nodes_without_full_report(snapshot: Snapshot) -> Iterator[str]:
    """Yield the chassis that have endpoints to probe and no complete report yet. An agent can connect before the ports
    of its node are known, and a new agent has no results at first."""
    if snapshot.agents_probe:
        seen = {each.chassis for each in snapshot.sightings.values()}
        for name, node in snapshot.chassis.items():
            agent = snapshot.agents.get(name)
            is_told = agent is not None and agent.has_full_report and name in seen
            if not is_told and any(_is_monitored_port(snapshot, each) for each in node.ports):
                yield name


def _is_monitored_port(snapshot: Snapshot, port_id: str) -> bool:
    port = snapshot.ports.get(port_id)
    return port is not None and any(_is_monitored(snapshot, port_id, fixed.address) for fixed in port.fixed_ips)


def has_agent(snapshot: Snapshot, port_id: str) -> bool:
    """Return whether the chassis of this port has an agent, stale or not. OVN then does not need to probe the port."""
    return any(port_id in node.ports for name in snapshot.agents if (node := snapshot.chassis.get(name)) is not None)
