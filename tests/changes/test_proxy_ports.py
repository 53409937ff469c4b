"""Proxy ports: each listener with proxies has one port on the VIP's network and keeps it."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.changes import proxy_ports
from fairlead.changes.balancers import replace_load_balancer
from fairlead.changes.proxy_ports import NoProxyPort, with_proxy_ports
from fairlead.model.documents.loadbalancer import Algorithm, ListenerProtocol, LoadBalancer
from fairlead.model.documents.port_ranges import HOST_PROXY_PORTS, PROXY_PORTS, PortRange
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.kinds import claims
from fairlead.model.snapshot import Snapshot
from harness.changes.balancing import ASKER, apply_work, balancer_request, listener, pool
from harness.changes.world import NETWORK, refusal, snapshot_with

HTTP: dict[str, Any] = {"protocol": ListenerProtocol.HTTP}


def world() -> Snapshot:
    return replace(snapshot_with(NETWORK), proxied_providers=frozenset({"fairlead"}))


def stored(snapshot: Snapshot, identity: str, *listeners: Any, **fields: Any) -> LoadBalancer:
    """Return the load balancer as stored; its compiler refuses an HTTP listener while no provider has proxies."""
    made = apply_work(snapshot, balancer_request(snapshot, identity, **fields)).load_balancers[identity]
    return with_proxy_ports(snapshot, None, replace(made, listeners=listeners))


def numbers(balancer: LoadBalancer) -> list[int]:
    return [each.proxy_port for each in balancer.listeners]


def test_only_proxied_listeners_have_a_proxy_port():
    asking = pool("asking", algorithm=Algorithm.LEAST_CONNECTIONS)
    web, ssh = listener("web", 80, **HTTP), listener("ssh", 22)
    counted = listener("counted", 25, default_pool_id="asking")
    made = stored(world(), "lb", web, ssh, counted, pools=(asking,))
    first, none, second = numbers(made)
    assert none == 0
    assert {first, second} <= set(range(PROXY_PORTS.first, PROXY_PORTS.last + 1))
    assert first != second
    assert {f"proxy-port/net/{made.project_id}/{number}" for number in (first, second)} <= claims(made)


def test_no_listener_has_a_proxy_port_where_providers_have_no_proxies():
    assert numbers(stored(snapshot_with(NETWORK), "lb", listener("web", 80, **HTTP))) == [0]


def test_proxy_port_is_kept_across_updates_and_removed_with_the_proxy_path():
    snapshot = world()
    made = stored(snapshot, "lb", listener("web", 80, **HTTP))
    snapshot = having_too(snapshot, made)
    again = replace(made, listeners=(listener("web", 8080, **HTTP), listener("new", 81, **HTTP)))
    changed = with_proxy_ports(snapshot, made, again)
    assert numbers(changed)[0] == numbers(made)[0] != numbers(changed)[1]
    assert with_proxy_ports(snapshot, made, changed) == changed
    assert numbers(with_proxy_ports(snapshot, made, replace(made, listeners=(listener("web", 80),)))) == [0]


def test_load_balancers_on_one_network_have_distinct_proxy_ports(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(proxy_ports, "PROXY_PORTS", PortRange(2000, 2002))
    snapshot, seen = world(), set[int]()
    for name in ("one", "two", "three"):
        made = stored(snapshot, name, listener(f"web-{name}", 80, **HTTP))
        snapshot = having_too(snapshot, made)
        seen.update(numbers(made))
    assert seen == {2000, 2001, 2002}
    late = replace(snapshot.load_balancers["one"], id="late", listeners=(listener("late", 80, **HTTP),))
    assert refusal(with_proxy_ports, snapshot, None, late) == NoProxyPort(place_id="net", most=3)


def test_proxy_ports_of_plain_hosts_come_from_the_configured_range():
    """Ports come from the operator's range; ids that a caller may give determine the start of the search in it."""
    snapshot = replace(snapshot_with(replace(NETWORK, announced=True)), proxied_providers=frozenset({"fairlead"}))
    bare = stored(snapshot_with(NETWORK), "lb")

    def given(snapshot: Snapshot, *names: str) -> LoadBalancer:
        listeners = tuple(listener(name, 80 + place, **HTTP) for place, name in enumerate(names))
        return with_proxy_ports(snapshot, None, replace(bare, listeners=listeners))

    found = numbers(given(snapshot, *(f"l{each}" for each in range(50))))
    assert len(set(found)) == 50
    assert min(found) >= HOST_PROXY_PORTS.first > 60_999, "above those from which Linux makes connections"
    few = replace(snapshot, host_proxy_ports=PortRange(9000, 9001))
    made = given(few, "one", "two")
    assert set(numbers(made)) == {9000, 9001}
    assert with_proxy_ports(snapshot, made, made) == made, "listeners keep theirs when the range is another one"
    third = replace(made, listeners=(*made.listeners, listener("three", 82, **HTTP)))
    assert refusal(with_proxy_ports, few, made, third) == NoProxyPort(place_id="net", most=2)


def test_load_balancer_replacement_assigns_proxy_ports():
    snapshot = apply_work(world(), balancer_request(world(), listeners=(listener("web", 80),)))
    limited = replace(snapshot.load_balancers["lb"], listeners=(listener("web", 80, connection_limit=5),))
    [given] = numbers(apply_work(snapshot, replace_load_balancer(snapshot, ASKER, limited)).load_balancers["lb"])
    assert PROXY_PORTS.first <= given <= PROXY_PORTS.last


def having_too(snapshot: Snapshot, balancer: LoadBalancer) -> Snapshot:
    return apply_changes(snapshot, Changes(puts=(balancer,)), snapshot.revision + 1)
