"""The plug-in front end, and a load balancer that an Octavia sends to it."""

from collections.abc import Awaitable, Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from fairlead.api import plugin
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.network import FixedIP, Network, Port
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedObject, UnmanagedPort, Writer
from fairlead.model.registry.changeset import Changes
from harness.api import NOON, InProcessServer, play
from harness.octavia import NET, SUBNET, network

LB, OTHER = "aaaaaaaa-0000-4000-8000-000000000001", "aaaaaaaa-0000-4000-8000-000000000002"
LISTENER, SECOND = "bbbbbbbb-0000-4000-8000-000000000001", "bbbbbbbb-0000-4000-8000-000000000002"
POOL = "cccccccc-0000-4000-8000-000000000001"
ONE, TWO = "dddddddd-0000-4000-8000-000000000001", "dddddddd-0000-4000-8000-000000000002"
MONITOR = "eeeeeeee-0000-4000-8000-000000000001"
PORT = "ffffffff-0000-4000-8000-000000000001"
VIP = parse_address("10.0.0.50")
Scenario = Callable[[InProcessServer], Awaitable[None]]

WHOLE: dict[str, Any] = {
    "id": LB,
    "project_id": "tenant",
    "name": "web",
    "description": None,
    "admin_state_up": True,
    "vip_port_id": PORT,
    "vip_subnet_id": SUBNET,
    "vip_network_id": NET,
    "vip_address": "10.0.0.50",
    "vip_qos_policy_id": None,
    "vip_sg_ids": [],
    "additional_vips": [],
    "flavor": {},
    "availability_zone": {},
    "listeners": [
        {"id": LISTENER, "name": "l", "protocol": "TCP", "protocol_port": 80, "default_pool_id": POOL, "l7policies": []}
    ],
    "pools": [
        {
            "id": POOL,
            "name": "",
            "protocol": "TCP",
            "lb_algorithm": "ROUND_ROBIN",
            "session_persistence": None,
            "members": [{"id": ONE, "address": "10.0.0.11", "protocol_port": 8080, "weight": 2, "subnet_id": SUBNET}],
            "healthmonitor": {"id": MONITOR, "type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2},
        }
    ],
}


def vip_port(**changes: Any) -> Port:
    """VIP port as Octavia creates it in Neutron before it calls its provider's driver."""
    port = Port(
        id=PORT,
        project_id="tenant",
        created_at=NOON,
        name=f"octavia-lb-{LB}",
        network_id=NET,
        mac_address="02:00:00:00:00:50",
        fixed_ips=(FixedIP(subnet_id=SUBNET, address=VIP),),
        device_id=f"lb-{LB}",
        device_owner="Octavia",
    )
    return replace(port, **changes)


def machine(number: int) -> Port:
    """Port of a tenant's workload: members without a port are not probed."""
    address = parse_address(f"10.0.0.{number}")
    fixed = (FixedIP(subnet_id=SUBNET, address=address),)
    return replace(
        vip_port(device_id="", device_owner=""), id=f"vm{number}", mac_address=f"02::{number}", fixed_ips=fixed
    )


def play_plugin(folder: Path, story: Scenario, port: Port | None = None) -> None:
    async def with_network(place: InProcessServer) -> None:
        await place.model.write(lambda _: Changes(puts=(network(), port or vip_port(), *map(machine, (11, 12, 13)))))
        await place.reconcile()
        await story(place)

    play(plugin.make_front_end, folder, with_network, "/plugin")


async def call_error(place: InProcessServer, method: str, path: str, body: object = None) -> tuple[int, str]:
    before = place.model.snapshot.revision
    answer = await place.call(method, path, body)
    assert place.model.snapshot.revision == before, "a refusal writes nothing"
    return answer.status_code, answer.json()["error"]


def neutron_document(document: Network | Port) -> UnmanagedObject:
    values = {field.name: getattr(document, field.name) for field in fields(document)}
    made = UnmanagedNetwork if isinstance(document, Network) else UnmanagedPort
    return made(**values, row=f"{document.id}@0b6f1a1c-7e11-4c0e-9d5e-0b6f1a1c7e11", writer=Writer.NEUTRON)
