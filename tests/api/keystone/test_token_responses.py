"""Reading a Keystone token response: roles, project and scope."""

import json

import pytest

from fairlead.api.keystone.token_responses import NotUnderstood, may_validate, read_own, read_token
from fairlead.changes.identity import Identity
from harness.front_ends.keystone_recorded import ADMIN_ROLES, ALICE, DOMAIN, SHOP, SHOP_SCOPE, token


def test_project_token_grants_access_to_its_project_only():
    found = read_token(token("member", "reader", **SHOP_SCOPE)).identity
    assert found == Identity(user=ALICE["id"], project_id=SHOP["id"], roles=frozenset({"member", "reader"}))
    assert (found.may_see(SHOP["id"]), found.may_change(SHOP["id"])) == (True, True)
    assert (found.may_see("other"), found.may_change("other"), found.may_see("")) == (False, False, False)


def test_unknown_roles_and_the_service_role_are_ignored():
    """Unknown roles and the role `service` grant nothing: that role is Nova's and Neutron's, and agents have no
    Keystone tokens."""
    found = read_token(token("manager", "service", "load-balancer_member", "heat_stack_owner", **SHOP_SCOPE))
    assert found.identity.roles == {"load-balancer_member"}


def test_system_token_has_no_project_and_reads_all_projects():
    reader = read_token(token("reader", system={"all": True})).identity
    assert (reader.project_id, reader.system, reader.is_admin) == ("", True, False)
    assert (reader.may_see("any"), reader.may_change("any"), reader.may_change("")) == (True, False, False)
    member = read_token(token("member", "reader", system={"all": True})).identity
    assert (member.may_see("any"), member.may_change("any"), member.may_change("")) == (True, False, False)
    admin = read_token(token(*ADMIN_ROLES, system={"all": True})).identity
    assert (admin.may_see("any"), admin.may_change("any"), admin.is_admin) == (True, True, True)


@pytest.mark.parametrize(
    "scope", [{"domain": DOMAIN}, {}, {"system": {}}, {"system": {"all": False}}, {"project": {"id": "p" * 37}}]
)
def test_token_without_project_or_system_scope_grants_nothing(scope: dict[str, object]):
    """Tokens without a valid project or system scope grant nothing, although those of domain administrators have the
    role admin."""
    found = read_token(token(*ADMIN_ROLES, **scope)).identity
    assert found == Identity(user=ALICE["id"], project_id="", roles=frozenset())
    assert not found.may_see("")


@pytest.mark.parametrize(
    ("roles", "scope", "may"),
    [
        (("service",), SHOP_SCOPE, True),
        (ADMIN_ROLES, SHOP_SCOPE, True),
        (("member", "reader"), SHOP_SCOPE, False),
        (("reader",), {"system": {"all": True}}, True),
        ((), {}, False),
    ],
)
def test_validation_rights_need_the_service_or_admin_role_or_system_reader(
    roles: tuple[str, ...], scope: dict[str, object], may: bool
):
    assert may_validate(token(*roles, **scope)) is may


def test_own_token_expiry_is_a_time_with_a_zone():
    user, ends = read_own(token("reader", seconds=60, **SHOP_SCOPE))
    assert user
    assert ends.tzinfo is not None


BAD = {
    "empty": b"",
    "html": b"<html>",
    "no token": b"{}",
    "no user": b'{"token": {"expires_at": "2026-11-22T15:33:16.000000Z", "user": {"id": ""}}}',
    "no end": b'{"token": {"user": {"id": "u"}}}',
    "no zone": b'{"token": {"user": {"id": "u"}, "expires_at": "2026-11-22T15:33:16"}}',
    "not a time": b'{"token": {"user": {"id": "u"}, "expires_at": "soon"}}',
    "not text": b'{"token": \xff',
    "a number": json.dumps({"token": 1}).encode(),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
def test_malformed_token_response_is_rejected(body: bytes):
    with pytest.raises(NotUnderstood):
        read_token(body)
