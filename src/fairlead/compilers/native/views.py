"""What the rows of each host are compiled from, where the whole model is: by a server that is asked for them."""

from collections.abc import Iterator
from dataclasses import replace

from immutables import Map

from fairlead.model.chassis import Chassis
from fairlead.model.snapshot import Snapshot


def views(snapshot: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    """By the host's name. It is the only chassis of its view, as of its slice: rows are the same, and nothing is
    copied. Which other hosts it has lost, and which members were down lately, the host alone knows."""
    for name in sorted(snapshot.hosts):
        yield name, replace(snapshot, chassis=Map({name: snapshot.chassis.get(name, Chassis(name=name))}))
