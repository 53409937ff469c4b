"""LXD's error texts for changes that the rules (`fairlead.changes`) reject, and for invalid bodies."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError, NotApplied
from fairlead.api.lxd import balancer_refusals, network_refusals, trust_refusals
from fairlead.changes import balancers, identity, ids, quotas
from fairlead.changes.refusal import Refusal
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.quota import QuotaResource
from fairlead.schema import BadField, MissingField, UnknownField

ErrorOf = Callable[[Any], ApiError]

_NAMES: Mapping[QuotaResource, str] = {
    QuotaResource.LOAD_BALANCER: "load balancers",
    QuotaResource.POOL: "pools",
    QuotaResource.HEALTH_MONITOR: "health monitors",
    QuotaResource.MEMBER: "members (backends of load balancers)",
    QuotaResource.LISTENER: "listeners (ports of load balancers)",
    QuotaResource.L7POLICY: "L7 policies",
    QuotaResource.L7RULE: "L7 rules",
    QuotaResource.NETWORK: "networks",
    QuotaResource.SUBNET: "subnets",
    QuotaResource.PORT: "ports",
    QuotaResource.ROUTER: "routers",
    QuotaResource.FLOATING_IP: "floating IPs",
    QuotaResource.LOCAL_IP: "Local IPs",
    QuotaResource.LOCAL_IP_ASSOCIATION: "replicas of Local IPs",
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


def _apply_pending(_: balancers.PartPending) -> ApiError:
    return ApiError(409, "An earlier change is still being applied. Please try again later")


_SHARED: Mapping[type[Refusal], ErrorOf] = {
    identity.NotAnAdministrator: lambda _: forbidden(),
    ids.IdInUse: lambda why: ApiError(409, f"The ID {why.id} is in use"),
    quotas.QuotaExceeded: _quota,
    balancers.PartPending: _apply_pending,
    balancers.BalancerPending: _apply_pending,
}
ERROR_TEXTS: Mapping[type[Refusal], ErrorOf] = {
    **_SHARED,
    **trust_refusals.ERROR_TEXTS,
    **network_refusals.ERROR_TEXTS,
    **balancer_refusals.ERROR_TEXTS,
}
"""Rejection -> error, for all rules that this front end uses."""


def error_of(why: Refusal) -> ApiError:
    return ERROR_TEXTS[type(why)](why)


def unsupported_error(error: Unsupported) -> ApiError:
    return ApiError(501, f"Provider '{error.provider}' does not support: {error.feature}{error.advice}")


def not_applied(what: str, error: NotApplied) -> ApiError:
    """Return 503 with Incus's text "Failed applying OVN load balancer". Incus reverts the change; here it stays
    stored."""
    text = f"Failed applying OVN {what}: {error.reason}; the change is stored and is applied once OVN accepts it"
    return ApiError(503, text)


def bad_field(error: BadField) -> ApiError:
    return ApiError(400, f"Invalid value for {error.name!r}: {error.reason}")


def missing_field(error: MissingField) -> ApiError:
    return ApiError(400, f"{error.name!r} is required")


def unknown_field(error: UnknownField) -> ApiError:
    return ApiError(400, f"Unknown field: {', '.join((*error.path, *error.names))}")
