"""Findings of the agent as values, and as sentences for operators."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from fairlead.octavia_plugin.differences import BALANCERS, OctaviaState, Record
from fairlead.runtime.terminal import escaped

_NAMES = {
    BALANCERS: "load balancer",
    "listeners": "listener",
    "pools": "pool",
    "members": "member",
    "healthmonitors": "health monitor",
    "l7policies": "L7 policy",
    "l7rules": "L7 rule",
    "ports": "port",
}


class FindingType(StrEnum):
    STATUS = "status"
    """Octavia's status differs from Fairlead's: Octavia is updated."""
    VALUE = "value"
    """An attribute differs: Fairlead is updated."""
    MISSING = "missing"
    """Missing in Fairlead: created there."""
    UNKNOWN = "stranger"
    """Missing in Octavia, or being deleted there: deleted in Fairlead."""
    OLD_UNKNOWN = "old stranger"
    """Missing in Octavia, and so old that Octavia's database may be an outdated copy: nothing is changed."""
    REFUSED = "refused"
    """Fairlead rejects Octavia's object; `fairlead` is its message."""
    ORPHAN = "orphan port"
    """Neutron port that Octavia created for the VIP of a load balancer that it does not have: deleted."""
    KEPT_ORPHAN = "kept orphan port"
    """Such a port without the option to delete it: nothing is changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: FindingType
    balancer: str
    """Load balancer id."""
    kind: str = BALANCERS
    """Kind, as in octavia-lib."""
    id: str
    """Id of the object; its API path for objects that only Fairlead has."""
    attribute: str = ""
    octavia: Any = None
    fairlead: Any = None

    @property
    def record(self) -> Mapping[str, Any]:
        """JSON form."""
        return {**asdict(self), "what": self.what.value}


OnFinding: TypeAlias = Callable[[Finding], None]


def sentence(found: Finding) -> str:
    where = f"{_NAMES[found.kind]} {found.id}"
    if found.kind != BALANCERS:
        where += f" of load balancer {found.balancer}"
    match found.what:
        case FindingType.STATUS | FindingType.VALUE:
            return f"{where}: {found.attribute} is {found.octavia!r} in Octavia and {found.fairlead!r} in Fairlead"
        case FindingType.MISSING:
            return f"{where} is not in Fairlead"
        case FindingType.UNKNOWN:
            return f"{found.id} is not in Octavia, or is being deleted there; deleting it in Fairlead"
        case FindingType.OLD_UNKNOWN:
            return f"{found.id} is not in Octavia and older than an hour; --delete-old deletes it in Fairlead"
        case FindingType.REFUSED:
            return f"{where}: Fairlead rejects Octavia's attributes: {escaped(str(found.fairlead))}"
        case FindingType.ORPHAN:
            return f"{where}, which is not in Octavia, {_at(found.octavia)}; deleting the port in Neutron"
        case FindingType.KEPT_ORPHAN:
            return f"{where}, which is not in Octavia, {_at(found.octavia)}; --delete-ports deletes the port in Neutron"


def _at(seen: Mapping[str, Any]) -> str:
    return escaped(f"has {', '.join(seen['addresses']) or 'no address'} on network {seen['network']}")


def statuses_of(balancer_id: str, updates: Mapping[str, Sequence[Record]], known: OctaviaState) -> Iterator[Finding]:
    """Yield the findings for status updates."""
    for kind, records in updates.items():
        for record in records:
            shown = known.balancer if kind == BALANCERS else known.parts[kind][record["id"]]
            for attribute, was in (
                ("provisioning_status", shown.provisioning),
                ("operating_status", shown.operating),
            ):
                if attribute in record:
                    yield Finding(
                        what=FindingType.STATUS,
                        balancer=balancer_id,
                        kind=kind,
                        id=record["id"],
                        attribute=attribute,
                        octavia=was,
                        fairlead=record[attribute],
                    )


def values_of(balancer_id: str, differences: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Yield the findings for differences that Fairlead's API returned."""
    for each in differences:
        where: dict[str, Any] = {"balancer": balancer_id, "kind": each["kind"], "id": each["id"]}
        if each["missing"]:
            yield Finding(what=FindingType.MISSING, **where)
        for name, both in each["attributes"].items():
            yield Finding(
                what=FindingType.VALUE, attribute=name, octavia=both["said"], fairlead=both["stored"], **where
            )
