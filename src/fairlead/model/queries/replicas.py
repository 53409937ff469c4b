"""Replicas of a Local IP that serve on each chassis, by observed placement.

A replica is on the chassis where its port is plugged in and active. The port must still belong to the Local IP's
project and network, and have the address of its association. A replica without a known placement serves nowhere.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from fairlead.model.documents.local_ip import Association, LocalIP
from fairlead.model.documents.network import Port, PortUse
from fairlead.model.queries.locality_tiers import chassis_finder
from fairlead.model.snapshot import Snapshot


class ReplicaState(StrEnum):
    """State of a replica."""

    ONLINE = "ONLINE"
    """Replica serves the clients on its chassis."""
    STANDBY = "STANDBY"
    """Standby for an older replica on the same chassis."""
    ERROR = "ERROR"
    """Health monitor reports the replica as down."""
    OFFLINE = "OFFLINE"
    """Port is not plugged in, or is disabled."""


ServingReplicas: TypeAlias = Mapping[str, Sequence[Association]]
"""Chassis -> serving replicas, oldest first."""


def list_usable_replicas(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[Association]:
    """Yield the replicas that may serve, on any chassis, oldest first."""
    down = snapshot.down.get(local_ip.id, frozenset())
    for each in local_ip.associations:
        port = find_replica(snapshot, local_ip, each)
        if port is not None and port.admin_state_up and each.port_id not in down:
            yield each


def find_serving_replicas(snapshot: Snapshot, local_ip: LocalIP) -> ServingReplicas:
    found = defaultdict[str, list[Association]](list)
    where = chassis_finder(snapshot)
    for each in list_usable_replicas(snapshot, local_ip):
        for chassis in where(each.port_id):
            found[chassis].append(each)
    return found


def replica_states(snapshot: Snapshot, local_ip: LocalIP) -> Mapping[str, ReplicaState]:
    """Return the state of each replica, by its port."""
    down = snapshot.down.get(local_ip.id, frozenset())
    states = {each: ReplicaState.ERROR if each in down else ReplicaState.OFFLINE for each in local_ip.replicas}
    for there in find_serving_replicas(snapshot, local_ip).values():
        states |= {each.port_id: ReplicaState.STANDBY for each in there[1:]}
        states[there[0].port_id] = ReplicaState.ONLINE
    return states


def find_replica(snapshot: Snapshot, local_ip: LocalIP, replica: Association) -> Port | None:
    """Return the replica's port if it still matches the association; None otherwise."""
    port = snapshot.ports.get(replica.port_id)
    if port is None or port.use is not PortUse.MACHINE:
        return None
    if (port.project_id, port.network_id) != (local_ip.project_id, local_ip.network_id):
        return None
    return port if any(fixed.address == replica.address for fixed in port.fixed_ips) else None


def find_owner(snapshot: Snapshot, local_ip: LocalIP) -> Port | None:
    """Return the machine's port with the address; None if the port was created for the Local IP and has no machine."""
    port = snapshot.ports.get(local_ip.port_id)
    return port if port is not None and port.use is PortUse.MACHINE else None
