"""Compiles the model to rows of the HAProxy processes on one node, from the node's slice of the model.

A node has rows of the networks on which it has a proxy port; a plain host has rows of the announced networks. For
the whole model, which the API compiles to check a change, the compiler raises Unsupported whether or not a node has
a port.
"""

from collections.abc import Iterator
from itertools import chain

from fairlead.compilers.haproxy.abilities import ABILITIES
from fairlead.compilers.haproxy.backends import backend_rows
from fairlead.compilers.haproxy.frontends import frontend_rows, pools_with_backends
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import HAProxyRow, HostProcess, Process, Route
from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.model.documents.abilities import find_unsupported_listener_feature, find_unsupported_pool_feature
from fairlead.model.documents.addresses import IPAddress, render_interface
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Pool, is_prepared, pools_of
from fairlead.model.documents.network import Network, Port, Router, find_subnet
from fairlead.model.documents.owner import Owner
from fairlead.model.documents.proxy_place import place_of, proxy_chassis, proxy_mac
from fairlead.model.queries.host_proxies import has_own_host_proxy, own_host_places
from fairlead.model.queries.proxies import own_proxies, own_proxy, proxied_listeners, proxy_name
from fairlead.model.queries.proxy_backends import BackendNames
from fairlead.model.queries.proxy_homes import list_proxy_routes
from fairlead.model.snapshot import Snapshot

MAX_CONNECTIONS = 10_000
"""Maximum concurrent connections through the proxy of one network on one node. Each may use 40 KB of memory."""
THREADS = 2
"""Threads of such a proxy."""


def rows_of(view: Snapshot, owner: Owner) -> Iterator[HAProxyRow]:
    match view.find(owner):
        case Network() | Router() as there:
            for place, port in own_proxies(view, there.id):
                yield _process(view, proxy_name(view, place), port)
            for place in own_host_places(view, there.id):
                yield HostProcess(
                    network=proxy_name(view, place), port="/".join(place), connections=MAX_CONNECTIONS, threads=THREADS
                )
        case LoadBalancer() as balancer:
            yield from _balancer_rows(view, balancer)


def _process(view: Snapshot, name: str, port: Port) -> Process:
    network = view.networks[port.network_id]
    subnets = [(fixed.address, find_subnet(network, fixed.subnet_id)) for fixed in port.fixed_ips]
    found = sorted(
        ((address, subnet) for address, subnet in subnets if subnet is not None), key=lambda each: str(each[0])
    )
    return Process(
        network=name,
        port=port.id,
        mac=proxy_mac(port),
        mtu=network.mtu,
        addresses=tuple(render_interface(address, subnet.cidr) for address, subnet in found),
        routes=tuple(Route(destination=way.destination, nexthop=way.nexthop) for way in list_proxy_routes(view, port)),
        connections=MAX_CONNECTIONS,
        threads=THREADS,
    )


def _balancer_rows(view: Snapshot, balancer: LoadBalancer) -> Iterator[HAProxyRow]:
    """Yield rows of a load balancer; none while it waits to be taken over, but Unsupported is raised then, too."""
    place = place_of(balancer)
    port, on_host = own_proxy(view, place), has_own_host_proxy(view, place)
    addresses = tuple(vip.address for vip in balancer.vips) if on_host else _addresses(balancer, port)
    chassis = proxy_chassis(port) if port is not None else ""
    wanted = (port is not None or on_host) and balancer.admin_state_up and not is_prepared(balancer)
    names, compiled = BackendNames(balancer), set[str]()
    # enabled listeners come first, so a backend that they share with disabled ones is among the rows
    for listener in sorted(proxied_listeners(balancer), key=lambda each: not each.admin_state_up):
        _refuse(balancer, listener, names)
        try:
            for row in chain(
                frontend_rows(view, balancer, listener, addresses, names),
                *(
                    backend_rows(view, balancer, listener, pool, name, chassis)
                    for pool, name in _new_backends(listener, names, compiled)
                ),
            ):
                str(row)  # raises Unwritable, so that the change is rejected
                if wanted and listener.admin_state_up:
                    yield row
        except Unwritable as refused:
            raise Unsupported(f"{refused} in listener {listener.id}", balancer.provider) from None


def _new_backends(listener: Listener, names: BackendNames, compiled: set[str]) -> Iterator[tuple[Pool, str]]:
    """Yield the backends that no earlier listener uses, and add their names to `compiled`."""
    for pool in pools_with_backends(listener, names):
        name = names.of(pool, listener)
        if name not in compiled:
            compiled.add(name)
            yield pool, name


def _refuse(balancer: LoadBalancer, listener: Listener, names: BackendNames) -> None:
    lacking = find_unsupported_listener_feature(ABILITIES, listener)
    pools = [pool for pool_id in pools_of(listener) if (pool := names.find(pool_id))]
    lacking = lacking or next(filter(None, (find_unsupported_pool_feature(ABILITIES, pool) for pool in pools)), None)
    if lacking is not None:
        raise Unsupported(lacking, balancer.provider)


def _addresses(balancer: LoadBalancer, port: Port | None) -> tuple[IPAddress, ...]:
    """Return the proxy's addresses of the VIPs' IP versions."""
    fixed = port.fixed_ips if port is not None else ()
    return tuple(sorted((each.address for each in fixed if each.address.version in balancer.ip_versions), key=str))
