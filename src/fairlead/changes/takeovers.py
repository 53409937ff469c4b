"""A load balancer that another provider of the same service has: it is prepared, and then it is taken.

Prepared it is a whole load balancer with all that it claims, and whatever cannot be had is refused then; only it has no
rows, and what the other provider wrote serves. The service says meanwhile whose it is. Taken, its rows come in one step
with the end of the other's. So whoever is killed in between leaves something that serves.

Who balances elsewhere may have put it on more than a load balancer of ours is put on: networks of other projects,
networks that nothing connects with the VIP's. Clients there would be refused from then on. So who asks whether it can
be had, and does not say which of these are left, is refused with their ids.
"""

from dataclasses import dataclass, replace

from fairlead.changes.asker import Asker
from fairlead.changes.balancers import find_to_change
from fairlead.changes.finding import NoSuch
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.domain import AddressRanges, Places, Topology
from fairlead.model.loadbalancer import LoadBalancer, Takeover
from fairlead.model.quota import Counted
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientsLeft(Refusal):
    """The other provider serves clients on these networks and behind these routers, and there it would not be."""

    networks: tuple[str, ...]
    routers: tuple[str, ...]


def take_over(snapshot: Snapshot, asker: Asker, balancer_id: str) -> Changes:
    """No change of one that has been taken, or was nobody's. Raises Refused, if no service has such a one."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    if balancer.kept is None:
        raise Refused(NoSuch(what=Counted.LOAD_BALANCER, id=balancer_id))
    if balancer.kept.takeover is not Takeover.PREPARED:
        return Changes()
    taken = replace(balancer.kept, takeover=Takeover.TAKEN)
    return Changes(puts=(replace(balancer, kept=taken, updated_at=asker.now),))


def check_clients(snapshot: Snapshot, balancer: LoadBalancer, served: Places, leaves: frozenset[str]) -> None:
    """`served` is where the other provider has it, `leaves` of which places that is given up. Raises Refused.

    What the other provider should have taken away and did not is there too: nobody here can tell.
    """
    ours = _places(snapshot, balancer)
    networks, routers = served.networks - ours.networks - leaves, served.routers - ours.routers - leaves
    if networks or routers:
        raise Refused(ClientsLeft(networks=tuple(sorted(networks)), routers=tuple(sorted(routers))))


def _places(snapshot: Snapshot, balancer: LoadBalancer) -> Places:
    """Where it would be whole. On the VIPs' network, if that is another project's, clients are led to no member that is
    elsewhere (ADR 10)."""
    domain = Topology(snapshot).domain_of(balancer)
    network = snapshot.networks.get(balancer.vip.network_id)
    networks = domain.networks
    if network is not None and balancer.router_id is None:
        ranges = AddressRanges.of(network)
        if all(ranges.hold(member.address) for pool in balancer.pools for member in pool.members):
            networks |= {network.id}
    return Places(networks=networks, routers=domain.routers)
