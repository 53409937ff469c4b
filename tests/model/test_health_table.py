"""The table of probe results, and its text."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from immutables import Map

from fairlead.cli.members import render
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import Health
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.health_table import NO_AGENT, NO_PORT_FOR_ADDRESS, health_table
from fairlead.model.queries.probes import targets
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import parse_model

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODEL = """
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11 name=db
port vm2 net1 10.0.0.12
probes net1 10.0.0.2
web vip=10.0.0.10 on=net1 name=shop tcp:80{monitor=HTTP}=a/10.0.0.11:80,b/10.0.0.12:80,gone/10.0.0.13:80
local-ip lip net1 10.0.0.200 monitor=TCP+port=81 +vm1
"""


def test_health_table_shows_prober_chassis_status_and_error_per_member():
    documents, _ = parse_model(MODEL.strip(), {})
    nodes = {
        name: Chassis(name=name, host=name, ports=Map({port: True})) for name, port in (("n1", "vm1"), ("n2", "vm2"))
    }
    empty = Snapshot(agents_probe=True, chassis=Map(nodes), plugged=Map(vm1="n1", vm2="n2"))
    snapshot = apply_changes(empty, Changes(puts=tuple(documents.values())), 1)
    first = next(targets(snapshot, snapshot.load_balancers["web"])).endpoint
    seen = ProbeResult(
        health=Health.ERROR, chassis="n1", since=NOW - timedelta(minutes=5), error="connection refused", latency=0.002
    )
    agent = Agent(name="n1", since=NOW, heartbeat=5.0)
    snapshot = replace(snapshot, sightings=Map({first: seen}), agents=Map(n1=agent))
    rows = run_to_completion(health_table(snapshot))
    assert [(row.id, row.chassis, row.status, row.error) for row in rows] == [
        ("web-a", "n1", "ERROR", "connection refused"),
        ("web-gone", "", "GONE", NO_PORT_FOR_ADDRESS),
        ("web-b", "n2", "UNPROBED", NO_AGENT),
        ("vm1", "n1", "UNPROBED", ""),
    ]
    told = [{**asdict(row), "since": row.since.isoformat() if row.since else None} for row in rows]
    text = render(told, NOW)
    assert text[1].split("  ")[0] == "web-a"
    assert all(word in text[1] for word in ("10.0.0.11:80", "HTTP", "agents", "5 min", "2.0 ms", "connection refused"))
    assert any(NO_PORT_FOR_ADDRESS in line for line in text)


def site(**more: Any) -> Snapshot:
    """Return two nodes with a member each, and a third node, all with agents."""
    documents, _ = parse_model(MODEL.strip(), {})
    nodes = {
        name: Chassis(name=name, host=name, ports=Map(dict.fromkeys(ports, True)))
        for name, ports in (("n1", ("vm1",)), ("n2", ("vm2",)), ("n3", ()))
    }
    agents = {name: Agent(name=name, since=NOW, heartbeat=5.0) for name in nodes}
    known = {"chassis": Map(nodes), "plugged": Map(vm1="n1", vm2="n2"), "agents": Map(agents), **more}
    empty = replace(Snapshot(agents_probe=True), **known)
    return apply_changes(empty, Changes(puts=tuple(documents.values())), 1)


def seen_by(chassis: str, health: Health, error: str = "") -> ProbeResult:
    return ProbeResult(health=health, chassis=chassis, since=NOW, error=error)


def test_delegated_member_is_shown_with_its_own_chassis_and_its_prober():
    snapshot = site()
    stale = snapshot.agents.set("n1", replace(snapshot.agents["n1"], is_responsive=False))
    snapshot = replace(snapshot, agents=stale, covered=Map(vm1="n3"))
    first, second = (
        each.endpoint for each in targets(snapshot, snapshot.load_balancers["web"]) if each.endpoint.port_id
    )
    seen = Map({first: seen_by("n3", Health.ERROR, "refused"), second: seen_by("n2", Health.ONLINE)})
    rows = {row.id: row for row in run_to_completion(health_table(replace(snapshot, sightings=seen)))}
    assert {name: (rows[name].chassis, rows[name].prober) for name in ("web-a", "web-b")} == {
        "web-a": ("n1", "n3"),
        "web-b": ("n2", "n2"),
    }
    before = {row.id: row for row in run_to_completion(health_table(snapshot))}  # not yet probed
    assert (before["web-a"].chassis, before["web-a"].prober) == ("n1", "n3")
    text = render([{**asdict(row), "since": None} for row in rows.values()], NOW)
    by, where = text[0].index("PROBER"), text[0].index("CHASSIS")
    line = next(each for each in text if each.startswith("web-a"))
    assert (line[by:where].strip(), line[where:].split()[0]) == ("agent on n3", "n1")
    line = next(each for each in text if each.startswith("web-b"))
    assert (line[by:where].strip(), line[where:].split()[0]) == ("agents", "n2")


def test_health_table_lists_down_members_first_and_unknown_members_second():
    snapshot = site()
    first, second = (
        each.endpoint for each in targets(snapshot, snapshot.load_balancers["web"]) if each.endpoint.port_id
    )
    (replica,) = (each.endpoint for each in targets(snapshot, snapshot.local_ips["lip"]))
    seen = {first: seen_by("n1", Health.ONLINE), replica: seen_by("n1", Health.ERROR)}
    rows = run_to_completion(health_table(replace(snapshot, sightings=Map(seen))))
    assert [(row.id, row.status) for row in rows] == [
        ("web-gone", "GONE"),
        ("vm1", "ERROR"),
        ("web-b", "UNPROBED"),
        ("web-a", "ONLINE"),
    ]
    stale = replace(snapshot.agents["n1"], is_responsive=False)
    snapshot = replace(snapshot, sightings=Map({**seen, second: seen_by("n2", Health.ONLINE)}))
    rows = run_to_completion(health_table(replace(snapshot, agents=snapshot.agents.set("n1", stale))))
    assert [(row.id, row.status, bool(row.error)) for row in rows][2:] == [
        ("web-a", "ONLINE", True),  # the last result: a newer one is not available
        ("web-b", "ONLINE", False),
    ]


def test_member_routed_by_a_plain_host_is_shown_on_its_host():
    model = """
network pool announced 203.0.113.0/24
host h1 1 192.0.2.21 10.1.0.0/24
web vip=203.0.113.10 on=pool provider=native tcp:80{monitor=TCP}=a/10.1.0.7:80
"""
    documents, _ = parse_model(model.strip(), {})
    snapshot = apply_changes(Snapshot(agents_probe=True), Changes(puts=tuple(documents.values())), 1)
    (row,) = run_to_completion(health_table(snapshot))
    assert (row.chassis, row.status) == ("h1", "UNPROBED")
