"""Proxy ports: the ports where proxies accept the connections of a listener, assigned when a load balancer is written.

The search starts at a port derived from the listener's id, so two servers rarely select the same port for two
listeners; the store's claims (`proxy-port/<place>/<project>/<port>`) reject the second one. On plain hosts, other
daemons listen on the same addresses, and tenants can choose ids, so the operator configures the range there.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from hashlib import blake2b

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.paths import Path, path_of
from fairlead.model.documents.port_ranges import PROXY_PORTS, count_ports
from fairlead.model.documents.proxy_place import ProxyPlace, place_of
from fairlead.model.queries.host_proxies import is_on_hosts
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProxyPort(Refusal):
    """The proxies of a network or router gateway have no free port for the project."""

    place_id: str
    most: int


def with_proxy_ports(snapshot: Snapshot, old: lb.LoadBalancer | None, balancer: lb.LoadBalancer) -> lb.LoadBalancer:
    """Return the load balancer with proxy ports for its proxied listeners; listeners keep their present port.
    Raises Refused."""
    chosen = dict[str, int]()
    if balancer.provider in snapshot.proxied_providers:
        had = {listener.id: listener.proxy_port for listener in old.listeners} if old is not None else {}
        proxied = [each.id for each in balancer.listeners if path_of(balancer, each) is Path.PROXY]
        taken = set(had.values())
        for identity in proxied:
            chosen[identity] = had.get(identity) or _choose(snapshot, place_of(balancer), identity, taken)
            taken.add(chosen[identity])
    if all(listener.proxy_port == chosen.get(listener.id, 0) for listener in balancer.listeners):
        return balancer
    listeners = [replace(each, proxy_port=chosen.get(each.id, 0)) for each in balancer.listeners]
    return replace(balancer, listeners=tuple(listeners))


def _choose(snapshot: Snapshot, place: ProxyPlace, listener_id: str, taken: Set[int]) -> int:
    """Return a port that is free at the place and not in `taken`. Raises Refused."""
    ports = snapshot.host_proxy_ports if is_on_hosts(snapshot, place) else PROXY_PORTS
    number = count_ports((ports,))
    first = int.from_bytes(blake2b(listener_id.encode(), digest_size=4).digest())
    for step in range(number):
        port = ports.first + (first + step) % number
        if port not in taken and (place, port) not in snapshot.proxy_ports:
            return port
    raise Refused(NoProxyPort(place_id=place.at, most=number))
