"""Quotas: access to the limits of a project."""

from fairlead.api.octavia.policy import GRANTS, Permit, Rule
from fairlead.changes.identity import NotAnAdministrator
from fairlead.changes.quotas import set_limits, take_limits_away
from fairlead.model.documents.quota import NETWORKING, Counted, Quota
from harness.changes.world import ADMIN, OWNER, having, refusal

OWN = Quota(project_id="owner", port=3)


def test_nobody_but_an_administrator_says_how_much_a_project_may_have():
    more = {Counted.PORT: 1000}
    assert refusal(set_limits, having(OWN), OWNER, "owner", more) == NotAnAdministrator()
    assert refusal(take_limits_away, having(OWN), OWNER, "owner", NETWORKING) == NotAnAdministrator()
    assert set_limits(having(OWN), ADMIN, "owner", more).puts == (Quota(project_id="owner", port=1000),)
    assert take_limits_away(having(OWN), ADMIN, "owner", NETWORKING).deletes


def test_octavias_role_for_quotas_says_it_too_whichever_rule_asks():
    roles = frozenset({"load-balancer_quota_admin"})
    permit = Permit(user="q", project_id="q", roles=roles, grant=GRANTS[Rule.WRITE_QUOTA])
    assert set_limits(having(OWN), permit, "owner", {Counted.PORT: 5}).puts
