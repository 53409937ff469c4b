"""What one tenant does on a node for as long as it likes delays another one's change by little.

What the node does for the large tenant between the other's change and its apply is counted. How many times longer the
other one waits than alone is printed, and asserted nowhere.
"""

import pytest

from harness.proxied import needs_haproxy
from harness.siege.neighbour import measure

pytestmark = [needs_haproxy, pytest.mark.siege]
MOST_BETWEEN = 2
"""Applies of the large tenant's load balancer: the one at work, and one more."""


async def test_a_neighbour_waits_for_few_of_the_large_tenants_changes() -> None:
    found = await measure()
    times = f"{found.alone:.2f} s alone, after {found.beside:.2f} s beside: {found.beside / found.alone:.1f} times"
    print(f"\na listener serves after {times}")
    print(f"applies of the large tenant between the change and its apply: {found.between} at most")
    assert found.between <= MOST_BETWEEN
