"""Stories of HAProxy's rows, which no single provider of the product has, walked along every path."""

from pathlib import Path

import pytest

from fairlead.compilers.haproxy import HAPROXY
from harness.case import Case, read_case
from harness.walk import check_goldens, walk_every_path

STORIES = [read_case(path, (HAPROXY,)) for path in sorted(Path(__file__).parent.glob("*.txt"))]

pytestmark = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)


def test_compiled_rows_match_the_story(story: Case) -> None:
    check_goldens(story)


@pytest.mark.parametrize(
    ("seed", "restarting"),
    [
        pytest.param(None, False, id="calm"),
        pytest.param(1, True, id="faults-restarted", marks=pytest.mark.thorough),
    ],
)
def test_every_path_between_states_ends_with_the_rows_of_the_story(
    story: Case, seed: int | None, restarting: bool
) -> None:
    walk_every_path(story, seed=seed, restarting=restarting)
