"""What Octavia has to be told, and what Fairlead has that Octavia does not know: a function of what both say.

What is committed in Octavia was in Fairlead before, since the driver is called before the commit. So Octavia is read
first and Fairlead after it, and then:

* What both have stands as Fairlead says.
* What Fairlead has no more is gone if Octavia wants it gone. Else Fairlead is given it again (`lost`), and if it does
  not take it, it is an ERROR.
* What Octavia does not know was never committed: somebody was killed, or the commit failed.

But a request may be between its write here and its commit there, when Octavia shows the load balancer as it was before.
So nothing is an ERROR, nothing is given again, and nothing is taken back, before it was so for a while (`is_sure`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

KINDS = ("listeners", "pools", "members", "healthmonitors", "l7policies", "l7rules")
"""As octavia-lib calls them, and Fairlead."""
BALANCERS = "loadbalancers"
PENDING = frozenset({"PENDING_CREATE", "PENDING_UPDATE", "PENDING_DELETE"})
TAKEN_BACK = timedelta(hours=1)
"""What is older is not taken back by itself, though Octavia does not know it: its database may be an old copy."""
Record: TypeAlias = dict[str, str]


class Standing(NamedTuple):
    provisioning: str
    operating: str


GONE = Standing("ERROR", "OFFLINE")
"""What Octavia has and Fairlead has not, although nobody wanted that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What Octavia's database says of a load balancer."""

    balancer: Standing
    parts: Mapping[str, Mapping[str, Standing]]
    """By kind and id."""
    whole: Mapping[str, Any] = field(default_factory=dict)
    """What the driver would give to Fairlead if it were made now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What is known when it is judged."""

    now: datetime
    is_sure: bool = False
    """There has been a doubt for so long that no request can be on its way any more."""
    may_give: bool = False
    """Fairlead has not refused what it has lost."""
    deletes_old: bool = False
    """What Octavia does not know is deleted, however old it is."""


@dataclass(slots=True)
class Difference:
    updates: dict[str, list[Record]] = field(default_factory=dict)
    """For octavia-lib's update_loadbalancer_status."""
    strangers: list[str] = field(default_factory=list)
    """Paths of Fairlead's door at which something is to be deleted."""
    old: list[str] = field(default_factory=list)
    """Paths of what Octavia does not know, and what is too old to be deleted by itself."""
    lost: list[tuple[str, str]] = field(default_factory=list)
    """Kind and id of what Fairlead has to be given again, if there is a doubt no more."""
    is_settled: bool = False
    """Whether both have it, and nothing of it is on its way: values can be compared."""
    is_doubtful: bool = False
    """Whether it has to be looked at again, because a request may be on its way, or because Fairlead is at work."""

    def tell(self, kind: str, part: str, **said: str) -> None:
        self.updates.setdefault(kind, []).append({"id": part, **said})


def difference(balancer_id: str, known: Known | None, told: Mapping[str, Any] | None, look: Look) -> Difference:
    """`known` is None for what Octavia does not have or has deleted; `told`, read after it, for what Fairlead has
    not."""
    found = Difference()
    if known is None:
        if told is not None:
            _refuse_stranger(found, told, f"/loadbalancers/{balancer_id}?cascade=true", look)
        return found
    if told is None:
        _tell_gone(found, balancer_id, known, look)
        return found
    settled = False not in [_tell_kind(found, kind, known, told, look) for kind in KINDS]  # each is asked
    for kind, part in _strangers(known, told):
        _refuse_stranger(found, part, _path(kind, part), look)
    if known.balancer.provisioning == "PENDING_DELETE":
        found.strangers = [f"/loadbalancers/{balancer_id}?cascade=true"]
        found.is_doubtful = True
    elif settled:
        settled = _tell_standing(found, BALANCERS, balancer_id, known.balancer, told)
        found.is_settled = settled and not found.is_doubtful
    return found


def _tell_gone(found: Difference, balancer_id: str, known: Known, look: Look) -> None:
    """Fairlead has none of it."""
    is_wanted = known.balancer.provisioning != "PENDING_DELETE"
    if is_wanted and (look.may_give or not look.is_sure):
        found.is_doubtful = look.may_give or known.balancer != GONE
        if look.may_give:
            found.lost.append((BALANCERS, balancer_id))
        return
    for kind in KINDS:
        for part, standing in known.parts.get(kind, {}).items():
            if not is_wanted:
                found.tell(kind, part, provisioning_status="DELETED")
            elif standing != GONE:
                found.tell(kind, part, **_said(GONE))
    if not is_wanted:
        found.tell(BALANCERS, balancer_id, provisioning_status="DELETED")
    elif known.balancer != GONE:
        found.tell(BALANCERS, balancer_id, **_said(GONE))


def _tell_kind(found: Difference, kind: str, known: Known, told: Mapping[str, Any], look: Look) -> bool:
    """Whether none of them is on its way any more."""
    there = {part["id"]: part for part in told[kind]}
    settled = True
    for part, standing in known.parts.get(kind, {}).items():
        if part in there and standing.provisioning == "PENDING_DELETE":
            found.strangers.append(_path(kind, there[part]))
            found.is_doubtful, settled = True, False
        elif part in there:
            settled = _tell_standing(found, kind, part, standing, there[part]) and settled
        elif standing.provisioning == "PENDING_DELETE":
            found.tell(kind, part, provisioning_status="DELETED")
        elif look.may_give or (standing != GONE and not look.is_sure):
            found.is_doubtful, settled = True, False
            if look.may_give:
                found.lost.append((kind, part))
        elif standing != GONE:
            found.tell(kind, part, **_said(GONE))
    return settled


def _tell_standing(found: Difference, kind: str, part: str, standing: Standing, told: Mapping[str, Any]) -> bool:
    """Whether it has arrived, or failed. While Fairlead is at work on it Octavia goes on showing what it shows."""
    now = Standing(told["provisioning_status"], told["operating_status"])
    if now.provisioning in PENDING:
        return False
    said = _said(now)
    if now.provisioning == standing.provisioning:
        del said["provisioning_status"]
    if now.operating == standing.operating:
        del said["operating_status"]
    if said:
        found.tell(kind, part, **said)
    return True


def _said(standing: Standing) -> Record:
    return {"provisioning_status": standing.provisioning, "operating_status": standing.operating}


def _strangers(known: Known, told: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for kind in KINDS:
        for part in told[kind]:
            if part["id"] not in known.parts.get(kind, {}):
                yield kind, part


def _refuse_stranger(found: Difference, part: Mapping[str, Any], path: str, look: Look) -> None:
    """What Octavia does not know is taken back, when no request can bring it any more. What is only prepared stays as
    long as somebody may be about to commit it, and goes then: it has no rows."""
    is_old = look.now - datetime.fromisoformat(part["created_at"]) > TAKEN_BACK
    if is_prepared(part) and not is_old:
        return
    if is_old and not (is_prepared(part) or look.deletes_old):
        found.old.append(path)
        return
    found.is_doubtful = True
    if look.is_sure and path not in found.strangers:
        found.strangers.append(path)


def is_prepared(told: Mapping[str, Any]) -> bool:
    """Whether what Fairlead has waits to be taken over from another provider."""
    return told.get("takeover") == "prepared"


def _path(kind: str, part: Mapping[str, Any]) -> str:
    match kind:
        case "members":
            return f"/pools/{part['parent']}/members/{part['id']}"
        case "l7rules":
            return f"/l7policies/{part['parent']}/rules/{part['id']}"
        case _:
            return f"/{kind}/{part['id']}"
