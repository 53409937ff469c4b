"""The owners whose rows may differ after a change of documents, in an order in which they can be applied."""

from collections.abc import Iterable

from fairlead.model.indexes import NO_IDS
from fairlead.model.kinds import KINDS, has_rows
from fairlead.model.owner import Kind, Owner, VipNetwork, creation_order
from fairlead.model.snapshot import Snapshot, shares_near


def affected(old: Snapshot, new: Snapshot, changed: Iterable[Owner]) -> tuple[Owner, ...]:
    """The owners whose rows may differ between two snapshots that differ in the documents of `changed`.

    What rows refer to is created before them and deleted after them.
    """
    owners: set[Owner] = set()
    for owner in changed:
        if has_rows(owner.kind):
            owners.add(owner)
            owners.update(KINDS[owner.kind].dependents(old, new, owner))
    near = {VipNetwork.of(owner).near for owner in owners if owner.kind is Kind.VIP_NETWORK}
    owners |= {owner for owner in near if _exists(old, owner) or _exists(new, owner)}
    gone = {owner for owner in owners if not _exists(new, owner)}
    return (*sorted(owners - gone, key=creation_order), *sorted(gone, key=creation_order, reverse=True))


def _exists(snapshot: Snapshot, owner: Owner) -> bool:
    if owner.kind is Kind.VIP_NETWORK:
        found = VipNetwork.of(owner)
        projects = snapshot.vip_projects.get(found.network_id, NO_IDS)
        return bool(projects) if found.guest is None else found.guest in projects
    if owner.kind is Kind.VIP_GATEWAY:
        return owner.id in snapshot.router_vips and owner.id in snapshot.routers
    if owner.kind is Kind.NEAR_NETWORK:
        return shares_near(snapshot, VipNetwork.of(owner))
    return snapshot.find(owner) is not None
