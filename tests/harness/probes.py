"""Probed members, and probe results applied to a snapshot without the steps of the model."""

from collections.abc import Mapping

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import HEALTH, with_facts
from fairlead.model.snapshot import Snapshot
from harness.case import parse_model


def observe(snapshot: Snapshot, news: Mapping[Endpoint, Health | None]) -> tuple[Snapshot, tuple[Owner, ...]]:
    """The snapshot with the probe results, and the owners with a member that changed between up and down."""
    learned = with_facts(snapshot, HEALTH, news)
    concerned = tuple(HEALTH.affected_owners(snapshot, learned, news))
    after = HEALTH.derive(learned, concerned)
    return after, HEALTH.filter_changed(snapshot, after, concerned)


MODEL = """
network net1 10.0.0.0/24 fd00::/64
port vm1 net1 10.0.0.11 fd00::11
port vm2 net1 10.0.0.12
probes net1 10.0.0.2
web vip=10.0.0.10,fd00::10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80,b/10.0.0.12:80,six/[fd00::11]:80
api vip=10.0.0.20 on=net1 tcp:80{monitor=TCP+delay=9}=c/10.0.0.11:80 tcp:81=d/10.0.0.12:80
"""
FIRST = Endpoint("vm1", parse_address("10.0.0.11"), 80, Transport.TCP)
SECOND = Endpoint("vm2", parse_address("10.0.0.12"), 80, Transport.TCP)
SIX = Endpoint("vm1", parse_address("fd00::11"), 80, Transport.TCP)
UNKNOWN_ENDPOINT = Endpoint("vm9", parse_address("10.0.0.11"), 80, Transport.TCP)
WEB, API = Owner(Kind.LOAD_BALANCER, "web"), Owner(Kind.LOAD_BALANCER, "api")


def snapshot_of(model: str) -> Snapshot:
    documents, _ = parse_model(model.strip(), {})
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
