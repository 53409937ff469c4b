"""Sets the destination in PROXY headers to the VIP and the port of the listener.

On a chassis, OVN has translated the destination before a connection reaches the proxy, so the frontend sets both.
All VIPs of one IP version and all ports of a listener share one port of the proxy; the first of each is set.

A proxy on a plain host listens on the VIPs. For IPv4, HAProxy reads the original destination from the kernel
(SO_ORIGINAL_DST), so VIP and port are exact. HAProxy 2.6 has no IPv6 form of this, so the port is set for IPv6.
"""

from collections.abc import Iterable, Iterator, Sequence

from fairlead.dataplane.haproxy_words import Line
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Pool, PoolProtocol
from fairlead.model.documents.port_ranges import count_ports

PROXY_PROTOCOLS = frozenset({PoolProtocol.PROXY, PoolProtocol.PROXYV2})


def sends_destination(listener: Listener, pools: Iterable[Pool]) -> bool:
    """Whether members receive the destination of the client's connection, in a PROXY header or in X-Forwarded-Port."""
    return any(pool.protocol in PROXY_PROTOCOLS for pool in pools) or (
        _has_several_ports(listener) and _sends_port(listener)
    )


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
    return count_ports(listener.ports) > 1


def _sends_port(listener: Listener) -> bool:
    headers = dict(listener.http.insert_headers) if listener.http is not None else {}
    return headers.get("X-Forwarded-Port", "").lower() == "true"
