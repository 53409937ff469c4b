"""The ports of proxies at which listeners take their connections: given when a load balancer is written.

A port is looked for from a place that the listener's id says, so two servers seldom choose the same one for two
listeners; the store's claims (`proxy-port/<place>/<project>/<port>`) refuse the second one. A plain host's own daemons
listen beside its proxies, and an id may be given: so there the range is the operator's, not the tenant's choice.
"""

from collections.abc import Set
from dataclasses import dataclass, replace
from hashlib import blake2b

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model import loadbalancer as lb
from fairlead.model.host_proxies import is_on_hosts
from fairlead.model.paths import Path, path_of
from fairlead.model.port_ranges import PROXY_PORTS, count
from fairlead.model.proxy_place import ProxyPlace, place_of
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NoProxyPort(Refusal):
    """All that proxies of a network, or of a router's gateway, have for a project are taken."""

    place_id: str
    most: int


def with_proxy_ports(snapshot: Snapshot, old: lb.LoadBalancer | None, balancer: lb.LoadBalancer) -> lb.LoadBalancer:
    """The load balancer whose listeners have ports of proxies, if that is their path: those that had one keep it.

    Raises Refused.
    """
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
    """One that is free there, and not among those of this load balancer."""
    ports = snapshot.host_proxy_ports if is_on_hosts(snapshot, place) else PROXY_PORTS
    number = count((ports,))
    first = int.from_bytes(blake2b(listener_id.encode(), digest_size=4).digest())
    for step in range(number):
        port = ports.first + (first + step) % number
        if port not in taken and (place, port) not in snapshot.proxy_ports:
            return port
    raise Refused(NoProxyPort(place_id=place.at, most=number))
