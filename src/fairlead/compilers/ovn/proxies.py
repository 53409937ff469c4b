"""Checks for proxy ports in OVN networks."""

from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.network import Network
from fairlead.model.documents.unmanaged import UnmanagedNetwork
from fairlead.model.queries.proxies import proxied_listeners
from fairlead.model.queries.unmanaged_proxy_ports import creates_proxy_ports

PROVIDER = "ovn"


def refuse_proxies(balancer: lb.LoadBalancer, network: Network) -> None:
    """Raise Unsupported on unmanaged networks where no addresses can be allocated for proxy ports."""
    found = next(iter(proxied_listeners(balancer)), None)
    if found is None:
        return
    what = f"a {found.protocol.value} listener that needs a proxy"
    if isinstance(network, UnmanagedNetwork) and not creates_proxy_ports(network, balancer):
        raise Unsupported(f"{what} on network {network.id}, which {network.writer.program} manages", PROVIDER)
