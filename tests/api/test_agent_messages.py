"""Agent messages: servers read what agents write, and the texts stay those of the first release."""

import json

import pytest

from fairlead.agent_protocol.messages import (
    COUNTER_REPORT,
    LISTENER_LOOKUP,
    read_services,
    render_counter_report,
    render_listener_lookup,
)
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.traffic_counters import TrafficCounters
from fairlead.model.queries.statistics import ConntrackZone, CountedService, CountingPlace, Datapath, parse_place

PLACES: list[tuple[CountingPlace, str]] = [
    (Datapath(1), "datapath:1"),
    (Datapath(2**32 - 1), "datapath:4294967295"),
    (ConntrackZone("44243bdb-e627-4f8f-a30e-da0b3fd45059_dnat"), "zone:44243bdb-e627-4f8f-a30e-da0b3fd45059_dnat"),
    (ConntrackZone("a:b c"), "zone:a:b c"),
]


@pytest.mark.parametrize(("place", "text"), PLACES, ids=[text for _, text in PLACES])
@pytest.mark.parametrize("address", ["10.0.0.10", "fd00::10"])
@pytest.mark.parametrize("transport", list(Transport))
def test_listener_lookup_request_round_trips(place: CountingPlace, text: str, address: str, transport: Transport):
    service = CountedService(place=place, transport=transport, address=parse_address(address), port=80)
    method, path, body = render_listener_lookup("node1", [service])
    written = {"place": text, "transport": transport.value, "address": address, "port": 80}
    assert (method, path, body) == ("POST", "/agent/sightings", {"chassis": "node1", "sightings": [written]})
    read = LISTENER_LOOKUP(json.loads(json.dumps(body)))
    assert (read["chassis"], read_services(read)) == ("node1", [service])


def test_traffic_report_round_trips():
    figures = TrafficCounters(connections=1, errors=2, bytes_in=3, bytes_out=5, active=4)
    method, path, body = render_counter_report("node one/2", 10, {"web": figures})
    assert (method, path) == ("PUT", "/agent/chassis/node%20one%2F2")
    read = COUNTER_REPORT(json.loads(json.dumps(body)))
    assert read["interval"] == 10
    assert read["listeners"] == {"web": {"connections": 1, "errors": 2, "bytes_in": 3, "bytes_out": 5, "active": 4}}


@pytest.mark.parametrize("text", ["", "here", "port:x", "datapath:", "datapath:x"])
def test_invalid_counting_place_is_rejected(text: str):
    with pytest.raises(ValueError, match=r"."):
        parse_place(text)
