"""Assignment of a node's counters for an address and port to a listener."""

import pytest

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.statistics import CountedService, Datapath, find_listeners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model

MODEL = """
network public external wire=physnet 203.0.113.0/24
network net1 10.0.0.0/24 fd00::/64
network net2 10.1.0.0/24
network other 10.0.0.0/24
router r1 net1=10.0.0.1,fd00::1 net2=10.1.0.1 gateway:public=203.0.113.10
router alone
port vm1 net1 10.0.0.11
port vm2 net2 10.1.0.11
web vip=10.0.0.10,fd00::10 on=net1 tcp:80=a/10.0.0.11:80 udp:80=a/10.0.0.11:53 tcp:81=-
twin vip=10.0.0.10 on=other tcp:80=-
floating f1 public=203.0.113.50 r1=web-vip:10.0.0.10
floating f2 public=203.0.113.51 r1=vm1:10.0.0.11
"""


@pytest.fixture(scope="module")
def snapshot() -> Snapshot:
    documents, _ = parse_model(MODEL.strip(), {})
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)


@pytest.mark.parametrize(
    ("place", "address", "service", "wanted"),
    [
        ("net1", "10.0.0.10", "tcp 80", ("web", "TCP", 80)),
        ("net1", "10.0.0.10", "udp 80", ("web", "UDP", 80)),
        ("net1", "10.0.0.10", "tcp 81", ("web", "TCP", 81)),
        ("net1", "fd00::10", "tcp 80", ("web", "TCP", 80)),
        ("net2", "10.0.0.10", "tcp 80", ("web", "TCP", 80)),
        ("r1", "10.0.0.10", "tcp 80", ("web", "TCP", 80)),
        ("vm2", "10.0.0.10", "tcp 80", ("web", "TCP", 80)),
        ("r1", "203.0.113.50", "tcp 80", ("web", "TCP", 80)),
        ("vm1", "203.0.113.50", "udp 80", ("web", "UDP", 80)),
        ("other", "10.0.0.10", "tcp 80", ("twin", "TCP", 80)),
        ("other", "203.0.113.50", "tcp 80", None),
        ("net1", "203.0.113.51", "tcp 80", None),
        ("net1", "10.0.0.10", "sctp 80", None),
        ("net1", "10.0.0.10", "tcp 82", None),
        ("net1", "10.0.0.11", "tcp 80", None),
        ("alone", "10.0.0.10", "tcp 80", None),
        ("gone", "10.0.0.10", "tcp 80", None),
    ],
)
def test_counters_are_assigned_to_a_listener_by_datapath_and_address(
    snapshot: Snapshot, place, address, service, wanted
):
    transport, port = service.split()
    counted = CountedService(
        place=Datapath(1), transport=Transport(transport), address=parse_address(address), port=int(port)
    )
    [found, nobody] = find_listeners(snapshot, [(place, counted), (None, counted)])
    assert nobody is None
    if wanted is None:
        assert found is None
        return
    name, protocol, number = wanted
    listeners = snapshot.load_balancers[name].listeners
    assert [found] == [each.id for each in listeners if (each.protocol, each.port) == (protocol, number)]


def test_counters_are_summed_field_by_field():
    one = TrafficCounters(connections=1, errors=2, bytes_in=3, bytes_out=5, active=4)
    assert one + one == TrafficCounters(connections=2, errors=4, bytes_in=6, bytes_out=10, active=8)
