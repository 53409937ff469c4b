"""What a project has: the index is what a count over all load balancers would give, after any changes."""

from dataclasses import replace
from random import Random

import pytest

from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import Counted, Limits, Quota, count, growth, limits_of
from fairlead.model.snapshot import Changes, Snapshot, affected, apply_changes
from harness.balancer import some_balancer


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_what_a_count_would_give(seed: int):
    dice, snapshot = Random(seed), Snapshot()
    for revision in range(1, 30):
        identity, project = f"lb{dice.randrange(5)}", f"p{dice.randrange(2)}"
        changes = Changes(puts=(some_balancer(identity, project, dice),))
        if dice.random() < 0.3:
            changes = Changes(deletes=(Owner(Kind.LOAD_BALANCER, identity),))
        snapshot = apply_changes(snapshot, changes, revision)
        counted: dict[tuple[str, Counted], int] = {}
        for each in snapshot.load_balancers.values():
            for what, number in count(each).items():
                key = (each.project_id, what)
                counted[key] = counted.get(key, 0) + number
        assert {key: number for key, number in counted.items() if number} == dict(snapshot.usage)


def test_only_what_there_will_be_more_of_grows():
    old, new = (some_balancer("lb", "p", Random(seed)) for seed in (3, 4))
    before, after = count(old), count(new)
    grown = dict(growth(old, new))
    assert grown == {what: after[what] - before[what] for what in Counted if after[what] > before[what]}
    assert dict(growth(None, new)) == {what: number for what, number in after.items() if number}
    assert dict(growth(old, old)) == {}


def test_a_limit_is_the_projects_own_or_that_of_everybody():
    defaults = Limits(pool=3, member=7)
    assert limits_of(None, defaults) == defaults
    assert limits_of(Quota(project_id="p", pool=-1, listener=0), defaults) == replace(defaults, pool=-1, listener=0)


def test_what_has_no_rows_concerns_nobody():
    quota = Quota(project_id="p", pool=1)
    new = apply_changes(Snapshot(), Changes(puts=(quota,)), 1)
    owner = Owner(Kind.QUOTA, "p")
    assert new.find(owner) == quota
    assert affected(Snapshot(), new, [owner]) == ()
    assert new.owners() == []
