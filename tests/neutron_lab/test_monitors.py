"""Health monitors of members on Neutron's networks, with OVN's own probes and with an agent on each node.

w1 (both IP versions) and w2 are on the router `watched`, with a member each, on both chassis, and a client on w1.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fairlead.lab import agents
from harness.lab.members import end_process, start_process
from harness.neutron_lab.cloud import PORT, OpenStackOnLab
from harness.neutron_lab.rows import differences, read_neutron_rows
from harness.octavia_plugin.cloud import PASSWORD, USER
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.neutron

NETWORKS = {"w1": ("10.41.0.0/24", "fd41::/64"), "w2": ("10.42.0.0/24", "fd42::/64")}
MEMBERS = {"watched1": ("w1", "chassis1"), "watched2": ("w2", "chassis2")}
CLIENT = "watcher"
OWNER = "ovn-lb-hm:distributed"
TIMES = {"delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1}
OPENSTACK_SECONDS = 300  # timeout of Octavia's operations


@pytest.fixture(scope="module")
def town(stack: OpenStackOnLab) -> OpenStackOnLab:
    alice = stack.connection_of("alice").network
    router = alice.create_router(name="watched")
    for name, cidrs in NETWORKS.items():
        network = alice.create_network(name=name)
        for version, cidr in zip((4, 6), cidrs, strict=True):
            subnet = alice.create_subnet(name=f"{name}v{version}", network_id=network.id, ip_version=version, cidr=cidr)
            alice.add_interface_to_router(router, subnet_id=subnet.id)
    stack.machines({**MEMBERS, CLIENT: ("w1", "chassis2")})
    # creates the default security group: see test_balancers
    stack.openstack("alice", "loadbalancer create --name first --vip-subnet-id w1v4 --wait")
    stack.openstack("alice", "loadbalancer delete --wait first")
    let_in(stack)
    return stack


def let_in(stack: OpenStackOnLab) -> None:
    """Allow agents' probes in the security group; OVN's own probes bypass ACLs."""
    alice = stack.connection_of("alice").network
    group = next(alice.security_groups(name="default", project_id=stack.keystone.ids["shop"]))
    for version in ("IPv4", "IPv6"):
        rule = {"direction": "ingress", "protocol": "tcp", "ether_type": version}
        if not any(
            each.remote_group_id is None for each in alice.security_group_rules(security_group_id=group.id, **rule)
        ):
            alice.create_security_group_rule(security_group_id=group.id, **rule)


@pytest.fixture(params=["ovn", "agents"])
def watched(
    request: pytest.FixtureRequest, town: OpenStackOnLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenStackOnLab]:
    """The same cloud, probed by OVN or by agents."""
    if request.param == "ovn":
        yield town
        return
    secret = tmp_path / "password"
    secret.touch(0o600)
    secret.write_text(PASSWORD)
    monkeypatch.setenv("FAIRLEAD_AGENT_USER", USER)
    monkeypatch.setenv("FAIRLEAD_AGENT_PASSWORD_FILE", str(secret))
    with ExitStack() as running:
        running.callback(town.restart_server)
        town.restart_server(FAIRLEAD_HEALTH_PROBER="agents")
        for agent in agents.start(town.lab.layout, town.server.url):
            running.callback(agent.stop)
        yield town


def make(stack: OpenStackOnLab, version: int) -> Any:
    """A load balancer with all its parts, including a monitor, created in one request."""
    balancing = stack.connection_of("alice").load_balancer
    subnets = {each.name: each.id for each in stack.connection_of("alice").network.subnets()}
    members = [
        {
            "name": machine,
            "address": stack.address(machine, version),
            "protocol_port": PORT,
            "subnet_id": subnets[f"{network}v{version}"],
        }
        for machine, (network, _) in MEMBERS.items()
    ]
    pool = {"name": "watched", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": members}
    listener = {
        "protocol": "TCP",
        "protocol_port": 80,
        "default_pool": {**pool, "healthmonitor": {"type": "TCP", **TIMES}},
    }
    made = balancing.create_load_balancer(name="watched", vip_subnet_id=subnets[f"w1v{version}"], listeners=[listener])
    balancing.wait_for_load_balancer(made.id, interval=0.5, wait=OPENSTACK_SECONDS)
    return made


@contextmanager
def balancer(stack: OpenStackOnLab, version: int) -> Iterator[Any]:
    made = make(stack, version)
    try:
        yield made
    finally:
        stack.openstack("alice", f"loadbalancer delete --cascade --wait {made.id}")


def statuses(stack: OpenStackOnLab) -> dict[str, str]:
    balancing = stack.connection_of("alice").load_balancer
    pool = balancing.find_pool("watched", ignore_missing=False)
    return {each.name: each.operating_status for each in balancing.members(pool)}


def become(stack: OpenStackOnLab, **wanted: str) -> None:
    wait_equal(lambda: statuses(stack), wanted)


def ports(stack: OpenStackOnLab) -> dict[str, Any]:
    """Ports for probes, by the name of their network."""
    administrator = stack.connection_of("admin").network
    found = list(administrator.ports(device_owner=OWNER))
    assert {each.project_id for each in found} <= {stack.keystone.ids["shop"]}
    made = {administrator.get_network(each.network_id).name: each for each in found}
    assert len(made) == len(found), "one for a network"
    return made


@pytest.mark.parametrize("version", [4, 6])
def test_dead_member_gets_no_connections(watched: OpenStackOnLab, version: int):
    with balancer(watched, version) as made:
        become(watched, watched1="ONLINE", watched2="ONLINE")
        end_process(watched, "watched1")  # type: ignore[arg-type]
        try:
            become(watched, watched1="ERROR", watched2="ONLINE")
            wait_equal(lambda: watched.answers(CLIENT, made.vip_address), {"watched2"})
        finally:
            start_process(watched, "watched1")  # type: ignore[arg-type]
        become(watched, watched1="ONLINE", watched2="ONLINE")
        wait_equal(lambda: watched.answers(CLIENT, made.vip_address), set(MEMBERS))


def test_probe_ports_exist_only_while_a_monitor_needs_them(watched: OpenStackOnLab):
    """A port that the network's owner deletes is created again. All are deleted with the monitor."""
    wait_equal(lambda: ports(watched), {})  # those of an earlier test are deleted after its load balancer
    watched.lab.wait_synced()
    before = read_neutron_rows(watched.lab)
    with balancer(watched, 4):
        become(watched, watched1="ONLINE", watched2="ONLINE")
        there = ports(watched)
        assert {name: len(each.fixed_ips) >= 1 for name, each in there.items()} == dict.fromkeys(NETWORKS, True)
        watched.connection_of("alice").network.delete_port(there["w1"].id)
        wait_until(
            lambda: {network: port.id for network, port in ports(watched).items()},
            "another port",
            is_enough=lambda now: now.keys() == NETWORKS.keys() and now["w1"] != there["w1"].id,
        )
        end_process(watched, "watched1")  # type: ignore[arg-type]
        become(watched, watched1="ERROR", watched2="ONLINE")
        start_process(watched, "watched1")  # type: ignore[arg-type]
        become(watched, watched1="ONLINE", watched2="ONLINE")
        monitor = next(iter(watched.connection_of("alice").load_balancer.health_monitors()))
        watched.openstack("alice", f"loadbalancer healthmonitor delete --wait {monitor.id}")
        wait_equal(lambda: ports(watched), {})
    wait_equal(lambda: differences(before, read_neutron_rows(watched.lab)), [])


def test_probe_port_is_removed_although_the_driver_agent_is_killed_meanwhile(town: OpenStackOnLab):
    """The load balancer is deleted while the agent that would delete its ports is not running."""
    made, balancing = make(town, 4), town.connection_of("alice").load_balancer
    become(town, watched1="ONLINE", watched2="ONLINE")
    town.octavia.kill("agent")
    balancing.delete_load_balancer(made.id, cascade=True)
    assert ports(town).keys() == NETWORKS.keys()
    town.octavia.start("agent")
    wait_equal(lambda: balancing.find_load_balancer(made.id), None)
    wait_equal(lambda: ports(town), {})
