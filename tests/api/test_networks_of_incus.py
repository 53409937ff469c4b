"""Load balancers on networks that Incus or LXD writes into the same OVN are refused by every API with one error
text."""

from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from fairlead.api import lxd, octavia
from fairlead.api.http.front_end import Services
from fairlead.model.documents.network import FixedIP, Subnet
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedPort, Writer
from fairlead.model.registry.facts import UNMANAGED
from fairlead.model.registry.kinds import owner_of
from fairlead.runtime.steps import run_to_completion
from harness.api import NOON, InProcessServer, in_process_server

NETWORK, PORT, FOUR, SIX = (f"00000000-0000-4000-8000-00000000000{number}" for number in range(1, 5))
NAMES = {Writer.INCUS: "incus-net7-ls-int", Writer.LXD: "lxd-net7-ls-int", Writer.NEUTRON: "net7"}


def theirs(writer: Writer) -> tuple[UnmanagedNetwork, UnmanagedPort]:
    common: dict[str, Any] = {"project_id": "demo", "created_at": NOON, "writer": writer, "row": f"{NAMES[writer]}@1"}
    subnets = tuple(
        Subnet(id=name, project_id="demo", created_at=NOON, cidr=ip_network(cidr), gateway=None, allocation_pools=())
        for name, cidr in ((FOUR, "10.8.0.0/24"), (SIX, "fd00:8::/64"))
    )
    fixed = (FixedIP(subnet_id=FOUR, address=ip_address("10.8.0.7")),)
    network = UnmanagedNetwork(id=NETWORK, name=NAMES[writer], mtu=1442, subnets=subnets, **common)
    port = UnmanagedPort(id=PORT, network_id=NETWORK, mac_address="02:00:00:00:00:01", fixed_ips=fixed, **common)
    return network, port


async def refused(
    folder: Path, make_door: Callable[[Services], Starlette], writer: Writer, path: str, body: Any
) -> tuple[int, Any]:
    """Send a request, check that nothing is written, and return the status and body."""
    async with in_process_server(make_door, folder, "") as place:
        place.caller = replace(place.caller, project_id="default")
        observe(place, writer)
        before = place.model.snapshot
        answer = await place.client.post(path, json=body)
        assert place.model.snapshot is before
        return answer.status_code, answer.json()


def observe(place: InProcessServer, writer: Writer) -> None:
    run_to_completion(place.model.observe(UNMANAGED, {owner_of(each): each for each in theirs(writer)}))


@pytest.mark.parametrize(("writer", "title"), [(Writer.INCUS, "Incus"), (Writer.LXD, "LXD")])
@pytest.mark.parametrize("said", [{"vip_network_id": NETWORK}, {"vip_subnet_id": SIX}, {"vip_port_id": PORT}])
async def test_octavia_api_rejects_vips_on_networks_managed_by_incus_or_lxd(
    tmp_path: Path, writer: Writer, title: str, said: dict[str, str]
):
    body = {"loadbalancer": said}
    status, answer = await refused(tmp_path, octavia.make_front_end, writer, "/v2/lbaas/loadbalancers", body)
    assert (status, answer["faultstring"]) == (
        400,
        f"Validation failure: network {NAMES[writer]} is managed by {title}",
    )


@pytest.mark.parametrize(("writer", "title"), [(Writer.INCUS, "Incus"), (Writer.LXD, "LXD")])
@pytest.mark.parametrize("many", ["load-balancers", "forwards"])
@pytest.mark.parametrize("listen", ["10.8.0.9", "fd00:8::9", "0.0.0.0"])
@pytest.mark.parametrize("by", ["name", "id"])
async def test_lxd_api_rejects_listen_addresses_on_incus_or_lxd_networks(
    tmp_path: Path, writer: Writer, title: str, many: str, listen: str, by: str
):
    path = f"/networks/{NAMES[writer] if by == 'name' else NETWORK}/{many}"
    status, answer = await refused(tmp_path, lxd.make_front_end, writer, path, {"listen_address": listen})
    sentence = f"Failed creating {many[:-1].replace('-', ' ')}: network {NAMES[writer]} is managed by {title}"
    assert (status, answer["error"]) == (400, sentence)


async def test_lxd_api_does_not_find_networks_of_neutron(tmp_path: Path):
    body = {"listen_address": "10.8.0.9"}
    status, answer = await refused(
        tmp_path, lxd.make_front_end, Writer.NEUTRON, f"/networks/{NETWORK}/load-balancers", body
    )
    assert (status, answer["error"]) == (404, "Failed loading network: Network not found")
