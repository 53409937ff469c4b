"""The target of a flow according to the model equals its slot's target in the rows of each host."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE, flow_lookup
from fairlead.dataplane.flow_slot import flow_slot, source_slot
from fairlead.dataplane.interface import Flow, FlowTarget
from fairlead.dataplane.native import LocalMember, Service
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.facts import AGENTS, with_facts
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import read_case

HERE = Path(__file__).parent


def snapshot(story: str, state: str) -> Snapshot:
    return next(each for each in read_case(HERE / f"{story}.txt", (NATIVE,)).states if each.name == state).snapshot()


def explain(known: Snapshot, asked: Flow) -> FlowTarget | None:
    return run_to_completion(flow_lookup.explain(known, asked))


def flow(client: str, port: int, vip: str, at: int, transport: Transport = Transport.TCP) -> Flow:
    return Flow(client=(parse_address(client), port), destination=(parse_address(vip), at), transport=transport)


@pytest.mark.parametrize(("story", "state"), [("slots", "two"), ("slots", "three"), ("monitored", "down")])
def test_lookup_names_the_host_that_has_the_slot_of_the_flow(story: str, state: str):
    known = snapshot(story, state)
    balancer = Owner(Kind.LOAD_BALANCER, "web")
    rows = {name: NATIVE.compile(slice_of(known, name), balancer) for name in known.hosts}
    ports = {(row.vip, row.port, row.transport) for row in rows["h1"].values() if isinstance(row, Service)}
    for vip, at, transport in ports:
        for port in range(40_000, 40_040):
            client = "10.0.0.9" if vip.version == 4 else "fd00:9::9"
            asked = flow(client, port, str(vip), at, transport)
            led = explain(known, asked)
            assert led is not None
            if not led.is_admitted:
                continue
            have = [
                name
                for name, own in rows.items()
                if has(own[("Service", str(vip), transport.value, str(at))], led.slot)
            ]
            assert have == ([led.chassis] if led.chassis else [])
            by_source = rows["h1"][("Service", str(vip), transport.value, str(at))].by_source  # type: ignore[attr-defined]
            by_ports = flow_slot(asked.client, asked.destination, transport)
            assert led.slot == (source_slot(asked.client[0], vip) if by_source else by_ports)


def has(row: object, slot: int) -> bool:
    assert isinstance(row, Service)
    return bool(row.slots) and isinstance(row.targets[row.slots[slot]], LocalMember)


def test_lookup_without_a_listener_returns_none():
    known = snapshot("slots", "two")
    assert explain(known, flow("10.0.0.9", 1, "203.0.113.5", 444)) is None
    assert explain(known, flow("10.0.0.9", 1, "203.0.113.99", 443)) is None
    assert explain(known, flow("10.0.0.9", 1, "203.0.113.5", 443, Transport.UDP)) is None


def test_lookup_reports_rejected_clients_and_missing_members():
    known = snapshot("slots", "two")
    stranger = explain(known, flow("198.51.100.1", 1, "203.0.113.5", 443))
    assert stranger is not None
    assert not stranger.is_admitted
    nobody = explain(known, flow("fd00::1", 1, "2001:db8:5::5", 443))
    assert nobody is not None
    assert nobody.member is None


def test_draining_host_is_the_previous_owner_of_its_slots():
    known = snapshot("drained", "drained")
    before = {
        led.previous_owner
        for port in range(2000)
        if (led := explain(known, flow("10.0.0.9", port + 1, "203.0.113.5", 53, Transport.UDP)))
    }
    assert before == {"", "h2"}


@pytest.mark.parametrize("how", [{"is_responsive": False}, {"is_disconnected": True}])
def test_lookup_lists_stale_hosts_that_may_forward_the_flow(how: dict[str, bool]):
    """Reported are outdated hosts that may forward the flow: its member's, one where it may arrive, and its source."""
    web = "drained", "drained"
    asked = flow("10.0.0.9", 1, "203.0.113.5", 53, Transport.UDP)
    assert unheard(web, asked) == ()
    assert unheard(web, asked, h2=how) == ("h2",)
    assert unheard(web, asked, h1=how, h2=how) == ("h1", "h2")
    assert unheard(("slots", "one"), flow("10.0.0.9", 1, "203.0.113.5", 443), h2=how) == (), "it has nobody of this VIP"
    assert unheard(("slots", "one"), flow("10.2.0.9", 1, "203.0.113.5", 443), h2=how) == ("h2",), "it begins behind it"


def test_host_without_any_report_is_listed_as_stale():
    led = explain(snapshot("slots", "one"), flow("10.0.0.9", 1, "203.0.113.5", 443))
    assert led is not None
    assert led.unresponsive == ("h1",)


def unheard(state: tuple[str, str], asked: Flow, **silent: dict[str, bool]) -> tuple[str, ...]:
    known, now = snapshot(*state), datetime(2026, 1, 1, tzinfo=UTC)
    agents = {name: Agent(name=name, since=now, heartbeat=5.0, **silent.get(name, {})) for name in known.hosts}
    led = explain(with_facts(known, AGENTS, agents), asked)
    assert led is not None
    return led.unresponsive
