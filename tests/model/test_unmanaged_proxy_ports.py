"""Proxies on Neutron's networks: their ports, the nodes that need them, and refused ports."""

from dataclasses import replace

import pytest

from fairlead.model.documents.observed_proxy import ProxyPortChanges
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, place_of_port, proxy_chassis
from fairlead.model.documents.status import OperatingStatus
from fairlead.model.documents.unmanaged import Writer
from fairlead.model.queries.proxies import derive_proxy_status, proxy_ports
from fairlead.model.queries.proxy_homes import find_proxy_network
from fairlead.model.queries.unmanaged_proxy_ports import proxied_network, required_proxy_changes
from fairlead.model.registry.changeset import Changes, apply_changes, with_unmanaged
from fairlead.model.registry.facts import PROXY_PORT_CHANGES, REJECTED_PROXY_PORTS, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.runtime.steps import run_to_completion
from harness.unmanaged_proxies import MODEL_TEXT, ONE, TWO, port_of, world

NET1 = ProxyPlace("net1", "demo")
WEB = Owner(Kind.LOAD_BALANCER, "web")


def test_neutron_proxy_port_names_its_chassis():
    snapshot = world(MODEL_TEXT + ONE + TWO)
    assert [proxy_chassis(port) for port in proxy_ports(snapshot, NET1)] == ["one", "two"]
    assert place_of_port(port_of(snapshot, "one")) == NET1


@pytest.mark.parametrize(
    "changes",
    [
        {"device_owner": "network:load_balancer_proxy"},
        {"device_id": "net1"},
        {"device_id": "fairlead-proxy-net2-one"},
        {"device_id": "fairlead-proxy-net1-"},
        {"device_id": "a fairlead-proxy-net1-one"},
        {"host": ""},  # only an administrator can bind a port
        {"writer": Writer.LXD},
    ],
    ids=str,
)
def test_port_without_the_exact_proxy_attributes_is_not_a_proxy_port(changes: dict[str, str]):
    port = replace(port_of(world(MODEL_TEXT + ONE), "one"), **changes)  # type: ignore[arg-type]
    assert place_of_port(port) is None


def test_first_of_two_proxy_ports_on_a_chassis_is_used():
    snapshot = world(MODEL_TEXT + ONE)
    port = port_of(snapshot, "one")
    second = replace(port, id="0", fixed_ips=(), row="0@0")
    snapshot = with_unmanaged(snapshot, {owner_of(second): second})
    assert proxy_ports(snapshot, NET1) == [second]


def test_proxy_ports_are_needed_only_for_proxied_octavia_load_balancers():
    snapshot = world()
    assert find_proxy_network(snapshot, NET1) == snapshot.networks["net1"]
    web, ssh = snapshot.load_balancers["web"], snapshot.load_balancers["ssh"]
    assert [proxied_network(snapshot, each) for each in (web, ssh, replace(web, kept=None))] == ["net1", None, None]
    assert run_to_completion(required_proxy_changes(snapshot, "net1")) == {NET1: ProxyPortChanges()}
    wanted = {NET1: ProxyPortChanges(create_on=("one",))}
    later = with_facts(snapshot, PROXY_PORT_CHANGES, wanted)
    assert run_to_completion(required_proxy_changes(later, "net1")) == wanted
    assert list(PROXY_PORT_CHANGES.affected_owners(snapshot, later, wanted)) == [WEB]
    gone = apply_changes(later, Changes(deletes=(WEB,)), 2)
    assert run_to_completion(required_proxy_changes(gone, "net1")) == {}


def test_listener_with_refused_proxy_ports_is_in_error_until_a_port_exists():
    snapshot = world()
    news = {"net1": "Neutron: no more ports"}
    refused = with_facts(snapshot, REJECTED_PROXY_PORTS, news)
    assert list(REJECTED_PROXY_PORTS.affected_owners(snapshot, refused, news)) == [WEB]
    assert REJECTED_PROXY_PORTS.describe is not None
    assert "no more ports" in REJECTED_PROXY_PORTS.describe(refused, WEB)
    port = port_of(world(MODEL_TEXT + ONE), "one")
    made = with_unmanaged(refused, {owner_of(port): port})
    web = snapshot.load_balancers["web"]
    standing = [derive_proxy_status(each, web, web.listeners[0]) for each in (snapshot, refused, made)]
    assert standing == [OperatingStatus.ONLINE, OperatingStatus.ERROR, OperatingStatus.OFFLINE]
