"""Compiles a pool to a backend, and its members to servers.

Listeners share the backend of a pool unless their own settings differ: timeouts, whether HAProxy speaks HTTP, and
the port of members without one. So a configuration grows with listeners plus members, not with their product. The
stick table belongs to the pool and is shared by all of its backends. A server has the same name in each, so a client
keeps its member with every listener, and after a change of a listener's timeouts.

A server's id is its member's ordinal, which is equal on every node, so a hash selects the same member on each, and
an added or removed member moves no other member's clients.
"""

from collections.abc import Iterator, Set
from typing import assert_never

from fairlead.compilers.haproxy import tls
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import Backend, HAProxyRow, Server
from fairlead.dataplane.haproxy_text import PEERS_SECTION
from fairlead.dataplane.haproxy_words import Line, Unwritable, name
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    AppCookiePersistence,
    HttpCookiePersistence,
    Listener,
    ListenerProtocol,
    LoadBalancer,
    Locality,
    Member,
    Pool,
    PoolProtocol,
    SourceIpPersistence,
)
from fairlead.model.documents.port_ranges import expand_targets
from fairlead.model.documents.proxy_place import place_of
from fairlead.model.queries.locality_tiers import members_on_chassis
from fairlead.model.queries.placement import find_unrouted_members
from fairlead.model.queries.proxies import proxy_name
from fairlead.model.queries.proxy_backends import is_http
from fairlead.model.queries.secrets import member_secrets
from fairlead.model.snapshot import Snapshot

STICK_TABLE_SIZE = "10k"
"""Entries of a stick table on one node. The least recently seen client is evicted."""
COOKIE = "SRV"
"""Cookie of HTTP_COOKIE persistence, as in Octavia."""
_BALANCE: dict[Algorithm, tuple[Line, ...]] = {
    Algorithm.ROUND_ROBIN: (("balance", "roundrobin"),),
    Algorithm.LEAST_CONNECTIONS: (("balance", "leastconn"),),
    Algorithm.SOURCE_IP: (("balance", "source"), ("hash-type", "consistent")),
    Algorithm.SOURCE_IP_PORT: (("balance", "random(1)"),),
}
"""All of these accept servers at run time. SOURCE_IP_PORT is random, because the port of a client differs in each
connection."""
_PROXY_OPTIONS: dict[PoolProtocol, Line] = {
    PoolProtocol.PROXY: ("send-proxy",),
    PoolProtocol.PROXYV2: ("send-proxy-v2",),
}
_TLS_PROXY_OPTIONS: dict[PoolProtocol, Line] = {**_PROXY_OPTIONS, PoolProtocol.PROXYV2: ("send-proxy-v2-ssl-cn",)}
"""PROXY options for clients with TLS: version 2 transmits the TLS state and the common name of a client certificate;
version 1 cannot."""


def backend_rows(
    view: Snapshot, balancer: LoadBalancer, listener: Listener, pool: Pool, backend: str, chassis: str
) -> Iterator[HAProxyRow]:
    """Yield rows of the pool with the settings of this listener, as `backend` (`BackendNames`). `chassis` is the
    chassis of the proxy; empty if it has none yet."""
    inside = is_http(listener)
    lines = (
        ("mode", "http" if inside else "tcp"),
        *_BALANCE[pool.algorithm],
        *_persistence(balancer, pool, inside=inside),
        ("option", "allbackups"),
        ("timeout", "connect", str(listener.timeouts.member_connect)),
        ("timeout", "server", str(listener.timeouts.member_data)),
    )
    yield Backend(
        name=backend,
        process=proxy_name(view, place_of(balancer)),
        lines=lines,
        table=_table(pool),
        secrets=member_secrets(pool),
    )
    cookie_key = pool.id if isinstance(pool.persistence, HttpCookiePersistence) else ""
    greetings = _TLS_PROXY_OPTIONS if listener.protocol is ListenerProtocol.TERMINATED_HTTPS else _PROXY_OPTIONS
    options = (*greetings.get(pool.protocol, ()), *tls.member_words(balancer, listener, pool, inside=inside))
    down = view.down.get(balancer.id, frozenset())
    ports = {member.id: expand_targets(member.port, (listener.port,))[0] for member in pool.members}
    failed = {each for each, port in ports.items() if each in down or (each, port) in down}
    if balancer.vip.network_id in view.announced:  # a proxy would otherwise reach a service of the host itself
        failed |= find_unrouted_members(view, balancer, pool.members)
    near = _preferred_members(view, balancer, pool, failed, chassis)
    for member in pool.members:
        yield Server(
            backend=backend,
            name=member.id,
            number=_number(member),
            address=member.address,
            port=ports[member.id],
            weight=member.weight,
            maintained=not member.admin_state_up or member.id in failed or member.id not in near,
            options=(*(("backup",) if member.backup else ()), *options),
            cookie_key=cookie_key,
        )


def _preferred_members(view: Snapshot, balancer: LoadBalancer, pool: Pool, failed: Set[str], chassis: str) -> Set[str]:
    """Return the members that this proxy uses: those on its own chassis while any of these is up, as in OVN's flows.

    The others are in maintenance meanwhile. They cannot be backup servers, because a pool may have its own backups
    and HAProxy has only one level of them.
    """
    if pool.locality is Locality.CHASSIS and chassis:
        own = members_on_chassis(view, balancer, pool, chassis)
        serving = own - failed
        if any(each.id in serving and each.takes_connections and not each.backup for each in pool.members):
            return own
    return {member.id for member in pool.members}


def _number(member: Member) -> int:
    """Server id, from 1, as HAProxy requires."""
    return member.ordinal + 1


def _table(pool: Pool) -> Line:
    """The stick table of the pool, in the words of a `peers` section; empty if it needs none.

    A process that replaces another receives the entries of its tables.
    """
    match pool.persistence:
        case SourceIpPersistence(granularity=None):
            return "table", name(pool.id), "type", "ipv6", "size", STICK_TABLE_SIZE
        case AppCookiePersistence():
            return "table", name(pool.id), "type", "string", "len", "64", "size", STICK_TABLE_SIZE
        case _:
            return ()


def _persistence(balancer: LoadBalancer, pool: Pool, *, inside: bool) -> tuple[Line, ...]:
    """Return the persistence directives. A stick table is used if the algorithm alone does not select the same
    member again."""
    table = "table", f"{PEERS_SECTION}/{name(pool.id)}"
    match pool.persistence:
        case None:
            return ()
        case SourceIpPersistence(granularity=None):
            return (("stick", "on", "src", *table),)
        case SourceIpPersistence():
            raise Unsupported("persistence_granularity through a proxy", balancer.provider)
        case HttpCookiePersistence() | AppCookiePersistence() if not inside:
            raise Unsupported(
                f"{pool.persistence.type} persistence for a pool whose traffic is not parsed as HTTP", balancer.provider
            )
        case HttpCookiePersistence():
            return ("cookie", COOKIE, "insert", "indirect", "nocache", "dynamic"), ("dynamic-cookie-key", pool.id)
        case AppCookiePersistence(cookie_name=cookie_name):
            cookie = check_argument(cookie_name)
            return (
                ("stick", "store-response", f"res.cook({cookie})", *table),
                ("stick", "match", f"req.cook({cookie})", *table),
            )
        case unknown:
            assert_never(unknown)


def check_argument(text: str) -> str:
    """Check a header or cookie name used as an argument of a sample fetch. Raises Unwritable for special characters."""
    if not text.isascii() or not text.isprintable() or any(char in " \t'\"\\,()$" for char in text):
        raise Unwritable("a header or cookie name with blanks, quotes, parentheses, commas or $")
    return text
