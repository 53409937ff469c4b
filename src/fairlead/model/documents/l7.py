"""L7 policies of a listener: actions on requests that match all rules of a policy."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

from fairlead.model.documents.network import Resource


class L7ActionType(StrEnum):
    REDIRECT_PREFIX = "REDIRECT_PREFIX"
    REDIRECT_TO_POOL = "REDIRECT_TO_POOL"
    REDIRECT_TO_URL = "REDIRECT_TO_URL"
    REJECT = "REJECT"


class L7RuleType(StrEnum):
    COOKIE = "COOKIE"
    FILE_TYPE = "FILE_TYPE"
    HEADER = "HEADER"
    HOST_NAME = "HOST_NAME"
    PATH = "PATH"
    SSL_CONN_HAS_CERT = "SSL_CONN_HAS_CERT"
    SSL_DN_FIELD = "SSL_DN_FIELD"
    SSL_VERIFY_RESULT = "SSL_VERIFY_RESULT"


class L7Comparison(StrEnum):
    CONTAINS = "CONTAINS"
    ENDS_WITH = "ENDS_WITH"
    EQUAL_TO = "EQUAL_TO"
    REGEX = "REGEX"
    STARTS_WITH = "STARTS_WITH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    type: Literal[L7ActionType.REJECT] = field(default=L7ActionType.REJECT, init=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectToPool:
    type: Literal[L7ActionType.REDIRECT_TO_POOL] = field(default=L7ActionType.REDIRECT_TO_POOL, init=False)
    pool_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectToUrl:
    type: Literal[L7ActionType.REDIRECT_TO_URL] = field(default=L7ActionType.REDIRECT_TO_URL, init=False)
    url: str
    code: int | None = None
    """Status code of the redirect (RFC 9110, section 15.4); None for the provider's default.
    `RedirectPrefix.code` is the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedirectPrefix:
    """Redirect to the same path with another prefix."""

    type: Literal[L7ActionType.REDIRECT_PREFIX] = field(default=L7ActionType.REDIRECT_PREFIX, init=False)
    prefix: str
    code: int | None = None


L7Action: TypeAlias = Reject | RedirectToPool | RedirectToUrl | RedirectPrefix


@dataclass(frozen=True, slots=True, kw_only=True)
class L7Rule(Resource):
    type: L7RuleType
    compare_type: L7Comparison
    value: str
    key: str | None = None
    invert: bool = False
    admin_state_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class L7Policy(Resource):
    """L7 policy of a listener. Its position is its index in the listener's policies.
    It applies if all its rules match."""

    action: L7Action
    admin_state_up: bool = True
    rules: tuple[L7Rule, ...] = ()

    @property
    def redirect_pool_id(self) -> str | None:
        """Pool that the policy redirects to; None for other actions."""
        return self.action.pool_id if isinstance(self.action, RedirectToPool) else None
