"""Every story, walked in every way, with and without restarts, with and without 30 % of applies failing."""

from pathlib import Path

import pytest

from harness.story import Story, read_story
from harness.walk import check_goldens, walk_every_way

STORIES = [read_story(path) for path in sorted(Path(__file__).parent.glob("*.txt"))]
SEEDS = (None, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3)))
"""Of the faults; None for a dataplane without."""

pytestmark = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)


def test_the_rows_are_those_of_the_story(story: Story) -> None:
    check_goldens(story)


@pytest.mark.parametrize("restarting", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: f"faults{seed}" if seed else "calm")
def test_every_walk_ends_with_the_rows_of_the_story(story: Story, seed: int | None, restarting: bool) -> None:
    walk_every_way(story, seed=seed, restarting=restarting)
