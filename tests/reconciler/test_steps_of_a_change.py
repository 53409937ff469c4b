"""Cost of one change of one load balancer: independent of the number of other load balancers.

The unit is steps of product code (harness.step_counter): affected owners, compilation, diff, write.
"""

from collections.abc import Callable, Iterator

import pytest

from fairlead.compilers.ovn import OVN
from fairlead.dataplane.rows import NO_ROWS, Diff, Rows
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.reconciler.loop import Reconciler
from harness.case import read_state
from harness.step_counter import step

FEW, MANY = 20, 200
CHANGED = Owner(Kind.LOAD_BALANCER, "web0")


class RowsOfOwners:
    """Dataplane that reads only the owner's rows; the strict fake checks references among all rows."""

    def __init__(self) -> None:
        self.rows: dict[Owner, Rows] = {}

    async def read_all(self) -> dict[Owner, Rows]:
        return dict(self.rows)

    async def read(self, owner: Owner) -> Rows:
        return self.rows.get(owner, NO_ROWS)

    async def apply(self, owner: Owner, diff: Diff) -> None:
        rows = {key: row for key, row in self.rows.get(owner, NO_ROWS).items() if key not in diff.deletes}
        self.rows[owner] = rows | diff.creates | {key: update.after for key, update in diff.updates.items()}


def balancer(number: int, network: int, port: int = 8080) -> str:
    prefix = f"10.0.{network}"
    members = f"a{number}/{prefix}.251:{port},b{number}/{prefix}.252:8080"
    return f"web{number} vip={prefix}.{number % 200 + 1} on=net{network} tcp:80={members}"


def on_own_networks(count: int, port: int) -> Iterator[str]:
    for number in range(count):
        yield f"network net{number} 10.0.{number}.0/24"
        yield balancer(number, number, 8080 if number else port)


def on_one_network(count: int, port: int) -> Iterator[str]:
    yield "network net0 10.0.0.0/24"
    for number in range(count):
        yield balancer(number, 0, 8080 if number else port)


async def steps_of_a_change(layout: Callable[[int, int], Iterator[str]], count: int) -> int:
    """Change the port of a member of the first load balancer twice, because the first change builds indexes."""
    before, after = (read_state("1", "\n".join(layout(count, port)), {}, {}) for port in (8080, 9090))
    current = before.snapshot()
    driver = RowsOfOwners()
    reconciler = Reconciler(dataplane=OVN, driver=driver, snapshot=lambda: current, clock=lambda: 0.0)
    reconciler.mark(owners_with_rows(current))
    while await reconciler.step():
        pass
    taken = 0
    for documents in (after.documents, before.documents):
        old, rows, began = current, driver.rows[CHANGED], step()
        current = apply_changes(old, Changes(puts=(documents[CHANGED],)), old.revision + 1)
        reconciler.mark(find_affected_owners(old, current, [CHANGED]))
        while await reconciler.step():
            pass
        taken = step() - began
        assert driver.rows[CHANGED] != rows
    return taken


@pytest.mark.max_steps(10_000_000)  # the test itself creates the load balancers
@pytest.mark.parametrize("layout", [on_own_networks, on_one_network])
async def test_cost_of_one_change_is_independent_of_other_load_balancers(layout: Callable[[int, int], Iterator[str]]):
    few, many = await steps_of_a_change(layout, FEW), await steps_of_a_change(layout, MANY)
    assert few > 100
    assert many <= few * 1.1  # a persistent map of 200 is deeper than one of 20
