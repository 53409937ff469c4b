"""Which replica of a Local IP serves on which chassis, by what is observed.

A replica is where its port is plugged in and its packets flow. The port has to be one of the Local IP's own project and
network still, with the address that it was taken for. A replica of which nobody knows where it is, is nowhere.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeAlias

from fairlead.model.local_ip import Association, LocalIP
from fairlead.model.nearby import chassis_with
from fairlead.model.network import Port, PortUse
from fairlead.model.snapshot import Snapshot


class ReplicaState(StrEnum):
    """What a replica does now."""

    ONLINE = "ONLINE"
    """It answers the clients on its chassis."""
    STANDBY = "STANDBY"
    """An older one does; this one would take over."""
    ERROR = "ERROR"
    """Its health monitor calls it down."""
    OFFLINE = "OFFLINE"
    """It is plugged in nowhere, or disabled."""


Serving: TypeAlias = Mapping[str, Sequence[Association]]
"""Chassis -> the replicas that serve there, the oldest first."""


def replicas(snapshot: Snapshot, local_ip: LocalIP) -> Iterator[Association]:
    """Those that may serve, wherever they are: the oldest first."""
    down = snapshot.down.get(local_ip.id, frozenset())
    for each in local_ip.associations:
        port = find_replica(snapshot, local_ip, each)
        if port is not None and port.admin_state_up and each.port_id not in down:
            yield each


def serving(snapshot: Snapshot, local_ip: LocalIP) -> Serving:
    found = defaultdict[str, list[Association]](list)
    where = chassis_with(snapshot)
    for each in replicas(snapshot, local_ip):
        for chassis in where(each.port_id):
            found[chassis].append(each)
    return found


def replica_states(snapshot: Snapshot, local_ip: LocalIP) -> Mapping[str, ReplicaState]:
    """Of each replica, by its port."""
    down = snapshot.down.get(local_ip.id, frozenset())
    states = {each: ReplicaState.ERROR if each in down else ReplicaState.OFFLINE for each in local_ip.replicas}
    for there in serving(snapshot, local_ip).values():
        states |= {each.port_id: ReplicaState.STANDBY for each in there[1:]}
        states[there[0].port_id] = ReplicaState.ONLINE
    return states


def find_replica(snapshot: Snapshot, local_ip: LocalIP, replica: Association) -> Port | None:
    """Its port, while that is what it was taken for."""
    port = snapshot.ports.get(replica.port_id)
    if port is None or port.use is not PortUse.MACHINE:
        return None
    if (port.project_id, port.network_id) != (local_ip.project_id, local_ip.network_id):
        return None
    return port if any(fixed.address == replica.address for fixed in port.fixed_ips) else None


def find_owner(snapshot: Snapshot, local_ip: LocalIP) -> Port | None:
    """The machine's port that has the address; None if that was made for the Local IP, and is nobody's."""
    port = snapshot.ports.get(local_ip.port_id)
    return port if port is not None and port.use is PortUse.MACHINE else None
