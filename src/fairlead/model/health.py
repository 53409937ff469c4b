"""What probes observe: an endpoint answers, or it does not. What nobody has said yet is unknown, and not in any map."""

from enum import StrEnum
from typing import NamedTuple

from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Transport


class Health(StrEnum):
    ONLINE = "ONLINE"
    ERROR = "ERROR"


class Endpoint(NamedTuple):
    """Where a probe goes. However many pools ask for it, it is probed once."""

    port_id: str
    address: IPAddress
    number: int
    """The TCP or UDP port."""
    transport: Transport
