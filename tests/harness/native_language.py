"""Syntax of a story for load balancers with VIPs announced by plain hosts (`provider=native`).

    network pool announced 203.0.113.0/24 2001:db8:5::/64
    host h1 1 10.20.0.21 fd00:20::21 10.1.0.0/24 fd00:1::/64=alice draining
    web vip=203.0.113.5,2001:db8:5::5 on=pool provider=native tcp:443=a/10.1.0.11:8443*3,b/10.2.0.11:8443
    plugged h1

A host is a chassis too, named by `plugged`. `returning` marks a host whose drain ended recently. The ports of its proxy
are given with the project, `serves h1 pool/demo 2000`, and the routed addresses that are the host's own with `owns h1
10.1.0.1`. Slots that move between two states record their previous owner.
"""

from datetime import UTC, datetime

from fairlead.model.documents.apportionment import MAX_SLOTS, MIN_SLOTS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.previous_slot_owners import Transition, record_moved_slots
from fairlead.runtime.steps import run_to_completion

NATIVE = "native"
DRAINED = "draining", "returning"
TRANSITION = Transition(now=datetime(2026, 1, 1, tzinfo=UTC), expires_at=datetime(2026, 1, 2, tzinfo=UTC))


def smallest_table(provider: str) -> int:
    """Number of slots of a new pool of this provider."""
    return MAX_SLOTS if provider == NATIVE else MIN_SLOTS


def with_previous_owners(old: LoadBalancer | None, balancer: LoadBalancer) -> LoadBalancer:
    """Load balancer as a write stores it, with the previous owners of moved slots."""
    if old is None or balancer.provider != NATIVE:
        return balancer
    return run_to_completion(record_moved_slots(old, balancer, frozenset(), TRANSITION))
