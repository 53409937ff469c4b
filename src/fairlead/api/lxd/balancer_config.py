"""Options of load balancers: those of Incus with its defaults, and Fairlead's own.

| option | value | unset |
|---|---|---|
| `healthcheck` | whether backends are probed | false |
| `healthcheck.interval` | seconds between two probes | 10 |
| `healthcheck.timeout` | seconds | 30 |
| `healthcheck.failure_count` | consecutive failures until a backend is down | 3 |
| `healthcheck.success_count` | consecutive successes until it is up | 3 |
| `fairlead.healthcheck.method` | type of the probe | by each port's protocol |
| `fairlead.algorithm` | balancing algorithm | round-robin |
| `fairlead.affinity` | session affinity: `source-ip` | none |
| `fairlead.locality` | preferred backends: `chassis` (same node, then same zone), `zone` | none |
| `fairlead.down-member` | connections of a backend that goes down: `keep`, `reset` | keep |
| `fairlead.raw` | LOCATION:VALUE, required bytes (hexadecimal) at an offset of TCP connections | any |
| `fairlead.weight.BACKEND` | weight; 0 means no new connections | 1 |
| `user.*` | anything | |

Fairlead's options have the product name as a prefix, to avoid conflicts. An option with an empty value is unset. The
valid values of an option depend on the provider.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.go_texts import parse_uint32, quote
from fairlead.changes.balancer_spec_checks import BalancerSpec, MonitorSpec
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.abilities import Abilities
from fairlead.model.documents.sizes import MAX_RAW_BYTES, MAX_RAW_OFFSET, MAX_RETRIES, MAX_WEIGHT

HEALTHCHECK = "healthcheck"
OURS = "fairlead."
METHOD, ALGORITHM, AFFINITY = f"{OURS}healthcheck.method", f"{OURS}algorithm", f"{OURS}affinity"
LOCALITY, DOWN_MEMBER = f"{OURS}locality", f"{OURS}down-member"
RAW = f"{OURS}raw"
WEIGHT = f"{OURS}weight."
USER = "user."
MAX_PERIOD_SECONDS = 3_600
"""Maximum interval and timeout of probes, in seconds."""
_RAW = re.compile("([0-9]{1,4}):((?:[0-9A-Fa-f]{2})+)")
_TRUE, _FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Number:
    """Numeric option of Incus's health checks: default and maximum; the minimum is 1."""

    default: int
    maximum: int


NUMBERS: Mapping[str, _Number] = {
    f"{HEALTHCHECK}.failure_count": _Number(default=3, maximum=MAX_RETRIES),
    f"{HEALTHCHECK}.interval": _Number(default=10, maximum=MAX_PERIOD_SECONDS),
    f"{HEALTHCHECK}.success_count": _Number(default=3, maximum=MAX_RETRIES),
    f"{HEALTHCHECK}.timeout": _Number(default=30, maximum=MAX_PERIOD_SECONDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerOptions:
    """Parsed options of a load balancer."""

    algorithm: lb.Algorithm
    persistence: lb.SessionPersistence | None
    locality: lb.Locality
    down_member: lb.DownMember
    weights: Mapping[str, int]
    """Backend name -> weight."""
    probing: MonitorSpec | None
    raw: lb.RawMatch | None


def read_options(config: Mapping[str, str], abilities: Abilities) -> BalancerOptions:
    """Parse options with non-empty values. Raises ApiError 400 for the first invalid one by name."""
    for name, value in sorted(config.items()):
        _check(name, value, choices(abilities))
    algorithm, method = config.get(ALGORITHM), config.get(METHOD)
    return BalancerOptions(
        algorithm=_ALGORITHMS[algorithm] if algorithm else lb.Algorithm.ROUND_ROBIN,
        persistence=lb.SourceIpPersistence() if AFFINITY in config else None,
        locality=_LOCALITIES[config.get(LOCALITY, _word(lb.Locality.NONE))],
        down_member=_DOWN_MEMBERS[config.get(DOWN_MEMBER, _word(lb.DownMember.KEEP))],
        weights={name.removeprefix(WEIGHT): int(config[name]) for name in config if name.startswith(WEIGHT)},
        probing=_probing(config, _METHODS[method] if method else None)
        if config.get(HEALTHCHECK, "").lower() in _TRUE
        else None,
        raw=_read_raw(config[RAW]) if RAW in config else None,
    )


def _check(name: str, value: str, known: Mapping[str, Collection[str]]) -> None:
    if name == HEALTHCHECK:
        _check_flag(value)
    elif name in NUMBERS:
        _check_number(name, value, 1, NUMBERS[name].maximum)
    elif name.startswith(WEIGHT):
        _check_number(name, value, 0, MAX_WEIGHT)
    elif name == RAW:
        _read_raw(value)
    elif name in known:
        _check_word(name, value, known[name])
    elif not name.startswith(USER):
        raise unknown_option(name)


def _read_raw(value: str) -> lb.RawMatch:
    """Parse the option `fairlead.raw`. Raises ApiError 400."""
    found = _RAW.fullmatch(value)
    if found is None or int(found[1]) > MAX_RAW_OFFSET or len(found[2]) > 2 * MAX_RAW_BYTES:
        wanted = f"LOCATION:VALUE, up to {MAX_RAW_OFFSET} and of up to {MAX_RAW_BYTES} bytes in hexadecimal digits"
        raise ApiError(400, f"Invalid value {quote(value)} for option {quote(RAW)}: must be {wanted}")
    return lb.RawMatch(location=int(found[1]), value=bytes.fromhex(found[2]))


def unknown_option(name: str) -> ApiError:
    return ApiError(400, f"Invalid option {quote(name)}")


def choices(abilities: Abilities) -> Mapping[str, Collection[str]]:
    """Return the values of each option that the provider supports."""
    return {
        AFFINITY: _words(abilities.persistence & {lb.PersistenceType.SOURCE_IP}),
        ALGORITHM: _words(abilities.algorithms),
        DOWN_MEMBER: _words(abilities.down_members),
        LOCALITY: _words(abilities.localities),
        METHOD: _words(abilities.monitors - lb.HTTP_MONITORS),
    }


def imply_options(asked: BalancerSpec) -> Mapping[str, str]:
    """Return the options equivalent to a load balancer that was not created with options."""
    found = {f"{WEIGHT}{name}": str(weight) for name, weight in asked.weights.items() if weight != 1}
    if asked.algorithm is not lb.Algorithm.ROUND_ROBIN:
        found[ALGORITHM] = _word(asked.algorithm)
    if asked.persistence is not None:
        found[AFFINITY] = _word(asked.persistence.type)
    if asked.locality is not lb.Locality.NONE:
        found[LOCALITY] = _word(asked.locality)
    if asked.down_member is not lb.DownMember.KEEP:
        found[DOWN_MEMBER] = _word(asked.down_member)
    if asked.raw is not None:
        found[RAW] = f"{asked.raw.location}:{asked.raw.value.hex()}"
    if (probing := asked.probing) is not None:
        found |= {
            HEALTHCHECK: "true",
            f"{HEALTHCHECK}.failure_count": str(probing.max_retries_down),
            f"{HEALTHCHECK}.interval": str(probing.delay),
            f"{HEALTHCHECK}.success_count": str(probing.max_retries),
            f"{HEALTHCHECK}.timeout": str(probing.timeout),
        }
        if probing.type is not None:
            found[METHOD] = _word(probing.type)
    return found


def _probing(config: Mapping[str, str], method: lb.MonitorType | None) -> MonitorSpec:
    numbers = {name: int(config.get(name, number.default)) for name, number in NUMBERS.items()}
    return MonitorSpec(
        type=method,
        delay=numbers[f"{HEALTHCHECK}.interval"],
        timeout=numbers[f"{HEALTHCHECK}.timeout"],
        max_retries=numbers[f"{HEALTHCHECK}.success_count"],
        max_retries_down=numbers[f"{HEALTHCHECK}.failure_count"],
    )


def _word(value: StrEnum) -> str:
    """Return the value in LXD's spelling, for instance `source-ip`."""
    return value.value.lower().replace("_", "-")


_ALGORITHMS = {_word(each): each for each in lb.Algorithm}
_DOWN_MEMBERS = {_word(each): each for each in lb.DownMember}
_LOCALITIES = {_word(each): each for each in lb.Locality}
_METHODS = {_word(each): each for each in lb.MonitorType}


def _words(values: Iterable[StrEnum]) -> Collection[str]:
    return sorted(map(_word, values))


def _check_flag(value: str) -> None:
    if value.lower() not in _TRUE | _FALSE:
        raise ApiError(400, f"Invalid value for a boolean {quote(value)}")


def _check_number(name: str, value: str, least: int, most: int) -> None:
    try:
        number = parse_uint32(value)
    except ValueError as error:
        raise ApiError(400, f"Invalid value for uint32 {quote(value)}: {error}") from None
    if not least <= number <= most:
        between = f"must be between {least} and {most}"
        raise ApiError(400, f"Invalid value {quote(value)} for option {quote(name)}: {between}")


def _check_word(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        raise ApiError(
            400, f"Invalid value {quote(value)} for option {quote(name)}: must be one of: {', '.join(known)}"
        )
