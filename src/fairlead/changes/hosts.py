"""Declaration of plain hosts that serve announced VIPs, with the prefixes that each one routes.

A host is identified by the name of its agent's chassis. All rules here raise Refused.
"""

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from fairlead.changes.host_checks import check_addresses, check_prefixes
from fairlead.changes.nodes import NAME
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.addresses import IPAddress, seeded
from fairlead.model.documents.hosts import (
    LARGEST_NUMBER,
    MOST_HOSTS,
    MOST_PREFIXES,
    Host,
    HostPrefix,
    address_key,
    holding,
    is_returned,
    prefix_key,
    sort_key,
)
from fairlead.model.documents.loadbalancer import probed_address
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.placement import balancers_behind, declared_behind
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

MOST_NAMED = 5
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
class HostNumberTaken(Refusal):
    number: int
    host: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNumberStays(Refusal):
    """The number of a declared host cannot be changed."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class MemberBehind:
    balancer_id: str
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class HasMembers(Refusal):
    """Load balancers have members that no host would route, or that would be in a prefix of another project. The
    refusal lists some of them."""

    name: str
    members: tuple[MemberBehind, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedHost:
    """Requested host. None keeps the present value; a new host gets a free number and no prefixes."""

    name: str
    number: int | None = None
    addresses: tuple[IPAddress, ...] | None = None
    prefixes: tuple[HostPrefix, ...] | None = None


def put_host(snapshot: Snapshot, asked: AskedHost) -> Steps[Changes]:
    """Declare a host, or change a declared one."""
    if not NAME.fullmatch(asked.name):
        raise Refused(BadHostName(name=asked.name))
    old = snapshot.hosts.get(asked.name)
    if old is None and len(snapshot.hosts) >= MOST_HOSTS:
        raise Refused(TooManyHosts(most=MOST_HOSTS))
    host = _asked(old, asked, _number(snapshot, old, asked))
    if len(host.prefixes) > MOST_PREFIXES:
        raise Refused(TooManyPrefixes(most=MOST_PREFIXES))
    if host == old:
        return Changes()
    yield from check_prefixes(snapshot, host)
    yield from check_addresses(snapshot, host)
    changes = Changes(puts=(host,), rests_on_absence=True)
    if old is not None:
        lost = set(old.prefixes) - set(host.prefixes)
        yield from _check_members(apply_changes(snapshot, changes, snapshot.revision), host.name, lost)
    return changes


def remove_host(snapshot: Snapshot, name: str) -> Steps[Changes]:
    host = _find(snapshot, name)
    changes = Changes(deletes=(Owner(Kind.HOST, name),), rests_on_absence=True)
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


def forget_return(snapshot: Snapshot, name: str, now: datetime) -> Changes:
    """End the return period of a host; no change if the host is gone, or if the period is not over."""
    host = snapshot.hosts.get(name)
    if host is None or not is_returned(host, now):
        return Changes()
    return Changes(puts=(replace(host, returning_until=None),))


def _find(snapshot: Snapshot, name: str) -> Host:
    host = snapshot.hosts.get(name)
    if host is None:
        raise Refused(NoSuchHost(name=name))
    return host


def _asked(old: Host | None, asked: AskedHost, number: int) -> Host:
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


def _number(snapshot: Snapshot, old: Host | None, asked: AskedHost) -> int:
    """Return the host's number. A new host's number is derived from its name, so the number of a deleted host is rarely
    reused, and nodes do not confuse the two."""
    if old is not None:
        if asked.number not in (None, old.number):
            raise Refused(HostNumberStays(name=old.name, number=old.number))
        return old.number
    if asked.number is not None:
        if asked.number in snapshot.host_numbers:
            raise Refused(HostNumberTaken(number=asked.number, host=snapshot.host_numbers[asked.number]))
        return asked.number
    number = seeded(asked.name) % LARGEST_NUMBER
    while number + 1 in snapshot.host_numbers:
        number = (number + 1) % LARGEST_NUMBER
    return number + 1


def _check_members(after: Snapshot, name: str, lost: Collection[HostPrefix]) -> Steps[None]:
    """Check that every member in a removed prefix is routed by another host."""
    keys = {prefix_key(prefix.cidr) for prefix in lost}
    lengths = {key[:2] for key in keys}
    found = list[MemberBehind]()
    for balancer in (after.load_balancers[each] for each in balancers_behind(after, [each.cidr for each in lost])):
        members = (member for pool in balancer.pools for member in pool.members)
        for address in dict.fromkeys(each for member in members for each in (member.address, probed_address(member))):
            was_there = holding(keys, lengths, address_key(address)) is not None
            if was_there and declared_behind(after, balancer, address) is None:
                found.append(MemberBehind(balancer.id, address))
        if len(found) >= MOST_NAMED:
            break
        yield
    if found:
        raise Refused(HasMembers(name=name, members=tuple(found[:MOST_NAMED])))
