"""Ports of proxies, as rows of the OVN Northbound database, and where there can be none."""

from fairlead.compilers.unsupported import Unsupported
from fairlead.model import loadbalancer as lb
from fairlead.model.foreign import ForeignNetwork
from fairlead.model.network import Network
from fairlead.model.proxies import proxied_listeners

PROVIDER = "ovn"


def refuse_proxies(balancer: lb.LoadBalancer, network: Network) -> None:
    """Where no address of the VIP's network can be had for them, or no member reached from it. Raises Unsupported."""
    found = next(iter(proxied_listeners(balancer)), None)
    if found is None:
        return
    what = f"a listener of {found.protocol.value} that takes a proxy"
    if balancer.router_id is not None:
        raise Unsupported(f"{what} on the external network {network.id}", PROVIDER)
    if isinstance(network, ForeignNetwork):
        raise Unsupported(f"{what} on network {network.id}, which is {network.writer.value}'s", PROVIDER)
    if network.project_id != balancer.project_id:
        raise Unsupported(f"{what} on network {network.id}, which is another project's", PROVIDER)
