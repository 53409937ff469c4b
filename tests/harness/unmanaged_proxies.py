"""Load balancers with proxies on an unmanaged network, which Neutron owns."""

from dataclasses import replace
from datetime import UTC, datetime

from immutables import Map

from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.unmanaged import UnmanagedPort, is_unmanaged
from fairlead.model.queries.proxies import proxy_port_id
from fairlead.model.registry.changeset import Changes, apply_changes, with_unmanaged
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from harness.language import parse_model

MODEL_TEXT = """network net1 by=neutron 10.0.0.0/24
web vip=10.0.0.10 on=net1 given provider=fairlead http:80{proxy=2000}=-
ssh vip=10.0.0.20 on=net1 given provider=fairlead tcp:22=-
"""
ONE, TWO = (f"proxy {name} net1 10.0.0.{number}\n" for name, number in (("one", 61), ("two", 62)))


def world(text: str = MODEL_TEXT) -> Snapshot:
    documents = parse_model(text.strip(), {})[0].values()
    snapshot = with_unmanaged(Snapshot(), {owner_of(each): each for each in documents if is_unmanaged(each)})
    snapshot = apply_changes(snapshot, Changes(puts=tuple(each for each in documents if not is_unmanaged(each))), 1)
    agents = Map({"one": Agent(name="one", since=datetime(2026, 1, 1, tzinfo=UTC), heartbeat=5.0)})
    return replace(snapshot, chassis=Map({"one": Chassis(name="one")}), agents=agents)


def port_of(snapshot: Snapshot, chassis: str) -> UnmanagedPort:
    found = snapshot.ports[proxy_port_id("net1", chassis)]
    assert isinstance(found, UnmanagedPort)
    return found
