"""Local IPs (Neutron's term): one address, answered by the replica on the client's own node.

One port has the address: a machine's port, or a port without a machine that was created for the Local IP. Replicas are
other ports on the same network. Clients on a chassis with a serving replica are forwarded to it; all other clients get
the fallback.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.model.documents.network import Port, Resource


class Mode(StrEnum):
    """Destination address of packets that arrive at a replica."""

    TRANSLATE = "translate"
    """DNAT to the replica's own address; replies are translated back."""
    PASSTHROUGH = "passthrough"
    """Unchanged: the replica must have the Local IP's address too."""


class Fallback(StrEnum):
    """Treatment of clients without a replica on their chassis."""

    FORWARD = "forward"
    """Forward to the port that has the address."""
    DROP = "drop"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """Association of a replica port."""

    port_id: str
    address: IPAddress
    """Address of the port, with the IP version of the Local IP."""
    created_at: datetime
    """Time of creation, in UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMonitor:
    """Health monitor of the replicas. Times are in seconds."""

    type: MonitorType = MonitorType.TCP
    """TCP or UDP_CONNECT."""
    port: int
    delay: int = 5
    timeout: int = 3
    max_retries: int = 3
    max_retries_down: int = 3

    @property
    def interval_seconds(self) -> float:
        """Interval between two probes."""
        return float(max(1, self.delay))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIP(Resource):
    network_id: str
    port_id: str
    """Port that has the address (Neutron: `local_port_id`)."""
    address: IPAddress
    mode: Mode = Mode.TRANSLATE
    fallback: Fallback = Fallback.FORWARD
    associations: tuple[Association, ...] = ()
    """Associations, oldest first: the oldest one on a chassis serves there."""
    health_monitor: ReplicaMonitor | None = None

    @property
    def replicas(self) -> Iterator[str]:
        """Port ids of the replicas."""
        return (each.port_id for each in self.associations)


def find_association(local_ip: LocalIP, port_id: str) -> Association | None:
    return next((each for each in local_ip.associations if each.port_id == port_id), None)


def without_replica(local_ip: LocalIP, port_id: str) -> LocalIP:
    return replace(local_ip, associations=tuple(each for each in local_ip.associations if each.port_id != port_id))


def is_replica(local_ip: LocalIP, port: Port) -> bool:
    """Return whether the port still has the address of its association."""
    found = find_association(local_ip, port.id)
    return found is not None and any(fixed.address == found.address for fixed in port.fixed_ips)
