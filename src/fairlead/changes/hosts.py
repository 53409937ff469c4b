"""Declaration of plain hosts that serve announced VIPs, with the prefixes that each one routes.

A host is identified by the name of its agent's chassis. All rules here raise Refused.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fairlead.changes.host_checks import check_addresses, check_prefixes
from fairlead.changes.nodes import CHASSIS_NAME
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress, hash_to_int
from fairlead.model.documents.hosts import (
    MAX_HOST_NUMBER,
    MAX_HOSTS,
    MAX_PREFIXES,
    Host,
    HostPrefix,
    address_key,
    find_containing_prefix,
    is_return_over,
    prefix_key,
    sort_key,
)
from fairlead.model.documents.loadbalancer import probed_address
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import find_balancers_in_prefixes, find_declared_host
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

MAX_LISTED_MEMBERS = 5
"""Maximum members listed in a refusal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadHostName(Refusal):
    """The name is not valid for a chassis, and a host has the name of its agent's chassis."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchHost(Refusal):
    """The host is not declared."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyHosts(Refusal):
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyPrefixes(Refusal):
    """The host has too many prefixes."""

    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNumberInUse(Refusal):
    number: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNumberImmutable(Refusal):
    """The number of a declared host cannot be changed."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class UnroutedMember:
    balancer_id: str
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class HasMembers(Refusal):
    """Load balancers have members that no host would route, or that would be in a prefix of another project. The
    refusal lists some of them."""

    name: str
    members: tuple[UnroutedMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRequest:
    """Requested host. None keeps the present value; a new host gets a free number and no prefixes."""

    name: str
    number: int | None = None
    addresses: tuple[IPAddress, ...] | None = None
    prefixes: tuple[HostPrefix, ...] | None = None


def put_host(snapshot: Snapshot, asked: HostRequest) -> Steps[Changes]:
    """Declare a host, or change a declared one."""
    if not CHASSIS_NAME.fullmatch(asked.name):
        raise Refused(BadHostName(name=asked.name))
    old = snapshot.hosts.get(asked.name)
    if old is None and len(snapshot.hosts) >= MAX_HOSTS:
        raise Refused(TooManyHosts(most=MAX_HOSTS))
    host = _make_host(old, asked, _choose_number(snapshot, old, asked))
    if len(host.prefixes) > MAX_PREFIXES:
        raise Refused(TooManyPrefixes(most=MAX_PREFIXES))
    if host == old:
        return Changes()
    yield from check_prefixes(snapshot, host)
    yield from check_addresses(snapshot, host)
    changes = Changes(puts=(host,), requires_unchanged_model=True)
    if old is not None:
        lost = set(old.prefixes) - set(host.prefixes)
        yield from _check_members(apply_changes(snapshot, changes, snapshot.revision), host.name, lost)
    return changes


def remove_host(snapshot: Snapshot, name: str) -> Steps[Changes]:
    host = _find(snapshot, name)
    changes = Changes(deletes=(Owner(Kind.HOST, name),), requires_unchanged_model=True)
    yield from _check_members(apply_changes(snapshot, changes, snapshot.revision), name, host.prefixes)
    return changes


def drain_host(snapshot: Snapshot, name: str, *, draining: bool, now: datetime) -> Changes:
    """Start or end the drain of a host. While it drains, it gets no new connections. After a drain, connections that
    other hosts accepted in the interim stay there for the drain timeout."""
    host = _find(snapshot, name)
    if host.draining is draining:
        return Changes()
    until = None if draining else now + timedelta(seconds=snapshot.parting_seconds)
    return Changes(puts=(replace(host, draining=draining, returning_until=until),))


def end_return(snapshot: Snapshot, name: str, now: datetime) -> Changes:
    """End the return period of a host; no change if the host is gone, or if the period is not over."""
    host = snapshot.hosts.get(name)
    if host is None or not is_return_over(host, now):
        return Changes()
    return Changes(puts=(replace(host, returning_until=None),))


def _find(snapshot: Snapshot, name: str) -> Host:
    host = snapshot.hosts.get(name)
    if host is None:
        raise Refused(NoSuchHost(name=name))
    return host


def _make_host(old: Host | None, asked: HostRequest, number: int) -> Host:
    addresses, prefixes = asked.addresses, asked.prefixes
    if addresses is None:
        addresses = old.addresses if old is not None else ()
    if prefixes is None:
        prefixes = old.prefixes if old is not None else ()
    return Host(
        name=asked.name,
        number=number,
        addresses=tuple(sorted(addresses, key=lambda each: (each.version, int(each)))),
        prefixes=tuple(sorted(prefixes, key=sort_key)),
        draining=old is not None and old.draining,
        returning_until=old.returning_until if old is not None else None,
    )


def _choose_number(snapshot: Snapshot, old: Host | None, asked: HostRequest) -> int:
    """Return the host's number. A new host's number is derived from its name, so the number of a deleted host is rarely
    reused, and nodes do not confuse the two."""
    if old is not None:
        if asked.number not in (None, old.number):
            raise Refused(HostNumberImmutable(name=old.name, number=old.number))
        return old.number
    if asked.number is not None:
        if asked.number in snapshot.host_numbers:
            raise Refused(HostNumberInUse(number=asked.number, host=snapshot.host_numbers[asked.number]))
        return asked.number
    number = hash_to_int(asked.name) % MAX_HOST_NUMBER
    while number + 1 in snapshot.host_numbers:
        number = (number + 1) % MAX_HOST_NUMBER
    return number + 1


def _check_members(after: Snapshot, name: str, lost: Collection[HostPrefix]) -> Steps[None]:
    """Check that every member in a removed prefix is routed by another host."""
    keys = {prefix_key(prefix.cidr) for prefix in lost}
    lengths = {key[:2] for key in keys}
    found = list[UnroutedMember]()
    for balancer in (
        after.load_balancers[each] for each in find_balancers_in_prefixes(after, [each.cidr for each in lost])
    ):
        members = (member for pool in balancer.pools for member in pool.members)
        for address in dict.fromkeys(each for member in members for each in (member.address, probed_address(member))):
            was_there = find_containing_prefix(keys, lengths, address_key(address)) is not None
            if was_there and find_declared_host(after, balancer, address) is None:
                found.append(UnroutedMember(balancer.id, address))
        if len(found) >= MAX_LISTED_MEMBERS:
            break
        yield
    if found:
        raise Refused(HasMembers(name=name, members=tuple(found[:MAX_LISTED_MEMBERS])))
