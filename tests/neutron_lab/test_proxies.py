"""Proxied listeners on Neutron's networks: their proxies have ports created in Neutron.

p1 (both IP versions) and p2 are on the router `proxied`, with a member and a client each, on both chassis.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from fairlead.lab import agents
from fairlead.lab.errors import LabCommandFailed
from harness.neutron_lab.cloud import PORT, OpenStackOnLab
from harness.neutron_lab.rows import differences, read_neutron_rows
from harness.octavia_plugin.cloud import PASSWORD, USER
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.neutron

NETWORKS = {"p1": ("10.61.0.0/24", "fd61::/64"), "p2": ("10.62.0.0/24", "fd62::/64")}
MEMBERS = {"proxied1": ("p1", "chassis1"), "proxied2": ("p2", "chassis2")}
CLIENTS = {"asker1": ("p1", "chassis1"), "asker2": ("p1", "chassis2")}
OWNER = "fairlead:load_balancer_proxy"
OPENSTACK_SECONDS = 300  # timeout of Octavia's operations


@pytest.fixture(scope="module")
def town(stack: OpenStackOnLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStackOnLab]:
    """The cloud, with agents that probe and run proxies."""
    alice = stack.connection_of("alice").network
    router = alice.create_router(name="proxied")
    for name, cidrs in NETWORKS.items():
        network = alice.create_network(name=name)
        for version, cidr in zip((4, 6), cidrs, strict=True):
            subnet = alice.create_subnet(name=f"{name}v{version}", network_id=network.id, ip_version=version, cidr=cidr)
            alice.add_interface_to_router(router, subnet_id=subnet.id)
    stack.machines({**MEMBERS, **CLIENTS})
    group = next(alice.security_groups(name="default", project_id=stack.keystone.ids["shop"]))
    for version in ("IPv4", "IPv6"):
        with suppress(Exception):  # another test may have created it
            alice.create_security_group_rule(
                security_group_id=group.id, direction="ingress", protocol="tcp", ether_type=version
            )
    # creates the default security group: see test_balancers
    stack.openstack("alice", "loadbalancer create --name first --vip-subnet-id p1v4 --wait")
    stack.openstack("alice", "loadbalancer delete --wait first")
    secret = tmp_path_factory.mktemp("agents") / "password"
    secret.touch(0o600)
    secret.write_text(PASSWORD)
    with ExitStack() as running, pytest.MonkeyPatch.context() as environment:
        environment.setenv("FAIRLEAD_AGENT_USER", USER)
        environment.setenv("FAIRLEAD_AGENT_PASSWORD_FILE", str(secret))
        running.callback(stack.restart_server)
        stack.restart_server(FAIRLEAD_HEALTH_PROBER="agents")
        for agent in agents.start(stack.lab.layout, stack.server.url):
            running.callback(agent.stop)
        yield stack


def make(stack: OpenStackOnLab, name: str, version: int) -> Any:
    """An HTTP listener with an L7 policy for a path, created in one request with all its parts."""
    balancing = stack.connection_of("alice").load_balancer
    subnets = {each.name: each.id for each in stack.connection_of("alice").network.subnets()}
    members = [
        {
            "address": stack.address(machine, version),
            "protocol_port": PORT,
            "subnet_id": subnets[f"{network}v{version}"],
        }
        for machine, (network, _) in MEMBERS.items()
    ]
    rule = {"type": "PATH", "compare_type": "STARTS_WITH", "value": "/secret"}
    listener = {
        "protocol": "HTTP",
        "protocol_port": 80,
        "default_pool": {"name": name, "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN", "members": members},
        "l7policies": [{"action": "REJECT", "rules": [rule]}],
    }
    made = balancing.create_load_balancer(name=name, vip_subnet_id=subnets[f"p1v{version}"], listeners=[listener])
    balancing.wait_for_load_balancer(made.id, interval=0.5, wait=OPENSTACK_SECONDS)
    return made


@contextmanager
def balancer(stack: OpenStackOnLab, name: str, version: int = 4) -> Iterator[Any]:
    made = make(stack, name, version)
    try:
        yield made
    finally:
        stack.openstack("alice", f"loadbalancer delete --cascade --wait {made.id}")


def get(stack: OpenStackOnLab, client: str, vip: str, path: str = "/") -> str:
    """Name of the member or a status code; empty without a response."""
    url = f"http://[{vip}]{path}" if ":" in vip else f"http://{vip}{path}"
    with suppress(LabCommandFailed):
        said = stack.lab.exec(client, ["curl", "-sS", "-m", "30", "-w", "\n%{http_code}", url]).strip()
        body, _, code = said.rpartition("\n")
        return body.strip() if code == "200" else code
    return ""


def operating(stack: OpenStackOnLab, made: Any) -> str:
    status: str = stack.connection_of("alice").load_balancer.get_load_balancer(made.id).operating_status
    return status


def ports(stack: OpenStackOnLab) -> dict[str, Any]:
    """Ports of proxies by the chassis to which they are bound."""
    found = list(stack.connection_of("admin").network.ports(device_owner=OWNER))
    made = {each.binding_host_id: each for each in found}
    assert len(made) == len(found), "one for a chassis"
    return made


def served_near(stack: OpenStackOnLab) -> dict[str, int]:
    """Number of proxies on each chassis."""
    found = {each.name: stack.lab.layout.directory / "fairlead" for each in stack.lab.record.chassis}
    return {name: len(list(Path(at / f"agent-{name}.proxies").glob("*/pid"))) for name, at in found.items()}


@pytest.mark.parametrize("version", [4, 6])
def test_each_chassis_has_a_proxy_with_a_neutron_port(town: OpenStackOnLab, version: int):
    wait_equal(lambda: ports(town), {})
    town.lab.wait_synced()
    before = read_neutron_rows(town.lab)
    with balancer(town, f"shelf{version}", version) as made:
        wait_equal(lambda: len(ports(town)), len(town.lab.record.chassis))
        for client in CLIENTS:
            wait_until(lambda client=client: get(town, client, made.vip_address), is_enough=MEMBERS.__contains__)
            wait_equal(lambda client=client: get(town, client, made.vip_address, "/secret"), "403")
            assert {get(town, client, made.vip_address) for _ in range(12)} == {*MEMBERS}
        wait_equal(lambda: operating(town, made), "ONLINE")
        assert {each.project_id for each in ports(town).values()} == {town.keystone.ids["shop"]}
        assert set(served_near(town).values()) == {1}
    wait_equal(lambda: ports(town), {})
    wait_equal(lambda: differences(before, read_neutron_rows(town.lab)), [])


def test_deleted_proxy_port_is_recreated(town: OpenStackOnLab):
    with balancer(town, "anew") as made:
        wait_equal(lambda: len(ports(town)), len(town.lab.record.chassis))
        there = ports(town)
        first = min(there)
        town.connection_of("alice").network.delete_port(there[first].id)
        wait_until(
            lambda: {host: port.id for host, port in ports(town).items()},
            "another port",
            is_enough=lambda now: now.get(first, there[first].id) != there[first].id,
        )
        for client in CLIENTS:
            wait_until(lambda client=client: get(town, client, made.vip_address), is_enough=MEMBERS.__contains__)
    wait_equal(lambda: ports(town), {})


def test_rejected_proxy_ports_set_error_until_the_quota_is_raised(town: OpenStackOnLab):
    """The project's quota allows only the existing ports and the VIP's. Nothing remains PENDING."""
    shop, administrator = town.keystone.ids["shop"], town.connection_of("admin").network
    wait_equal(lambda: ports(town), {})
    most = administrator.get_quota(shop).ports
    administrator.update_quota(shop, port=len(list(administrator.ports(project_id=shop))) + 1)
    try:
        with balancer(town, "refused") as made:
            wait_equal(lambda: operating(town, made), "ERROR")
            assert town.connection_of("alice").load_balancer.get_load_balancer(made.id).provisioning_status == "ACTIVE"
            assert ports(town) == {}
            assert "Quota exceeded" in town.octavia.log("agent")
            administrator.update_quota(shop, port=most)
            wait_equal(lambda: operating(town, made), "ONLINE")
    finally:
        administrator.update_quota(shop, port=most)


def test_no_proxy_port_remains_after_a_driver_agent_kill_during_deletion(town: OpenStackOnLab):
    """The load balancer is deleted while the agent that would delete its ports is not running."""
    made, balancing = make(town, "left", 4), town.connection_of("alice").load_balancer
    wait_equal(lambda: len(ports(town)), len(town.lab.record.chassis))
    town.octavia.kill("agent")
    balancing.delete_load_balancer(made.id, cascade=True)
    assert ports(town)
    town.octavia.start("agent")
    wait_equal(lambda: balancing.find_load_balancer(made.id), None)
    wait_equal(lambda: ports(town), {})
