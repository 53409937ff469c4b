"""Datapaths for which a node has flows."""

import pytest

from fairlead.model.queries.local_datapaths import local_places
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model

MODEL = """
network net1 10.0.0.0/24
network net2 10.1.0.0/24
network net3 10.2.0.0/24
network net4 10.3.0.0/24
network public external 203.0.113.0/24
router r1 net1=10.0.0.1 net2=10.1.0.1 gateway:public=203.0.113.10
router r2 net2=10.1.0.2 net3=10.2.0.1
port vm1 net1 10.0.0.11
port vm3 net3 10.2.0.11
port vm4 net4 10.3.0.11
port out public 203.0.113.99
"""
CONNECTED = {"net1", "net2", "net3", "r1", "r2"}


@pytest.mark.parametrize(
    ("ports", "local"),
    [
        ((), set()),
        (("somebody-elses",), set()),
        (("vm1",), {"vm1", *CONNECTED}),
        (("vm3", "vm4"), {"vm3", "vm4", "net4", *CONNECTED}),
        (("out",), {"out", "public"}),
        (("r1-public",), {"r1-public", "public", *CONNECTED}),  # the chassis that has a gateway
    ],
)
def test_node_has_the_datapaths_that_its_ports_reach(ports: tuple[str, ...], local: set[str]):
    documents, _ = parse_model(MODEL.strip(), {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    assert local_places(snapshot, ports) == local
