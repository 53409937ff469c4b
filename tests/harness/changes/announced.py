"""An announced network, its hosts and a load balancer on it."""

from dataclasses import replace
from typing import Any

from fairlead.changes.balancers import create_load_balancer
from fairlead.changes.identity import Identity
from fairlead.changes.vips import VipRequest, choose_vip
from fairlead.compilers.providers import IMPLEMENTATIONS, Provider, ProviderNames
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Network
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps
from harness.api import NOON
from harness.changes.balancing import ASKER
from harness.changes.world import OWNERS, subnet

FOUR, SIX = subnet("four", "203.0.113.0/24"), subnet("six", "2001:db8:5::/64")
BARE = Network(id="pool", mtu=1500, **OWNERS)
POOL = replace(BARE, announced=True, subnets=(FOUR, SIX))
PROVIDERS = {
    "hosts": Provider(description="h", dataplanes=frozenset(), announces=True),
    "switch": IMPLEMENTATIONS["ovn"],
}
NAMES = ProviderNames(implementations={"hosts": "hosts", "switch": "switch"}, default="switch", providers=PROVIDERS)


def balancer(snapshot: Snapshot, who: Identity, provider: str, **where: Any) -> Steps[Changes]:
    asker, project = replace(ASKER, identity=who, providers=NAMES), who.project_id
    parts = {name: where.pop(name) for name in ("pools", "listeners") if name in where}
    asked = {"network_id": "pool"} | where
    vip = choose_vip(snapshot, asker, VipRequest(balancer_id="lb", project_id=project, new_port_id="vip", **asked))
    wanted = LoadBalancer(id="lb", provider=provider, vip=vip.vips[0], project_id=project, created_at=NOON)
    wanted = replace(wanted, **parts)
    return create_load_balancer(snapshot, asker, wanted, vip)
