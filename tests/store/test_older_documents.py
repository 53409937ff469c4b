"""Documents of earlier releases: readable, and readable again after the next write."""

from pathlib import Path

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.l7 import RedirectPrefix, RedirectToPool, RedirectToUrl, Reject
from fairlead.model.documents.loadbalancer import (
    AppCookiePersistence,
    HttpCookiePersistence,
    HttpMonitor,
    LoadBalancer,
    MonitorType,
    PlainMonitor,
    SourceIpPersistence,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.port_ranges import one_port
from fairlead.store.codec import decode, encode

BEFORE_UNIONS = Path(__file__).parent / "documents" / "format-0" / "loadbalancer.json"
"""Document of the first format: monitors, policies and persistences had the attributes of every type, null where
meaningless."""
APP = "00000000-0000-4000-8000-000000000003"


def read() -> LoadBalancer:
    balancer = decode(Owner(Kind.LOAD_BALANCER, "x"), BEFORE_UNIONS.read_bytes())
    assert isinstance(balancer, LoadBalancer)
    return balancer


def test_old_l7_policy_actions_are_readable():
    (listener,) = read().listeners
    assert [policy.action for policy in listener.l7policies] == [
        RedirectToUrl(url="https://example.org/", code=None),
        RedirectPrefix(prefix="https://example.org", code=308),
        RedirectToPool(pool_id=APP),
        Reject(),
    ]
    assert [len(policy.rules) for policy in listener.l7policies] == [1, 0, 1, 0]


def test_old_session_persistence_is_readable():
    assert [pool.persistence for pool in read().pools] == [
        AppCookiePersistence(cookie_name="who"),
        HttpCookiePersistence(),
        SourceIpPersistence(timeout=60, granularity=parse_address("255.255.255.0")),
        SourceIpPersistence(),
    ]


def test_old_health_monitors_are_readable():
    http, tcp, udp, https = (pool.health_monitor for pool in read().pools)
    assert isinstance(http, HttpMonitor)
    assert (http.type, http.http_method, http.url_path) == (MonitorType.HTTP, "GET", "/")
    assert (http.expected_codes, http.http_version, http.domain_name) == ("200-204", "1.1", "example.org")
    assert isinstance(tcp, PlainMonitor)
    assert (tcp.type, tcp.delay, tcp.timeout, tcp.max_retries, tcp.http_version) == (MonitorType.TCP, 5, 3, 2, "1.1")
    assert isinstance(udp, PlainMonitor)
    assert udp.type is MonitorType.UDP_CONNECT
    assert isinstance(https, HttpMonitor)
    assert (https.type, https.expected_codes, https.http_version) == (MonitorType.HTTPS, "200", None)


def test_old_document_is_readable_after_the_next_write():
    balancer = read()
    assert decode(Owner(Kind.LOAD_BALANCER, balancer.id), encode(balancer)) == balancer


def test_old_listener_ports_are_readable():
    (listener,) = read().listeners
    assert (listener.ports, listener.port) == (one_port(listener.port), 80)
