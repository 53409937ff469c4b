"""Checks of a pool and its members, and assignment of ordinals and slots."""

from dataclasses import dataclass, replace

from fairlead.changes.access import NotFound, can_use_network
from fairlead.changes.identity import Identity
from fairlead.changes.monitor_checks import check_monitor
from fairlead.changes.persistence import check_persistence
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.tls_checks import complete_pool_tls
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, is_destination
from fairlead.model.documents.apportionment import MIN_SLOTS
from fairlead.model.documents.network import Subnet
from fairlead.model.documents.pool_slot_tables import with_slots
from fairlead.model.documents.port_ranges import TargetPort
from fairlead.model.snapshot import Snapshot, is_unknown_subnet
from fairlead.runtime.steps import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberExists(Refusal):
    """Another member of the pool has this address and port."""

    address: IPAddress
    port: TargetPort


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidDestination(Refusal):
    """The member's address or monitor address is not a valid destination. Link-local addresses include the metadata
    service, which has credentials of other tenants."""

    address: IPAddress
    is_probed: bool = False


def complete_pool(known: lb.Pool | None, pool: lb.Pool, smallest: int = MIN_SLOTS) -> Steps[lb.Pool]:
    """Return a new or changed pool with ordinals for new members and slots for all members,
    at least `smallest` slots. Raises Refused."""
    pool = complete_pool_tls(known, pool)
    check_persistence(pool)
    if pool.health_monitor is not None and (known is None or pool.health_monitor is not known.health_monitor):
        check_monitor(known.health_monitor if known else None, pool.health_monitor, pool.protocol)
    if known is None:
        return (yield from with_slots(_with_ordinals(None, pool), (), smallest))
    dealt = known.tables is pool.tables and known.slots is pool.slots
    if not dealt or known.next_ordinal != pool.next_ordinal:
        pool = replace(pool, tables=known.tables, slots=known.slots, next_ordinal=known.next_ordinal)
    if pool.members is known.members and pool.hashes_source_only == known.hashes_source_only:
        return pool
    return (yield from with_slots(_with_ordinals(known, pool), known.members, smallest))


def _with_ordinals(known: lb.Pool | None, pool: lb.Pool) -> lb.Pool:
    """Assign ordinals to new members. An ordinal is never reused in the pool."""
    old = {member.id: member for member in known.members} if known else {}
    number = known.next_ordinal if known else 0
    members, moved = list[lb.Member](), list[lb.Member]()
    for member in pool.members:
        before = old.get(member.id)
        if before is member:
            members.append(member)
            continue
        _check_addresses(before, member)
        if before is None or (before.address, before.port) != (member.address, member.port):
            moved.append(member)
        ordinal = number if before is None else before.ordinal
        number += before is None
        members.append(member if member.ordinal == ordinal else replace(member, ordinal=ordinal))
    if moved:
        _check_no_duplicates(members, moved)
    return replace(pool, members=tuple(members), next_ordinal=number)


def _check_addresses(before: lb.Member | None, member: lb.Member) -> None:
    if (before is None or member.address is not before.address) and not is_destination(member.address):
        raise Refused(InvalidDestination(address=member.address))
    probed = member.monitor_address
    if probed is not None and not is_destination(probed):
        raise Refused(InvalidDestination(address=probed, is_probed=True))


def _check_no_duplicates(members: list[lb.Member], moved: list[lb.Member]) -> None:
    """Check that no two members have the same address and port. The refusal names a member that was added or moved."""
    ids = {member.id for member in moved}
    taken = {(member.address, member.port) for member in members if member.id not in ids}
    for member in moved:
        place = member.address, member.port
        if place in taken:
            raise Refused(MemberExists(address=member.address, port=member.port))
        taken.add(place)


def check_subnet(snapshot: Snapshot, who: Identity, balancer: lb.LoadBalancer, member: lb.Member) -> None:
    """Check that the caller may use the subnet of a new or changed member. Raises Refused.

    The service that keeps a load balancer has already checked this, and may know subnets that OVN does not have.
    """
    if member.subnet_id is not None and not is_unknown_subnet(snapshot, balancer, member.subnet_id):
        network = snapshot.networks.get(snapshot.subnet_network.get(member.subnet_id, ""))
        if network is None or not can_use_network(who, network):
            raise Refused(NotFound(what=Subnet, id=member.subnet_id))
