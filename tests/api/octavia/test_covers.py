"""Source addresses of delegated probes (members on another node, or without a port), as the API allocates them."""

import asyncio
from dataclasses import replace

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.network import AllocationPool
from fairlead.model.queries.probes import delegate_port_id, probe_port_id
from fairlead.model.registry.changeset import Changes
from fairlead.server.maintenance import allocate_probe_addresses
from harness.api import InProcessServer
from harness.front_ends.octavia_probing import LBS, NET, SUBNET, door, probed_members, tree
from harness.waiting import eventually

__all__ = ["door"]


def test_agents_probe_members_without_a_port_from_a_delegated_probe_address(door):
    async def story(place: InProcessServer) -> None:
        assert (await place.call("POST", LBS, tree("10.0.0.99"))).status_code == 501
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        await place.call_ok("POST", LBS, tree("10.0.0.99"))
        assert [each.id for each in probed_members(place)] == [delegate_port_id(SUBNET)]
        await place.call_ok("POST", LBS, tree("10.0.0.11"))
        assert {each.id for each in probed_members(place)} == {delegate_port_id(SUBNET), probe_port_id(SUBNET)}
        await place.call_ok("POST", LBS, tree("10.0.0.11", "10.0.0.99"))
        assert len(probed_members(place)) == 2

    door(story)


def test_monitor_is_accepted_on_a_subnet_without_a_second_probe_address(door):
    async def story(place: InProcessServer) -> None:
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        (subnet, *more) = place.model.snapshot.networks[NET].subnets
        vip = parse_address("10.0.0.200")
        pools = tuple(AllocationPool(start=each, end=each) for each in (vip, parse_address("10.0.0.201")))
        small = replace(place.model.snapshot.networks[NET], subnets=(replace(subnet, allocation_pools=pools), *more))
        await place.model.write(lambda _: Changes(puts=(small,)))
        await place.call_ok("POST", LBS, tree("10.0.0.11", vip_address=str(vip)))
        assert [each.id for each in probed_members(place)] == [probe_port_id(SUBNET)]

    door(story)


def test_existing_monitors_get_the_delegated_probe_address_at_server_start(door):
    async def story(place: InProcessServer) -> None:
        await place.call_ok("POST", LBS, tree("10.0.0.11"))
        assert [each.id for each in probed_members(place)] == [probe_port_id(SUBNET)]
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        working = asyncio.create_task(allocate_probe_addresses(place.model))
        await eventually(lambda: probed_members(place), is_enough=lambda found: len(found) == 2)
        working.cancel()
        assert {each.id for each in probed_members(place)} == {delegate_port_id(SUBNET), probe_port_id(SUBNET)}

    door(story)
