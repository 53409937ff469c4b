"""Parser of a valid token (Identity API v3, "Validate and show information for token").

A token has project scope, or system scope for the whole deployment. Tokens with another scope have no rights here: the
role `admin` in a token with domain scope does not make its user an administrator of the deployment.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec

from fairlead.api.http.authentication import ROLES
from fairlead.changes.identity import MAX_PROJECT_ID_LENGTH, Identity

KNOWN_ROLES = ROLES - {"service"}
"""Accepted roles. Keystone's `service` is a role of whole services; here it is the role of agents, which are tied to a
chassis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidToken:
    identity: Identity
    ends: datetime


class NotUnderstood(Exception):
    """The response is not Keystone's format."""


class _NamedReference(msgspec.Struct):
    id: str = ""
    name: str = ""


class _Token(msgspec.Struct):
    user: _NamedReference
    expires_at: datetime
    roles: Sequence[_NamedReference] = ()
    """Roles, including implied ones."""
    project: _NamedReference | None = None
    system: dict[str, bool] | None = None


class _Answer(msgspec.Struct):
    token: _Token


def read_token(body: bytes) -> ValidToken:
    """Parse a validated token. Raises NotUnderstood."""
    token = _read(body)
    project = token.project.id if token.project else ""
    system = bool(token.system and token.system.get("all")) and not project
    speaks = system or 0 < len(project) <= MAX_PROJECT_ID_LENGTH
    roles = _names(token) & KNOWN_ROLES if speaks else frozenset[str]()
    identity = Identity(user=token.user.id, project_id=project if speaks else "", roles=roles, system=system)
    return ValidToken(identity=identity, ends=token.expires_at)


def may_validate(body: bytes) -> bool:
    """Return whether a token's roles permit validation of other tokens (Keystone's default policy,
    `identity:validate_token`). Raises NotUnderstood."""
    token = _read(body)
    return bool(_names(token) & ({"admin", "service", "reader"} if token.system else {"admin", "service"}))


def read_own(body: bytes) -> tuple[str, datetime]:
    """Return user id and expiry of the service user's token. Raises NotUnderstood."""
    token = _read(body)
    return token.user.id, token.expires_at


def _names(token: _Token) -> frozenset[str]:
    return frozenset(role.name for role in token.roles)


def _read(body: bytes) -> _Token:
    try:
        token = msgspec.json.decode(body, type=_Answer).token
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise NotUnderstood from None
    if not token.user.id or token.expires_at.tzinfo is None:
        raise NotUnderstood
    return token
