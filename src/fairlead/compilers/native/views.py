"""Views of the whole model per host, for a server that compiles a host's rows on request."""

from collections.abc import Iterator
from dataclasses import replace

from immutables import Map

from fairlead.model.documents.chassis import Chassis
from fairlead.model.snapshot import Snapshot


def views(snapshot: Snapshot) -> Iterator[tuple[str, Snapshot]]:
    """Yield each host's name and view.

    The host is the only chassis of its view, as in its slice, so its rows are the same, without copies of the model.
    Only the host itself knows which other hosts it has lost, and which members were down recently.
    """
    for name in sorted(snapshot.hosts):
        yield name, replace(snapshot, chassis=Map({name: snapshot.chassis.get(name, Chassis(name=name))}))
