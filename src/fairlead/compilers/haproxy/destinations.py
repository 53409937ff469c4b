"""Sets the destination in PROXY headers to the VIP and the port of the listener.

A switch has translated both before a connection reaches the proxy of a node, so the frontend sets them. All VIPs of one
IP version and all ports of a listener are one port of that proxy: the first of each is set.

A proxy on a plain host listens at the VIPs. Of an IPv4 connection HAProxy reads from the kernel where it was sent to
(SO_ORIGINAL_DST, of which HAProxy 2.6 knows the IPv4 form alone), so VIP and port are exact there; of an IPv6 one the
port is set.
"""

from collections.abc import Iterable, Iterator, Sequence

from fairlead.dataplane.haproxy_words import Line
from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Listener, LoadBalancer, Pool, PoolProtocol
from fairlead.model.port_ranges import count

GREETED = frozenset({PoolProtocol.PROXY, PoolProtocol.PROXYV2})


def is_told(listener: Listener, pools: Iterable[Pool]) -> bool:
    """Whether members receive the destination of the client's connection, in a PROXY header or X-Forwarded-Port."""
    return any(pool.protocol in GREETED for pool in pools) or (_has_several_ports(listener) and _tells_port(listener))


def bind_id(number: int) -> Line:
    """Returns the words that number a `bind`, so that conditions can refer to it (`so_id`)."""
    return "id", str(number)


def destination_lines(balancer: LoadBalancer, listener: Listener, addresses: Sequence[IPAddress]) -> Iterator[Line]:
    """Yields the directives that set the destination, for `bind` lines at these addresses, numbered from 1."""
    vips = [vip.address for vip in balancer.vips]
    for number, address in enumerate(addresses, 1):
        here = "if", "{", "so_id", str(number), "}"
        if address not in vips:
            vip = next(each for each in vips if each.version == address.version)
            yield "tcp-request", "connection", "set-dst", f"ipv{vip.version}({vip})", *here
        if address not in vips or address.version == 6:
            yield "tcp-request", "connection", "set-dst-port", f"int({listener.port})", *here


def forwarded_port(listener: Listener) -> str:
    """Returns the value of the header X-Forwarded-Port."""
    return "%[dst_port]" if _has_several_ports(listener) else str(listener.port)


def _has_several_ports(listener: Listener) -> bool:
    return count(listener.ports) > 1


def _tells_port(listener: Listener) -> bool:
    headers = dict(listener.http.insert_headers) if listener.http is not None else {}
    return headers.get("X-Forwarded-Port", "").lower() == "true"
