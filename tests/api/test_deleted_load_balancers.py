"""A server keeps no memory of deleted load balancers, however many it has processed."""

import gc
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from immutables import Map

from fairlead.agent_protocol.slice_lines import SliceBuilder
from fairlead.api import octavia
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Member, Pool
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import CHASSIS
from fairlead.runtime.steps import run_to_completion
from harness.api import InProcessServer, in_process_server
from harness.front_ends import agent_channel
from harness.front_ends.octavia_world import MONITOR, ROOT, SUBNET, machine, machines, network
from harness.waiting import eventually

CYCLES = 20
POOL = {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "healthmonitor": MONITOR}
TREE = {
    "vip_subnet_id": SUBNET,
    "listeners": [{"protocol": "TCP", "protocol_port": 80, "default_pool": {"name": "p"}}],
    "pools": [{**POOL, "members": [{"address": "10.0.0.11", "protocol_port": 80}]}],
}


async def test_deleted_load_balancers_leave_no_objects_in_memory(tmp_path: Path):
    async with in_process_server(octavia.make_front_end, tmp_path, "/load-balancer") as place:
        await place.model.write(lambda _: Changes(puts=(network(), *machines())))
        await place.reconcile()
        agent = listening(place)
        gone = [await create_and_delete(place, agent) for _ in range(CYCLES)]
        agent.notified_owners.clear()
        await eventually(lambda: not place.services.nodes.channel.writing)
        parts = in_memory(LoadBalancer, Listener, Pool, Member)
        assert [] == [each for each in parts if any(each.id in names for names in gone)]
        assert [] == remembering(gone)


def listening(place: InProcessServer) -> agent_channel.AgentEnd:
    """Return the agent of a chassis that has a machine on the network."""
    channel = place.services.nodes.channel
    channel._frame = bytes
    one = Chassis(name="one", host="one.example", ports=Map({machine(11): True}))
    run_to_completion(place.model.observe(CHASSIS, {"one": one}))
    agent = agent_channel.AgentEnd(channel, SliceBuilder("one"))
    agent.listen()
    return agent


async def create_and_delete(place: InProcessServer, agent: agent_channel.AgentEnd) -> frozenset[str]:
    """Create a load balancer, send it to the agent, change and delete it; return the ids of it and its parts."""
    made = (await place.call_ok("POST", f"{ROOT}/loadbalancers", {"loadbalancer": TREE}))["loadbalancer"]
    run_to_completion(place.services.nodes.channel.recompute_reaches())
    agent.disconnect()
    agent.slice.cursor = ""  # a restarted agent: it receives the whole slice
    agent.listen()
    await place.call_ok("PUT", f"{ROOT}/pools/{made['pools'][0]['id']}", {"pool": {"name": "q"}})
    await place.call_ok("DELETE", f"{ROOT}/loadbalancers/{made['id']}?cascade=true")
    assert Owner(Kind.LOAD_BALANCER, made["id"]) not in agent.slice.snapshot.generations
    pool = made["pools"][0]
    parts = (made, made["listeners"][0], pool, pool["members"][0], pool["healthmonitor"])
    return frozenset({made["vip_port_id"], *(each["id"] for each in parts)})


def in_memory(*types: type) -> list[Any]:
    gc.collect()
    return [each for each in gc.get_objects() if isinstance(each, types)]


def remembering(gone: list[frozenset[str]]) -> list[str]:
    """List the containers in this process that still hold ids of more than half of the deleted load balancers."""
    numbers = {name: number for number, names in enumerate(gone) for name in names}
    found = list[str]()
    for each in in_memory(dict, list, set, frozenset, tuple, deque):
        if each is not gone and each is not numbers:
            named = {numbers[name] for name in names_in(each) if name in numbers}
            if len(named) > len(gone) / 2:
                found.append(f"{type(each).__name__} of {len(each)}: {str(each)[:200]}")
    return found


def names_in(container: Any) -> Iterator[str]:
    """Yield ids, also those of owners and those within tuple keys."""
    items = (*container, *container.values()) if isinstance(container, Mapping) else tuple(container)
    for item in items:
        for part in item if isinstance(item, tuple) else (item,):
            if isinstance(part, str):
                yield part
            elif isinstance(part, Owner):
                yield part.id
