"""Several compute nodes on one machine: what the demo and the end-to-end tests stand on.

`Lab.up()` makes them, `Lab.open()` attaches to them, `Lab.down()` leaves nothing behind.
"""

from fairlead.lab.clients import Failure, Protocol, Traffic, TrafficResult
from fairlead.lab.errors import ConnectionLost, LabError
from fairlead.lab.held import Held
from fairlead.lab.lab import Lab, names, require_machine, take_down
from fairlead.lab.status import LabStatus
from fairlead.lab.workload import Workload

__all__ = [
    "ConnectionLost",
    "Failure",
    "Held",
    "Lab",
    "LabError",
    "LabStatus",
    "Protocol",
    "Traffic",
    "TrafficResult",
    "Workload",
    "names",
    "require_machine",
    "take_down",
]
