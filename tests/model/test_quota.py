"""What a project has: the index is what a count over all load balancers would give, after any changes."""

from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from fairlead.model.addresses import parse_address
from fairlead.model.loadbalancer import (
    Algorithm,
    HealthMonitor,
    L7Action,
    L7Comparison,
    L7Policy,
    L7Rule,
    L7RuleType,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Member,
    MonitorType,
    Pool,
    PoolProtocol,
    Vip,
)
from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import Counted, Limits, Quota, count, growth, limits_of
from fairlead.model.snapshot import Changes, Snapshot, affected, apply_changes

COMMON: dict[str, Any] = {"created_at": datetime(2026, 1, 1, tzinfo=UTC)}
ADDRESS = parse_address("10.0.0.1")


def balancer(identity: str, project: str, dice: Random) -> LoadBalancer:
    own = {"project_id": project, **COMMON}

    def some(kind: Any, most: int, **attributes: Any) -> tuple[Any, ...]:
        return tuple(
            kind(id=f"{identity}-{kind.__name__}-{n}", **own, **attributes) for n in range(dice.randint(0, most))
        )

    monitor = {"type": MonitorType.TCP, "delay": 1, "timeout": 1, "max_retries": 1}
    rule = {"type": L7RuleType.PATH, "compare_type": L7Comparison.EQUAL_TO, "value": "/"}
    pools = tuple(
        replace(
            pool,
            members=some(Member, 3, ordinal=0, address=ADDRESS, port=80),
            health_monitor=next(iter(some(HealthMonitor, 1, **monitor)), None),
        )
        for pool in some(Pool, 2, protocol=PoolProtocol.TCP, algorithm=Algorithm.SOURCE_IP)
    )
    listeners = tuple(
        replace(
            listener,
            l7policies=tuple(
                replace(policy, rules=some(L7Rule, 2, **rule)) for policy in some(L7Policy, 2, action=L7Action.REJECT)
            ),
        )
        for listener in some(Listener, 2, protocol=ListenerProtocol.TCP, port=80)
    )
    vip = Vip(address=ADDRESS, port_id="p", subnet_id="s", network_id="n")
    return LoadBalancer(id=identity, provider="ovn", vip=vip, pools=pools, listeners=listeners, **own)


@pytest.mark.parametrize("seed", range(20))
def test_the_index_is_what_a_count_would_give(seed: int):
    dice, snapshot = Random(seed), Snapshot()
    for revision in range(1, 30):
        identity, project = f"lb{dice.randrange(5)}", f"p{dice.randrange(2)}"
        changes = Changes(puts=(balancer(identity, project, dice),))
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
    old, new = (balancer("lb", "p", Random(seed)) for seed in (3, 4))
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
