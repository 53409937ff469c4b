"""Local IPs, by Neutron's names: one address that is answered by the replica on the client's own node.

A port has the address, and is its true owner: a machine's, or one that was made for the Local IP and is on no machine.
Replicas are other ports on the same network. A client on a chassis with a replica that serves is led to it; all others
get the fallback.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import MonitorType
from fairlead.model.network import Port, Resource


class Mode(StrEnum):
    """How packets arrive at a replica."""

    TRANSLATE = "translate"
    """For the address that the replica has; what it answers comes from the Local IP again."""
    PASSTHROUGH = "passthrough"
    """For the Local IP's address, which the replica has to have as well."""


class Fallback(StrEnum):
    """What becomes of a client without a replica on its chassis."""

    FORWARD = "forward"
    """It is led to the port that has the address."""
    DROP = "drop"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Association:
    """A replica."""

    port_id: str
    address: IPAddress
    """One of the port, of the IP version of the Local IP."""
    created_at: datetime
    """UTC."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMonitor:
    """How the replicas are probed. Times are in seconds."""

    type: MonitorType = MonitorType.TCP
    """TCP or UDP_CONNECT."""
    port: int
    delay: int = 5
    timeout: int = 3
    max_retries: int = 3
    max_retries_down: int = 3

    @property
    def seconds_between(self) -> float:
        """Two probes."""
        return float(max(1, self.delay))


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalIP(Resource):
    network_id: str
    port_id: str
    """It has the address (Neutron: `local_port_id`)."""
    address: IPAddress
    mode: Mode = Mode.TRANSLATE
    fallback: Fallback = Fallback.FORWARD
    associations: tuple[Association, ...] = ()
    """The oldest first: of several on one chassis it is the one that answers there."""
    health_monitor: ReplicaMonitor | None = None

    @property
    def replicas(self) -> Iterator[str]:
        """Their ports."""
        return (each.port_id for each in self.associations)


def find_association(local_ip: LocalIP, port_id: str) -> Association | None:
    return next((each for each in local_ip.associations if each.port_id == port_id), None)


def without_replica(local_ip: LocalIP, port_id: str) -> LocalIP:
    return replace(local_ip, associations=tuple(each for each in local_ip.associations if each.port_id != port_id))


def is_replica(local_ip: LocalIP, port: Port) -> bool:
    """Whether the port has the address that it was associated for."""
    found = find_association(local_ip, port.id)
    return found is not None and any(fixed.address == found.address for fixed in port.fixed_ips)
