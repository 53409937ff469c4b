"""The backends of a load balancer in an HAProxy: a pool with the settings of the listeners that lead to it.

Two listeners with equal settings share a backend. So the number of its servers is that of the members, times the number
of different settings of the listeners that lead to their pool.
"""

from collections.abc import Mapping

from fairlead.model.loadbalancer import Listener, ListenerProtocol, LoadBalancer, Pool, PoolProtocol, pools_of
from fairlead.model.proxy_place import ProxyPlace, place_of

MAX_PROXY_SERVERS = 10_000
"""Servers of one HAProxy: 41 MB of its memory, and 0.12 s of a processor to read them (HAProxy 2.6)."""


def is_http(listener: Listener) -> bool:
    """Whether HAProxy reads the requests of this listener, and not just its bytes."""
    return listener.protocol in (ListenerProtocol.HTTP, ListenerProtocol.TERMINATED_HTTPS)


class BackendNames:
    """Names of the backends of one version of a load balancer. A pool's members are looked through once."""

    def __init__(self) -> None:
        self._have_ports: dict[str, bool] = {}

    def of(self, pool: Pool, listener: Listener) -> str:
        """The pool's id, as in Octavia, and the settings of the listener on which its backend depends."""
        return ":".join((pool.id, *self._settings(pool, listener)))

    def _settings(self, pool: Pool, listener: Listener) -> tuple[str, ...]:
        """The compiler of a backend reads nothing else of a listener.

        The kind of traffic, the timeouts for connecting to a member and for its answers in milliseconds, and the
        listener's port if a member has none of its own.
        """
        knows_client_tls = pool.protocol is PoolProtocol.PROXYV2 or (pool.tls is not None and pool.tls.enabled)
        kind = "http" if is_http(listener) else "tcp"
        if listener.protocol is ListenerProtocol.TERMINATED_HTTPS and knows_client_tls:
            kind = "https"
        timeouts = str(listener.timeouts.member_connect), str(listener.timeouts.member_data)
        return kind, *timeouts, *(() if self._has_ports(pool) else (str(listener.port),))

    def _has_ports(self, pool: Pool) -> bool:
        """Whether each member has a port of its own."""
        found = self._have_ports.get(pool.id)
        if found is None:
            found = self._have_ports[pool.id] = all(isinstance(member.port, int) for member in pool.members)
        return found


def proxy_servers(balancer: LoadBalancer) -> Mapping[ProxyPlace, int]:
    """Servers in each HAProxy of the load balancer's place. Disabled listeners count: they may be enabled again."""
    names, pools = BackendNames(), {pool.id: pool for pool in balancer.pools}
    servers = dict[str, int]()
    for listener in balancer.listeners:
        led = (pools.get(pool_id) for pool_id in pools_of(listener)) if listener.proxy_port else ()
        servers |= {names.of(pool, listener): len(pool.members) for pool in led if pool is not None}
    total = sum(servers.values())
    return {place_of(balancer): total} if total else {}
