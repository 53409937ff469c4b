"""The VIP and the port of a listener, as the destination that members are told.

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
    """Whether members are told a destination by what the proxy has of the connection."""
    return any(pool.protocol in GREETED for pool in pools) or (_has_several_ports(listener) and _tells_port(listener))


def bind_id(number: int) -> Line:
    """By which lines about one bind find it."""
    return "id", str(number)


def destination_lines(balancer: LoadBalancer, listener: Listener, addresses: Sequence[IPAddress]) -> Iterator[Line]:
    """Of the binds at these addresses, numbered from 1."""
    vips = [vip.address for vip in balancer.vips]
    for number, address in enumerate(addresses, 1):
        here = "if", "{", "so_id", str(number), "}"
        if address not in vips:
            vip = next(each for each in vips if each.version == address.version)
            yield "tcp-request", "connection", "set-dst", f"ipv{vip.version}({vip})", *here
        if address not in vips or address.version == 6:
            yield "tcp-request", "connection", "set-dst-port", f"int({listener.port})", *here


def forwarded_port(listener: Listener) -> str:
    """Of the header of that name."""
    return "%[dst_port]" if _has_several_ports(listener) else str(listener.port)


def _has_several_ports(listener: Listener) -> bool:
    return count(listener.ports) > 1


def _tells_port(listener: Listener) -> bool:
    headers = dict(listener.http.insert_headers) if listener.http is not None else {}
    return headers.get("X-Forwarded-Port", "").lower() == "true"
