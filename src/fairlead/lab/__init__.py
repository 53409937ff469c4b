"""Several compute nodes on one machine: the base of the demo and of the end-to-end tests.

`Lab.up()` creates them, `Lab.open()` attaches to them, `Lab.down()` removes everything.

Names are imported at first use, because this package also has the programs that a lab starts in its namespaces, such as
one process per client request, and these need nothing of the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fairlead.lab.client import Failure, Protocol, Traffic, TrafficResult
    from fairlead.lab.errors import LabConnectionLost, LabError
    from fairlead.lab.held_connection import HeldConnection
    from fairlead.lab.lab import Lab, names, require_machine, take_down
    from fairlead.lab.status import LabStatus
    from fairlead.lab.workload import Workload

__all__ = [
    "Failure",
    "HeldConnection",
    "Lab",
    "LabConnectionLost",
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

_PLACES = {
    "client": ("Failure", "Protocol", "Traffic", "TrafficResult"),
    "errors": ("LabConnectionLost", "LabError"),
    "held_connection": ("HeldConnection",),
    "lab": ("Lab", "names", "require_machine", "take_down"),
    "status": ("LabStatus",),
    "workload": ("Workload",),
}
_PLACE_OF = {name: place for place, these in _PLACES.items() for name in these}


def __getattr__(name: str) -> object:
    if name not in _PLACE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACE_OF[name]}"), name)
