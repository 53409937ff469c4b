"""Proxies on Neutron's networks: their ports, the nodes that need them, and refused ports."""

from dataclasses import replace

import pytest

from fairlead.model.documents.observed_proxy import WantedProxies
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.proxy_place import ProxyPlace, place_of_port, proxy_chassis
from fairlead.model.documents.status import OperatingStatus
from fairlead.model.documents.unmanaged import Writer
from fairlead.model.queries.proxies import proxies_standing, proxy_ports
from fairlead.model.queries.proxy_homes import home_of
from fairlead.model.queries.unmanaged_proxy_ports import proxied_network, wanted_there
from fairlead.model.registry.changeset import Changes, apply_changes, with_foreign
from fairlead.model.registry.facts import REFUSED_PROXIES, WANTED_PROXIES, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.runtime.steps import at_once
from harness.foreign_proxies import ONE, TEXT, TWO, port_of, world

NET1 = ProxyPlace("net1", "demo")
WEB = Owner(Kind.LOAD_BALANCER, "web")


def test_a_port_of_neutrons_says_on_which_chassis_it_is():
    snapshot = world(TEXT + ONE + TWO)
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
def test_what_others_call_a_port_is_no_proxy(changes: dict[str, str]):
    port = replace(port_of(world(TEXT + ONE), "one"), **changes)  # type: ignore[arg-type]
    assert place_of_port(port) is None


def test_of_two_on_a_chassis_the_first_counts():
    snapshot = world(TEXT + ONE)
    port = port_of(snapshot, "one")
    second = replace(port, id="0", fixed_ips=(), row="0@0")
    snapshot = with_foreign(snapshot, {owner_of(second): second})
    assert proxy_ports(snapshot, NET1) == [second]


def test_who_needs_them_and_where_they_can_be():
    snapshot = world()
    assert home_of(snapshot, NET1) == snapshot.networks["net1"]
    web, ssh = snapshot.load_balancers["web"], snapshot.load_balancers["ssh"]
    assert [proxied_network(snapshot, each) for each in (web, ssh, replace(web, kept=None))] == ["net1", None, None]
    assert at_once(wanted_there(snapshot, "net1")) == {NET1: WantedProxies()}
    wanted = {NET1: WantedProxies(come=("one",))}
    later = with_facts(snapshot, WANTED_PROXIES, wanted)
    assert at_once(wanted_there(later, "net1")) == wanted
    assert list(WANTED_PROXIES.concerns(snapshot, later, wanted)) == [WEB]
    gone = apply_changes(later, Changes(deletes=(WEB,)), 2)
    assert at_once(wanted_there(gone, "net1")) == {}


def test_a_listener_whose_ports_are_refused_is_in_error_until_there_is_one():
    snapshot = world()
    news = {"net1": "Neutron: no more ports"}
    refused = with_facts(snapshot, REFUSED_PROXIES, news)
    assert list(REFUSED_PROXIES.concerns(snapshot, refused, news)) == [WEB]
    assert REFUSED_PROXIES.describe is not None
    assert "no more ports" in REFUSED_PROXIES.describe(refused, WEB)
    port = port_of(world(TEXT + ONE), "one")
    made = with_foreign(refused, {owner_of(port): port})
    web = snapshot.load_balancers["web"]
    standing = [proxies_standing(each, web, web.listeners[0]) for each in (snapshot, refused, made)]
    assert standing == [OperatingStatus.ONLINE, OperatingStatus.ERROR, OperatingStatus.OFFLINE]
