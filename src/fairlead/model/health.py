"""What is known of whoever is to be probed: it answers, it is down and why, or nobody knows and why not."""

from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import MonitorType, Transport

TRANSPORTS: Mapping[MonitorType, Transport] = {
    MonitorType.TCP: Transport.TCP,
    MonitorType.UDP_CONNECT: Transport.UDP,
}
"""The monitors that ask no more than whether a port is open: OVN can."""
ASKED_OVER: Mapping[MonitorType, Transport] = {
    **TRANSPORTS,
    **dict.fromkeys((MonitorType.HTTP, MonitorType.HTTPS, MonitorType.TLS_HELLO), Transport.TCP),
    MonitorType.SCTP: Transport.SCTP,
    MonitorType.PING: Transport.ANY,
}
"""What a probe of each monitor is sent over: agents can do them all."""


class Health(StrEnum):
    """The value is in words for people."""

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
    def is_known(self) -> bool:
        """Whether somebody has seen it answer or knows that it does not. A member of which nobody knows serves."""
        return self not in _UNKNOWN

    @property
    def is_down(self) -> bool:
        return self in _DOWN

    @property
    def is_failing(self) -> bool:
        """Whether somebody should look at it."""
        return self.is_down or self is Health.PARTLY


_UNKNOWN = frozenset({Health.UNPROBED, Health.UNPROBEABLE})
_DOWN = frozenset(Health) - _UNKNOWN - {Health.ONLINE, Health.PARTLY}


HealthKey: TypeAlias = str | tuple[str, int]
"""A member as a whole, by its id; or one of the ports of a member that is probed at several. A replica, by its port."""


def of_the_whole(ports: Collection[Health]) -> Health:
    """What is known of a member that is probed at these ports. Without any nobody can ask it."""
    down = [health for health in ports if health.is_down]
    if down:
        return down[0] if len(down) == len(ports) else Health.PARTLY
    unknown = (health for health in ports if not health.is_known)
    return next(unknown, Health.ONLINE if ports else Health.UNPROBEABLE)


class Endpoint(NamedTuple):
    """Where a probe goes. However many ask OVN for it, it is probed once."""

    port_id: str
    address: IPAddress
    number: int
    """The TCP, UDP or SCTP port; 0 for a PING, which is sent to none."""
    transport: Transport
    network_id: str = ""
    """From which it is reached, where agents probe."""
    asker: str = ""
    """The health monitor, or the Local IP, that asks, where agents probe: each asks its own question. OVN knows one for
    all."""
