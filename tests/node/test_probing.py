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
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.probe_devices import ProbeDevice
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.node import probing
from fairlead.node.prober import Prober
from fairlead.node.probing import DesiredProbes, ProbeReconciler
from fairlead.runtime.steps import run_to_completion
from harness.case import parse_model
from harness.in_memory_slice import InMemorySlice
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


def test_node_probes_members_on_local_ports_through_their_networks():
    wanted, snapshot = DesiredProbes(), snapshot_of(MODEL, "vm1")
    change = run_to_completion(wanted.recompute(snapshot, "node1", BOTH))
    assert (ports_of([each.endpoint for each in change.targets]), change.gone) == ({"vm1"}, frozenset())
    assert [each.network_id for each in wanted.devices(snapshot)] == ["net1"]
    assert wanted.owners == {WEB}
    same = run_to_completion(wanted.recompute(snapshot, "node1", BOTH))
    assert (same.targets, same.gone) == ((), frozenset())
    moved = snapshot_of(MODEL, "vm2", "vm3")
    change = run_to_completion(wanted.recompute(moved, "node1", BOTH))
    assert (ports_of([each.endpoint for each in change.targets]), ports_of(change.gone)) == ({"vm2", "vm3"}, {"vm1"})
    assert [each.network_id for each in wanted.devices(moved)] == ["net1", "net2"]
    empty = run_to_completion(wanted.recompute(snapshot_of(MODEL), "node1", BOTH))
    assert (ports_of(empty.gone), wanted.owners) == ({"vm2", "vm3"}, frozenset())


def test_target_computation_yields_after_each_owner():
    """A plain host has all load balancers in its slice, with up to a thousand members each."""
    looking = DesiredProbes().recompute(snapshot_of(MODEL, "vm1"), "node1", BOTH)
    assert len([*looking]) == len(BOTH)


def test_delegated_member_is_probed_through_a_cover_port_until_bound_locally():
    snapshot = replace(snapshot_of(MODEL + "covers net1 10.0.0.3", "vm1"), covered=Map(vm2="node1"))
    wanted = DesiredProbes()
    change = run_to_completion(wanted.recompute(snapshot, "node1", BOTH))
    assert {each.endpoint.port_id: each.is_delegated for each in change.targets} == {"vm1": False, "vm2": True}
    assert [each.port_name for each in wanted.devices(snapshot)] == ["probe-net1", "cover-net1"]
    moved = snapshot_of(MODEL + "covers net1 10.0.0.3", "vm1", "vm2")
    change = run_to_completion(wanted.recompute(moved, "node1", BOTH))
    assert ({each.endpoint.port_id: each.is_delegated for each in change.targets}, change.gone) == (
        {"vm2": False},
        set(),
    )
    assert [each.port_name for each in wanted.devices(moved)] == ["probe-net1"]
    back = run_to_completion(wanted.recompute(snapshot_of(MODEL, "vm1"), "node1", BOTH))
    assert ports_of(back.gone) == {"vm2"}


def test_changed_monitor_updates_targets_and_a_disabled_one_removes_targets():
    wanted = DesiredProbes()
    run_to_completion(wanted.recompute(snapshot_of(MODEL, "vm1"), "node1", BOTH))
    change = run_to_completion(
        wanted.recompute(snapshot_of(MODEL.replace("monitor=TCP", "monitor=TCP+delay=9"), "vm1"), "node1", [WEB])
    )
    assert ([each.schedule.delay for each in change.targets], change.gone) == ([9.0], frozenset())
    change = run_to_completion(
        wanted.recompute(snapshot_of(MODEL.replace("monitor=TCP", "monitor=TCP+off"), "vm1"), "node1", [WEB])
    )
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
    told: dict[Endpoint, ProbeResult | None] = field(default_factory=dict)
    kept: frozenset[Endpoint] | None = None

    def observe(self, news: Mapping[Endpoint, ProbeResult | None]) -> None:
        self.told.update(news)

    def retain_only(self, endpoints: Collection[Endpoint]) -> None:
        self.kept = frozenset(endpoints)

    def mark_stale(self) -> None:
        self.told.clear()


async def test_failed_port_setup_is_retried_and_removed_targets_are_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "RETRY_INTERVAL", 0.05)

    given, ports, reports = InMemorySlice(snapshot_of(MODEL, "vm1")), Ports(), Reports()
    work = ProbeReconciler(given, reports, ports, Path("/proc/self/ns/net"))
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


async def test_stored_results_are_not_pruned_before_a_server_sends_the_slice():
    """The probe results of an earlier agent may be stored before the slice with their members."""

    given, ports, reports = InMemorySlice(snapshot_of(MODEL)), Ports(away=0), Reports()
    work = ProbeReconciler(given, reports, ports, Path("/proc/self/ns/net"))
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(lambda: ports.applied == [[]])
    assert reports.kept is None
    given.snapshot = snapshot_of(MODEL, "vm3")
    given.synced.set()
    given.call((API,))
    await eventually(lambda: reports.kept is not None)
    assert ports_of(reports.kept or ()) == {"vm3"}
    running.cancel()


RESETTING = MODEL.replace("{monitor=TCP}", "{monitor=TCP,reset}")


def test_devices_that_send_tcp_resets_exist_without_local_members():
    wanted, snapshot = DesiredProbes(), snapshot_of(RESETTING)
    assert run_to_completion(wanted.recompute(snapshot, "node1", BOTH)).targets == ()
    assert [each.network_id for each in wanted.devices(snapshot)] == ["net1"]
    assert (wanted.resetting, wanted.owners) == ({"net1"}, {WEB})
    run_to_completion(wanted.recompute(snapshot_of(MODEL), "node1", BOTH))
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


async def test_node_that_cannot_send_resets_still_probes_members(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(probing, "RETRY_INTERVAL", 0.05)

    given, resetting = InMemorySlice(snapshot_of(RESETTING, "vm1", "vm3")), Resetting()
    work = ProbeReconciler(given, Reports(), Ports(away=0), Path("/proc/self/ns/net"), resetting)
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(lambda: work._thread is not None)
    thread = work._thread
    assert thread is not None
    await eventually(lambda: len(thread._prober.tracker) == 2)
    await eventually(lambda: resetting.by == [["net1"], ["net1"]])
    running.cancel()


async def test_agent_ends_when_its_prober_fails(monkeypatch: pytest.MonkeyPatch):
    """Servers trust the reports of an agent that runs, so its members would stay up forever."""

    def stumble(self: Prober, now: float) -> None:
        if len(self.tracker):
            raise LookupError("a mistake")

    monkeypatch.setattr(Prober, "_expire", stumble)

    given = InMemorySlice(snapshot_of(MODEL, "vm1"))
    work = ProbeReconciler(given, Reports(), Ports(away=0), Path("/proc/self/ns/net"))
    given.ready.set()
    running = asyncio.ensure_future(work.run())
    await eventually(running.done)
    with pytest.raises(LookupError, match="a mistake"):
        await running
