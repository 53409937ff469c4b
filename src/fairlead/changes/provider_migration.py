"""Takeover of a load balancer from another provider of the same service, in two stages: prepared, then taken.

A prepared load balancer is complete, with all its claims, so it is rejected at this stage if it is not possible. It has
no rows, and the rows of the other provider serve. The service then changes the provider. When the load balancer is
taken, its rows are created in the transaction that deletes the other provider's. A crash in between therefore leaves a
load balancer that serves.

Another provider may have attached the load balancer to more networks than Fairlead would: networks of other projects,
or without a connection to the VIP's network. Clients there would lose the service, so the check is refused with the ids
of these places unless the request accepts each of them.
"""

from dataclasses import dataclass, replace

from fairlead.changes.balancers import find_to_change
from fairlead.changes.caller import ChangeContext
from fairlead.changes.lookup import NoSuch
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import LoadBalancer, MigrationStage
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.queries.domain import AddressRanges, AttachedObjects, Topology
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsWouldLoseService(Refusal):
    """The other provider serves clients on these networks and behind these routers, which Fairlead would not serve."""

    networks: tuple[str, ...]
    routers: tuple[str, ...]


def take_over(snapshot: Snapshot, asker: ChangeContext, balancer_id: str) -> Changes:
    """Take a prepared load balancer over; no change for one that is taken already, or had no other provider. Raises
    Refused if no service has it."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    if balancer.kept is None:
        raise Refused(NoSuch(what=QuotaResource.LOAD_BALANCER, id=balancer_id))
    if balancer.kept.takeover is not MigrationStage.PREPARED:
        return Changes()
    taken = replace(balancer.kept, takeover=MigrationStage.TAKEN)
    return Changes(puts=(replace(balancer, kept=taken, updated_at=asker.now),))


def check_clients(snapshot: Snapshot, balancer: LoadBalancer, served: AttachedObjects, leaves: frozenset[str]) -> None:
    """Check that no client loses the service; `served` are the other provider's places, `leaves` the accepted losses.
    Raises Refused.

    Stale attachments of the other provider count too, because they cannot be distinguished.
    """
    ours = _served_places(snapshot, balancer)
    networks, routers = served.networks - ours.networks - leaves, served.routers - ours.routers - leaves
    if networks or routers:
        raise Refused(ClientsWouldLoseService(networks=tuple(sorted(networks)), routers=tuple(sorted(routers))))


def _served_places(snapshot: Snapshot, balancer: LoadBalancer) -> AttachedObjects:
    """Return the places where Fairlead would serve the load balancer completely. On a VIP network of another project,
    clients reach only members on that network (ADR 10)."""
    domain = Topology(snapshot).domain_of(balancer)
    network = snapshot.networks.get(balancer.vip.network_id)
    networks = domain.networks
    if network is not None and balancer.router_id is None:
        ranges = AddressRanges.of(network)
        if all(ranges.contains(member.address) for pool in balancer.pools for member in pool.members):
            networks |= {network.id}
    return AttachedObjects(networks=networks, routers=domain.routers)
