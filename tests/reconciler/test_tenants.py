"""Fairness between projects: one project's work delays another's by at most one owner."""

from dataclasses import replace

import pytest
from immutables import Map

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.interface import in_one_step
from fairlead.dataplane.rows import Rows
from fairlead.drivers.fake import FakeDriver
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.loop import Reconciler
from fairlead.reconciler.tenants import Tenants
from harness.balancer import some_balancer

LARGE, SMALL = 300, Owner(Kind.LOAD_BALANCER, "small")
MAX_CHANGES_BETWEEN = 2
"""Maximum number of owners processed between another project's change and its turn: the current one and the next."""


def owner(number: int) -> Owner:
    return Owner(Kind.LOAD_BALANCER, f"large-{number}")


def snapshot() -> Snapshot:
    ids = {owner(number).id: "large" for number in range(LARGE)} | {SMALL.id: "small"}
    found = {each: some_balancer(each, project) for each, project in ids.items()}
    return replace(Snapshot(), load_balancers=Map(found))


@pytest.mark.parametrize("together", [False, True])
async def test_a_change_of_another_project_waits_for_few_owners(together: bool) -> None:
    model, worked = snapshot(), list[Owner]()

    def compile_one(_: Snapshot, each: Owner) -> Rows:
        worked.append(each)
        return {}

    reconciler = Reconciler(
        dataplane=replace(HAPROXY, compile_in_steps=in_one_step(compile_one)),
        driver=FakeDriver(HAPROXY.references),
        snapshot=lambda: model,
        clock=lambda: 0.0,
    )
    owners = [owner(number) for number in range(LARGE)]
    for some in [owners] if together else [[each] for each in owners]:
        reconciler.mark(some)
    for _ in range(10):
        await reconciler.step()
    before = len(worked)
    reconciler.mark([SMALL])
    while SMALL not in worked:
        await reconciler.step()
    assert worked.index(SMALL) - before <= MAX_CHANGES_BETWEEN
    while await reconciler.step():
        pass
    assert len(worked) == LARGE + 1


def test_project_of_a_deleted_owner_is_returned_once() -> None:
    models = [snapshot()]
    tenants = Tenants(lambda: models[-1])
    assert tenants.project_of(SMALL) == "small"
    models.append(Snapshot())
    assert [tenants.project_of(SMALL) for _ in range(2)] == ["small", ""]
    assert tenants.project_of(Owner(Kind.VIP_NETWORK, "c")) == ""
