"""Status of listeners with proxies, from agents' reports."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from immutables import Map

from fairlead.model.documents.agent import Agent, ApplyFailure
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.proxy_place import place_of
from fairlead.model.documents.status import AppliedState, OperatingStatus
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.queries.proxies import proxy_port_id, required_proxy_ports
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.probes import snapshot_of

TEXT = """
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11
proxy one net1 10.0.0.61
proxy two net1 10.0.0.62
web vip=10.0.0.10 on=net1 http:80{proxy=2000}=a/10.0.0.11:8080
"""
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
WELL, HERE, ELSEWHERE = "", frozenset({2000}), frozenset({2001})
DEAD, SILENT, NONE = "dead", "silent", "none"
"""States of a node: dead, with a stale agent, without an agent; any other word is a failing owner."""


def standing(
    nodes: Mapping[str, str], serving: Mapping[str, frozenset[int]], text: str = TEXT, *, plugged: bool = True
) -> tuple[OperatingStatus, OperatingStatus]:
    """Return the statuses of the listener and of the load balancer."""
    agents = {
        name: Agent(name=name, since=NOON, heartbeat=5.0, is_responsive=how != SILENT, apply_failures=failing(how))
        for name, how in nodes.items()
        if how != NONE
    }
    snapshot: Snapshot = snapshot_of(text.strip())
    chassis = Map({name: Chassis(name=name, alive=how != DEAD) for name, how in nodes.items()})
    proxies = Map({proxy_port_id("net1", name): Proxy(serving=ports) for name, ports in serving.items()})
    balancer = next(iter(snapshot.load_balancers.values()))
    where = Map(dict.fromkeys(snapshot.ports, "one") if plugged else {})
    snapshot = replace(snapshot, chassis=chassis, agents=Map(agents), proxies=proxies, plugged=where)
    status = derive_balancer_status(snapshot, balancer, AppliedState(generation=10**6))
    return status.of_listener(balancer.listeners[0]), status.of_balancer()


def failing(how: str) -> tuple[ApplyFailure, ...]:
    return (ApplyFailure(dataplane="haproxy", owner=how, error="no"),) if "/" in how else ()


ONLINE, OFFLINE = OperatingStatus.ONLINE, OperatingStatus.OFFLINE
DEGRADED, ERROR = OperatingStatus.DEGRADED, OperatingStatus.ERROR
WEB, NET = "loadbalancer/web", "network/net1"


@pytest.mark.parametrize(
    ("one", "two", "serving", "wanted"),
    [
        (WELL, WELL, {"one": HERE, "two": HERE}, ONLINE),
        (WELL, WELL, {"one": HERE}, ONLINE),
        (WELL, DEAD, {"one": HERE}, ONLINE),
        (SILENT, SILENT, {"one": HERE}, ONLINE),
        (WELL, WEB, {"one": HERE, "two": HERE}, DEGRADED),
        (WELL, NET, {"one": HERE}, DEGRADED),
        (WELL, NET, {"one": HERE, "two": HERE}, ONLINE),  # another tenant's proxy on the network is the failing one
        (WELL, "loadbalancer/other", {"one": HERE}, ONLINE),
        (WELL, WELL, {}, OFFLINE),
        (WELL, WELL, {"one": ELSEWHERE, "two": ELSEWHERE}, OFFLINE),
        (WELL, DEAD, {}, OFFLINE),
        (WEB, WELL, {}, OFFLINE),
        (WEB, NET, {}, ERROR),
        (DEAD, WEB, {"one": HERE}, ERROR),
        (SILENT, NONE, {}, ERROR),
    ],
)
def test_listener_status_follows_its_proxies(
    one: str, two: str, serving: Mapping[str, frozenset[int]], wanted: OperatingStatus
):
    listener, whole = standing({"one": one, "two": two}, serving)
    assert listener is wanted
    assert whole is (ONLINE if wanted is OFFLINE else wanted)


@pytest.mark.parametrize(("node", "wanted"), [(WELL, OFFLINE), (NONE, ERROR), (SILENT, ERROR), (DEAD, ERROR)])
def test_listener_without_a_proxy_is_offline_while_a_node_can_host_one(node: str, wanted: OperatingStatus):
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("proxy"))
    assert standing({"one": node}, {}, text)[0] is wanted


@pytest.mark.parametrize(("node", "wanted"), [(WELL, ONLINE), (NONE, ERROR), (SILENT, ERROR), (DEAD, ERROR)])
@pytest.mark.parametrize("guest", ["", "port vm2 net1 10.0.0.12 of=another-project"])
def test_listener_without_project_instances_is_online_if_a_node_is_usable(
    node: str, wanted: OperatingStatus, guest: str
):
    """A port that another tenant creates on a shared network changes no status of this one."""
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith(("proxy", "port")))
    first, rest = text.strip().split("\n", 1)
    assert standing({"one": node}, {}, "\n".join(filter(None, (first, guest, rest))))[0] is wanted


def test_unplugged_port_requires_no_proxy():
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("proxy"))
    assert [standing({"one": WELL}, {}, text, plugged=each)[0] for each in (True, False)] == [OFFLINE, ONLINE]


def test_plain_tcp_listener_status_ignores_proxies():
    text = TEXT.replace("http:80{proxy=2000}", "tcp:80")
    assert standing({"one": WEB, "two": NONE}, {}, text) == (ONLINE, ONLINE)


def test_proxies_serve_only_ports_of_enabled_load_balancers():
    more = "api vip=10.0.0.20 on=net1 http:80{proxy=2001}=a/10.0.0.11:8080"
    snapshot = snapshot_of(f"{TEXT.strip()}\n{more}")
    api = next(each for each in snapshot.load_balancers.values() if str(each.vip.address) == "10.0.0.20")
    place = place_of(api)
    assert required_proxy_ports(snapshot, place) == {2000, 2001}
    off = apply_changes(snapshot, Changes(puts=(replace(api, admin_state_up=False),)), snapshot.revision + 1)
    assert required_proxy_ports(off, place) == {2000}
    assert required_proxy_ports(snapshot, place._replace(at="elsewhere")) == frozenset()
