"""What is known of a member that is to be probed: it answers, it is down and why, or nobody knows and why not."""

from enum import StrEnum
from typing import NamedTuple

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Transport


class Health(StrEnum):
    """The value is in words for people."""

    ONLINE = "answers"
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


_UNKNOWN = frozenset({Health.UNPROBED, Health.UNPROBEABLE})
_DOWN = frozenset(Health) - _UNKNOWN - {Health.ONLINE}


class Endpoint(NamedTuple):
    """Where a probe goes. However many pools ask for it, it is probed once."""

    port_id: str
    address: IPAddress
    number: int
    """The TCP or UDP port."""
    transport: Transport
