"""Stories of HAProxy's rows, which no single provider of the product has, walked along every path."""

from pathlib import Path

import pytest

from fairlead.compilers.haproxy import HAPROXY
from harness.story import Story, read_story
from harness.walk import check_goldens, walk_every_way

STORIES = [read_story(path, (HAPROXY,)) for path in sorted(Path(__file__).parent.glob("*.txt"))]

pytestmark = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)


def test_the_rows_are_those_of_the_story(story: Story) -> None:
    check_goldens(story)


@pytest.mark.parametrize(
    ("seed", "restarting"),
    [
        pytest.param(None, False, id="calm"),
        pytest.param(1, True, id="faults-restarted", marks=pytest.mark.thorough),
    ],
)
def test_every_walk_ends_with_the_rows_of_the_story(story: Story, seed: int | None, restarting: bool) -> None:
    walk_every_way(story, seed=seed, restarting=restarting)
