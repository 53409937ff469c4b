"""VIPs on an external network: access, choice of address, and the router gateway that serves them."""

from dataclasses import replace
from typing import Any

import pytest

from fairlead.changes.addresses import choose_mac
from fairlead.changes.balancers import create_load_balancer
from fairlead.changes.gateways import GatewayHasVips, GatewayRequest, set_gateway
from fairlead.changes.identity import Identity
from fairlead.changes.routers import delete_router
from fairlead.changes.vip_gateways import NoGatewayForVip
from fairlead.changes.vips import AddressChoiceNotAllowed, VipRequest, choose_vip
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import ExternalGateway, FixedIP, Network, Port, PortUse, Router
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion
from harness.api import NOON
from harness.changes.balancing import ASKER, apply_work
from harness.changes.world import ADMIN, OWNERS, refusal, snapshot_with, subnet

OUTSIDE = replace(subnet("outside", "203.0.113.0/24"), project_id="provider")
PUBLIC = Network(id="public", mtu=1500, subnets=(OUTSIDE,), external=True, project_id="provider", created_at=NOON)
PROVIDER = Identity(user="p", project_id="provider", roles=frozenset({"member", "reader"}))


def router(identity: str = "gate", project_id: str = "owner") -> Router:
    gateway = ExternalGateway(network_id="public", port_id=f"port-{identity}")
    return Router(id=identity, gateway=gateway, **OWNERS | {"project_id": project_id})


def gateway_port(identity: str = "gate") -> Port:
    return Port(
        id=f"port-{identity}",
        network_id="public",
        mac_address=choose_mac(Snapshot(), identity),
        device_id=identity,
        device_owner=PortUse.ROUTER_GATEWAY.value,
        fixed_ips=(FixedIP(subnet_id="outside", address=parse_address("203.0.113.2")),),
        project_id="",
        created_at=NOON,
    )


WORLD = snapshot_with(PUBLIC, router(), gateway_port())


def made(snapshot: Snapshot, who: Identity = ASKER.identity, **fields: Any) -> Steps[Changes]:
    asker, project = replace(ASKER, identity=who), who.project_id
    where = {"network_id": "public"} | fields
    vip = choose_vip(snapshot, asker, VipRequest(balancer_id="lb", project_id=project, new_port_id="vip", **where))
    wanted = LoadBalancer(id="lb", provider="fairlead", vip=vip.vips[0], project_id=project, created_at=NOON)
    return create_load_balancer(snapshot, asker, wanted, vip)


@pytest.mark.parametrize("where", [{"network_id": "public"}, {"network_id": None, "subnet_id": "outside"}])
def test_external_vip_gets_a_free_address_on_the_tenants_router_gateway(where: dict[str, Any]):
    changes = run_to_completion(made(WORLD, **where))
    assert Owner(Kind.ROUTER, "gate") in changes.reads, "its gateway must not go meanwhile"
    balancer = apply_work(WORLD, made(WORLD, **where)).load_balancers["lb"]
    assert (balancer.router_id, balancer.vip.network_id) == ("gate", "public")


@pytest.mark.parametrize("who", [ASKER.identity, PROVIDER])
def test_tenants_cannot_choose_the_address_of_an_external_vip(who: Identity):
    """Tenants, including the network's own project, cannot choose the address of an external VIP, as for floating
    IPs."""
    address = parse_address("203.0.113.99")
    assert refusal(lambda: run_to_completion(made(WORLD, who, address=address))) == AddressChoiceNotAllowed()
    theirs = snapshot_with(PUBLIC, router(project_id="admin"), gateway_port())
    assert apply_work(theirs, made(theirs, ADMIN, address=address)).load_balancers["lb"].vip.address == address


@pytest.mark.parametrize("routers", [(), (router(project_id="other"),), (replace(router(), gateway=None),)])
def test_external_vip_is_refused_without_a_router_gateway_of_the_project(routers: tuple[Router, ...]):
    why = NoGatewayForVip(network_id="public", project_id="owner")
    assert refusal(lambda: run_to_completion(made(snapshot_with(PUBLIC, *routers)))) == why


def test_router_gateway_with_vips_cannot_be_removed():
    snapshot = apply_work(WORLD, made(WORLD))
    gate, why = snapshot.routers["gate"], GatewayHasVips(router_id="gate", network_id="public")
    assert refusal(delete_router, snapshot, ASKER.identity, gate) == why
    assert refusal(set_gateway, snapshot, ASKER.identity, gate, GatewayRequest(), "new", NOON) == why
    same = GatewayRequest(network_id="public")
    assert set_gateway(snapshot, ASKER.identity, gate, same, "new", NOON).puts[0] == gate
