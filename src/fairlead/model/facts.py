"""Facts: what somebody observes. Each sort of fact is declared once, here.

A fact stands in the snapshot beside the documents and is never stored: its observer says it again after a restart. What
nobody has said anything of has no entry. No tenant changes a fact. Documents and facts together decide what rows an
owner has and which status it shows.

A new sort of fact is the class of its values, a field of the snapshot, a declaration here, and an observer that hands
its news to `store.model.Model.observe`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeAlias, TypeVar

from immutables import Map

from fairlead.model.addresses import IPAddress
from fairlead.model.affected import affected
from fairlead.model.agent import Agent
from fairlead.model.chassis import Chassis
from fairlead.model.fact_values import change_map, put_all, replace_all
from fairlead.model.foreign_news import ForeignNews, admitted
from fairlead.model.foreign_proxies import RefusedNews, WantedNews, describe_refused, refused_on, served_at
from fairlead.model.health import Endpoint, Health, HealthKey
from fairlead.model.host_news import OwnNews, at_own_addresses, behind_hosts, with_returned
from fairlead.model.indexes import NO_IDS
from fairlead.model.names import describe_owner, describe_probed
from fairlead.model.owner import Kind, Owner
from fairlead.model.probes import all_probing, changed_health, derive_health, find_probing
from fairlead.model.proxies import ProxyNews, led_there, led_to
from fairlead.model.reasons import reasons
from fairlead.model.sighting import Sighting
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import with_foreign

_News = TypeVar("_News")
MOST_TOLD = 10
"""Members or replicas in one line of the log."""
HealthNews: TypeAlias = Mapping[Endpoint, Health | None]
ChassisNews: TypeAlias = Mapping[str, Chassis | None]
"""By the name of the chassis."""
SightingNews: TypeAlias = Mapping[Endpoint, Sighting | None]
AgentNews: TypeAlias = Mapping[str, Agent | None]
"""By the name of the chassis."""
CoveredNews: TypeAlias = Mapping[str, str | None]
"""Place, or network -> the chassis that probes there; None for none."""
GivenNews: TypeAlias = Mapping[IPAddress, bool | None]
"""Address -> True for one that is given out; None for one that is no longer."""
PluggedNews: TypeAlias = Mapping[str, str | None]
"""Port -> the host name of the node that has it; None for none."""


def _nobody(old: Snapshot, new: Snapshot, news: Any) -> Iterable[Owner]:
    return ()


def _no_derivation(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    return snapshot


def _all_differ(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    return tuple(owners)


@dataclass(frozen=True, kw_only=True)
class Fact(Generic[_News]):
    """One sort of fact, with the type of its news."""

    field: str = ""
    """Of the snapshot; none where `take` says what the news change."""
    take: Callable[[Snapshot, _News], Snapshot] | None = None
    """The snapshot after the news, where they are more than a field of it."""
    observer: str
    """Who says it, for people."""
    change: Callable[[Any, _News], Any] = change_map
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
    if fact.take is not None:
        return fact.take(snapshot, news)
    known = getattr(snapshot, fact.field)
    changed = fact.change(known, news)
    return snapshot if changed is known else replace(snapshot, **{fact.field: changed})


def _probed_by(old: Snapshot, new: Snapshot, news: Iterable[Endpoint]) -> list[Owner]:
    """The load balancers that have a member with a monitor at one of these addresses, and the Local IPs with a monitor
    that have a replica at one of these ports."""
    found = {each for endpoint in news for each in new.watched.get(endpoint.address, NO_IDS)}
    replicas = _replicas(new, {endpoint.port_id for endpoint in news})
    return [
        *(Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)),
        *(owner for owner in replicas if owner.id in new.monitored_local_ips),
    ]


def derive(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    """The snapshot in which all is up to date that follows from facts and these owners' documents together."""
    owners = tuple(owners)
    for each in dict.fromkeys(fact.derive for fact in FACTS):  # several facts may have one thing follow from them
        snapshot = each(snapshot, owners)
    return snapshot


def derive_all(snapshot: Snapshot) -> Snapshot:
    """After a start, when documents are known and no fact is."""
    return derive(snapshot, all_probing(snapshot))


def _describe_down(snapshot: Snapshot, owner: Owner) -> str:
    """The first of them, and how many more there are."""
    probing = find_probing(snapshot, owner)
    why = reasons(snapshot, probing) if probing else {}
    found = list(describe_probed(snapshot, probing, why)) if probing else []
    told = ", ".join(f"{text} ({why[identity]})" for identity, text in found[:MOST_TOLD])
    more = f" and {len(found) - MOST_TOLD} more" if len(found) > MOST_TOLD else ""
    whose = "replicas" if owner.kind is Kind.LOCAL_IP else "members"
    return f"{whose} of {describe_owner(snapshot, owner)} that are down: {told or 'none'}{more}"


def _all_balancers(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    return (Owner(Kind.LOAD_BALANCER, each) for each in new.load_balancers)


def _near(old: Snapshot, new: Snapshot, news: ChassisNews) -> Iterator[Owner]:
    """When a chassis comes or goes, or is in other zones, the load balancers that decide on each for itself; when it
    comes or goes, Local IPs with a replica there. What else is told of a chassis matters to nobody."""
    if any(_zones(old, name) != _zones(new, name) for name in news):
        yield from (Owner(Kind.LOAD_BALANCER, each) for each in new.near)
    moved = [name for name in news if (name in old.chassis) != (name in new.chassis)]
    if moved:
        known = (found for snapshot in (old, new) for name in moved if (found := snapshot.chassis.get(name)))
        yield from _replicas(new, {port for chassis in known for port in chassis.ports})
    for name in news:
        if _alive(old, name) != _alive(new, name):
            yield from led_there(new, _ports(old, name) | _ports(new, name))
    turned = [name for name in news if name in new.agents and _alive(old, name) != _alive(new, name)]
    yield from _watching(new, (port for name in turned for port in _ports(old, name) | _ports(new, name)))


def _heard(snapshot: Snapshot, name: str) -> bool:
    found = snapshot.agents.get(name)
    return found is not None and found.heard and not found.away


def _alive(snapshot: Snapshot, name: str) -> bool:
    found = snapshot.chassis.get(name)
    return found is not None and found.alive


def _ports(snapshot: Snapshot, name: str) -> frozenset[str]:
    return ports_on(snapshot, name) or frozenset()


def _watching(snapshot: Snapshot, port_ids: Iterable[str]) -> list[Owner]:
    """The load balancers that may have a member with a monitor at one of these ports, and the Local IPs with one that
    have a replica there."""
    if not snapshot.sightings:
        return []
    found = [port for each in port_ids if (port := snapshot.ports.get(each)) is not None]
    addresses = {fixed.address for port in found for fixed in port.fixed_ips}
    balancers = {each for address in addresses for each in snapshot.watched.get(address, NO_IDS)}
    replicas = _replicas(snapshot, [port.id for port in found])
    return [
        *(Owner(Kind.LOAD_BALANCER, each) for each in sorted(balancers)),
        *(owner for owner in replicas if owner.id in snapshot.monitored_local_ips),
    ]


def _near_or_changed(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """Rows of those that are near depend on where ports are; of the others on who is down."""
    owners = tuple(owners)
    changed = frozenset(changed_health(before, after, owners))
    return tuple(each for each in owners if each.kind is Kind.LOCAL_IP or each.id in after.near or each in changed)


def _monitored_on(old: Snapshot, new: Snapshot, news: AgentNews) -> Iterator[Owner]:
    """Who has somebody probed on a chassis of which an agent is new, or gone for good: OVN need not, or has to, probe
    there. Who leads to a proxy there of which nobody hears any more, or somebody again."""
    for name in news:
        if _heard(old, name) != _heard(new, name):
            yield from led_there(new, _ports(old, name) | _ports(new, name))
        if (name in old.agents) != (name in new.agents):
            known = frozenset().union(_ports(old, name), _ports(new, name))
            addresses = {fixed.address for each in known if each in new.ports for fixed in new.ports[each].fixed_ips}
            found = {each for address in addresses for each in new.watched.get(address, NO_IDS)}
            yield from (Owner(Kind.LOAD_BALANCER, each) for each in sorted(found))
            yield from (each for each in _replicas(new, known) if each.id in new.monitored_local_ips)


def _covered_networks(old: Snapshot, new: Snapshot, news: CoveredNews) -> Iterator[Owner]:
    """From which somebody else probes by now: they have a port for that."""
    return (Owner(Kind.NETWORK, each) for each in news if each in new.networks)


def _replicas(snapshot: Snapshot, ports: Iterable[str]) -> list[Owner]:
    """The Local IPs that have a replica at one of these ports."""
    found = {each for port in ports for each in snapshot.replica_local_ips.get(port, NO_IDS)}
    return [Owner(Kind.LOCAL_IP, each) for each in sorted(found)]


def _plugged(old: Snapshot, new: Snapshot, news: PluggedNews) -> Iterator[Owner]:
    yield from _near_members(old, new, news)
    yield from _replicas(new, news)
    yield from _watching(new, news)


def _zones(snapshot: Snapshot, name: str) -> frozenset[str] | None:
    """None for no such chassis."""
    found = snapshot.chassis.get(name)
    return None if found is None else found.zones


def _near_members(old: Snapshot, new: Snapshot, news: PluggedNews) -> list[Owner]:
    """Of those load balancers the ones that may have a member at one of these ports."""
    ports = (port for each in news if (port := new.ports.get(each)) is not None) if new.near else ()
    addresses = (fixed.address for port in ports for fixed in port.fixed_ips)
    found = {each for address in addresses for each in new.near_members.get(address, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def _connected(old: Snapshot, new: Snapshot, news: ForeignNews) -> Iterable[Owner]:
    """What a change of such documents concerns that are stored."""
    return affected(old, new, dict(admitted(old, news)))


def _whatever_probes(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    """Whoever has a monitor, and the networks, from which agents probe."""
    yield from (Owner(Kind.NETWORK, each) for each in new.networks)
    yield from all_probing(new)


def _routers_with_gateway(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    found = (each for routers in new.network_gateways.values() for each in routers)
    return (Owner(Kind.ROUTER, each) for each in found)


HEALTH: Fact[HealthNews] = Fact(
    field="health",
    observer="the probes of ovn-controller, by way of the Southbound database",
    change=put_all,
    concerns=_probed_by,
    derive=derive_health,
    differing=changed_health,
    step=5,  # each load balancer may have a thousand members
    describe=_describe_down,
)
CHASSIS: Fact[ChassisNews] = Fact(
    field="chassis",
    observer="the Southbound database",
    change=put_all,
    concerns=_near,
    derive=derive_health,
    differing=_near_or_changed,
    step=5,
)
PLUGGED: Fact[PluggedNews] = Fact(
    field="plugged",
    observer="the Southbound database",
    concerns=_plugged,
    derive=derive_health,
    differing=_near_or_changed,
    step=5,
)
SIGHTINGS: Fact[SightingNews] = Fact(
    field="sightings",
    observer="the agents of nodes, which probe",
    change=put_all,
    concerns=_probed_by,
    derive=derive_health,
    differing=changed_health,
    step=5,
    describe=_describe_down,
)
AGENTS: Fact[AgentNews] = Fact(
    field="agents", observer="the agents of nodes, by their heartbeats", concerns=_monitored_on
)
COVERED: Fact[CoveredNews] = Fact(field="covered", observer="each server, by which agents it hears")
COVERING: Fact[CoveredNews] = Fact(
    field="covering", observer="each server, by which agents it hears", concerns=_covered_networks
)
ABILITIES: Fact[frozenset[str]] = Fact(
    field="abilities",
    observer="the driver, by the schema of the Northbound database",
    change=replace_all,
    concerns=_all_balancers,
)
AGENTS_PROBE: Fact[bool] = Fact(
    field="agents_probe",
    observer="the operator, by the configuration",
    change=replace_all,
    concerns=_whatever_probes,
    derive=derive_health,
    step=5,
)
COUNTS_ANSWERS: Fact[bool] = Fact(
    field="counts_answers",
    observer="the operator, by the configuration",
    change=replace_all,
    concerns=_all_balancers,
)
PROXIES: Fact[ProxyNews] = Fact(field="proxies", observer="the agents of nodes, which have proxies", concerns=led_to)
WANTED_PROXIES: Fact[WantedNews] = Fact(
    field="wanted_proxies", observer="each server, by which agents listen to it", concerns=served_at
)
REFUSED_PROXIES: Fact[RefusedNews] = Fact(
    field="refused_proxies",
    observer="who asks others for the ports of proxies on their networks",
    concerns=refused_on,
    describe=describe_refused,
)
PROXIED_PROVIDERS: Fact[frozenset[str]] = Fact(
    field="proxied_providers",
    observer="the operator, by the configuration",
    change=replace_all,
    concerns=_all_balancers,
)
GATEWAY_CHASSIS: Fact[tuple[str, ...]] = Fact(
    field="gateway_chassis",
    observer="the operator, by the configuration",
    change=replace_all,
    concerns=_routers_with_gateway,
)
LOST_HOSTS: Fact[frozenset[str]] = Fact(
    field="lost_hosts",
    observer="the agent of a plain host, which asks the others whether they are there",
    change=replace_all,
    concerns=behind_hosts,
)
OWN_ADDRESSES: Fact[OwnNews] = Fact(
    field="own_addresses",
    observer="the agents of plain hosts, by their heartbeats",
    concerns=at_own_addresses,
    derive=derive_health,
    step=5,
)
RETURNED: Fact[Map[str, frozenset[HealthKey]]] = Fact(
    field="returned",
    observer="the agent of a plain host, by what servers tell it of health",
    change=replace_all,
    concerns=with_returned,
)
FOREIGN: Fact[ForeignNews] = Fact(
    take=with_foreign,
    observer="others who write networks into the Northbound database",
    concerns=_connected,
    derive=derive_health,
    step=5,
)
GIVEN_ELSEWHERE: Fact[GivenNews] = Fact(
    field="given_elsewhere", observer="others who give out addresses outside by the Northbound database"
)
FACTS: tuple[Fact[Any], ...] = (
    HEALTH,
    SIGHTINGS,
    AGENTS,
    COVERED,
    COVERING,
    CHASSIS,
    PLUGGED,
    ABILITIES,
    AGENTS_PROBE,
    PROXIES,
    WANTED_PROXIES,
    REFUSED_PROXIES,
    PROXIED_PROVIDERS,
    COUNTS_ANSWERS,
    GATEWAY_CHASSIS,
    LOST_HOSTS,
    OWN_ADDRESSES,
    RETURNED,
    FOREIGN,
    GIVEN_ELSEWHERE,
)
DERIVED = frozenset({"down", "online", "hostless"})
"""The fields of the snapshot that follow from documents and facts together."""
OBSERVED = DERIVED | {fact.field for fact in FACTS if fact.field}
"""Those that no document is in, and no index of documents."""


def with_facts_of(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """These documents, and what is known of the others' by observers."""
    return replace(snapshot, **{name: getattr(other, name) for name in OBSERVED})


def have_same_documents(one: Snapshot, other: Snapshot) -> bool:
    """If one was made of the other by news of observers; those of networks of others are documents."""
    names = (field.name for field in fields(Snapshot) if field.name not in OBSERVED)
    return all(getattr(one, name) is getattr(other, name) for name in names)


def ports_on(snapshot: Snapshot, chassis: str) -> frozenset[str] | None:
    """The ports that a chassis has, whether their packets flow or not; None for no such chassis."""
    found = snapshot.chassis.get(chassis)
    return None if found is None else frozenset(found.ports)
