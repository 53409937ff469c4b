"""One tenant's continuous changes on a node delay another tenant's change only slightly.

The test counts applies for the large tenant between the other's change and its apply. The ratio of delays is printed,
and not asserted.
"""

import pytest

from harness.proxied import needs_haproxy
from harness.siege.neighbour import measure

pytestmark = [needs_haproxy, pytest.mark.siege]
MAX_CHANGES_BETWEEN = 2
"""Applies of the large tenant's load balancer: the one in progress, and one more."""


async def test_change_of_one_tenant_waits_for_few_applies_of_a_large_tenant() -> None:
    found = await measure()
    times = f"{found.alone:.2f} s alone, after {found.beside:.2f} s beside: {found.beside / found.alone:.1f} times"
    print(f"\na listener serves after {times}")
    print(f"applies of the large tenant between the change and its apply: {found.between} at most")
    assert found.between <= MAX_CHANGES_BETWEEN
