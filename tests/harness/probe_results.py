"""Probe results that the agents of two chassis report for the members of `harness.probes`."""

from dataclasses import replace

from immutables import Map

from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import Health
from fairlead.model.documents.probe_result import ProbeResult
from harness.api import NOON
from harness.language import parse_model
from harness.probes import MODEL

DOCUMENTS = tuple(parse_model(MODEL.strip(), {})[0].values())
WEB = next(each for each in DOCUMENTS if each.id == "web")
ONE = Chassis(name="one", host="one", ports=Map({"vm1": True}))
TWO = Chassis(name="two", host="two", ports=Map({"vm2": True}))
AGENT = Agent(name="one", version="1", host="one", since=NOON, heartbeat=1.0)
UP = ProbeResult(health=Health.ONLINE, chassis="", since=NOON, latency=0.001)
DOWN = replace(UP, health=Health.ERROR, error="refused")
