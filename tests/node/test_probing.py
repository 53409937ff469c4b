"""Targets that an agent derives from its slice, by owner, and their changes."""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from immutables import Map

from fairlead.drivers.ovn.vswitch.database import SwitchError
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.probe_result import Sighting
from fairlead.model.queries.probe_devices import ProbeDevice
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.node import probing
from fairlead.node.prober import Prober
from fairlead.node.probing import Probing, Wanted
from fairlead.runtime.steps import at_once
from harness.given_slice import Given
from harness.story import parse_model
from harness.waiting import eventually

MODEL = """
network net1 10.0.0.0/24
network net2 10.1.0.0/24
port vm1 net1 10.0.0.11
port vm2 net1 10.0.0.12
port vm3 net2 10.1.0.11
probes net1 10.0.0.2
probes net2 10.1.0.2
web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80,b/10.0.0.12:80
api vip=10.1.0.10 on=net2 tcp:80{monitor=PING}=c/10.1.0.11:80
"""
WEB, API = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.LOAD_BALANCER, "api")
BOTH = frozenset({WEB, API})


def snapshot_of(model: str, *ports: str) -> Snapshot:
    documents, _ = parse_model(model.strip(), {})
    here = Chassis(name="node1", ports=Map(dict.fromkeys(ports, True)))
    empty = Snapshot(agents_probe=True, chassis=Map(node1=here))
    return apply_changes(empty, Changes(puts=tuple(documents.values())), 1)


def ports_of(endpoints: Collection[Endpoint]) -> set[str]:
    return {each.port_id for each in endpoints}


def test_a_node_probes_what_it_has_by_the_networks_where_that_is():
    wanted, snapshot = Wanted(), snapshot_of(MODEL, "vm1")
    change = at_once(wanted.look(snapshot, "node1", BOTH))
    assert (ports_of([each.endpoint for each in change.targets]), change.gone) == ({"vm1"}, frozenset())
    assert [each.network_id for each in wanted.devices(snapshot)] == ["net1"]
    assert wanted.owners == {WEB}
    same = at_once(wanted.look(snapshot, "node1", BOTH))
    assert (same.targets, same.gone) == ((), frozenset())
    moved = snapshot_of(MODEL, "vm2", "vm3")
    change = at_once(wanted.look(moved, "node1", BOTH))
    assert (ports_of([each.endpoint for each in change.targets]), ports_of(change.gone)) == ({"vm2", "vm3"}, {"vm1"})
    assert [each.network_id for each in wanted.devices(moved)] == ["net1", "net2"]
    empty = at_once(wanted.look(snapshot_of(MODEL), "node1", BOTH))
    assert (ports_of(empty.gone), wanted.owners) == ({"vm2", "vm3"}, frozenset())


def test_a_look_rests_after_each_owner():
    """A plain host has all load balancers in its slice, with up to a thousand members each."""
    looking = Wanted().look(snapshot_of(MODEL, "vm1"), "node1", BOTH)
    assert len([*looking]) == len(BOTH)


def test_what_a_node_covers_it_probes_by_an_ordinary_port_until_the_node_has_it_itself():
    snapshot = replace(snapshot_of(MODEL + "covers net1 10.0.0.3", "vm1"), covered=Map(vm2="node1"))
    wanted = Wanted()
    change = at_once(wanted.look(snapshot, "node1", BOTH))
    assert {each.endpoint.port_id: each.covers for each in change.targets} == {"vm1": False, "vm2": True}
    assert [each.port_name for each in wanted.devices(snapshot)] == ["probe-net1", "cover-net1"]
    moved = snapshot_of(MODEL + "covers net1 10.0.0.3", "vm1", "vm2")
    change = at_once(wanted.look(moved, "node1", BOTH))
    assert ({each.endpoint.port_id: each.covers for each in change.targets}, change.gone) == ({"vm2": False}, set())
    assert [each.port_name for each in wanted.devices(moved)] == ["probe-net1"]
    back = at_once(wanted.look(snapshot_of(MODEL, "vm1"), "node1", BOTH))
    assert ports_of(back.gone) == {"vm2"}


def test_a_monitor_that_changes_changes_targets_and_takes_nobody_away():
    wanted = Wanted()
    at_once(wanted.look(snapshot_of(MODEL, "vm1"), "node1", BOTH))
    change = at_once(
        wanted.look(snapshot_of(MODEL.replace("monitor=TCP", "monitor=TCP+delay=9"), "vm1"), "node1", [WEB])
    )
    assert ([each.rhythm.delay for each in change.targets], change.gone) == ([9.0], frozenset())
    change = at_once(wanted.look(snapshot_of(MODEL.replace("monitor=TCP", "monitor=TCP+off"), "vm1"), "node1", [WEB]))
    assert (change.targets, ports_of(change.gone)) == ((), {"vm1"})


@dataclass
class Ports:
    """Switch that fails at first."""

    away: int = 1
    applied: list[list[str]] = field(default_factory=list)

    async def apply(self, wanted: Collection[ProbeDevice]) -> frozenset[str]:
        if self.away:
            self.away -= 1
            raise SwitchError("away")
        self.applied.append([each.network_id for each in wanted])
        return frozenset()

    async def installed(self) -> frozenset[str]:
        return frozenset()


@dataclass
class Reports:
    told: dict[Endpoint, Sighting | None] = field(default_factory=dict)
    kept: frozenset[Endpoint] | None = None

    def observe(self, news: Mapping[Endpoint, Sighting | None]) -> None:
        self.told.update(news)

    def probes_only(self, endpoints: Collection[Endpoint]) -> None:
        self.kept = frozenset(endpoints)

    def doubt(self) -> None:
        self.told.clear()


async def test_what_could_not_be_done_is_done_later_and_what_goes_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "AGAIN", 0.05)

    given, ports, reports = Given(snapshot_of(MODEL, "vm1")), Ports(), Reports()
    work = Probing(given, reports, ports, Path("/proc/self/ns/net"))
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(lambda: ports.applied == [["net1"]])
    thread = work._thread
    await eventually(lambda: work._thread is not None)
    thread = work._thread
    assert thread is not None
    await eventually(lambda: len(thread._prober.tracker) == 1)
    given.snapshot = snapshot_of(MODEL, "vm1", "vm3")
    given.call((API,))
    await eventually(lambda: len(thread._prober.tracker) == 2)
    given.snapshot = replace(given.snapshot, chassis=Map(node1=Chassis(name="node1")))
    given.call((Owner(Kind.PORT, "vm1"),))
    await eventually(lambda: len(thread._prober.tracker) == 0)
    assert ports.applied == [["net1"], ["net1", "net2"], []]
    assert {each.port_id for each, seen in reports.told.items() if seen is None} == {"vm1", "vm3"}
    running.cancel()


async def test_what_a_file_does_not_know_yet_is_not_forgotten_before_a_server_has_said_so():
    """The probe results of an earlier agent may be stored before the slice with their members."""

    given, ports, reports = Given(snapshot_of(MODEL)), Ports(away=0), Reports()
    work = Probing(given, reports, ports, Path("/proc/self/ns/net"))
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(lambda: ports.applied == [[]])
    assert reports.kept is None
    given.snapshot = snapshot_of(MODEL, "vm3")
    given.heard.set()
    given.call((API,))
    await eventually(lambda: reports.kept is not None)
    assert ports_of(reports.kept or ()) == {"vm3"}
    running.cancel()


RESETTING = MODEL.replace("{monitor=TCP}", "{monitor=TCP,reset}")


def test_a_node_resets_by_the_networks_of_members_that_it_may_lead_clients_to_whoever_it_has():
    wanted, snapshot = Wanted(), snapshot_of(RESETTING)
    assert at_once(wanted.look(snapshot, "node1", BOTH)).targets == ()
    assert [each.network_id for each in wanted.devices(snapshot)] == ["net1"]
    assert (wanted.resetting, wanted.owners) == ({"net1"}, {WEB})
    at_once(wanted.look(snapshot_of(MODEL), "node1", BOTH))
    assert (wanted.resetting, wanted.owners) == (frozenset(), frozenset())


@dataclass
class Resetting:
    """Resets that fail at first."""

    away: int = 1
    by: list[list[str]] = field(default_factory=list)

    async def apply(self, devices: Collection[ProbeDevice], made: Collection[str]) -> None:
        self.by.append([each.network_id for each in devices])
        if self.away:
            self.away -= 1
            raise OSError("not permitted")


async def test_members_are_probed_by_a_node_that_cannot_reset(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "AGAIN", 0.05)

    given, resetting = Given(snapshot_of(RESETTING, "vm1", "vm3")), Resetting()
    work = Probing(given, Reports(), Ports(away=0), Path("/proc/self/ns/net"), resetting)
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(lambda: work._thread is not None)
    thread = work._thread
    assert thread is not None
    await eventually(lambda: len(thread._prober.tracker) == 2)
    await eventually(lambda: resetting.by == [["net1"], ["net1"]])
    running.cancel()


async def test_an_agent_whose_prober_has_ended_ends_too(monkeypatch: pytest.MonkeyPatch):
    """Servers trust the reports of an agent that runs, so its members would stay up forever."""

    def stumble(self: Prober, now: float) -> None:
        if len(self.tracker):
            raise LookupError("a mistake")

    monkeypatch.setattr(Prober, "_expire", stumble)

    given = Given(snapshot_of(MODEL, "vm1"))
    work = Probing(given, Reports(), Ports(away=0), Path("/proc/self/ns/net"))
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(running.done)
    with pytest.raises(LookupError, match="a mistake"):
        await running
