"""Reading a Keystone token response: roles, project and scope."""

import json

import pytest

from fairlead.api.keystone.token_responses import NotUnderstood, may_validate, read_own, read_token
from fairlead.changes.identity import Identity
from harness.front_ends.keystone_recorded import ADMIN_ROLES, ALICE, DOMAIN, OF_SHOP, SHOP, token


def test_a_token_of_a_project():
    found = read_token(token("member", "reader", **OF_SHOP)).identity
    assert found == Identity(user=ALICE["id"], project_id=SHOP["id"], roles=frozenset({"member", "reader"}))
    assert (found.may_see(SHOP["id"]), found.may_change(SHOP["id"])) == (True, True)
    assert (found.may_see("other"), found.may_change("other"), found.may_see("")) == (False, False, False)


def test_roles_that_nobody_knows_here_are_ignored_and_so_is_that_of_services():
    """Unknown roles and the role `service` grant nothing: that role is Nova's and Neutron's, and agents have no
    Keystone tokens."""
    found = read_token(token("manager", "service", "load-balancer_member", "heat_stack_owner", **OF_SHOP))
    assert found.identity.roles == {"load-balancer_member"}


def test_a_token_of_the_system_speaks_for_no_project():
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
def test_all_other_tokens_speak_for_nobody(scope: dict[str, object]):
    """Tokens without a valid project or system scope grant nothing, although those of domain administrators have the
    role admin."""
    found = read_token(token(*ADMIN_ROLES, **scope)).identity
    assert found == Identity(user=ALICE["id"], project_id="", roles=frozenset())
    assert not found.may_see("")


@pytest.mark.parametrize(
    ("roles", "scope", "may"),
    [
        (("service",), OF_SHOP, True),
        (ADMIN_ROLES, OF_SHOP, True),
        (("member", "reader"), OF_SHOP, False),
        (("reader",), {"system": {"all": True}}, True),
        ((), {}, False),
    ],
)
def test_who_may_validate(roles: tuple[str, ...], scope: dict[str, object], may: bool):
    assert may_validate(token(*roles, **scope)) is may


def test_its_end_is_a_time():
    user, ends = read_own(token("reader", seconds=60, **OF_SHOP))
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
def test_anything_else_is_not_understood(body: bytes):
    with pytest.raises(NotUnderstood):
        read_token(body)
