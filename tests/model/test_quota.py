"""Quota usage: after any changes, the index equals a count over all documents."""

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_network
from random import Random
from typing import Any

import pytest

from fairlead.changes.quotas import QuotaExceeded, growth, within_quota
from fairlead.changes.refusal import Refused
from fairlead.model.documents.local_ip import Association, LocalIP
from fairlead.model.documents.network import FloatingIP, Network, Port, PortUse, Router, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import (
    BALANCING,
    NETWORKING,
    NO_LIMITS,
    Limits,
    Quota,
    QuotaResource,
    count_usage,
    has_own_limit,
    limits_of,
    without_own_limits,
)
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot
from harness.balancer import some_balancer

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def some_document(dice: Random) -> Aggregate:
    """Return a random document of any counted kind, new or with an existing id of its project."""
    kind, project = dice.randrange(6), f"p{dice.randrange(2)}"
    common: dict[str, Any] = {"id": f"{kind}-{project}-{dice.randrange(3)}", "project_id": project, "created_at": NOON}
    match kind:
        case 0:
            return some_balancer(common["id"], project, dice)
        case 1:
            cidr = ip_network("10.0.0.0/24")
            owners = [dice.choice(("p0", "p1")) for _ in range(dice.randrange(4))]
            subnets = tuple(
                Subnet(id=f"{common['id']}-{number}", project_id=owner, created_at=NOON, cidr=cidr, gateway=None,
                       allocation_pools=())
                for number, owner in enumerate(owners)
            )  # fmt: skip
            return Network(**common, mtu=1442, subnets=subnets)
        case 2:
            return Port(**common, network_id="n", mac_address=common["id"])
        case 3:
            return Router(**common)
        case 4:
            replica = Association(port_id="p", address=cidr_address(), created_at=NOON)
            replicas = (replica,) * dice.randrange(3)
            return LocalIP(**common, network_id="n", port_id="p", address=cidr_address(), associations=replicas)
        case _:
            return FloatingIP(**common, network_id="n", address=cidr_address(), address_port_id="a")


def cidr_address() -> Any:
    return ip_network("10.0.0.0/24")[1]


def total(snapshot: Snapshot) -> dict[tuple[str, QuotaResource], int]:
    found: Counter[tuple[str, QuotaResource]] = Counter()
    for owner in snapshot.generations:
        found.update(count_usage(snapshot.find(owner)))
    return dict(found)


@pytest.mark.parametrize("seed", range(20))
def test_usage_index_equals_a_count_over_all_documents(seed: int):
    dice, snapshot = Random(seed), Snapshot()
    for revision in range(1, 60):
        puts = tuple(
            {owner_of(each): each for each in (some_document(dice) for _ in range(dice.randrange(3)))}.values()
        )
        there = [owner for owner in snapshot.generations if owner not in {owner_of(each) for each in puts}]
        gone = tuple(dice.sample(there, min(len(there), dice.randrange(2))))
        changes = Changes(puts=puts, deletes=gone)
        before, grown = total(snapshot), growth(snapshot, changes)
        snapshot = apply_changes(snapshot, changes, revision)
        after = total(snapshot)
        assert after == dict(snapshot.usage)
        more = {key: after[key] - before.get(key, 0) for key in after}
        assert grown == {key: number for key, number in more.items() if number > 0}


def test_system_ports_and_ports_without_a_project_are_not_counted():
    port = Port(id="p", project_id="a", created_at=NOON, network_id="n", mac_address="m")
    assert count_usage(port) == {("a", QuotaResource.PORT): 1}
    assert count_usage(replace(port, project_id="")) == {}
    assert count_usage(replace(port, device_owner=PortUse.PROBE.value)) == {}


def test_project_quota_overrides_the_default_limits():
    defaults = Limits(pool=3, member=7)
    assert limits_of(None, defaults) == defaults
    assert limits_of(Quota(project_id="p", pool=-1, listener=0), defaults) == replace(defaults, pool=-1, listener=0)


def test_each_api_resets_only_its_own_limits():
    quota = Quota(project_id="p", pool=1, network=2)
    rest = without_own_limits(quota, NETWORKING)
    assert rest == Quota(project_id="p", pool=1)
    assert has_own_limit(quota, BALANCING)
    assert not has_own_limit(rest, NETWORKING)
    assert without_own_limits(Quota(project_id="p", network=2), NETWORKING) is None


def one_of(what: QuotaResource) -> Aggregate:
    if what in BALANCING:
        return some_balancer("lb", "p")
    dice = Random(0)
    while (("p0", what)) not in count_usage(found := some_document(dice)):
        pass
    return replace(found, project_id="p", **({"subnets": with_project(found)} if isinstance(found, Network) else {}))


def with_project(network: Network) -> tuple[Subnet, ...]:
    return tuple(replace(subnet, project_id="p") for subnet in network.subnets)


@pytest.mark.parametrize("what", QuotaResource)
def test_every_counted_resource_is_held_to_its_limit(what: QuotaResource):
    """Every counted resource is held to its limit, including those that no API can create yet."""
    changes = Changes(puts=(one_of(what),))
    snapshot = apply_changes(Snapshot(), Changes(puts=(Quota(project_id="p", **{what.value: 0}),)), 1)
    for defaults, there in ((NO_LIMITS, snapshot), (Limits(**{what.value: 0}), Snapshot())):
        with pytest.raises(Refused) as told:
            within_quota(defaults, there, changes)
        assert told.value.why == QuotaExceeded(over=(what,))
    there = apply_changes(snapshot, changes, 2)
    assert within_quota(NO_LIMITS, there, changes) == changes
    assert within_quota(Limits(**{what.value: 99}), Snapshot(), changes).requires_unchanged_model


def test_quota_check_covers_the_whole_change_and_each_project():
    """Two creations in one change count as two, deletions make room for creations, and each project has its own
    usage."""
    one, two, other = (Router(id=name, project_id=name[0], created_at=NOON) for name in ("p1", "p2", "q1"))
    limits, there = Limits(router=1), apply_changes(Snapshot(), Changes(puts=(one,)), 1)
    with pytest.raises(Refused):
        within_quota(limits, Snapshot(), Changes(puts=(one, two)))
    swap = Changes(puts=(two, other), deletes=(Owner(Kind.ROUTER, "p1"),))
    assert within_quota(limits, there, swap) == replace(swap, requires_unchanged_model=True)
    with pytest.raises(Refused):
        within_quota(limits, there, Changes(puts=(two, other)))


def test_quota_documents_affect_no_owner():
    quota = Quota(project_id="p", pool=1)
    new = apply_changes(Snapshot(), Changes(puts=(quota,)), 1)
    owner = Owner(Kind.QUOTA, "p")
    assert new.find(owner) == quota
    assert find_affected_owners(Snapshot(), new, [owner]) == ()
    assert owners_with_rows(new) == []
