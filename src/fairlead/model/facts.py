"""Facts: what somebody observes. Each sort of fact is declared once, here.

A fact stands in the snapshot beside the documents and is never stored: its observer says it again after a restart. What
nobody has said anything of has no entry. No tenant changes a fact. Documents and facts together decide what rows an
owner has and which status it shows.

A new sort of fact is the class of its values, a field of the snapshot, a declaration here, and an observer that hands
its news to `store.model.Model.observe`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeAlias, TypeVar

from immutables import Map

from fairlead.model.chassis import Chassis
from fairlead.model.health import Endpoint, Health
from fairlead.model.indexes import NO_IDS
from fairlead.model.names import describe_member, describe_owner
from fairlead.model.owner import Kind, Owner
from fairlead.model.probes import changed_health, derive_health, why_down
from fairlead.model.snapshot import Snapshot

_News = TypeVar("_News")
MOST_TOLD = 10
"""Members in one line of the log."""
HealthNews: TypeAlias = Mapping[Endpoint, Health | None]
ChassisNews: TypeAlias = Mapping[str, Chassis | None]
"""By the name of the chassis."""
PluggedNews: TypeAlias = Mapping[str, str | None]
"""Port -> the host name of the node that has it; None for none."""


def _change_map(known: Map[Any, Any], news: Any) -> Map[Any, Any]:
    """None says that an entry goes. It costs what is new."""
    changed = {key: value for key, value in news.items() if known.get(key) != value}
    return _put_all(known, changed) if changed else known


def _put_all(known: Map[Any, Any], news: Any) -> Map[Any, Any]:
    """Without a look at what was known: two chassis with a thousand ports take long to compare, and of health the
    observer tells only what differs."""
    with known.mutate() as mutation:
        for key, value in news.items():
            if value is None:
                mutation.pop(key, None)
            else:
                mutation[key] = value
    return mutation.finish()


def _replace_all(known: object, news: object) -> object:
    return known if known == news else news


def _nobody(old: Snapshot, new: Snapshot, news: Any) -> Iterable[Owner]:
    return ()


def _no_derivation(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    return snapshot


def _all_differ(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    return tuple(owners)


@dataclass(frozen=True, kw_only=True)
class Fact(Generic[_News]):
    """One sort of fact, with the type of its news."""

    field: str
    """Of the snapshot."""
    observer: str
    """Who says it, for people."""
    change: Callable[[Any, _News], Any] = _change_map
    """The field after the news."""
    concerns: Callable[[Snapshot, Snapshot, _News], Iterable[Owner]] = _nobody
    """The owners whose rows may differ after the news, given the snapshots before and after. Too many is allowed, too
    few never."""
    derive: Callable[[Snapshot, Iterable[Owner]], Snapshot] = _no_derivation
    """Brings up to date what the snapshot keeps of these owners that follows from documents and facts together."""
    differing: Callable[[Snapshot, Snapshot, Iterable[Owner]], tuple[Owner, ...]] = _all_differ
    """Those of the owners concerned whose rows do differ between the two snapshots."""
    step: int | None = None
    """How many owners are derived without a rest; None is all of them."""
    describe: Callable[[Snapshot, Owner], str] | None = None
    """What is true of an owner whose rows differ after the news: a sentence for the log."""


def with_facts(snapshot: Snapshot, fact: Fact[_News], news: _News) -> Snapshot:
    """The snapshot that knows the news. What follows from them is not derived yet."""
    known = getattr(snapshot, fact.field)
    changed = fact.change(known, news)
    return snapshot if changed is known else replace(snapshot, **{fact.field: changed})


def _probed_by(old: Snapshot, new: Snapshot, news: HealthNews) -> list[Owner]:
    """The load balancers that have a member with a monitor at one of these addresses."""
    found = {each for endpoint in news for each in new.watched.get(endpoint.address, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def derive(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    """The snapshot in which all is up to date that follows from facts and these owners' documents together."""
    owners = tuple(owners)
    for fact in FACTS:
        snapshot = fact.derive(snapshot, owners)
    return snapshot


def derive_all(snapshot: Snapshot) -> Snapshot:
    """After a start, when documents are known and no fact is."""
    watching = {each for ids in snapshot.watched.values() for each in ids}
    return derive(snapshot, (Owner(Kind.LOAD_BALANCER, each) for each in watching))


def _derive_health(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    return derive_health(snapshot, *(owner.id for owner in owners if owner.kind is Kind.LOAD_BALANCER))


def _changed_health(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    return changed_health(before, after, (owner.id for owner in owners))


def _describe_down(snapshot: Snapshot, owner: Owner) -> str:
    """The first of them, and how many more there are."""
    balancer = snapshot.load_balancers[owner.id]
    why = why_down(snapshot, balancer)
    members = [member for pool in balancer.pools for member in pool.members if member.id in why]
    told = ", ".join(f"{' '.join(describe_member(member))} ({why[member.id].value})" for member in members[:MOST_TOLD])
    more = f" and {len(members) - MOST_TOLD} more" if len(members) > MOST_TOLD else ""
    return f"members of {describe_owner(snapshot, owner)} that are down: {told or 'none'}{more}"


def _all_balancers(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    return (Owner(Kind.LOAD_BALANCER, each) for each in new.load_balancers)


def _near(old: Snapshot, new: Snapshot, news: ChassisNews) -> Iterator[Owner]:
    """When a chassis comes or goes, the load balancers that decide on each for itself. What else is told of a chassis
    matters to nobody."""
    if any((name in old.chassis) != (name in new.chassis) for name in news):
        yield from (Owner(Kind.LOAD_BALANCER, each) for each in new.near)


def _near_members(old: Snapshot, new: Snapshot, news: PluggedNews) -> list[Owner]:
    """Of those load balancers the ones that may have a member at one of these ports."""
    ports = (port for each in news if (port := new.ports.get(each)) is not None) if new.near else ()
    addresses = (fixed.address for port in ports for fixed in port.fixed_ips)
    found = {each for address in addresses for each in new.near_members.get(address, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def _routers_with_gateway(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    found = (each for routers in new.network_gateways.values() for each in routers)
    return (Owner(Kind.ROUTER, each) for each in found)


HEALTH: Fact[HealthNews] = Fact(
    field="health",
    observer="the probes of ovn-controller, by way of the Southbound database",
    change=_put_all,
    concerns=_probed_by,
    derive=_derive_health,
    differing=_changed_health,
    step=5,  # each load balancer may have a thousand members
    describe=_describe_down,
)
CHASSIS: Fact[ChassisNews] = Fact(field="chassis", observer="the Southbound database", change=_put_all, concerns=_near)
PLUGGED: Fact[PluggedNews] = Fact(field="plugged", observer="the Southbound database", concerns=_near_members)
ABILITIES: Fact[frozenset[str]] = Fact(
    field="abilities",
    observer="the driver, by the schema of the Northbound database",
    change=_replace_all,
    concerns=_all_balancers,
)
GATEWAY_CHASSIS: Fact[tuple[str, ...]] = Fact(
    field="gateway_chassis",
    observer="the operator, by the configuration",
    change=_replace_all,
    concerns=_routers_with_gateway,
)
FACTS: tuple[Fact[Any], ...] = (HEALTH, CHASSIS, PLUGGED, ABILITIES, GATEWAY_CHASSIS)
DERIVED = frozenset({"down", "online"})
"""The fields of the snapshot that follow from documents and facts together."""


def ports_on(snapshot: Snapshot, chassis: str) -> frozenset[str] | None:
    """The ports that a chassis has, whether their packets flow or not; None for no such chassis."""
    found = snapshot.chassis.get(chassis)
    return None if found is None else frozenset(found.ports)
