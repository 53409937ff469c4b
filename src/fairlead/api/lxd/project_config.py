"""Config keys of projects: network restrictions, and keys of instances and storage, which have no effect.

The latter are stored and shown, because tools set them on every project. In LXD and Incus, `restricted.*` keys apply
only if `restricted` is true; the granted subnets (`restricted.networks.subnets`) predate this rule here and always
apply.
"""

import re
from collections.abc import Mapping

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.config_texts import TRUE, read_flag
from fairlead.api.lxd.go_texts import parse_uint32, quote
from fairlead.model.documents.trust import MAX_RESTRICTION_NAMES, Restrictions, UplinkLimit

OWN_NETWORKS = "features.networks"
RESTRICTED = "restricted"
SUBNETS = "restricted.networks.subnets"
"""Prefixes within an uplink's routes that restricted callers may use in this project; LXD's key and format."""
UPLINKS, ACCESS = "restricted.networks.uplinks", "restricted.networks.access"
NETWORK_LIMIT = "limits.networks"
_FLAGS = frozenset(
    {
        RESTRICTED,
        *(
            f"features.{each}"
            for each in ("images", "profiles", "storage.volumes", "storage.buckets", "networks.zones")
        ),
    }
)
_UPLINK_IPS = re.compile(r"limits\.networks\.uplink_ips\.ipv([46])\.(.+)")


def read_restrictions(config: Mapping[str, str]) -> Restrictions:
    """Parse non-empty values. Raises ApiError 400 for the first unknown or invalid key by name."""
    limits = list[UplinkLimit]()
    for key, value in sorted(config.items()):
        if key in _FLAGS:
            _check(key, value)
        elif key == NETWORK_LIMIT:
            _number(key, value)
        elif found := _UPLINK_IPS.fullmatch(key):
            limits.append(UplinkLimit(uplink=found[2], version=int(found[1]), most=_number(key, value)))
        elif key not in (SUBNETS, UPLINKS, ACCESS) and not key.startswith("user."):
            raise ApiError(400, f"Invalid project configuration key {quote(key)}")
    uplinks, access = _names(config, UPLINKS), _names(config, ACCESS)
    is_restricted = config.get(RESTRICTED, "").lower() in TRUE
    return Restrictions(
        uplinks=uplinks if is_restricted else None,
        networks=access if is_restricted and access else None,
        most_networks=_number(NETWORK_LIMIT, config[NETWORK_LIMIT]) if NETWORK_LIMIT in config else None,
        uplink_addresses=tuple(limits),
    )


def _check(key: str, value: str) -> None:
    """Check a boolean. Raises ApiError 400."""
    try:
        read_flag(value)
    except ValueError as error:
        raise _wrong(key, str(error)) from None


def _number(key: str, value: str) -> int:
    """Parse a number. Raises ApiError 400."""
    try:
        return parse_uint32(value)
    except ValueError as error:
        raise _wrong(key, f"Invalid value for uint32 {quote(value)}: {error}") from None


def _names(config: Mapping[str, str], key: str) -> tuple[str, ...]:
    """Parse a list of names. Raises ApiError 400."""
    found = sorted({name for each in config.get(key, "").split(",") if (name := each.strip())})
    if len(found) > MAX_RESTRICTION_NAMES:
        raise _wrong(key, f"at most {MAX_RESTRICTION_NAMES} names")
    return tuple(found)


def _wrong(key: str, why: str) -> ApiError:
    return ApiError(400, f"Invalid value for project configuration key {quote(key)}: {why}")
