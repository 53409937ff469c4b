"""Ports of proxies, as rows of the OVN Northbound database, and where there can be none."""

from fairlead.compilers.unsupported import Unsupported
from fairlead.model import loadbalancer as lb
from fairlead.model.foreign import ForeignNetwork
from fairlead.model.foreign_proxies import makes_ports
from fairlead.model.network import Network
from fairlead.model.proxies import proxied_listeners

PROVIDER = "ovn"


def refuse_proxies(balancer: lb.LoadBalancer, network: Network) -> None:
    """Where no address can be had for them: others give them there, and nobody asks them. Raises Unsupported."""
    found = next(iter(proxied_listeners(balancer)), None)
    if found is None:
        return
    what = f"a listener of {found.protocol.value} that takes a proxy"
    if isinstance(network, ForeignNetwork) and not makes_ports(network, balancer):
        raise Unsupported(f"{what} on network {network.id}, which is {network.writer.value}'s", PROVIDER)
