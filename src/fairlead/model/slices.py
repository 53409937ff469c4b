"""What one chassis is given of the model: a snapshot like the whole one, so that compilers tell no difference.

A slice has the documents and the health of members as they are, and of all chassis only its own: a compiler that makes
rows where a port is plugged in makes those of this chassis.
"""

from dataclasses import replace

from immutables import Map

from fairlead.model.chassis import Chassis
from fairlead.model.snapshot import Snapshot


def slice_of(snapshot: Snapshot, name: str) -> Snapshot:
    """It costs as much as the chassis has ports. Of one that nobody has observed nothing is plugged in."""
    chassis = snapshot.chassis.get(name, Chassis(name=name))
    plugged = {
        port: snapshot.plugged[port] for port, flows in chassis.ports.items() if flows and port in snapshot.plugged
    }
    return replace(snapshot, chassis=Map({name: chassis}), plugged=Map(plugged))
