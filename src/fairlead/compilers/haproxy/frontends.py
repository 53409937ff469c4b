"""Compiles a listener to a frontend that uses the backends of its pools.

Added headers have Octavia's names and values. X-Forwarded-Port has the listener's port, not the proxy's.
"""

from collections.abc import Iterable, Iterator, Set
from typing import assert_never

from fairlead.compilers.haproxy import tls
from fairlead.compilers.haproxy.destinations import bind_id, destination_lines, forwarded_port, sends_destination
from fairlead.compilers.haproxy.policies import PREPARED, all_policy_pools, compile_policies, policy_pools
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.haproxy import METRICS, Frontend, HAProxyRow
from fairlead.dataplane.haproxy_words import Line
from fairlead.model.documents.addresses import IPAddress, render_endpoint
from fairlead.model.documents.loadbalancer import Http, Listener, ListenerProtocol, LoadBalancer, Pool, RawMatch
from fairlead.model.documents.paths import PROXY_PROTOCOLS
from fairlead.model.documents.port_ranges import count_ports
from fairlead.model.documents.proxy_place import place_of
from fairlead.model.queries.proxies import proxy_name
from fairlead.model.queries.proxy_backends import BackendNames
from fairlead.model.queries.secrets import client_secrets
from fairlead.model.snapshot import Snapshot

MAX_CONNECTIONS = 5_000
"""Maximum concurrent connections of one listener on one node, also if it has a higher limit or none, so that other
listeners of the project keep their share."""
DEFAULT_INSPECT_DELAY_MS, MAX_INSPECT_DELAY_MS = 5_000, 60_000
"""Milliseconds for a client's first bytes: the default, and the maximum."""
HEADER_TIMEOUT_MS = 20_000
"""Milliseconds for all headers of a request, from its first byte, or from the start of the connection. Without this
bound, a client that sends a byte now and then (slowloris) holds connections forever. A packet that is lost four
times in a row still arrives in time (RFC 6298: retransmission after 1, 2, 4 and 8 s)."""
MAX_IDLE_TIMEOUT_MS = 2_073_600_000
"""Milliseconds (24 days), used instead of no limit, because HAProxy 2.6 then ignores all HTTP timeouts. It is the
maximum that the API accepts, and close to HAProxy's own."""
_MAX_PREFIXES_PER_LINE = 32
"""Maximum prefixes in one ACL line."""
_CLIENT_HEADERS = {
    "X-SSL-Client-Verify": "%[ssl_c_verify]",
    "X-SSL-Client-Has-Cert": "%[ssl_c_used]",
    "X-SSL-Client-DN": "%{+Q}[ssl_c_s_dn]",
    "X-SSL-Client-CN": "%{+Q}[ssl_c_s_dn(cn)]",
    "X-SSL-Issuer": "%{+Q}[ssl_c_i_dn]",
    "X-SSL-Client-SHA1": "%{+Q}[ssl_c_sha1,hex]",
    "X-SSL-Client-Not-Before": "%{+Q}[ssl_c_notbefore]",
    "X-SSL-Client-Not-After": "%{+Q}[ssl_c_notafter]",
}
_NO_HTTP = Http()


def pools_in_force(listener: Listener, names: BackendNames) -> tuple[Pool, ...]:
    """Return the enabled pools to which the listener or its L7 policies send requests, without duplicates."""
    return _with_default(listener, names, policy_pools(listener, names))


def pools_with_backends(listener: Listener, names: BackendNames) -> tuple[Pool, ...]:
    """Returns the enabled pools of the listener and of all its L7 policies, without duplicates."""
    return _with_default(listener, names, all_policy_pools(listener, names))


def _with_default(listener: Listener, names: BackendNames, pools: Iterable[Pool]) -> tuple[Pool, ...]:
    default = names.find_enabled(listener.default_pool_id)
    return tuple({pool.id: pool for pool in (default, *pools) if pool is not None}.values())


def frontend_rows(
    view: Snapshot, balancer: LoadBalancer, listener: Listener, addresses: tuple[IPAddress, ...], names: BackendNames
) -> Iterator[HAProxyRow]:
    """Rows of the listener in the proxy with these addresses, without its backends. Raises Unsupported, Unwritable."""
    default, pools = names.find_enabled(listener.default_pool_id), pools_in_force(listener, names)
    _refuse(balancer, listener, pools)
    # also for pools of disabled policies, so enabling one that leads to a pool with PROXY headers needs no reload
    told = sends_destination(listener, pools_with_backends(listener, names))
    lines = [*_lines(balancer, listener, addresses, told=told), *_after_policies(balancer, listener)]
    if default is not None:
        lines.append(("default_backend", names.of(default, listener)))
    limit = listener.connection_limit
    policies = compile_policies(listener, names)
    yield Frontend(
        name=listener.id,
        process=proxy_name(view, place_of(balancer)),
        connections=min(limit, MAX_CONNECTIONS) if limit > 0 else MAX_CONNECTIONS,
        lines=tuple(lines),
        policies=policies,
        prepared=PREPARED if policies else (),
        backends=tuple(sorted(names.of(pool, listener) for pool in pools)),
        secrets=client_secrets(listener),
    )
    yield from tls.certificates(listener)


def _refuse(balancer: LoadBalancer, listener: Listener, pools: Iterable[Pool]) -> None:
    """Reject a listener that a proxy cannot have. Its ports share one port of the proxy, which does not know the
    client's."""
    members = (member for pool in pools for member in pool.members)
    if count_ports(listener.ports) != 1 and not all(isinstance(member.port, int) for member in members):
        raise Unsupported(
            "a proxy for a listener with a port range whose members also have port ranges", balancer.provider
        )
    if listener.l7policies and listener.protocol not in PROXY_PROTOCOLS:
        raise Unsupported(f"L7 policies of a {listener.protocol} listener", balancer.provider)
    tls.refuse(balancer, listener)


def _freebind(address: IPAddress, vips: Set[IPAddress]) -> tuple[str, ...]:
    """Option that binds a VIP before the host has it: on a plain host a VIP is added after its listener, and removed
    before (ip(7), IP_FREEBIND)."""
    return ("transparent",) if address in vips else ()


def _inheritable(address: IPAddress) -> tuple[str, ...]:
    """Option that lets the next process inherit the socket. HAProxy compares it for IPv6; with a new socket,
    connections in the queue of the old one would be reset."""
    return ("v6only",) if address.version == 6 else ()


def _lines(
    balancer: LoadBalancer, listener: Listener, addresses: tuple[IPAddress, ...], *, told: bool
) -> Iterator[Line]:
    """Yield the directives before the L7 policies: binds, access control and timeouts. `told`: `is_told`."""
    vips = frozenset(vip.address for vip in balancer.vips)
    yield "mode", "http" if listener.protocol in PROXY_PROTOCOLS else "tcp"
    if listener.protocol in PROXY_PROTOCOLS:  # a replaced process keeps connections on which a request may be arriving
        yield "option", "idle-close-on-response"
        yield "option", "http-ignore-probes"  # and sends no 408 to a client that has sent no request
    for number, address in enumerate(addresses, 1):
        where, named = render_endpoint(address, listener.proxy_port), bind_id(number) if told else ()
        yield "bind", where, *named, *_inheritable(address), *_freebind(address, vips), *tls.bind_words(listener)
    yield from _timeouts(listener)
    cidrs = sorted(map(str, listener.allowed_cidrs))
    for first in range(0, len(cidrs), _MAX_PREFIXES_PER_LINE):
        yield "acl", "allowed", "src", *cidrs[first : first + _MAX_PREFIXES_PER_LINE]
    if cidrs:
        yield "tcp-request", "connection", "reject", "unless", "allowed"
    if listener.connection_limit == 0:
        yield "tcp-request", "connection", "reject"
    if told:
        yield from destination_lines(balancer, listener, addresses)
    if listener.raw is not None:
        yield from _raw_lines(listener, listener.raw)
    elif listener.timeouts.tcp_inspect:
        yield "tcp-request", "inspect-delay", str(listener.timeouts.tcp_inspect)


def _timeouts(listener: Listener) -> Iterator[Line]:
    """Yield the timeouts of clients. HAProxy applies `http-request` between two requests, too, if `http-keep-alive`
    is unset."""
    idle = listener.timeouts.client_data
    if listener.protocol not in PROXY_PROTOCOLS:
        yield "timeout", "client", str(idle)
        return
    idle = idle or MAX_IDLE_TIMEOUT_MS
    yield "timeout", "client", str(idle)
    yield "timeout", "http-request", str(min(HEADER_TIMEOUT_MS, idle))
    yield "timeout", "http-keep-alive", str(idle)


def _raw_lines(listener: Listener, raw: RawMatch) -> Iterator[Line]:
    """Yield the directives of a raw match. A client that sends too little in time is rejected like one that sends
    other bytes. The delay is at most a minute, because each such connection uses a slot of the proxy."""
    yield (
        "tcp-request",
        "inspect-delay",
        str(min(listener.timeouts.tcp_inspect or DEFAULT_INSPECT_DELAY_MS, MAX_INSPECT_DELAY_MS)),
    )
    looked_at = f"req.payload({raw.location},{len(raw.value)})"
    yield "tcp-request", "content", "accept", "if", "{", looked_at, "-m", "bin", "--", raw.value.hex(), "}"
    yield "tcp-request", "content", "reject"


def _after_policies(balancer: LoadBalancer, listener: Listener) -> Iterator[Line]:
    match listener.protocol:
        case ListenerProtocol.PROMETHEUS:
            yield "http-request", "deny", "deny_status", "404", "unless", "{", "path", "/metrics", "}"
            yield "http-request", "set-uri", f"/{balancer.id.replace('%', '%%')}"
            yield "default_backend", METRICS
        case ListenerProtocol.HTTP | ListenerProtocol.TERMINATED_HTTPS:
            http = listener.http or _NO_HTTP
            for header, switch in sorted(http.insert_headers):
                if switch.lower() == "true":
                    yield _inserted(balancer, listener, header)
            if http.hsts_max_age is not None:
                yield "http-response", "set-header", "Strict-Transport-Security", _hsts(http)
        case ListenerProtocol.TCP | ListenerProtocol.HTTPS:
            return
        case ListenerProtocol.UDP | ListenerProtocol.SCTP | ListenerProtocol.ANY:
            raise AssertionError(f"a proxy for {listener.protocol}")
        case unknown:
            assert_never(unknown)


def _inserted(balancer: LoadBalancer, listener: Listener, header: str) -> Line:
    """Return the directive that sets a header. It replaces the client's value, except for the X-Forwarded-For chain."""
    match header:
        case "X-Forwarded-For":
            return "option", "forwardfor"
        case "X-Forwarded-Port":
            value = forwarded_port(listener)
        case "X-Forwarded-Proto":
            value = "https" if listener.protocol is ListenerProtocol.TERMINATED_HTTPS else "http"
        case _ if header in _CLIENT_HEADERS:
            value = _CLIENT_HEADERS[header]
        case _:
            raise Unsupported(f"insertion of header {header!r}", balancer.provider)
    return "http-request", "set-header", header, value


def _hsts(http: Http) -> str:
    """Value of Strict-Transport-Security (RFC 6797, section 6.1)."""
    subdomains = "; includeSubDomains" if http.hsts_include_subdomains else ""
    return f"max-age={http.hsts_max_age}{subdomains}{'; preload' if http.hsts_preload else ''}"
