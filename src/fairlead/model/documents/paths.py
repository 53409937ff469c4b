"""Path of a listener's connections: a switch forwards them to members directly, or to a proxy.

The attributes of the listener and its pools decide; there is no option. Traffic that a switch can forward never passes
a proxy.
"""

from enum import Enum, auto

from fairlead.model.documents.loadbalancer import (
    Algorithm,
    Http,
    Listener,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    PersistenceType,
    Pool,
    PoolProtocol,
    PoolTls,
    Transport,
    find_pool,
    pools_of,
    transport,
)


class Path(Enum):
    SWITCH = auto()
    PROXY = auto()


PROXY_PROTOCOLS = frozenset({ListenerProtocol.HTTP, ListenerProtocol.PROMETHEUS, ListenerProtocol.TERMINATED_HTTPS})
"""Protocols that require a proxy, because requests must be parsed."""
COOKIE_PERSISTENCE = frozenset({PersistenceType.APP_COOKIE, PersistenceType.HTTP_COOKIE})
_NO_LISTENER_TLS, _NO_POOL_TLS, _NO_HTTP = ListenerTls(), PoolTls(), Http()


def path_of(balancer: LoadBalancer, listener: Listener) -> Path:
    """Return the listener's path. Only TCP uses proxies, because proxies do not forward UDP and SCTP."""
    if transport(listener.protocol) is not Transport.TCP:
        return Path.SWITCH
    pools = (find_pool(balancer, pool_id) for pool_id in pools_of(listener))
    asked = _listener_needs_proxy(listener) or any(pool is not None and _pool_needs_proxy(pool) for pool in pools)
    return Path.PROXY if asked else Path.SWITCH


def _listener_needs_proxy(listener: Listener) -> bool:
    return (
        listener.protocol in PROXY_PROTOCOLS
        or listener.connection_limit != -1
        or bool(listener.l7policies)
        or listener.raw is not None
        or (listener.tls or _NO_LISTENER_TLS) != _NO_LISTENER_TLS
        or (listener.http or _NO_HTTP) != _NO_HTTP
    )


def _pool_needs_proxy(pool: Pool) -> bool:
    return (
        pool.algorithm is Algorithm.LEAST_CONNECTIONS
        or pool.protocol in (PoolProtocol.PROXY, PoolProtocol.PROXYV2)
        or (pool.persistence is not None and pool.persistence.type in COOKIE_PERSISTENCE)
        or (pool.tls or _NO_POOL_TLS) != _NO_POOL_TLS
    )
