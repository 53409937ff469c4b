"""Documents of all stories, for tests of stores."""

from dataclasses import replace
from pathlib import Path

from fairlead.model.documents.network import Network, Router
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.case import read_case

STORIES = [read_case(path) for path in sorted((Path(__file__).parent.parent / "cases").glob("*.txt"))]
DOCUMENTS = {
    str(key): item
    for story in STORIES
    for state in story.states
    for key, item in state.documents.items()
    if not is_unmanaged(item)
}


def insert_document(name: str, _: Snapshot) -> Changes:
    network = next(item for item in DOCUMENTS.values() if isinstance(item, Network))
    return Changes(puts=(replace(network, id=name),))


def insert_router(name: str, _: Snapshot) -> Changes:
    router = next(item for item in DOCUMENTS.values() if isinstance(item, Router))
    return Changes(puts=(replace(router, id=name),))
