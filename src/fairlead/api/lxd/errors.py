"""LXD's error texts of rejections by the rules and of invalid bodies."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError, NotApplied
from fairlead.api.lxd import balancer_refusals, network_refusals, trust_refusals
from fairlead.changes import balancers, identity, ids, quotas
from fairlead.changes.refusal import Refusal
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.quota import Counted
from fairlead.schema import BadField, MissingField, UnknownField

Says = Callable[[Any], ApiError]

_NAMES: Mapping[Counted, str] = {
    Counted.LOAD_BALANCER: "load balancers",
    Counted.POOL: "pools",
    Counted.HEALTH_MONITOR: "health monitors",
    Counted.MEMBER: "members (backends of load balancers)",
    Counted.LISTENER: "listeners (ports of load balancers)",
    Counted.L7POLICY: "L7 policies",
    Counted.L7RULE: "L7 rules",
    Counted.NETWORK: "networks",
    Counted.SUBNET: "subnets",
    Counted.PORT: "ports",
    Counted.ROUTER: "routers",
    Counted.FLOATING_IP: "floating IPs",
    Counted.LOCAL_IP: "Local IPs",
    Counted.LOCAL_IP_ASSOCIATION: "replicas of Local IPs",
}
"""Names of counted resources in quota errors: the name of the quota, and LXD's name where it differs."""


def forbidden() -> ApiError:
    """Return 403 with the text of LXD and Incus (response.Forbidden without a reason)."""
    return ApiError(403, "not authorized")


def not_found(what: str) -> ApiError:
    """Return 404 with the type of the object ("Network", "Network load balancer"); LXD does not include its name."""
    return ApiError(404, f"{what} not found")


def _quota(why: quotas.QuotaExceeded) -> ApiError:
    over = sorted(_NAMES[what] for what in why.over)
    return ApiError(403, f"Project quota for {', '.join(over)} is exhausted")


def _on_its_way(_: balancers.OnItsWay) -> ApiError:
    return ApiError(409, "An earlier change is still being applied. Please try again later")


_SHARED: Mapping[type[Refusal], Says] = {
    identity.NotAnAdministrator: lambda _: forbidden(),
    ids.IdTaken: lambda why: ApiError(409, f"The ID {why.id} is in use"),
    quotas.QuotaExceeded: _quota,
    balancers.OnItsWay: _on_its_way,
    balancers.WholeOnItsWay: _on_its_way,
}
WORDS: Mapping[type[Refusal], Says] = {
    **_SHARED,
    **trust_refusals.WORDS,
    **network_refusals.WORDS,
    **balancer_refusals.WORDS,
}
"""Rejection -> error, for all rules that this front end uses."""


def say(why: Refusal) -> ApiError:
    return WORDS[type(why)](why)


def say_unsupported(error: Unsupported) -> ApiError:
    return ApiError(501, f"Provider '{error.provider}' does not support: {error.asked}{error.advice}")


def not_applied(what: str, error: NotApplied) -> ApiError:
    """Return 503 with Incus's text "Failed applying OVN load balancer". Incus reverts the change; here it stays
    stored."""
    text = f"Failed applying OVN {what}: {error.why}; the change is stored and is applied once OVN accepts it"
    return ApiError(503, text)


def bad_field(error: BadField) -> ApiError:
    return ApiError(400, f"Invalid value for {error.name!r}: {error.reason}")


def missing_field(error: MissingField) -> ApiError:
    return ApiError(400, f"{error.name!r} is required")


def unknown_field(error: UnknownField) -> ApiError:
    return ApiError(400, f"Unknown field: {', '.join((*error.path, *error.names))}")
