"""What probes observe: an endpoint answers, or it does not, and why. What nobody has said yet is in no map."""

from enum import StrEnum
from typing import NamedTuple

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Transport


class Health(StrEnum):
    """All but the first are down; the value says why, in words for people."""

    ONLINE = "answers"
    ERROR = "refuses connections or does not answer"
    UNPLUGGED = "its port is on no node: the machine is stopped or unplugged"
    STRANDED = "its node is dead: it confirms nothing any more"
    UNREACHABLE = "its network has no way to the network of the VIP"
    GONE = "no machine of this project has its address"


class Endpoint(NamedTuple):
    """Where a probe goes. However many pools ask for it, it is probed once."""

    port_id: str
    address: IPAddress
    number: int
    """The TCP or UDP port."""
    transport: Transport
