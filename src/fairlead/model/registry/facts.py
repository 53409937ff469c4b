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
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.host_facts import (
    OwnAddressUpdate,
    dependents_of_own_addresses,
    dependents_of_recoveries,
    dependents_of_unreachable_hosts,
)
from fairlead.model.queries.probes import changed_health, derive_health, find_monitored, list_monitored
from fairlead.model.queries.proxies import ProxyUpdate, balancers_of_changed_proxies, balancers_of_proxy_ports
from fairlead.model.queries.reasons import explain_down
from fairlead.model.queries.unmanaged_proxy_ports import (
    ProxyPortUpdate,
    RejectionUpdate,
    owners_of_proxy_port_changes,
    owners_of_rejections,
)
from fairlead.model.queries.unmanaged_updates import UnmanagedUpdate, consistent_updates
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import with_unmanaged
from fairlead.model.registry.display_names import describe_monitored, describe_owner, describe_refused
from fairlead.model.snapshot import Snapshot

_News = TypeVar("_News")
MAX_LISTED_MEMBERS = 10
"""Maximum members or replicas in one log line."""
HealthUpdate: TypeAlias = Mapping[Endpoint, Health | None]
ChassisUpdate: TypeAlias = Mapping[str, Chassis | None]
"""Chassis name -> the chassis; None removes it."""
ProbeResultUpdate: TypeAlias = Mapping[Endpoint, ProbeResult | None]
AgentUpdate: TypeAlias = Mapping[str, Agent | None]
"""Chassis name -> its agent; None removes it."""
DelegateUpdate: TypeAlias = Mapping[str, str | None]
"""Place or network -> the chassis that probes there; None for no chassis."""
ExternalAllocationUpdate: TypeAlias = Mapping[IPAddress, bool | None]
"""Address -> True if it is allocated; None if it no longer is."""
PluggedUpdate: TypeAlias = Mapping[str, str | None]
"""Port id -> host name of the node that has the port; None for no node."""


def _no_owners(old: Snapshot, new: Snapshot, news: Any) -> Iterable[Owner]:
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
    apply: Callable[[Snapshot, _News], Snapshot] | None = None
    """Returns the snapshot with the news, for facts that change more than one field."""
    observer: str
    """Human-readable source of the fact."""
    change: Callable[[Any, _News], Any] = change_map
    """Returns the field's new value."""
    affected_owners: Callable[[Snapshot, Snapshot, _News], Iterable[Owner]] = _no_owners
    """Returns the owners with rows that may differ after the news, given the snapshots before and after. The result
    may include too many owners, never too few."""
    derive: Callable[[Snapshot, Iterable[Owner]], Snapshot] = _no_derivation
    """Updates the snapshot's fields that follow from documents and facts together, for these owners."""
    filter_changed: Callable[[Snapshot, Snapshot, Iterable[Owner]], tuple[Owner, ...]] = _all_differ
    """Returns the owners with rows that do differ between the two snapshots."""
    derive_batch_size: int | None = None
    """Number of owners to derive between two cooperative yields; None for all of them."""
    describe: Callable[[Snapshot, Owner], str] | None = None
    """Returns a sentence for the log about an owner with rows that differ after the news."""


def with_facts(snapshot: Snapshot, fact: Fact[_News], news: _News) -> Snapshot:
    """Return the snapshot with the news applied; derived fields are not updated yet."""
    if fact.apply is not None:
        return fact.apply(snapshot, news)
    known = getattr(snapshot, fact.field)
    changed = fact.change(known, news)
    return snapshot if changed is known else replace(snapshot, **{fact.field: changed})


def _owners_of_endpoints(old: Snapshot, new: Snapshot, news: Iterable[Endpoint]) -> list[Owner]:
    """Return the load balancers and Local IPs with monitored members or replicas at these endpoints."""
    found = {each for endpoint in news for each in new.watched.get(endpoint.address, NO_IDS)}
    replicas = _local_ips_with_replicas(new, {endpoint.port_id for endpoint in news})
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
    return derive(snapshot, list_monitored(snapshot))


def _describe_down(snapshot: Snapshot, owner: Owner) -> str:
    """List the first members that are down, and the number of others."""
    probing = find_monitored(snapshot, owner)
    why = explain_down(snapshot, probing) if probing else {}
    found = list(describe_monitored(snapshot, probing, why)) if probing else []
    told = ", ".join(f"{text} ({why[identity]})" for identity, text in found[:MAX_LISTED_MEMBERS])
    more = f" and {len(found) - MAX_LISTED_MEMBERS} more" if len(found) > MAX_LISTED_MEMBERS else ""
    whose = "replicas" if owner.kind is Kind.LOCAL_IP else "members"
    return f"{whose} of {describe_owner(snapshot, owner)} that are down: {told or 'none'}{more}"


def _all_balancers(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    return (Owner(Kind.LOAD_BALANCER, each) for each in new.load_balancers)


def _dependents_of_chassis(old: Snapshot, new: Snapshot, news: ChassisUpdate) -> Iterator[Owner]:
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
        yield from _local_ips_with_replicas(new, {port for chassis in known for port in chassis.ports})
    for name in news:
        if _is_alive(old, name) != _is_alive(new, name):
            yield from balancers_of_proxy_ports(new, _ports(old, name) | _ports(new, name))
    turned = [name for name in news if name in new.agents and _is_alive(old, name) != _is_alive(new, name)]
    yield from _owners_monitoring_ports(
        new, (port for name in turned for port in _ports(old, name) | _ports(new, name))
    )


def _is_connected(snapshot: Snapshot, name: str) -> bool:
    found = snapshot.agents.get(name)
    return found is not None and found.is_responsive and not found.is_disconnected


def _is_alive(snapshot: Snapshot, name: str) -> bool:
    found = snapshot.chassis.get(name)
    return found is not None and found.alive


def _ports(snapshot: Snapshot, name: str) -> frozenset[str]:
    return ports_on(snapshot, name) or frozenset()


def _owners_monitoring_ports(snapshot: Snapshot, port_ids: Iterable[str]) -> list[Owner]:
    """Return the load balancers and Local IPs that may have monitored members or replicas at these ports."""
    if not snapshot.sightings:
        return []
    found = [port for each in port_ids if (port := snapshot.ports.get(each)) is not None]
    addresses = {fixed.address for port in found for fixed in port.fixed_ips}
    balancers = {each for address in addresses for each in snapshot.watched.get(address, NO_IDS)}
    replicas = _local_ips_with_replicas(snapshot, [port.id for port in found])
    return [
        *(Owner(Kind.LOAD_BALANCER, each) for each in sorted(balancers)),
        *(owner for owner in replicas if owner.id in snapshot.monitored_local_ips),
    ]


def _filter_changed_rows(before: Snapshot, after: Snapshot, owners: Iterable[Owner]) -> tuple[Owner, ...]:
    """Keep the owners with rows that differ.

    Rows of load balancers with a decision per chassis depend on the placement of ports, those of other load
    balancers only on the members that are down.
    """
    owners = tuple(owners)
    changed = frozenset(changed_health(before, after, owners))
    return tuple(each for each in owners if each.kind is Kind.LOCAL_IP or each.id in after.near or each in changed)


def _dependents_of_agents(old: Snapshot, new: Snapshot, news: AgentUpdate) -> Iterator[Owner]:
    """Yield the owners affected by agents.

    If an agent appears or is removed, OVN stops or starts probing on its chassis. If an agent becomes responsive or
    unresponsive, load balancers with proxies on its chassis are affected.
    """
    for name in news:
        if _is_connected(old, name) != _is_connected(new, name):
            yield from balancers_of_proxy_ports(new, _ports(old, name) | _ports(new, name))
        if (name in old.agents) != (name in new.agents):
            known = frozenset().union(_ports(old, name), _ports(new, name))
            addresses = {fixed.address for each in known if each in new.ports for fixed in new.ports[each].fixed_ips}
            found = {each for address in addresses for each in new.watched.get(address, NO_IDS)}
            yield from (Owner(Kind.LOAD_BALANCER, each) for each in sorted(found))
            yield from (each for each in _local_ips_with_replicas(new, known) if each.id in new.monitored_local_ips)


def _networks_with_new_delegate(old: Snapshot, new: Snapshot, news: DelegateUpdate) -> Iterator[Owner]:
    """Yield the networks with a new delegate: the network has a port for delegated probes."""
    return (Owner(Kind.NETWORK, each) for each in news if each in new.networks)


def _local_ips_with_replicas(snapshot: Snapshot, ports: Iterable[str]) -> list[Owner]:
    """Return the Local IPs with a replica at one of these ports."""
    found = {each for port in ports for each in snapshot.replica_local_ips.get(port, NO_IDS)}
    return [Owner(Kind.LOCAL_IP, each) for each in sorted(found)]


def _dependents_of_plugged_ports(old: Snapshot, new: Snapshot, news: PluggedUpdate) -> Iterator[Owner]:
    yield from _balancers_with_locality_at(old, new, news)
    yield from _local_ips_with_replicas(new, news)
    yield from _owners_monitoring_ports(new, news)


def _zones(snapshot: Snapshot, name: str) -> frozenset[str] | None:
    """Return the zones of a chassis; None if the chassis is unknown."""
    found = snapshot.chassis.get(name)
    return None if found is None else found.zones


def _balancers_with_locality_at(old: Snapshot, new: Snapshot, news: PluggedUpdate) -> list[Owner]:
    """Return the load balancers with a decision per chassis that may have a member at one of these ports."""
    ports = (port for each in news if (port := new.ports.get(each)) is not None) if new.near else ()
    addresses = (fixed.address for port in ports for fixed in port.fixed_ips)
    found = {each for address in addresses for each in new.near_members.get(address, NO_IDS)}
    return [Owner(Kind.LOAD_BALANCER, each) for each in sorted(found)]


def _dependents_of_unmanaged(old: Snapshot, new: Snapshot, news: UnmanagedUpdate) -> Iterable[Owner]:
    """Return the stored owners that depend on changed unmanaged networks."""
    return find_affected_owners(old, new, dict(consistent_updates(old, news)))


def _monitored_owners_and_networks(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    """Yield all owners with a monitor, and all networks, because agents probe from them."""
    yield from (Owner(Kind.NETWORK, each) for each in new.networks)
    yield from list_monitored(new)


def _routers_with_gateway(old: Snapshot, new: Snapshot, news: object) -> Iterator[Owner]:
    found = (each for routers in new.network_gateways.values() for each in routers)
    return (Owner(Kind.ROUTER, each) for each in found)


HEALTH: Fact[HealthUpdate] = Fact(
    field="health",
    observer="probes of ovn-controller, read from the Southbound database",
    change=put_all,
    affected_owners=_owners_of_endpoints,
    derive=derive_health,
    filter_changed=changed_health,
    derive_batch_size=5,  # each load balancer can have a thousand members
    describe=_describe_down,
)
CHASSIS: Fact[ChassisUpdate] = Fact(
    field="chassis",
    observer="Southbound database",
    change=put_all,
    affected_owners=_dependents_of_chassis,
    derive=derive_health,
    filter_changed=_filter_changed_rows,
    derive_batch_size=5,
)
PLUGGED: Fact[PluggedUpdate] = Fact(
    field="plugged",
    observer="Southbound database",
    affected_owners=_dependents_of_plugged_ports,
    derive=derive_health,
    filter_changed=_filter_changed_rows,
    derive_batch_size=5,
)
PROBE_RESULTS: Fact[ProbeResultUpdate] = Fact(
    field="sightings",
    observer="probes of agents",
    change=put_all,
    affected_owners=_owners_of_endpoints,
    derive=derive_health,
    filter_changed=changed_health,
    derive_batch_size=5,
    describe=_describe_down,
)
AGENTS: Fact[AgentUpdate] = Fact(field="agents", observer="heartbeats of agents", affected_owners=_dependents_of_agents)
DELEGATES: Fact[DelegateUpdate] = Fact(
    field="covered", observer="each server, from the agents that it receives heartbeats from"
)
DELEGATE_PORTS: Fact[DelegateUpdate] = Fact(
    field="covering",
    observer="each server, from the agents that it receives heartbeats from",
    affected_owners=_networks_with_new_delegate,
)
ABILITIES: Fact[frozenset[str]] = Fact(
    field="abilities",
    observer="driver, from the schema of the Northbound database",
    change=replace_all,
    affected_owners=_all_balancers,
)
AGENTS_PROBE: Fact[bool] = Fact(
    field="agents_probe",
    observer="configuration",
    change=replace_all,
    affected_owners=_monitored_owners_and_networks,
    derive=derive_health,
    derive_batch_size=5,
)
COUNT_REPLY_BYTES: Fact[bool] = Fact(
    field="counts_answers",
    observer="configuration",
    change=replace_all,
    affected_owners=_all_balancers,
)
PROXIES: Fact[ProxyUpdate] = Fact(
    field="proxies", observer="reports of agents with proxies", affected_owners=balancers_of_changed_proxies
)
PROXY_PORT_CHANGES: Fact[ProxyPortUpdate] = Fact(
    field="wanted_proxies",
    observer="each server, from the agents connected to it",
    affected_owners=owners_of_proxy_port_changes,
)
REJECTED_PROXY_PORTS: Fact[RejectionUpdate] = Fact(
    field="refused_proxies",
    observer="allocator of proxy ports on unmanaged networks",
    affected_owners=owners_of_rejections,
    describe=describe_refused,
)
PROXIED_PROVIDERS: Fact[frozenset[str]] = Fact(
    field="proxied_providers",
    observer="configuration",
    change=replace_all,
    affected_owners=_all_balancers,
)
GATEWAY_CHASSIS: Fact[tuple[str, ...]] = Fact(
    field="gateway_chassis",
    observer="configuration",
    change=replace_all,
    affected_owners=_routers_with_gateway,
)
UNREACHABLE_HOSTS: Fact[frozenset[str]] = Fact(
    field="lost_hosts",
    observer="agent of a plain host, from pings to the other hosts",
    change=replace_all,
    affected_owners=dependents_of_unreachable_hosts,
)
OWN_ADDRESSES: Fact[OwnAddressUpdate] = Fact(
    field="own_addresses",
    observer="heartbeats of agents of plain hosts",
    affected_owners=dependents_of_own_addresses,
    derive=derive_health,
    derive_batch_size=5,
)
RECOVERED_MEMBERS: Fact[Map[str, frozenset[HealthKey]]] = Fact(
    field="returned",
    observer="agent of a plain host, from the health that servers send",
    change=replace_all,
    affected_owners=dependents_of_recoveries,
)
UNMANAGED: Fact[UnmanagedUpdate] = Fact(
    apply=with_unmanaged,
    observer="unmanaged networks in the Northbound database",
    affected_owners=_dependents_of_unmanaged,
    derive=derive_health,
    derive_batch_size=5,
)
EXTERNAL_ALLOCATIONS: Fact[ExternalAllocationUpdate] = Fact(
    field="given_elsewhere", observer="external allocations in the Northbound database"
)
FACTS: tuple[Fact[Any], ...] = (
    HEALTH,
    PROBE_RESULTS,
    AGENTS,
    DELEGATES,
    DELEGATE_PORTS,
    CHASSIS,
    PLUGGED,
    ABILITIES,
    AGENTS_PROBE,
    PROXIES,
    PROXY_PORT_CHANGES,
    REJECTED_PROXY_PORTS,
    PROXIED_PROVIDERS,
    COUNT_REPLY_BYTES,
    GATEWAY_CHASSIS,
    UNREACHABLE_HOSTS,
    OWN_ADDRESSES,
    RECOVERED_MEMBERS,
    UNMANAGED,
    EXTERNAL_ALLOCATIONS,
)
DERIVED_FIELDS = frozenset({"down", "online", "hostless"})
"""Fields of the snapshot that are derived from documents and facts together."""
OBSERVED_FIELDS = DERIVED_FIELDS | {fact.field for fact in FACTS if fact.field}
"""Fields that contain neither documents nor indexes of documents."""


def with_facts_of(snapshot: Snapshot, other: Snapshot) -> Snapshot:
    """Return this snapshot's documents with the other snapshot's facts."""
    return replace(snapshot, **{name: getattr(other, name) for name in OBSERVED_FIELDS})


def have_same_documents(one: Snapshot, other: Snapshot) -> bool:
    """Return whether the documents are identical, for snapshots where one was made from the other by news. Unmanaged
    networks count as documents."""
    names = (field.name for field in fields(Snapshot) if field.name not in OBSERVED_FIELDS)
    return all(getattr(one, name) is getattr(other, name) for name in names)


def ports_on(snapshot: Snapshot, chassis: str) -> frozenset[str] | None:
    """Return the ports of a chassis, whether their packets flow or not; None if the chassis is unknown."""
    found = snapshot.chassis.get(chassis)
    return None if found is None else frozenset(found.ports)
