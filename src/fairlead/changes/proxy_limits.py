"""Limits the servers of one HAProxy, which serves all load balancers of a project on one network or router."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.quota import UNLIMITED
from fairlead.model.queries.proxy_backends import proxy_servers
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyServers(Refusal):
    """An HAProxy would have more servers than the limit."""

    at: str
    """Id of the network, or of the router, with the VIPs."""
    asked: int
    most: int


def large_proxies(most: int, snapshot: Snapshot) -> Mapping[ProxyPlace, int]:
    """Map each place with HAProxies above the limit `most` to its number of servers. Such load balancers were stored
    before the limit was set."""
    return {} if most == UNLIMITED else {at: number for at, number in snapshot.proxy_servers.items() if number > most}


def check_proxy_servers(most: int, snapshot: Snapshot, changes: Changes) -> Changes:
    """Raise Refused if a change increases the number of servers of an HAProxy above `most`. A load balancer that is
    above the limit already can change and shrink."""
    limited = False
    for new in changes.puts if most != UNLIMITED else ():
        if not isinstance(new, LoadBalancer):
            continue
        old = snapshot.load_balancers.get(new.id)
        before = proxy_servers(old) if old is not None else {}
        for place, servers in proxy_servers(new).items():
            if (more := servers - before.get(place, 0)) > 0:
                limited = True
                total = snapshot.proxy_servers.get(place, 0) + more
                if total > most:
                    raise Refused(TooManyServers(at=place.at, asked=total, most=most))
    return replace(changes, requires_unchanged_model=True) if limited else changes
