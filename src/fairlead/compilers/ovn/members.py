"""Checks of members that apply only to changes. Stored members that violate them later are kept."""

from collections.abc import Iterator

from fairlead.compilers.ovn.monitors import check_probed
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.addresses import is_destination
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.queries.members import find_unusable_addresses
from fairlead.model.snapshot import Snapshot


def check_change(snapshot: Snapshot, balancer: LoadBalancer) -> None:
    """Raise Unsupported for bad new members. The snapshot is the one before the change."""
    new = list(_new_members(snapshot, balancer))
    for member in new:
        if not is_destination(member.address):
            raise Unsupported(f"member {member.address}, which is not a unicast host address", balancer.provider)
    for member, what in find_unusable_addresses(snapshot, balancer, new):
        raise Unsupported(f"member {member.address}: it is {what}", balancer.provider)
    if balancer.described is None:  # a declarative spec may name VMs that do not exist yet: down
        check_probed(snapshot, balancer)


def _new_members(snapshot: Snapshot, balancer: LoadBalancer) -> Iterator[Member]:
    old = snapshot.load_balancers.get(balancer.id)
    known = {member.id for pool in old.pools for member in pool.members} if old else set[str]()
    return (member for pool in balancer.pools for member in pool.members if member.id not in known)
