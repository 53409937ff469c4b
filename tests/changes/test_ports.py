"""Ports: attributes that a guest on a shared network may set, and ports in use by a service."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.addresses import AskedAddress
from fairlead.changes.identity import Identity
from fairlead.changes.ports import (
    MacTaken,
    NewPort,
    PortChange,
    PortInUse,
    PortServesNetwork,
    PortServesUnasked,
    UseIsGiven,
    create_port,
    delete_port,
    update_port,
)
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.changes.world import ADMIN, CIDR, GUEST, NETWORK, OWNER, PORT, STRANGER, having, refusal


def world(network: Network = NETWORK, port: Port = PORT) -> Snapshot:
    return having(network, port)


def new(asker: Identity, **fields: object) -> NewPort:
    return NewPort(**{"id": "new", "project_id": asker.project_id, "created_at": NOON, "network_id": "net"} | fields)


def forbidden(verb: Verb, *fields: str) -> NotAllowed:
    return NotAllowed(verb=verb, what=Port, fields=frozenset(fields))


def test_the_id_is_given_and_the_rest_is_found():
    port = create_port(world(), GUEST, new(GUEST, name="web")).puts[0]
    assert isinstance(port, Port)
    assert (port.id, port.name, port.network_id, port.port_security_enabled) == ("new", "web", "net", True)
    assert port.fixed_ips[0].address in CIDR


ADDRESS = (AskedAddress(address=ip_address("10.0.0.9")),)
SAID = {
    "fixed_ips": {"fixed_ips": ADDRESS},
    "mac_address": {"mac_address": "fa:16:3e:00:00:09"},
    "port_security_enabled": {"port_security_enabled": False},
    "device_owner": {"device_owner": "network:dhcp"},
}


@pytest.mark.parametrize("field", SAID)
def test_what_a_guest_may_not_say_the_owner_of_the_network_may(field: str):
    assert refusal(create_port, world(), GUEST, new(GUEST, **SAID[field])) == forbidden(Verb.CREATE, field)
    assert create_port(world(), OWNER, new(OWNER, **SAID[field])).puts


def test_where_a_port_is_plugged_the_administrator_says():
    assert refusal(create_port, world(), OWNER, new(OWNER, host="node1")) == forbidden(Verb.CREATE, "host")
    moved = PortChange(port=replace(PORT, host="node1"))
    assert refusal(update_port, world(), OWNER, PORT, moved, NOON) == forbidden(Verb.UPDATE, "host")
    assert update_port(world(), ADMIN, PORT, moved, NOON).puts[0] == replace(PORT, host="node1", updated_at=NOON)


def test_a_network_that_is_not_shared_is_not_there_for_strangers():
    alone = world(replace(NETWORK, shared=False))
    assert refusal(create_port, alone, STRANGER, new(STRANGER)) == NotFound(what=Network, id="net")
    outside = world(replace(NETWORK, shared=False, external=True))
    assert refusal(create_port, outside, STRANGER, new(STRANGER)) == forbidden(Verb.CREATE)


def test_a_change_is_written_only_if_it_is_one():
    same = PortChange(port=PORT, fixed_ips=(AskedAddress(subnet_id="four"),))
    assert update_port(world(), GUEST, PORT, same, NOON) == Changes()


def test_saying_that_a_reserved_field_stays_takes_the_right_too():
    named = PortChange(port=PORT, said=frozenset({"mac_address"}))
    assert refusal(update_port, world(), GUEST, PORT, named, NOON) == forbidden(Verb.UPDATE, "mac_address")


def test_a_mac_is_one_ports_on_all_networks():
    wanted = new(OWNER, mac_address=PORT.mac_address)
    assert refusal(create_port, world(), OWNER, wanted) == MacTaken(network_id="net", mac=PORT.mac_address)


@pytest.mark.parametrize("use", [use for use in PortUse if use is not PortUse.MACHINE])
def test_a_use_is_given_by_what_the_port_serves(use: PortUse):
    assert refusal(create_port, world(), OWNER, new(OWNER, device_owner=use.value)) == UseIsGiven(use=use)


def test_a_port_that_serves_changes_only_with_what_it_serves():
    serving = replace(PORT, device_id="router", device_owner=PortUse.ROUTER_INTERFACE.value)
    moved = PortChange(port=serving, fixed_ips=())
    in_use = PortInUse(port_id="port", network_id="net", device_id="router")
    assert refusal(update_port, world(port=serving), OWNER, serving, moved, NOON) == in_use
    named = PortChange(port=replace(serving, name="uplink"))
    assert update_port(world(port=serving), OWNER, serving, named, NOON).puts
    serves = PortServesNetwork(port_id="port", use=PortUse.ROUTER_INTERFACE)
    assert refusal(delete_port, world(port=serving), GUEST, serving) == serves
    probing = replace(PORT, device_owner=PortUse.PROBE.value)
    assert refusal(delete_port, world(port=probing), GUEST, probing) == PortServesUnasked(
        port_id="port", use=PortUse.PROBE
    )


def test_who_is_neither_its_owner_nor_the_networks_changes_no_port():
    why = forbidden(Verb.UPDATE)
    assert refusal(update_port, world(), STRANGER, PORT, PortChange(port=replace(PORT, name="x")), NOON) == why
    assert refusal(delete_port, world(), STRANGER, PORT) == forbidden(Verb.DELETE)
    assert delete_port(world(), OWNER, PORT).deletes
