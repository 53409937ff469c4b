"""The Octavia front end with one network, and the calls with which most of its tests begin."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.applications import Starlette

from fairlead.api import octavia
from fairlead.api.http.front_end import Services
from fairlead.changes.identity import Identity
from fairlead.dataplane.interface import Compile
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import AllocationPool, Network, Subnet
from fairlead.model.documents.quota import NO_LIMITS, Limits
from fairlead.model.registry.changeset import Changes
from harness.api import NOON, InProcessServer, compile_owner, play

ROOT = "/v2.0/lbaas"
NET = "11111111-0000-4000-8000-000000000001"
SUBNET = "22222222-0000-4000-8000-000000000001"
UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"


def network() -> Network:
    common: dict[str, Any] = {"project_id": "demo", "created_at": NOON}
    pool = AllocationPool(start=parse_address("10.0.0.2"), end=parse_address("10.0.0.254"))
    cidr, gateway = parse_network("10.0.0.0/24"), parse_address("10.0.0.1")
    subnet = Subnet(id=SUBNET, cidr=cidr, gateway=gateway, allocation_pools=(pool,), **common)
    return Network(id=NET, mtu=1442, shared=True, subnets=(subnet,), **common)


def play_octavia(
    folder: Path,
    story: Callable[[InProcessServer], Awaitable[None]],
    limits: Limits = NO_LIMITS,
    compile_owner: Compile = compile_owner,
) -> None:
    async def with_network(place: InProcessServer) -> None:
        await place.model.write(lambda _: Changes(puts=(network(),)))
        await place.reconcile()
        await story(place)

    def make_door(services: Services) -> Starlette:
        return octavia.make_front_end(replace(services, limits=limits))

    play(make_door, folder, with_network, "/load-balancer", compile_owner)


async def create(place: InProcessServer, path: str, root: str, **attributes: Any) -> Any:
    return (await place.call_ok("POST", f"{ROOT}/{path}", {root: attributes}))[root]


async def error_of(place: InProcessServer, method: str, path: str, body: object = None) -> tuple[int, str]:
    """Status and faultstring of a call that must fail."""
    answer = await place.call(method, f"{ROOT}/{path}", body)
    assert answer.status_code >= 400, answer.text
    return answer.status_code, answer.json()["faultstring"]


def caller(project: str, *roles: str) -> Identity:
    return Identity(user="u", project_id=project, roles=frozenset(roles))
