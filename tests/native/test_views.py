"""The rows that a server expects on a host equal those that the host compiles from its slice."""

from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import Rows
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.changeset import owners_with_rows
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from harness.case import Case, read_case

STORIES = [read_case(path, (NATIVE,)) for path in sorted(Path(__file__).parent.glob("*.txt"))]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)
def test_server_view_of_a_host_compiles_to_the_rows_of_its_slice(story: Case) -> None:
    assert NATIVE.views is not None
    for state in story.states:
        known = state.snapshot()
        found = dict(NATIVE.views(known))
        assert list(found) == sorted(known.hosts)
        for name, view in found.items():
            for owner in owners_with_rows(known):
                if owner.kind in NATIVE.kinds:
                    assert compiled(view, owner) == compiled(slice_of(known, name), owner), (name, owner)


def compiled(view: Snapshot, owner: Owner) -> Rows | str:
    try:
        return NATIVE.compile(view, owner)
    except Unsupported as refusal:
        return str(refusal)
