"""How much one HAProxy may have: the servers of all load balancers that a project has in a place."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.proxy_backends import proxy_servers
from fairlead.model.proxy_place import ProxyPlace
from fairlead.model.quota import UNLIMITED
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyServers(Refusal):
    """In the HAProxy of one place."""

    at: str
    """The id of the network, or of the router, with the VIPs."""
    asked: int
    most: int


def large_proxies(most: int, snapshot: Snapshot) -> Mapping[ProxyPlace, int]:
    """Places whose HAProxies have more servers than `most`, with their number: stored before this limit was set."""
    return {} if most == UNLIMITED else {at: number for at, number in snapshot.proxy_servers.items() if number > most}


def check_proxy_servers(most: int, snapshot: Snapshot, changes: Changes) -> Changes:
    """Raises Refused when an HAProxy would have more than `most` servers, and more than it has: a load balancer that
    is above the limit already can be changed, as long as it does not grow."""
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
    return replace(changes, rests_on_absence=True) if limited else changes
