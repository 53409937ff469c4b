"""Ports: attributes that a guest on a shared network may set, and ports in use by a service."""

from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.changes.access import NotAllowed, NotFound, Verb
from fairlead.changes.addresses import AddressRequest
from fairlead.changes.identity import Identity
from fairlead.changes.ports import (
    DeviceOwnerReserved,
    MacInUse,
    NewPort,
    PortChange,
    PortInUse,
    PortIsSystemPort,
    PortServesNetwork,
    create_port,
    delete_port,
    update_port,
)
from fairlead.model.documents.network import Network, Port, PortUse
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.changes.world import ADMIN, CIDR, GUEST, NETWORK, OWNER, PORT, STRANGER, refusal, snapshot_with


def world(network: Network = NETWORK, port: Port = PORT) -> Snapshot:
    return snapshot_with(network, port)


def new(asker: Identity, **fields: object) -> NewPort:
    return NewPort(**{"id": "new", "project_id": asker.project_id, "created_at": NOON, "network_id": "net"} | fields)


def forbidden(verb: Verb, *fields: str) -> NotAllowed:
    return NotAllowed(verb=verb, what=Port, fields=frozenset(fields))


def test_new_port_keeps_the_given_id_and_gets_defaults():
    port = create_port(world(), GUEST, new(GUEST, name="web")).puts[0]
    assert isinstance(port, Port)
    assert (port.id, port.name, port.network_id, port.port_security_enabled) == ("new", "web", "net", True)
    assert port.fixed_ips[0].address in CIDR


ADDRESS = (AddressRequest(address=ip_address("10.0.0.9")),)
SAID = {
    "fixed_ips": {"fixed_ips": ADDRESS},
    "mac_address": {"mac_address": "fa:16:3e:00:00:09"},
    "port_security_enabled": {"port_security_enabled": False},
    "device_owner": {"device_owner": "network:dhcp"},
}


@pytest.mark.parametrize("field", SAID)
def test_network_owner_sets_port_fields_that_are_forbidden_to_guests(field: str):
    assert refusal(create_port, world(), GUEST, new(GUEST, **SAID[field])) == forbidden(Verb.CREATE, field)
    assert create_port(world(), OWNER, new(OWNER, **SAID[field])).puts


def test_only_an_administrator_sets_the_host_of_a_port():
    assert refusal(create_port, world(), OWNER, new(OWNER, host="node1")) == forbidden(Verb.CREATE, "host")
    moved = PortChange(port=replace(PORT, host="node1"))
    assert refusal(update_port, world(), OWNER, PORT, moved, NOON) == forbidden(Verb.UPDATE, "host")
    assert update_port(world(), ADMIN, PORT, moved, NOON).puts[0] == replace(PORT, host="node1", updated_at=NOON)


def test_port_on_an_unshared_network_of_another_project_is_refused():
    alone = world(replace(NETWORK, shared=False))
    assert refusal(create_port, alone, STRANGER, new(STRANGER)) == NotFound(what=Network, id="net")
    outside = world(replace(NETWORK, shared=False, external=True))
    assert refusal(create_port, outside, STRANGER, new(STRANGER)) == forbidden(Verb.CREATE)


def test_update_without_a_change_writes_nothing():
    same = PortChange(port=PORT, fixed_ips=(AddressRequest(subnet_id="four"),))
    assert update_port(world(), GUEST, PORT, same, NOON) == Changes()


def test_naming_a_restricted_field_requires_the_right_even_if_unchanged():
    named = PortChange(port=PORT, request_fields=frozenset({"mac_address"}))
    assert refusal(update_port, world(), GUEST, PORT, named, NOON) == forbidden(Verb.UPDATE, "mac_address")


def test_mac_address_in_use_is_refused():
    wanted = new(OWNER, mac_address=PORT.mac_address)
    assert refusal(create_port, world(), OWNER, wanted) == MacInUse(network_id="net", mac=PORT.mac_address)


@pytest.mark.parametrize("use", [use for use in PortUse if use is not PortUse.MACHINE])
def test_reserved_device_owner_is_refused(use: PortUse):
    assert refusal(create_port, world(), OWNER, new(OWNER, device_owner=use.value)) == DeviceOwnerReserved(use=use)


def test_service_port_cannot_be_moved_or_deleted_directly():
    serving = replace(PORT, device_id="router", device_owner=PortUse.ROUTER_INTERFACE.value)
    moved = PortChange(port=serving, fixed_ips=())
    in_use = PortInUse(port_id="port", network_id="net", device_id="router")
    assert refusal(update_port, world(port=serving), OWNER, serving, moved, NOON) == in_use
    named = PortChange(port=replace(serving, name="uplink"))
    assert update_port(world(port=serving), OWNER, serving, named, NOON).puts
    serves = PortServesNetwork(port_id="port", use=PortUse.ROUTER_INTERFACE)
    assert refusal(delete_port, world(port=serving), GUEST, serving) == serves
    probing = replace(PORT, device_owner=PortUse.PROBE.value)
    assert refusal(delete_port, world(port=probing), GUEST, probing) == PortIsSystemPort(
        port_id="port", use=PortUse.PROBE
    )


def test_port_is_changed_only_by_its_owner_or_the_network_owner():
    why = forbidden(Verb.UPDATE)
    assert refusal(update_port, world(), STRANGER, PORT, PortChange(port=replace(PORT, name="x")), NOON) == why
    assert refusal(delete_port, world(), STRANGER, PORT) == forbidden(Verb.DELETE)
    assert delete_port(world(), OWNER, PORT).deletes
