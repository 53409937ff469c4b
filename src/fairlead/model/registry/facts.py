"""Facts: values that an observer reports. Each type of fact is declared once, here.

A fact is kept in the snapshot beside the documents and is never stored, because its observer reports it again after a
restart. Objects without a report have no entry. Tenants cannot change a fact. The rows and the status of an owner
follow from documents and facts together.

A new type of fact needs the class of its values, a field of the snapshot, a declaration here, and an observer that
passes its news to `store.model.Model.observe`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Generic, TypeAlias, TypeVar

from immutables import Map

from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.fact_values import change_map, put_all, replace_all
from fairlead.model.documents.health import Endpoint, Health, HealthKey
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.queries.host_facts import OwnNews, at_own_addresses, behind_hosts, with_returned
from fairlead.model.queries.probes import all_probing, changed_health, derive_health, find_probing
from fairlead.model.queries.proxies import ProxyNews, led_there, led_to
from fairlead.model.queries.reasons import reasons
from fairlead.model.queries.unmanaged_proxy_ports import (
    RefusedNews,
    WantedNews,
    refused_on,
    served_at,
)
from fairlead.model.queries.unmanaged_updates import ForeignNews, admitted
from fairlead.model.registry.affected import affected
from fairlead.model.registry.changeset import with_foreign
from fairlead.model.registry.display_names import describe_owner, describe_probed, describe_refused
from fairlead.model.snapshot import Snapshot

_News = TypeVar("_News")
MOST_TOLD = 10
"""Maximum members or replicas in one log line."""
HealthNews: TypeAlias = Mapping[Endpoint, Health | None]
ChassisNews: TypeAlias = Mapping[str, Chassis | None]
"""Chassis name -> the chassis; None removes it."""
SightingNews: TypeAlias = Mapping[Endpoint, Sighting | None]
AgentNews: TypeAlias = Mapping[str, Agent | None]
"""Chassis name -> its agent; None removes it."""
CoveredNews: TypeAlias = Mapping[str, str | None]
"""Place or network -> the chassis that probes there; None for no chassis."""
GivenNews: TypeAlias = Mapping[IPAddress, bool | None]
"""Address -> True if it is allocated; None if it no longer is."""
PluggedNews: TypeAlias = Mapping[str, str | None]
"""Port id -> host name of the node that has the port; None for no node."""


def _nobody(old: Snapshot, new: Snapshot, news: Any) -> Iterable[Owner]:
    return ()


def _no_derivation(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    return snapshot


def _all_differ(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    return tuple(owners)


@dataclass(frozen=True, kw_only=True)
class Fact(Generic[_News]):
    """Type of fact, parametrised by the type of its news."""

    field: str = ""
    """Field of the snapshot; empty if `take` applies the news."""
    take: Callable[[Snapshot, _News], Snapshot] | None = None
    """Returns the snapshot with the news, for facts that change more than one field."""
    observer: str
    """Human-readable source of the fact."""
    change: Callable[[Any, _News], Any] = change_map
    """Returns the field's new value."""
    concerns: Callable[[Snapshot, Snapshot, _News], Iterable[Owner]] = _nobody
    """Returns the owners with rows that may differ after the news, given the snapshots before and after. The result
    may include too many owners, never too few."""
    derive: Callable[[Snapshot, Iterable[Owner]], Snapshot] = _no_derivation
    """Updates the snapshot's fields that follow from documents and facts together, for these owners."""
    differing: Callable[[Snapshot, Snapshot, Iterable[Owner]], tuple[Owner, ...]] = _all_differ
    """Returns the owners with rows that do differ between the two snapshots."""
    step: int | None = None
    """Number of owners to derive between two cooperative yields; None for all of them."""
    describe: Callable[[Snapshot, Owner], str] | None = None
    """Returns a sentence for the log about an owner with rows that differ after the news."""


def with_facts(snapshot: Snapshot, fact: Fact[_News], news: _News) -> Snapshot:
    """Return the snapshot with the news applied; derived fields are not updated yet."""
    if fact.take is not None:
        return fact.take(snapshot, news)
    known = getattr(snapshot, fact.field)
    changed = fact.change(known, news)
    return snapshot if changed is known else replace(snapshot, **{fact.field: changed})


def _probed_by(old: Snapshot, new: Snapshot, news: Iterable[Endpoint]) -> list[Owner]:
    """Return the load balancers and Local IPs with monitored members or replicas at these endpoints."""
    found = {each for endpoint in news for each in new.watched.get(endpoint.address, NO_IDS)}
    replicas = _replicas(new, {endpoint.port_id for endpoint in news})
    return [
        *(Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)),
        *(owner for owner in replicas if owner.id in new.monitored_local_ips),
    ]


def derive(snapshot: Snapshot, owners: Iterable[Owner]) -> Snapshot:
    """Return the snapshot with derived fields updated for these owners."""
    owners = tuple(owners)
    for each in dict.fromkeys(fact.derive for fact in FACTS):  # several facts can share one derivation
        snapshot = each(snapshot, owners)
    return snapshot


def derive_all(snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with all derived fields, after a start with documents and without facts."""
    return derive(snapshot, all_probing(snapshot))


def _describe_down(snapshot: Snapshot, owner: Owner) -> str:
    """List the first members that are down, and the number of others."""
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
    """Yield the owners that depend on a chassis.

    A chassis that appears, disappears or changes zones affects load balancers with a decision per chassis; one that
    appears or disappears also affects Local IPs with a replica there. A change of `alive` affects load balancers with
    proxies on the chassis, and probed owners if the chassis has an agent.
    """
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
    """Return the load balancers and Local IPs that may have monitored members or replicas at these ports."""
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
    """Keep the owners with rows that differ.

    Rows of load balancers with a decision per chassis depend on the placement of ports, those of other load
    balancers only on the members that are down.
    """
    owners = tuple(owners)
    changed = frozenset(changed_health(before, after, owners))
    return tuple(each for each in owners if each.kind is Kind.LOCAL_IP or each.id in after.near or each in changed)


def _monitored_on(old: Snapshot, new: Snapshot, news: AgentNews) -> Iterator[Owner]:
    """Yield the owners affected by agents.

    If an agent appears or is removed, OVN stops or starts probing on its chassis. If an agent becomes responsive or
    unresponsive, load balancers with proxies on its chassis are affected.
    """
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
    """Yield the networks with a new delegate: the network has a port for delegated probes."""
    return (Owner(Kind.NETWORK, each) for each in news if each in new.networks)


def _replicas(snapshot: Snapshot, ports: Iterable[str]) -> list[Owner]:
    """Return the Local IPs with a replica at one of these ports."""
    found = {each for port in ports for each in snapshot.replica_local_ips.get(port, NO_IDS)}
    return [Owner(Kind.LOCAL_IP, each) for each in sorted(found)]


def _plugged(old: Snapshot, new: Snapshot, news: PluggedNews) -> Iterator[Owner]:
    yield from _near_members(old, new, news)
    yield from _replicas(new, news)
    yield from _watching(new, news)


def _zones(snapshot: Snapshot, name: str) -> frozenset[str] | None:
    """Return the zones of a chassis; None if the chassis is unknown."""
    found = snapshot.chassis.get(name)
    return None if found is None else found.zones


def _near_members(old: Snapshot, new: Snapshot, news: PluggedNews) -> list[Owner]:
    """Return the load balancers with a decision per chassis that may have a member at one of these ports."""
    ports = (port for each in news if (port := new.ports.get(each)) is not None) if new.near else ()
    addresses = (fixed.address for port in ports for fixed in port.fixed_ips)
    found = {each for address in addresses for each in new.near_members.get(address, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def _connected(old: Snapshot, new: Snapshot, news: ForeignNews) -> Iterable[Owner]:
    """Return the stored owners that depend on changed unmanaged networks."""
    return affected(old, new, dict(admitted(old, news)))


def _whatever_probes(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    """Yield all owners with a monitor, and all networks, because agents probe from them."""
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
    step=5,  # each load balancer can have a thousand members
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
"""Fields of the snapshot that are derived from documents and facts together."""
OBSERVED = DERIVED | {fact.field for fact in FACTS if fact.field}
"""Fields that contain neither documents nor indexes of documents."""


def with_facts_of(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """Return this snapshot's documents with the other snapshot's facts."""
    return replace(snapshot, **{name: getattr(other, name) for name in OBSERVED})


def have_same_documents(one: Snapshot, other: Snapshot) -> bool:
    """Return whether the documents are identical, for snapshots where one was made from the other by news. Unmanaged
    networks count as documents."""
    names = (field.name for field in fields(Snapshot) if field.name not in OBSERVED)
    return all(getattr(one, name) is getattr(other, name) for name in names)


def ports_on(snapshot: Snapshot, chassis: str) -> frozenset[str] | None:
    """Return the ports of a chassis, whether their packets flow or not; None if the chassis is unknown."""
    found = snapshot.chassis.get(chassis)
    return None if found is None else frozenset(found.ports)
