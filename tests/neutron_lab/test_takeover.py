"""Takeover of a load balancer that Octavia's stock provider made on Neutron's networks: its clients do not notice."""

import json
from contextlib import ExitStack
from typing import Any

import pytest

from fairlead.lab.load import Load, LoadTarget, sum_results
from harness.neutron_lab.cloud import OpenStackOnLab
from harness.neutron_lab.rows import read
from harness.waiting import wait_equal

pytestmark = pytest.mark.neutron
RATE, HELD = 15, 12
OPENSTACK_SECONDS = 300  # timeout of Octavia's operations
CLIENTS = ("old-c1", "old-c2")


def make_scene(stack: OpenStackOnLab) -> None:
    """Two networks of a router, with a member and a client each, on both chassis."""
    for name, cidr in (("old1", "10.30.0.0/24"), ("old2", "10.31.0.0/24")):
        stack.openstack("alice", f"network create {name}")
        stack.openstack("alice", f"subnet create {name}4 --network {name} --subnet-range {cidr}")
    stack.openstack("alice", "router create old")
    for name in ("old14", "old24"):
        stack.openstack("alice", f"router add subnet old {name}")
    stack.machines(
        {
            "old-m1": ("old1", "chassis1"),
            "old-m2": ("old2", "chassis2"),
            "old-c1": ("old1", "chassis2"),
            "old-c2": ("old2", "chassis1"),
        }
    )


def make_stock(stack: OpenStackOnLab, name: str) -> Any:
    """A load balancer of the provider `ovn`, reachable from both networks."""
    balancing = stack.connection_of("alice").load_balancer
    subnets = {each.name: each.id for each in stack.connection_of("alice").network.subnets()}
    members = [
        {"address": stack.address(machine), "protocol_port": 8080, "subnet_id": subnets[subnet]}
        for machine, subnet in (("old-m1", "old14"), ("old-m2", "old24"))
    ]
    pool = {"name": f"{name}-pool", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": members}
    listener = {"name": f"{name}-http", "protocol": "TCP", "protocol_port": 80, "default_pool": pool}
    made = balancing.create_load_balancer(
        name=name, provider="ovn", vip_subnet_id=subnets["old14"], listeners=[listener]
    )
    balancing.wait_for_load_balancer(made.id, interval=0.5, wait=OPENSTACK_SECONDS)
    both = {"old-m1", "old-m2"}
    wait_equal(lambda: [stack.answers(client, made.vip_address) for client in CLIENTS], [both] * len(CLIENTS))
    return made


def others(stack: OpenStackOnLab, *names: str) -> dict[str, dict[str, Any]]:
    """Rows of the load balancers with these names, and of all other switches, routers and ports."""
    rows = read(stack.lab)
    return {
        "Load_Balancer": {key: row for key, row in rows.get("Load_Balancer", {}).items() if row["name"] in names},
        "NAT": rows.get("NAT", {}),
    }


def test_takeover_on_neutron_networks_breaks_no_connection(stack: OpenStackOnLab):
    make_scene(stack)
    other, web = make_stock(stack, "old-other"), make_stock(stack, "old-web")
    before = others(stack, other.id)
    assert before["Load_Balancer"]
    load = Load(targets=(LoadTarget(to=web.vip_address, port=80),), rate=RATE, count=10_000, held=HELD, seconds=240)
    with ExitStack() as running:
        loads = [running.enter_context(stack.lab.load(client, load)) for client in CLIENTS]
        said = json.loads(stack.octavia.run("adopt", "--json", "old-web"))
        stack.lab.wait_synced()
        answered = [stack.answers(client, web.vip_address) for client in CLIENTS]
        results = [each.stop() for each in loads]
    print(said, dict(sum_results(results)), [each for result in results for each in result.failed][:5])
    assert [each["outcome"] for each in said] == ["adopted"]
    assert answered == [{"old-m1", "old-m2"}] * 2
    assert [each for result in results for each in result.failed] == []
    assert sum_results(results)["held"] == HELD * len(CLIENTS)
    assert others(stack, other.id, web.id) == before
    assert stack.answers("old-c2", other.vip_address) == {"old-m1", "old-m2"}
    stack.openstack("alice", "loadbalancer member set old-web-pool --weight 0 --wait " + member(stack, "old-web-pool"))
    wait_equal(lambda: stack.answers("old-c1", web.vip_address), {"old-m2"})
    for name in ("old-web", "old-other"):
        stack.openstack("alice", f"loadbalancer delete {name} --cascade --wait")
    wait_equal(lambda: others(stack, other.id, web.id)["Load_Balancer"], {})
    assert stack.connection_of("admin").network.find_port(web.vip_port_id) is None


def member(stack: OpenStackOnLab, pool: str) -> str:
    """The member on the first network."""
    found = stack.openstack("alice", f"loadbalancer member list {pool} -f json")
    return next(str(each["id"]) for each in found if each["address"] == stack.address("old-m1"))
