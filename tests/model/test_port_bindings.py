from dataclasses import replace
from datetime import UTC, datetime

import pytest

from fairlead.model.documents.network import Port, PortUse
from fairlead.model.queries.port_bindings import has_pluggable_ports, is_plugged
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import PLUGGED, PluggedUpdate, with_facts
from fairlead.model.snapshot import Snapshot

PORT = Port(
    id="p", project_id="", created_at=datetime(2026, 1, 1, tzinfo=UTC), network_id="n", mac_address="02:00:00:00:00:01"
)


def plug(snapshot: Snapshot, news: PluggedUpdate) -> Snapshot:
    return with_facts(snapshot, PLUGGED, news)


def test_unchanged_port_bindings_return_the_same_snapshot():
    there = plug(Snapshot(), {"p": "one", "q": None})
    assert dict(there.plugged) == {"p": "one"}
    assert plug(there, {"p": "one", "q": None}) is there
    assert (dict(plug(there, {"p": None}).plugged), dict(there.plugged)) == ({}, {"p": "one"})


@pytest.mark.parametrize(
    ("device_owner", "waits", "before"),
    [
        ("compute:nova", True, False),
        ("", True, False),
        (PortUse.ROUTER_GATEWAY, True, False),
        (PortUse.ROUTER_INTERFACE, False, True),
        (PortUse.VIP, False, False),
        (PortUse.PROBE, False, False),
        (PortUse.FLOATING_IP, False, False),
    ],
)
def test_device_owner_decides_if_the_port_status_waits_for_a_node(device_owner: str, waits: bool, before: bool):
    port = replace(PORT, device_owner=device_owner)
    snapshot = apply_changes(Snapshot(), Changes(puts=(port,)), 1)
    assert (has_pluggable_ports(snapshot), is_plugged(snapshot, port)) == (waits, before)
    assert is_plugged(plug(snapshot, {"p": "one"}), port)
