"""Changes of the members of a pool."""

from collections.abc import Sequence
from dataclasses import replace

from fairlead.changes.caller import ChangeContext
from fairlead.changes.lookup import find_member
from fairlead.changes.pools import find_pool_to_change, put_pool
from fairlead.model.documents.loadbalancer import Member
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


def create_member(snapshot: Snapshot, asker: ChangeContext, pool_id: str, member: Member) -> Steps[Changes]:
    balancer, pool = find_pool_to_change(snapshot, pool_id, asker)
    return put_pool(snapshot, asker, balancer, pool, replace(pool, members=(*pool.members, member)))


def update_member(snapshot: Snapshot, asker: ChangeContext, pool_id: str, member: Member) -> Steps[Changes]:
    """Replace the member with this id."""
    balancer, pool = find_pool_to_change(snapshot, pool_id, asker)
    old, changed = find_member(pool, member.id), replace(member, updated_at=asker.now)
    members = tuple([changed if other is old else other for other in pool.members])
    return put_pool(snapshot, asker, balancer, pool, replace(pool, members=members))


def delete_member(snapshot: Snapshot, asker: ChangeContext, pool_id: str, member_id: str) -> Steps[Changes]:
    balancer, pool = find_pool_to_change(snapshot, pool_id, asker)
    gone = find_member(pool, member_id)
    members = tuple([other for other in pool.members if other is not gone])
    return put_pool(snapshot, asker, balancer, pool, replace(pool, members=members))


def replace_members(
    snapshot: Snapshot, asker: ChangeContext, pool_id: str, members: Sequence[Member]
) -> Steps[Changes]:
    """Replace all members of the pool. Members are matched by id."""
    balancer, pool = find_pool_to_change(snapshot, pool_id, asker)
    known = {member.id: member for member in pool.members}
    wanted = list[Member]()
    for member in members:
        old = known.get(member.id)
        wanted.append(member if old is None or old is member else replace(member, updated_at=asker.now))
        yield
    changes = yield from put_pool(snapshot, asker, balancer, pool, replace(pool, members=tuple(wanted)))
    return changes if members or pool.members else Changes()
