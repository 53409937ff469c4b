"""Pure function from the states in Octavia and Fairlead to status updates for Octavia and deletions in Fairlead.

The driver is called before Octavia's commit, so everything committed in Octavia was in Fairlead before. Therefore
Octavia is read first and Fairlead after it, and then:

* An object in both has the status that Fairlead reports.

* An object missing in Fairlead is DELETED if Octavia is deleting it. Otherwise it is created again (`lost`), and is in
  ERROR if Fairlead rejects it.

* An object missing in Octavia was never committed: the process was killed, or the commit failed.

But a request may be between its write in Fairlead and its commit in Octavia, which then shows the previous state. So
errors, creations and deletions happen only after the state has lasted for a while (`is_sure`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

KINDS = ("listeners", "pools", "members", "healthmonitors", "l7policies", "l7rules")
"""Kinds, with the same names in octavia-lib and in Fairlead."""
BALANCERS = "loadbalancers"
PENDING = frozenset({"PENDING_CREATE", "PENDING_UPDATE", "PENDING_DELETE"})
MAX_DELETE_AGE = timedelta(hours=1)
"""Maximum age of objects that are deleted automatically if Octavia does not have them. For older ones Octavia's
database may be an outdated copy."""
Record: TypeAlias = dict[str, str]


class OctaviaStatus(NamedTuple):
    provisioning: str
    operating: str


MISSING_STATUS = OctaviaStatus("ERROR", "OFFLINE")
"""Status of an object that is unexpectedly missing in Fairlead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OctaviaState:
    """State of a load balancer in Octavia's database."""

    balancer: OctaviaStatus
    parts: Mapping[str, Mapping[str, OctaviaStatus]]
    """Kind -> id -> status."""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """Body that the driver would send to create it now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckContext:
    """Circumstances of a check."""

    now: datetime
    is_sure: bool = False
    """Whether the uncertainty has lasted so long that no request can be in flight."""
    may_create: bool = False
    """Whether lost objects may be sent, because Fairlead has not rejected them."""
    deletes_old: bool = False
    """Whether objects that Octavia does not have are deleted, even if old."""


@dataclass(slots=True)
class StateDifference:
    updates: dict[str, list[Record]] = field(default_factory=dict)
    """Argument of octavia-lib's update_loadbalancer_status."""
    unknown_to_octavia: list[str] = field(default_factory=list)
    """Paths of objects to delete in Fairlead's API."""
    old: list[str] = field(default_factory=list)
    """Paths of objects that Octavia does not have, and that are too old to be deleted automatically."""
    missing: list[tuple[str, str]] = field(default_factory=list)
    """Kind and id of objects to create again in Fairlead, once it is certain."""
    is_settled: bool = False
    """Whether both have it and no change is in flight, so that attributes can be compared."""
    is_uncertain: bool = False
    """Whether it has to be checked again, because a request may be in flight or Fairlead is applying a change."""

    def add_update(self, kind: str, part: str, **said: str) -> None:
        self.updates.setdefault(kind, []).append({"id": part, **said})


def compare_states(
    balancer_id: str, known: OctaviaState | None, told: Mapping[str, Any] | None, look: CheckContext
) -> StateDifference:
    """Compare the two states.

    `known` is None if Octavia does not have the load balancer or has deleted it; `told`, read after it, is None if
    Fairlead does not have it.
    """
    found = StateDifference()
    if known is None:
        if told is not None:
            _refuse_stranger(found, told, f"/loadbalancers/{balancer_id}?cascade=true", look)
        return found
    if told is None:
        _tell_gone(found, balancer_id, known, look)
        return found
    settled = False not in [_tell_kind(found, kind, known, told, look) for kind in KINDS]  # processes every kind
    for kind, part in _strangers(known, told):
        _refuse_stranger(found, part, _path(kind, part), look)
    if known.balancer.provisioning == "PENDING_DELETE":
        found.unknown_to_octavia = [f"/loadbalancers/{balancer_id}?cascade=true"]
        found.is_uncertain = True
    elif settled:
        settled = _tell_standing(found, BALANCERS, balancer_id, known.balancer, told)
        found.is_settled = settled and not found.is_uncertain
    return found


def _tell_gone(found: StateDifference, balancer_id: str, known: OctaviaState, look: CheckContext) -> None:
    """Handle a load balancer that is missing in Fairlead."""
    is_wanted = known.balancer.provisioning != "PENDING_DELETE"
    if is_wanted and (look.may_create or not look.is_sure):
        found.is_uncertain = look.may_create or known.balancer != MISSING_STATUS
        if look.may_create:
            found.missing.append((BALANCERS, balancer_id))
        return
    for kind in KINDS:
        for part, standing in known.parts.get(kind, {}).items():
            if not is_wanted:
                found.add_update(kind, part, provisioning_status="DELETED")
            elif standing != MISSING_STATUS:
                found.add_update(kind, part, **_said(MISSING_STATUS))
    if not is_wanted:
        found.add_update(BALANCERS, balancer_id, provisioning_status="DELETED")
    elif known.balancer != MISSING_STATUS:
        found.add_update(BALANCERS, balancer_id, **_said(MISSING_STATUS))


def _tell_kind(
    found: StateDifference, kind: str, known: OctaviaState, told: Mapping[str, Any], look: CheckContext
) -> bool:
    """Compare one kind. Returns whether no change of its objects is in flight."""
    there = {part["id"]: part for part in told[kind]}
    settled = True
    for part, standing in known.parts.get(kind, {}).items():
        if part in there and standing.provisioning == "PENDING_DELETE":
            found.unknown_to_octavia.append(_path(kind, there[part]))
            found.is_uncertain, settled = True, False
        elif part in there:
            settled = _tell_standing(found, kind, part, standing, there[part]) and settled
        elif standing.provisioning == "PENDING_DELETE":
            found.add_update(kind, part, provisioning_status="DELETED")
        elif look.may_create or (standing != MISSING_STATUS and not look.is_sure):
            found.is_uncertain, settled = True, False
            if look.may_create:
                found.missing.append((kind, part))
        elif standing != MISSING_STATUS:
            found.add_update(kind, part, **_said(MISSING_STATUS))
    return settled


def _tell_standing(
    found: StateDifference, kind: str, part: str, standing: OctaviaStatus, told: Mapping[str, Any]
) -> bool:
    """Compare one status. Returns False while Fairlead is applying a change; Octavia keeps its status until then."""
    now = OctaviaStatus(told["provisioning_status"], told["operating_status"])
    if now.provisioning in PENDING:
        return False
    said = _said(now)
    if now.provisioning == standing.provisioning:
        del said["provisioning_status"]
    if now.operating == standing.operating:
        del said["operating_status"]
    if said:
        found.add_update(kind, part, **said)
    return True


def _said(standing: OctaviaStatus) -> Record:
    return {"provisioning_status": standing.provisioning, "operating_status": standing.operating}


def _strangers(known: OctaviaState, told: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in KINDS:
        for part in told[kind]:
            if part["id"] not in known.parts.get(kind, {}):
                yield kind, part


def _refuse_stranger(found: StateDifference, part: Mapping[str, Any], path: str, look: CheckContext) -> None:
    """Schedule the deletion of an object that Octavia does not have, once no request can be in flight.

    A prepared takeover is kept as long as it may still be committed; it has no rows.
    """
    is_old = look.now - datetime.fromisoformat(part["created_at"]) > MAX_DELETE_AGE
    if is_prepared(part) and not is_old:
        return
    if is_old and not (is_prepared(part) or look.deletes_old):
        found.old.append(path)
        return
    found.is_uncertain = True
    if look.is_sure and path not in found.unknown_to_octavia:
        found.unknown_to_octavia.append(path)


def is_prepared(told: Mapping[str, Any]) -> bool:
    """Whether the object in Fairlead waits for a takeover from another provider."""
    return told.get("takeover") == "prepared"


def _path(kind: str, part: Mapping[str, Any]) -> str:
    match kind:
        case "members":
            return f"/pools/{part['parent']}/members/{part['id']}"
        case "l7rules":
            return f"/l7policies/{part['parent']}/rules/{part['id']}"
        case _:
            return f"/{kind}/{part['id']}"
