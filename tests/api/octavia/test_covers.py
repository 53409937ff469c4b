"""Source addresses of delegated probes (members on another node, or without a port), as the API allocates them."""

import asyncio
from dataclasses import replace

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.network import AllocationPool
from fairlead.model.queries.probes import cover_port_id, probe_port_id
from fairlead.model.registry.changeset import Changes
from fairlead.server.maintenance import provide_covers
from harness.api import Inside
from harness.front_ends.octavia_probing import LBS, NET, SUBNET, door, probing, tree
from harness.waiting import eventually

__all__ = ["door"]


def test_where_agents_probe_another_node_has_an_address_too_and_members_may_be_nobodys_port(door):
    async def story(place: Inside) -> None:
        assert (await place.call("POST", LBS, tree("10.0.0.99"))).status_code == 501
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        await place.good("POST", LBS, tree("10.0.0.99"))
        assert [each.id for each in probing(place)] == [cover_port_id(SUBNET)]
        await place.good("POST", LBS, tree("10.0.0.11"))
        assert {each.id for each in probing(place)} == {cover_port_id(SUBNET), probe_port_id(SUBNET)}
        await place.good("POST", LBS, tree("10.0.0.11", "10.0.0.99"))
        assert len(probing(place)) == 2

    door(story)


def test_a_subnet_that_is_full_refuses_no_monitor_for_want_of_a_second_address(door):
    async def story(place: Inside) -> None:
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        (subnet, *more) = place.model.snapshot.networks[NET].subnets
        vip = parse_address("10.0.0.200")
        pools = tuple(AllocationPool(start=each, end=each) for each in (vip, parse_address("10.0.0.201")))
        small = replace(place.model.snapshot.networks[NET], subnets=(replace(subnet, allocation_pools=pools), *more))
        await place.model.write(lambda _: Changes(puts=(small,)))
        await place.good("POST", LBS, tree("10.0.0.11", vip_address=str(vip)))
        assert [each.id for each in probing(place)] == [probe_port_id(SUBNET)]

    door(story)


def test_monitors_of_before_get_the_second_address_when_a_server_begins(door):
    async def story(place: Inside) -> None:
        await place.good("POST", LBS, tree("10.0.0.11"))
        assert [each.id for each in probing(place)] == [probe_port_id(SUBNET)]
        place.model.snapshot = replace(place.model.snapshot, agents_probe=True)
        working = asyncio.create_task(provide_covers(place.model))
        await eventually(lambda: probing(place), is_enough=lambda found: len(found) == 2)
        working.cancel()
        assert {each.id for each in probing(place)} == {cover_port_id(SUBNET), probe_port_id(SUBNET)}

    door(story)
