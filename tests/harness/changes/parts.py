"""L7 policies and their rules."""

from fairlead.changes.l7 import create_policy
from fairlead.model.documents.l7 import L7Comparison, L7Policy, L7Rule, L7RuleType, Reject
from fairlead.model.snapshot import Snapshot
from harness.changes.balancing import ASKER, apply_work, network_and_balancer
from harness.changes.world import OWNERS


def rule(identity: str, **fields: object) -> L7Rule:
    given = {"type": L7RuleType.PATH, "compare_type": L7Comparison.STARTS_WITH, "value": "/"} | OWNERS | fields
    return L7Rule(id=identity, **given)


def with_policy(action: object = Reject()) -> Snapshot:
    before = network_and_balancer()
    return apply_work(before, create_policy(before, ASKER, "front", L7Policy(id="no", action=action, **OWNERS)))
