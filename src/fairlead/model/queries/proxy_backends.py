"""Backends of a load balancer in HAProxy: one per pool and distinct settings of its listeners.

Listeners with equal settings share a backend. The number of servers is therefore the number of members times the number
of distinct listener settings of their pool.
"""

from collections.abc import Mapping

from fairlead.model.documents.loadbalancer import Listener, ListenerProtocol, LoadBalancer, Pool, PoolProtocol, pools_of
from fairlead.model.documents.proxy_place import ProxyPlace, place_of

MAX_PROXY_SERVERS = 10_000
"""Maximum servers of one HAProxy: 41 MB of memory and 0.12 s of CPU time to load (HAProxy 2.6)."""


def is_http(listener: Listener) -> bool:
    """Return whether HAProxy parses the listener's HTTP requests (mode http instead of tcp)."""
    return listener.protocol in (ListenerProtocol.HTTP, ListenerProtocol.TERMINATED_HTTPS)


class BackendNames:
    """Pools and names of backends for one version of a load balancer. The members of each pool are scanned once."""

    def __init__(self, balancer: LoadBalancer) -> None:
        self._pools = {pool.id: pool for pool in balancer.pools}
        self._have_ports: dict[str, bool] = {}

    def find(self, pool_id: str | None) -> Pool | None:
        return self._pools.get(pool_id) if pool_id is not None else None

    def find_enabled(self, pool_id: str | None) -> Pool | None:
        pool = self.find(pool_id)
        return pool if pool is not None and pool.admin_state_up else None

    def of(self, pool: Pool, listener: Listener) -> str:
        """Return the name: the pool's id, as in Octavia,
        followed by the listener settings that the backend depends on."""
        return ":".join((pool.id, *self._settings(pool, listener)))

    def _settings(self, pool: Pool, listener: Listener) -> tuple[str, ...]:
        """Return the listener settings that the compiler of a backend reads.

        These are the kind of traffic, the connect and server timeouts in milliseconds, and the listener's port if
        members have no port of their own.
        """
        knows_client_tls = pool.protocol is PoolProtocol.PROXYV2 or (pool.tls is not None and pool.tls.enabled)
        kind = "http" if is_http(listener) else "tcp"
        if listener.protocol is ListenerProtocol.TERMINATED_HTTPS and knows_client_tls:
            kind = "https"
        timeouts = str(listener.timeouts.member_connect), str(listener.timeouts.member_data)
        return kind, *timeouts, *(() if self._has_ports(pool) else (str(listener.port),))

    def _has_ports(self, pool: Pool) -> bool:
        """Return whether every member has a port of its own."""
        found = self._have_ports.get(pool.id)
        if found is None:
            found = self._have_ports[pool.id] = all(isinstance(member.port, int) for member in pool.members)
        return found


def proxy_servers(balancer: LoadBalancer) -> Mapping[ProxyPlace, int]:
    """Return the number of servers in each HAProxy of the load balancer's place. Disabled listeners count, because they
    can be enabled again."""
    names = BackendNames(balancer)
    servers = dict[str, int]()
    for listener in balancer.listeners:
        led = (names.find(pool_id) for pool_id in pools_of(listener)) if listener.proxy_port else ()
        servers |= {names.of(pool, listener): len(pool.members) for pool in led if pool is not None}
    total = sum(servers.values())
    return {place_of(balancer): total} if total else {}
