"""Quotas: access to the limits of a project."""

from fairlead.api.octavia.policy import GRANTS, Permit, Rule
from fairlead.changes.identity import NotAnAdministrator
from fairlead.changes.quotas import reset_limits, set_limits
from fairlead.model.documents.quota import NETWORKING, Quota, QuotaResource
from harness.changes.world import ADMIN, OWNER, refusal, snapshot_with

OWN = Quota(project_id="owner", port=3)


def test_only_an_administrator_changes_the_limits_of_a_project():
    more = {QuotaResource.PORT: 1000}
    assert refusal(set_limits, snapshot_with(OWN), OWNER, "owner", more) == NotAnAdministrator()
    assert refusal(reset_limits, snapshot_with(OWN), OWNER, "owner", NETWORKING) == NotAnAdministrator()
    assert set_limits(snapshot_with(OWN), ADMIN, "owner", more).puts == (Quota(project_id="owner", port=1000),)
    assert reset_limits(snapshot_with(OWN), ADMIN, "owner", NETWORKING).deletes


def test_octavias_quota_admin_role_may_change_limits():
    roles = frozenset({"load-balancer_quota_admin"})
    permit = Permit(user="q", project_id="q", roles=roles, grant=GRANTS[Rule.WRITE_QUOTA])
    assert set_limits(snapshot_with(OWN), permit, "owner", {QuotaResource.PORT: 5}).puts
