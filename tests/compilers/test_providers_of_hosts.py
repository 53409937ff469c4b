"""Features of the provider of plain hosts, with proxies and without."""

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.compilers.native import NATIVE
from fairlead.compilers.providers import (
    Names,
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
from fairlead.runtime.steps import at_once
from harness.story import read_state

NAMES = parse_names("native=native", "native")
ALONE = without_proxies(NAMES)


def check(listener: str, names: Names = NAMES) -> None:
    """Check a listener; raises Unsupported."""
    text = (
        f"network pool announced 203.0.113.0/24\nweb vip=203.0.113.5 on=pool provider=native {listener}=a/10.1.0.11:80"
    )
    snapshot = read_state("now", text, {}, {}).snapshot()
    at_once(with_advice(checked_by(dataplanes_of(names)), names)(snapshot, Owner(Kind.LOAD_BALANCER, "web")))


def test_where_agents_run_proxies_hosts_can_do_what_these_can():
    assert proxied_names(NAMES) == {"native"}
    assert dataplanes_of(NAMES) == (HAPROXY, NATIVE)
    own = NAMES["native"].abilities
    assert Algorithm.LEAST_CONNECTIONS in own.algorithms
    assert ListenerProtocol.TERMINATED_HTTPS in own.listener_protocols
    check("tcp:80{proxy=2000,LEAST_CONNECTIONS}")
    check("http:80{proxy=2000,HTTP_COOKIE}")


def test_no_member_is_nearer_to_a_proxy_on_a_host_than_another():
    assert NAMES["native"].abilities.localities == {Locality.NONE}
    with pytest.raises(Unsupported) as refused:
        check("tcp:80{proxy=2000,LEAST_CONNECTIONS,near}")
    assert refused.value.asked == Feature("pool.locality", "CHASSIS")


def test_where_they_run_none_it_is_refused_with_what_would_help():
    assert proxied_names(ALONE) == frozenset()
    assert dataplanes_of(ALONE) == (NATIVE,)
    with pytest.raises(Unsupported, match=r"LEAST_CONNECTIONS|algorithm") as refused:
        check("tcp:80{LEAST_CONNECTIONS}", ALONE)
    assert refused.value.asked == Feature("pool.algorithm", "LEAST_CONNECTIONS")
    assert "health.prober = 'agents'" in refused.value.remedy
