"""The table of who is probed, and how it reads."""

from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta

from immutables import Map

from fairlead.health_command import render
from fairlead.model.agent import Agent
from fairlead.model.chassis import Chassis
from fairlead.model.health import Health
from fairlead.model.health_table import NO_AGENT, NOBODYS, health_table
from fairlead.model.probes import targets
from fairlead.model.sighting import Sighting
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import at_once
from fairlead.model.writing import Changes, apply_changes
from harness.story import parse_model

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
MODEL = """
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11 name=db
port vm2 net1 10.0.0.12
probes net1 10.0.0.2
web vip=10.0.0.10 on=net1 name=shop tcp:80{monitor=HTTP}=a/10.0.0.11:80,b/10.0.0.12:80,gone/10.0.0.13:80
local-ip lip net1 10.0.0.200 monitor=TCP+port=81 +vm1
"""


def test_the_table_says_of_each_who_probes_it_where_and_what_came_of_it():
    documents, _ = parse_model(MODEL.strip(), {})
    nodes = {
        name: Chassis(name=name, host=name, ports=Map({port: True})) for name, port in (("n1", "vm1"), ("n2", "vm2"))
    }
    empty = Snapshot(agents_probe=True, chassis=Map(nodes), plugged=Map(vm1="n1", vm2="n2"))
    snapshot = apply_changes(empty, Changes(puts=tuple(documents.values())), 1)
    first = next(targets(snapshot, snapshot.load_balancers["web"])).endpoint
    seen = Sighting(
        health=Health.ERROR, chassis="n1", since=NOW - timedelta(minutes=5), error="it refuses", latency=0.002
    )
    agent = Agent(name="n1", since=NOW, heartbeat=5.0)
    snapshot = replace(snapshot, sightings=Map({first: seen}), agents=Map(n1=agent))
    rows = at_once(health_table(snapshot))
    assert [(row.id, row.chassis, row.status, row.error) for row in rows] == [
        ("web-a", "n1", "ERROR", "it refuses"),
        ("web-b", "n2", "UNPROBED", NO_AGENT),
        ("web-gone", "", "GONE", NOBODYS),
        ("vm1", "n1", "UNPROBED", ""),
    ]
    told = [{**asdict(row), "since": row.since.isoformat() if row.since else None} for row in rows]
    text = render(told, NOW)
    assert text[1].split("  ")[0] == "web-a"
    assert all(word in text[1] for word in ("10.0.0.11:80", "HTTP", "agents", "5 min", "2.0 ms", "it refuses"))
    assert any(NOBODYS in line for line in text)
