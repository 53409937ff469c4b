"""Probes of a Local IP's replicas, and their health.

A replica is probed at its own address, which it has in both modes, and at the monitor's port. Replicas are on the Local
IP's network, so they are always reachable.
"""

from collections.abc import Iterator

from fairlead.model.documents.health import OVN_PROBE_TRANSPORTS, PROBE_TRANSPORTS, Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.local_ip import Association, LocalIP, ReplicaMonitor
from fairlead.model.queries.delegated_probing import derive_endpoint_health
from fairlead.model.queries.replicas import find_replica
from fairlead.model.snapshot import Snapshot


def replica_endpoints(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[Endpoint]:
    """Yield the endpoints of the replicas, without those that are not probed."""
    return (found for _, found in _probes(snapshot, local_ip) if isinstance(found, Endpoint))


def replicas_health(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[tuple[str, Health]]:
    """Yield the health of each probed replica, by its port."""
    for port_id, found in _probes(snapshot, local_ip):
        yield port_id, found if isinstance(found, Health) else derive_endpoint_health(snapshot, found)


def _probes(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[tuple[str, Endpoint | Health]]:
    monitor = local_ip.health_monitor
    if monitor is not None:
        for each in local_ip.associations:
            yield each.port_id, _find_endpoint(snapshot, local_ip, monitor, each)


def _find_endpoint(
    snapshot: Snapshot, local_ip: LocalIP, monitor: ReplicaMonitor, replica: Association
) -> Endpoint | Health:
    """Return the endpoint of a replica, or its health if it is not probed."""
    if find_replica(snapshot, local_ip, replica) is None:
        return Health.GONE
    if snapshot.agents_probe:
        over = PROBE_TRANSPORTS[monitor.type]
        number = 0 if over is Transport.ANY else monitor.port
        return Endpoint(replica.port_id, replica.address, number, over, local_ip.network_id, local_ip.id)
    if monitor.type not in OVN_PROBE_TRANSPORTS:
        return Health.UNPROBEABLE
    return Endpoint(replica.port_id, replica.address, monitor.port, OVN_PROBE_TRANSPORTS[monitor.type])
