"""Features of the provider of plain hosts, with proxies and without."""

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.compilers.native import NATIVE
from fairlead.compilers.providers import (
    ProviderNames,
    checked_by,
    dataplanes_of,
    parse_names,
    proxied_names,
    with_advice,
    without_proxies,
)
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.abilities import Feature
from fairlead.model.documents.loadbalancer import Algorithm, ListenerProtocol, Locality
from fairlead.model.documents.owner import Kind, Owner
from fairlead.runtime.steps import run_to_completion
from harness.case import read_state

NAMES = parse_names("native=native", "native")
ALONE = without_proxies(NAMES)


def check(listener: str, names: ProviderNames = NAMES) -> None:
    """Check a listener; raises Unsupported."""
    text = (
        f"network pool announced 203.0.113.0/24\nweb vip=203.0.113.5 on=pool provider=native {listener}=a/10.1.0.11:80"
    )
    snapshot = read_state("now", text, {}, {}).snapshot()
    run_to_completion(with_advice(checked_by(dataplanes_of(names)), names)(snapshot, Owner(Kind.LOAD_BALANCER, "web")))


def test_plain_hosts_with_proxies_support_proxy_features():
    assert proxied_names(NAMES) == {"native"}
    assert dataplanes_of(NAMES) == (HAPROXY, NATIVE)
    own = NAMES["native"].abilities
    assert Algorithm.LEAST_CONNECTIONS in own.algorithms
    assert ListenerProtocol.TERMINATED_HTTPS in own.listener_protocols
    check("tcp:80{proxy=2000,LEAST_CONNECTIONS}")
    check("http:80{proxy=2000,HTTP_COOKIE}")


def test_chassis_locality_is_rejected_for_proxies_on_hosts():
    assert NAMES["native"].abilities.localities == {Locality.NONE}
    with pytest.raises(Unsupported) as refused:
        check("tcp:80{proxy=2000,LEAST_CONNECTIONS,near}")
    assert refused.value.feature == Feature("pool.locality", "CHASSIS")


def test_proxy_feature_without_agents_is_rejected_with_the_remedy():
    assert proxied_names(ALONE) == frozenset()
    assert dataplanes_of(ALONE) == (NATIVE,)
    with pytest.raises(Unsupported, match=r"LEAST_CONNECTIONS|algorithm") as refused:
        check("tcp:80{LEAST_CONNECTIONS}", ALONE)
    assert refused.value.feature == Feature("pool.algorithm", "LEAST_CONNECTIONS")
    assert "health.prober = 'agents'" in refused.value.remedy
