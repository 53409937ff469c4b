"""The features of OVN's provider follow from its compiler: there is no second list."""

from collections.abc import Callable, Iterable
from dataclasses import fields, replace
from enum import StrEnum
from typing import Any

import pytest

from fairlead.api.octavia.options import feature_name
from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.providers import DEFAULT, checked_by, dataplanes_of, with_advice
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.abilities import (
    EVERY_OPTION,
    Abilities,
    Feature,
    find_unsupported_listener_feature,
    find_unsupported_pool_feature,
)
from fairlead.model.documents.l7 import L7Policy, Reject
from fairlead.model.documents.loadbalancer import (
    HTTP_MONITORS,
    Algorithm,
    AppCookiePersistence,
    ClientAuthentication,
    DownMember,
    Http,
    HttpCookiePersistence,
    HttpMonitor,
    Listener,
    ListenerProtocol,
    ListenerTls,
    LoadBalancer,
    Locality,
    MonitorType,
    PersistenceType,
    PlainMonitor,
    Pool,
    PoolProtocol,
    PoolTls,
    RawMatch,
    SourceIpPersistence,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import ATTRIBUTE_WORDS, EMPTY_SNAPSHOT, describe_feature
from harness.language import CREATED_AT, parse_model

ABILITIES = DEFAULT["ovn"].abilities
DOCUMENTS, _ = parse_model("network net1 10.0.0.0/24\nweb vip=10.0.0.10 on=net1 tcp:80=a/10.0.0.11:8080", {})
WEB = Owner(Kind.LOAD_BALANCER, "web")
PERSISTENCE = {
    PersistenceType.APP_COOKIE: AppCookiePersistence(cookie_name="a"),
    PersistenceType.HTTP_COOKIE: HttpCookiePersistence(),
    PersistenceType.SOURCE_IP: SourceIpPersistence(),
}
COMMON: Any = {"project_id": "demo", "created_at": CREATED_AT}


def refusal(listener: dict[str, Any], pool: dict[str, Any], empty: Snapshot = EMPTY_SNAPSHOT) -> Feature | str | None:
    """Return the feature that the compiler refuses in a load balancer with these attributes, or None."""
    balancer = DOCUMENTS[WEB]
    assert isinstance(balancer, LoadBalancer)
    changed = replace(
        balancer,
        listeners=(replace(balancer.listeners[0], **listener),),
        pools=(replace(balancer.pools[0], **pool),),
    )
    snapshot = apply_changes(empty, Changes(puts=(*{**DOCUMENTS, WEB: changed}.values(),)), 1)
    try:
        compile_owner(snapshot, WEB)
    except Unsupported as refused:
        return refused.feature
    return None


def monitor(kind: MonitorType) -> PlainMonitor | HttpMonitor:
    make: Callable[..., Any] = HttpMonitor if kind in HTTP_MONITORS else PlainMonitor
    found: PlainMonitor | HttpMonitor = make(id="m", type=kind, delay=5, timeout=2, max_retries=2, **COMMON)
    return found


CHOICES: list[tuple[str, Iterable[StrEnum], frozenset[Any], Callable[[Any], tuple[dict[str, Any], dict[str, Any]]]]] = [
    ("listener.protocol", ListenerProtocol, ABILITIES.listener_protocols, lambda value: ({"protocol": value}, {})),
    ("pool.protocol", PoolProtocol, ABILITIES.pool_protocols, lambda value: ({}, {"protocol": value})),
    ("pool.algorithm", Algorithm, ABILITIES.algorithms, lambda value: ({}, {"algorithm": value})),
    ("pool.locality", Locality, ABILITIES.localities, lambda value: ({}, {"locality": value})),
    ("pool.down_member", DownMember, ABILITIES.down_members, lambda value: ({}, {"down_member": value})),
    (
        "pool.persistence",
        PersistenceType,
        ABILITIES.persistence,
        lambda value: ({}, {"persistence": PERSISTENCE[value]}),
    ),
    ("pool.health_monitor", MonitorType, ABILITIES.monitors, lambda value: ({}, {"health_monitor": monitor(value)})),
]


@pytest.mark.parametrize(
    ("attribute", "value", "can", "asked"),
    [(name, value, value in able, ask(value)) for name, values, able, ask in CHOICES for value in values],
    ids=lambda part: str(part) if isinstance(part, str) else "",
)
def test_value_is_rejected_exactly_if_the_provider_lacks_support(
    attribute: str, value: StrEnum, can: bool, asked: tuple[dict[str, Any], dict[str, Any]]
):
    assert refusal(*asked) == (None if can else Feature(attribute, value.value))


@pytest.mark.parametrize("kind", MonitorType)
def test_agents_support_every_monitor_type_and_subsecond_delays(kind: MonitorType):
    agents = replace(EMPTY_SNAPSHOT, agents_probe=True)
    assert refusal({}, {"health_monitor": monitor(kind)}, agents) is None
    assert refusal({}, {"health_monitor": replace(monitor(kind), delay_ms=100)}, agents) is None


def test_agents_support_every_down_member_policy():
    agents = replace(EMPTY_SNAPSHOT, agents_probe=True)
    assert [refusal({}, {"down_member": each}, agents) for each in DownMember] == [None, None]


SAID: dict[str, Any] = {
    "client_authentication": ClientAuthentication.OPTIONAL,
    "insert_headers": (("X-Forwarded-For", "true"),),
    "hsts_max_age": 1,
}
"""Values of attributes that accept neither a text nor a flag."""


def _saying(kind: type[Any]) -> dict[str, Any]:
    """Return each attribute -> a value with only this attribute set."""
    nothing = kind()
    return {each.name: replace(nothing, **{each.name: _said(nothing, each.name)}) for each in fields(kind)}


def _said(nothing: Any, name: str) -> Any:
    match getattr(nothing, name):
        case False:
            return True
        case ():
            return SAID.get(name, ("x",))
        case _:
            return SAID.get(name, "x")


OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "listener.l7policies": ({"l7policies": (L7Policy(id="p", action=Reject(), **COMMON),)}, {}),
    "listener.connection_limit": ({"connection_limit": 5}, {}),
    "listener.raw": ({"raw": RawMatch(location=0, value=b"SSH-")}, {}),
    "pool.persistence.granularity": ({}, {"persistence": SourceIpPersistence(granularity=CREATED_AT)}),  # type: ignore[arg-type]
    "pool.health_monitor.delay_ms": ({}, {"health_monitor": replace(monitor(MonitorType.TCP), delay_ms=100)}),
    **{f"listener.tls.{name}": ({"tls": value}, {}) for name, value in _saying(ListenerTls).items()},
    **{f"listener.http.{name}": ({"http": value}, {}) for name, value in _saying(Http).items()},
    **{f"pool.tls.{name}": ({}, {"tls": value}) for name, value in _saying(PoolTls).items()},
}


def test_every_option_has_a_test_value():
    assert set(OPTIONS) == EVERY_OPTION


@pytest.mark.parametrize("option", sorted(EVERY_OPTION))
def test_option_is_rejected_exactly_if_the_provider_lacks_support(option: str):
    assert refusal(*OPTIONS[option]) == (None if option in ABILITIES.options else Feature(option))


@pytest.mark.parametrize("option", sorted(EVERY_OPTION))
def test_supported_option_is_accepted_and_a_removed_one_is_rejected(option: str):
    balancer = DOCUMENTS[WEB]
    assert isinstance(balancer, LoadBalancer)
    listener, pool = OPTIONS[option]
    asked: tuple[Listener, Pool] = replace(balancer.listeners[0], **listener), replace(balancer.pools[0], **pool)
    for options, lacking in ((EVERY_OPTION, None), (EVERY_OPTION - {option}, Feature(option))):
        able = Abilities(options=options)
        found = find_unsupported_listener_feature(able, asked[0]) or find_unsupported_pool_feature(able, asked[1])
        assert found == lacking


def test_every_feature_has_an_octavia_name():
    words = {feature_name(Feature(option)) for option in EVERY_OPTION}
    assert all(words)
    assert "default_tls_container_ref" in words
    assert {feature_name(Feature(name, "X")) for name, *_ in CHOICES} == {
        "protocol X",
        "pool protocol X",
        "lb_algorithm X",
        "locality X",
        "down_member X",
        "session_persistence X",
        "health monitors of type X",
    }


def test_cases_use_the_octavia_names_of_features():
    for attribute in ATTRIBUTE_WORDS:
        assert describe_feature(Feature(attribute, "X")) == feature_name(Feature(attribute, "X"))


ADVICE = " (set health.prober = 'agents' to enable the features of agents)"


@pytest.mark.parametrize(("provider", "advice"), [("fairlead", ADVICE), ("ovn", "")])
def test_error_names_features_that_agents_would_add(provider: str, advice: str):
    """Refusals name features that agents would add, except for the provider name that allows only the switch."""
    balancer = DOCUMENTS[WEB]
    assert isinstance(balancer, LoadBalancer)
    listener = replace(balancer.listeners[0], connection_limit=5)
    documents = {**DOCUMENTS, WEB: replace(balancer, provider=provider, listeners=(listener,))}
    snapshot = apply_changes(EMPTY_SNAPSHOT, Changes(puts=tuple(documents.values())), 1)
    check = with_advice(checked_by(dataplanes_of(DEFAULT)), DEFAULT)
    with pytest.raises(Unsupported) as refused:
        run_to_completion(check(snapshot, WEB))
    assert (refused.value.provider, refused.value.advice) == (provider, advice)


@pytest.mark.parametrize("asked", [{"protocol": PoolProtocol.PROXY}, {"tls": PoolTls(enabled=True)}], ids=str)
@pytest.mark.parametrize("provider", ["fairlead", "ovn"])
def test_ovn_probes_are_rejected_for_pools_with_proxy_or_tls(provider: str, asked: dict[str, Any]):
    """Pools with PROXY or TLS and a monitor are refused without agents, with or without a listener on the pool."""
    balancer = DOCUMENTS[WEB]
    assert isinstance(balancer, LoadBalancer)
    pool = replace(balancer.pools[0], health_monitor=monitor(MonitorType.TCP), **asked)
    check = with_advice(checked_by(dataplanes_of(DEFAULT)), DEFAULT)
    for listeners in (balancer.listeners, ()):
        web = replace(balancer, provider=provider, listeners=listeners, pools=(pool,))
        snapshot = apply_changes(
            replace(EMPTY_SNAPSHOT, proxied_providers=frozenset()),
            Changes(puts=(*{**DOCUMENTS, WEB: web}.values(),)),
            1,
        )
        with pytest.raises(Unsupported) as refused:
            run_to_completion(check(snapshot, WEB))
        assert (refused.value.provider, refused.value.advice) == (provider, ADVICE if provider == "fairlead" else "")
        wanted = Feature("pool.protocol", "PROXY") if "protocol" in asked else Feature("pool.tls.enabled")
        assert refused.value.feature == wanted
