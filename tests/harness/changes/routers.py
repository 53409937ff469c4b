"""Routers with gateways, interfaces and floating IPs."""

from dataclasses import replace

from fairlead.changes.floatingips import (
    Destination,
    NewFloatingIP,
    create_floating_ip,
)
from fairlead.changes.gateways import (
    GatewayRequest,
)
from fairlead.changes.routers import (
    InterfaceTarget,
    RouterChange,
    add_interface,
    create_router,
)
from fairlead.model.documents.network import Network, Router
from fairlead.model.registry.changeset import apply_changes
from fairlead.model.snapshot import Snapshot
from harness.api import NOON
from harness.changes.world import NETWORK, OWNER, OWNERS, PORT, snapshot_with, subnet

OUTSIDE = Network(
    id="out", mtu=1500, external=True, subnets=(subnet("world", "203.0.113.0/24"),), project_id="admin", created_at=NOON
)
ROUTER = Router(id="router", **OWNERS)
INSIDE = replace(NETWORK, shared=False)
OWN_PORT = replace(PORT, project_id="owner")
WORLD = GatewayRequest(network_id="out")
FOUR = InterfaceTarget(subnet_id="four")


def routed_snapshot() -> Snapshot:
    """A router with a gateway, and an interface on the owner's subnet with a machine."""
    snapshot = snapshot_with(OUTSIDE, INSIDE, OWN_PORT)
    made = create_router(snapshot, OWNER, RouterChange(router=ROUTER, gateway=WORLD, gateway_port_id="gateway"))
    snapshot = apply_changes(snapshot, made, 2)
    added = add_interface(snapshot, OWNER, snapshot.routers["router"], FOUR, "interface", NOON)
    return apply_changes(snapshot, added.changes, 3)


def floating(identity: str, **fields: object) -> NewFloatingIP:
    standard = {"id": identity, "network_id": "out", "address_port_id": f"{identity}-port"}
    return NewFloatingIP(**{**standard, **OWNERS, **fields})


def routed_with_floating_ip() -> Snapshot:
    """The same router with a floating IP of the machine."""
    made = create_floating_ip(routed_snapshot(), OWNER, floating("f", destination=Destination(port_id="port")))
    return apply_changes(routed_snapshot(), made, 4)
