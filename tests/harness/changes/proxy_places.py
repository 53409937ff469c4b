"""Networks and load balancers with proxies, before and after their placement."""

from collections.abc import Collection
from dataclasses import replace

from immutables import Map

from fairlead.changes.proxy_placement import place_proxies
from fairlead.model.documents.agent import Agent
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.queries.proxies import proxy_ports
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.language import parse_model

NETWORK = """network net1 10.0.0.0/24 fd00::/64
network net2 10.1.0.0/24
web vip=10.0.0.10 on=net1 provider=fairlead http:80{proxy=2000}=a/10.0.0.11:8080
ssh vip=10.1.0.10 on=net2 provider=fairlead tcp:22=a/10.1.0.11:22
"""
NET1 = ProxyPlace("net1", "demo")
NAMES = ["one", "two", "three", "four"]
MACHINES = "".join(f"port vm-{name} net1 10.0.0.{20 + number}\n" for number, name in enumerate(NAMES))


def world(text: str = NETWORK + MACHINES, *, silent: Collection[str] = (), dead: Collection[str] = ()) -> Snapshot:
    documents, _ = parse_model(text.strip(), {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    chassis = {name: Chassis(name=name, alive=name not in dead, ports=Map({f"vm-{name}": True})) for name in NAMES}
    agents = {name: Agent(name=name, since=NOON, heartbeat=5.0, is_responsive=name not in silent) for name in NAMES}
    return replace(snapshot, chassis=Map(chassis), agents=Map(agents))


def placed(snapshot: Snapshot, near: Collection[str], most: int = 8, place: ProxyPlace = NET1) -> Snapshot:
    changes = place_proxies(snapshot, place, near, NOON, most)
    snapshot = apply_changes(snapshot, changes, snapshot.revision + 1)
    known = {
        name: replace(chassis, ports=Map({f"vm-{name}": True} if f"vm-{name}" in snapshot.ports else {}))
        for name, chassis in snapshot.chassis.items()
    }
    for port in proxy_ports(snapshot, place):
        known[port.host] = replace(known[port.host], ports=known[port.host].ports.set(port.id, True))
    return replace(snapshot, chassis=Map(known))
