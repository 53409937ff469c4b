"""The attributes of a listener decide whether its connections pass through a proxy."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.l7 import L7Policy, RedirectToPool, Reject
from fairlead.model.documents.loadbalancer import (
    Algorithm,
    AppCookiePersistence,
    Http,
    HttpCookiePersistence,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    PoolProtocol,
    PoolTls,
    SourceIpPersistence,
    Timeouts,
    Vip,
)
from fairlead.model.documents.paths import Path, path_of
from harness.changes.balancing import listener, pool
from harness.changes.world import OWNERS

VIP = Vip(address=parse_address("10.0.0.10"), port_id="p", subnet_id="s", network_id="n")
SWITCHED: list[dict[str, Any]] = [
    {},
    {"protocol": ListenerProtocol.HTTPS},
    {"protocol": ListenerProtocol.UDP, "connection_limit": 10},
    {"timeouts": Timeouts(client_data=1)},
    {"tls": ListenerTls(), "http": Http()},
]
PROXIED: list[dict[str, Any]] = [
    {"protocol": ListenerProtocol.HTTP},
    {"protocol": ListenerProtocol.TERMINATED_HTTPS},
    {"protocol": ListenerProtocol.PROMETHEUS},
    {"connection_limit": 10},
    {"protocol": ListenerProtocol.HTTPS, "connection_limit": 10},
    {"l7policies": (L7Policy(id="policy", action=Reject(), **OWNERS),)},
    {"tls": ListenerTls(container_ref="secret")},
    {"http": Http(hsts_max_age=1)},
]
ASKING: list[tuple[dict[str, Any], Path]] = [
    ({}, Path.SWITCH),
    ({"algorithm": Algorithm.ROUND_ROBIN}, Path.SWITCH),
    ({"algorithm": Algorithm.LEAST_CONNECTIONS}, Path.PROXY),
    ({"persistence": SourceIpPersistence()}, Path.SWITCH),
    ({"persistence": HttpCookiePersistence()}, Path.PROXY),
    ({"persistence": AppCookiePersistence(cookie_name="c")}, Path.PROXY),
    ({"protocol": PoolProtocol.PROXY}, Path.PROXY),
    ({"protocol": PoolProtocol.PROXYV2}, Path.PROXY),
    ({"tls": PoolTls()}, Path.SWITCH),
    ({"tls": PoolTls(enabled=True)}, Path.PROXY),
]


def path(asked: dict[str, Any], **pool_asks: Any) -> Path:
    one = listener("web", 80, **{"default_pool_id": "pool"} | asked)
    balancer = LoadBalancer(id="lb", provider="fairlead", vip=VIP, listeners=(one,), pools=(pool("pool"),), **OWNERS)
    return path_of(replace(balancer, pools=(pool("pool", **pool_asks),)), one)


@pytest.mark.parametrize("asked", SWITCHED)
def test_listener_supported_by_the_switch_bypasses_proxies(asked: dict[str, Any]):
    assert path(asked) is Path.SWITCH


@pytest.mark.parametrize("asked", PROXIED)
def test_listener_unsupported_by_the_switch_uses_a_proxy(asked: dict[str, Any]):
    assert path(asked) is Path.PROXY


@pytest.mark.parametrize(("asked", "way"), ASKING)
def test_pool_attributes_decide_the_path_too(asked: dict[str, Any], way: Path):
    assert path({}, **asked) is way


def test_listener_with_a_policy_to_a_pool_uses_a_proxy():
    policy = L7Policy(id="policy", action=RedirectToPool(pool_id="pool"), **OWNERS)
    assert path({"default_pool_id": None, "l7policies": (policy,)}) is Path.PROXY
