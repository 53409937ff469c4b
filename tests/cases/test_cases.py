"""Every case in every walk: with and without restarts, with and without 30 % of applies failing."""

from itertools import product
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from harness.case import Case, read_case
from harness.walk import check_goldens, walk_every_path

STORIES = [read_case(path) for path in sorted(Path(__file__).parent.glob("*.txt"))]


def path_name(seed: int | None, restarting: bool, *marks: pytest.MarkDecorator) -> ParameterSet:
    """Return a parameter set: the seed of the faults (None: no faults), and whether the dataplane is restarted at each
    step."""
    words = ("calm" if seed is None else f"faults{seed}", "restarted" if restarting else "running")
    return pytest.param(seed, restarting, marks=marks, id="-".join(words))


MORE = ((None, True), (1, False), *product((2, 3), (False, True)))
PATHS = [
    path_name(None, False),
    path_name(1, True, pytest.mark.thorough),
    *(path_name(*each, pytest.mark.extended) for each in MORE),
]
"""Parameter sets; the first two find nearly all defects: no faults and no restarts, or both."""

pytestmark = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)


def test_compiled_rows_match_the_case(story: Case) -> None:
    check_goldens(story)


@pytest.mark.parametrize(("seed", "restarting"), PATHS)
def test_every_walk_converges_to_the_rows_of_the_case(story: Case, seed: int | None, restarting: bool) -> None:
    walk_every_path(story, seed=seed, restarting=restarting)
