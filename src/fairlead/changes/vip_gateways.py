"""VIPs on an external network: assignment of the router with the gateway that has them."""

from dataclasses import dataclass, replace

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.queries.uplink import choose_router
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGatewayForVip(Refusal):
    """No router of the project has a gateway on the external network, so the VIP would not answer there."""

    network_id: str
    project_id: str


def place_vips(snapshot: Snapshot, balancer: LoadBalancer, *, is_new: bool) -> LoadBalancer:
    """Return the load balancer with the router for its VIPs, if they are on an external network. Raises Refused."""
    network = snapshot.networks.get(balancer.vip.network_id)
    if network is None or not network.external:
        return balancer
    router = choose_router(snapshot, balancer)
    if router is None and is_new:
        raise Refused(NoGatewayForVip(network_id=network.id, project_id=balancer.project_id))
    if router is None or router.id == balancer.router_id:
        return balancer
    return replace(balancer, router_id=router.id)
