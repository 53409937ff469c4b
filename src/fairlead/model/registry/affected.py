"""Owners with rows that may differ after a change of documents, in an order that keeps references valid."""

from collections.abc import Iterable

from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.owner import Kind, Owner, VipNetwork, creation_order
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.queries.domain import Topology
from fairlead.model.registry.kinds import KINDS, has_rows
from fairlead.model.snapshot import Snapshot, has_per_chassis_balancer, passthrough_local_ips


def find_affected_owners(old: Snapshot, new: Snapshot, changed: Iterable[Owner]) -> tuple[Owner, ...]:
    """Return the owners with rows that may differ between two snapshots that differ in the documents of `changed`.

    Referenced owners are created before, and deleted after, the owners that refer to them.
    """
    owners: set[Owner] = set()
    before, after = Topology(old), Topology(new)
    for owner in changed:
        if has_rows(owner.kind):
            owners.add(owner)
            owners.update(KINDS[owner.kind].dependents(before, after, owner))
    shared = {VipNetwork.of(owner) for owner in owners if owner.kind is Kind.VIP_NETWORK}
    owners.update(*(_balancers_with_counted_replies(each, shared, owners) for each in (old, new)))
    near = {where.per_chassis_owner for where in shared}
    near |= {Owner(Kind.PER_CHASSIS_GATEWAY, owner.id) for owner in owners if owner.kind is Kind.VIP_GATEWAY}
    owners |= {owner for owner in near if may_have_rows(old, owner) or may_have_rows(new, owner)}
    owners.update(*(passthrough_local_ips(each, shared) for each in (old, new)))
    owners = {owner for owner in owners if _is_managed(old, new, owner)}
    gone = {owner for owner in owners if not may_have_rows(new, owner)}
    return (*sorted(owners - gone, key=creation_order), *sorted(gone, key=creation_order, reverse=True))


def _is_managed(old: Snapshot, new: Snapshot, owner: Owner) -> bool:
    """Return whether Fairlead writes rows of this owner: all owners except unmanaged ones. An unmanaged network with a
    port of a proxy counts, because the proxy's rows are Fairlead's."""
    has_proxies = owner.kind is Kind.NETWORK and (owner.id in old.network_proxies or owner.id in new.network_proxies)
    return has_proxies or not is_unmanaged(new.find(owner) or old.find(owner))


def _balancers_with_counted_replies(
    snapshot: Snapshot, shared: Iterable[VipNetwork], owners: Iterable[Owner]
) -> Iterable[Owner]:
    """Return the load balancers with counted reply traffic on the affected switches. The set of switches with
    clients changes with the rows that these load balancers share."""
    if not snapshot.counts_answers:
        return set()
    found = {
        each
        for owner in owners
        if owner.kind is Kind.VIP_GATEWAY
        for each in snapshot.router_vips.get(owner.id, NO_IDS)
    }
    for where in shared:
        network = snapshot.networks.get(where.network_id)
        project = where.guest or (network and network.project_id)
        vips = (snapshot.load_balancers[each] for each in snapshot.network_vips.get(where.network_id, NO_IDS))
        found |= {balancer.id for balancer in vips if balancer.project_id == project}
    return {Owner(Kind.LOAD_BALANCER, each) for each in found}


def _is_owned_by_guest(snapshot: Snapshot, where: VipNetwork) -> bool:
    """Return whether the network now belongs to the guest project. Unmanaged networks can change their project."""
    network = snapshot.networks.get(where.network_id)
    return network is not None and network.project_id == where.guest


def may_have_rows(snapshot: Snapshot, owner: Owner) -> bool:
    """Return whether the owner can have rows in this snapshot."""
    if owner.kind is Kind.VIP_NETWORK:
        found = VipNetwork.of(owner)
        projects = snapshot.vip_projects.get(found.network_id, NO_IDS)
        return (
            bool(projects)
            if found.guest is None
            else found.guest in projects and not _is_owned_by_guest(snapshot, found)
        )
    if owner.kind is Kind.VIP_GATEWAY:
        return owner.id in snapshot.router_vips and owner.id in snapshot.routers
    if owner.kind is Kind.PER_CHASSIS_GATEWAY:
        return owner.id in snapshot.near_gateways and owner.id in snapshot.routers
    if owner.kind is Kind.PER_CHASSIS_NETWORK:
        return has_per_chassis_balancer(snapshot, VipNetwork.of(owner))
    return snapshot.find(owner) is not None
