"""What the agent finds to differ, and what it does about it: a value for programs, and a sentence for people."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, TypeAlias

from fairlead.octavia_plugin.differences import BALANCERS, Known, Record
from fairlead.terminal import escaped

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


class What(StrEnum):
    STATUS = "status"
    """Octavia shows another status than Fairlead's: Octavia is told."""
    VALUE = "value"
    """An attribute is another one in Fairlead: it is changed there."""
    MISSING = "missing"
    """Octavia has it and Fairlead has not: it is made there."""
    STRANGER = "stranger"
    """Fairlead has it, and Octavia has not or wants it gone: it is deleted there."""
    OLD_STRANGER = "old stranger"
    """The same, of what is so old that Octavia's database may be a copy: nothing is done."""
    REFUSED = "refused"
    """Fairlead does not take what Octavia has; `fairlead` is its sentence."""
    ORPHAN = "orphan port"
    """Octavia made it in Neutron for the VIP of a load balancer that it does not have: it is deleted there."""
    KEPT_ORPHAN = "kept orphan port"
    """The same, where nobody has asked for it to be deleted: nothing is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: What
    balancer: str
    """The load balancer's id."""
    kind: str = BALANCERS
    """As octavia-lib calls it."""
    id: str
    """Of the part; of what only Fairlead has, its path there."""
    attribute: str = ""
    octavia: Any = None
    fairlead: Any = None

    @property
    def record(self) -> Mapping[str, Any]:
        """For programs."""
        return {**asdict(self), "what": self.what.value}


Hear: TypeAlias = Callable[[Finding], None]


def sentence(found: Finding) -> str:
    where = f"{_NAMES[found.kind]} {found.id}"
    if found.kind != BALANCERS:
        where += f" of load balancer {found.balancer}"
    match found.what:
        case What.STATUS | What.VALUE:
            return f"{where}: {found.attribute} is {found.octavia!r} in Octavia and {found.fairlead!r} in Fairlead"
        case What.MISSING:
            return f"{where} is not in Fairlead"
        case What.STRANGER:
            return f"{found.id} is not in Octavia, or is to be gone: it is deleted in Fairlead"
        case What.OLD_STRANGER:
            return f"{found.id} is not in Octavia, and too old to be deleted by itself"
        case What.REFUSED:
            return f"{where}: Fairlead does not take what Octavia has of it: {escaped(str(found.fairlead))}"
        case What.ORPHAN:
            return f"{where}, which Octavia does not have, {_at(found.octavia)}: it is deleted in Neutron"
        case What.KEPT_ORPHAN:
            return f"{where}, which Octavia does not have, {_at(found.octavia)}: --delete-ports deletes it in Neutron"


def _at(seen: Mapping[str, Any]) -> str:
    return escaped(f"has {', '.join(seen['addresses']) or 'no address'} on network {seen['network']}")


def statuses_of(balancer_id: str, updates: Mapping[str, Sequence[Record]], known: Known) -> Iterator[Finding]:
    """Of what Octavia is told."""
    for kind, records in updates.items():
        for record in records:
            shown = known.balancer if kind == BALANCERS else known.parts[kind][record["id"]]
            for attribute, was in (
                ("provisioning_status", shown.provisioning),
                ("operating_status", shown.operating),
            ):
                if attribute in record:
                    yield Finding(
                        what=What.STATUS,
                        balancer=balancer_id,
                        kind=kind,
                        id=record["id"],
                        attribute=attribute,
                        octavia=was,
                        fairlead=record[attribute],
                    )


def values_of(balancer_id: str, differences: Iterable[Mapping[str, Any]]) -> Iterator[Finding]:
    """Of what Fairlead's door says to differ."""
    for each in differences:
        where: dict[str, Any] = {"balancer": balancer_id, "kind": each["kind"], "id": each["id"]}
        if each["missing"]:
            yield Finding(what=What.MISSING, **where)
        for name, both in each["attributes"].items():
            yield Finding(what=What.VALUE, attribute=name, octavia=both["said"], fairlead=both["stored"], **where)
