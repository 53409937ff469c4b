"""Health of a probed member or replica: online, down with a reason, or unknown with a reason."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import MonitorType, Transport

OVN_PROBE_TRANSPORTS: Mapping[MonitorType, Transport] = {
    MonitorType.TCP: Transport.TCP,
    MonitorType.UDP_CONNECT: Transport.UDP,
}
"""Monitors that only test whether a port is open. OVN's own monitors support these."""
PROBE_TRANSPORTS: Mapping[MonitorType, Transport] = {
    **OVN_PROBE_TRANSPORTS,
    **dict.fromkeys((MonitorType.HTTP, MonitorType.HTTPS, MonitorType.TLS_HELLO), Transport.TCP),
    MonitorType.SCTP: Transport.SCTP,
    MonitorType.PING: Transport.ANY,
}
"""Transport of each monitor's probes. Agents support all of them."""


class Health(StrEnum):
    """Health of a member or replica. Values are stored and reported, so they stay; `explanation` is for display."""

    ONLINE = "answers"
    PARTLY = "does not answer at some of its ports"
    ERROR = "refuses connections or does not answer"
    UNPLUGGED = "its port is on no node: the machine is stopped or unplugged"
    STRANDED = "its node is dead: it confirms nothing any more"
    UNREACHABLE = "its network has no way to the network of the VIP"
    GONE = "no machine of this project has its address"
    UNPROBED = "nobody has said yet whether it answers"
    UNPROBEABLE = "it cannot be probed here"

    @property
    def explanation(self) -> str:
        return _EXPLANATIONS[self]

    @property
    def is_known(self) -> bool:
        """Whether the member is known to answer or not to answer. A member with unknown health serves."""
        return self not in _UNKNOWN

    @property
    def is_down(self) -> bool:
        return self in _DOWN

    @property
    def is_failing(self) -> bool:
        """Whether an operator should investigate."""
        return self.is_down or self is Health.PARTLY


_EXPLANATIONS: Mapping[Health, str] = {
    Health.ONLINE: "responds",
    Health.PARTLY: "no response on some of its ports",
    Health.ERROR: "connection refused or no response",
    Health.UNPLUGGED: "its port is bound to no node: the machine is stopped or unplugged",
    Health.STRANDED: "its node is dead: it no longer confirms changes",
    Health.UNREACHABLE: "its network has no route to the network of the VIP",
    Health.GONE: "no machine of this project has its address",
    Health.UNPROBED: "not probed yet",
    Health.UNPROBEABLE: "this deployment cannot probe it",
}
_UNKNOWN = frozenset({Health.UNPROBED, Health.UNPROBEABLE})
_DOWN = frozenset(Health) - _UNKNOWN - {Health.ONLINE, Health.PARTLY}


HealthKey: TypeAlias = str | tuple[str, int]
"""Member as a whole, by its id; one port of a member that is probed at several; or a replica, by its port."""


def combine_port_health(ports: Collection[Health]) -> Health:
    """Return the health of a member from that of its ports. A member without ports cannot be probed."""
    down = [health for health in ports if health.is_down]
    if down:
        return down[0] if len(down) == len(ports) else Health.PARTLY
    unknown = (health for health in ports if not health.is_known)
    return next(unknown, Health.ONLINE if ports else Health.UNPROBEABLE)


class Endpoint(NamedTuple):
    """Destination of a probe. OVN probes it once, however many monitors refer to it."""

    port_id: str
    address: IPAddress
    port: int
    """TCP, UDP or SCTP port; 0 for PING, which has none."""
    transport: Transport
    network_id: str = ""
    """Network of the endpoint; set where agents probe."""
    monitor_id: str = ""
    """Id of the health monitor or Local IP; set where agents probe, because each monitor has its own check there. OVN
    has one check for all."""
