"""Load balancers of the user Alice, made with the stock client in a real Octavia, on networks of a real Neutron.

n1 and n2 are on the router r1; n3 joins it and n2 leaves. r1 has a gateway on `public`. web1 on n1 and web2 on n2 are
members, on the chassis without clients.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fairlead.lab import Protocol
from harness.neutron_lab.cloud import PORT, OpenStackOnLab
from harness.neutron_lab.rows import Rows, differences, read_neutron_rows, without
from harness.waiting import wait_equal

pytestmark = pytest.mark.neutron

NETWORKS = {"n1": ("10.1.0.0/24", "fd01::/64"), "n2": ("10.2.0.0/24", "fd02::/64"), "n3": ("10.3.0.0/24", "fd03::/64")}
JOINED = ("n1", "n2")
MACHINES = {
    "client1": ("n1", "chassis1"),
    "web1": ("n1", "chassis2"),
    "client2": ("n2", "chassis2"),
    "web2": ("n2", "chassis1"),
    "client3": ("n3", "chassis1"),
}
BOTH = {"web1", "web2"}


@pytest.fixture(scope="module")
def town(stack: OpenStackOnLab) -> OpenStackOnLab:
    """The networks and machines."""
    build(stack)
    return stack


def build(stack: OpenStackOnLab) -> None:
    run = stack.openstack
    run("admin", "network create public --external --provider-network-type flat --provider-physical-network physnet")
    run("admin", "subnet create public4 --network public --subnet-range 203.0.113.0/24 --no-dhcp --gateway 203.0.113.1")
    alice = stack.connection_of("alice").network
    for name, cidrs in NETWORKS.items():
        network = alice.create_network(name=name)
        for version, cidr in zip((4, 6), cidrs, strict=True):
            alice.create_subnet(name=f"{name}v{version}", network_id=network.id, ip_version=version, cidr=cidr)
    join(stack)
    stack.machines(MACHINES)
    # Neutron creates a project's default security group at the first request of a user of it, here Octavia's own.
    run("alice", "loadbalancer create --name first --vip-subnet-id n1v4 --wait")
    run("alice", "loadbalancer delete --wait first")


def join(stack: OpenStackOnLab) -> None:
    """Create the router, and a security group that allows external clients."""
    alice, run = stack.connection_of("alice").network, stack.openstack
    public = alice.find_network("public", ignore_missing=False)
    alice.create_router(name="r1", external_gateway_info={"network_id": public.id})
    for name in JOINED:
        for version in (4, 6):
            run("alice", f"router add subnet r1 {name}v{version}")
    group = next(alice.security_groups(name="default", project_id=stack.keystone.ids["shop"]))
    for protocol in ("tcp", "udp"):
        alice.create_security_group_rule(security_group_id=group.id, direction="ingress", protocol=protocol)


@contextmanager
def balancer(
    stack: OpenStackOnLab, name: str, subnet: str, protocol: str, version: int = 4
) -> Iterator[dict[str, Any]]:
    """A load balancer on port 80 with both members, each object created by a separate command."""
    run = stack.openstack
    made = run(
        "alice", f"loadbalancer create --name {name} --vip-subnet-id {subnet} --provider fairlead --wait -f json"
    )
    try:
        run(
            "alice",
            f"loadbalancer listener create --name {name}-in --protocol {protocol} --protocol-port 80 --wait {name}",
        )
        run(
            "alice",
            f"loadbalancer pool create --name {name}-pool --listener {name}-in --protocol {protocol}"
            " --lb-algorithm SOURCE_IP_PORT --wait",
        )
        for server in sorted(BOTH):
            where = MACHINES[server][0]
            run(
                "alice",
                f"loadbalancer member create --name {server} --subnet-id {where}v{version} --protocol-port {PORT}"
                f" --address {stack.address(server, version)} --wait {name}-pool",
            )
        yield made
    finally:
        run("alice", f"loadbalancer delete --cascade --wait {name}")


def wait_answers(
    wanted: set[str], stack: OpenStackOnLab, client: str, to: str, protocol: Protocol = Protocol.TCP
) -> None:
    """Wait until Neutron, Fairlead's import and OVN have processed the changes."""
    wait_equal(lambda: stack.answers(client, to, protocol=protocol), wanted)


def settled(stack: OpenStackOnLab) -> Rows:
    stack.lab.wait_synced()
    return read_neutron_rows(stack.lab)


def test_load_balancer_lifecycle_works_and_leaves_neutron_rows_unchanged(town: OpenStackOnLab):
    before = settled(town)
    with balancer(town, "shop", "n1v4", "TCP") as shop:
        vip = shop["vip_address"]
        for client in ("client1", "client2"):
            wait_answers(BOTH, town, client, vip)
        assert town.answers("client3", vip) == {""}, "r1 does not join n3"

        status = town.openstack("alice", "loadbalancer status show shop")["loadbalancer"]
        assert (status["provisioning_status"], status["operating_status"]) == ("ACTIVE", "ONLINE")
        town.openstack("alice", "loadbalancer member set --weight 0 --wait shop-pool web2")
        wait_answers({"web1"}, town, "client1", vip)
        town.openstack("alice", "loadbalancer member set --weight 1 --wait shop-pool web2")
        town.openstack("alice", "loadbalancer set --disable --wait shop")
        wait_answers({""}, town, "client1", vip)
        town.openstack("alice", "loadbalancer set --enable --wait shop")
        wait_answers(BOTH, town, "client1", vip)

        rows = settled(town)
        port = {identity for identity, row in rows["Logical_Switch_Port"].items() if row["name"] == shop["vip_port_id"]}
        assert len(port) == 1, "Neutron has one port more, and all else is as it was"
        assert differences(before, without(rows, port)) == []
    wait_equal(lambda: differences(before, settled(town)), [])


def test_udp_over_ipv6_is_balanced(town: OpenStackOnLab):
    with balancer(town, "names", "n1v6", "UDP", 6) as names:
        for client in ("client1", "client2"):
            wait_answers(BOTH, town, client, names["vip_address"], Protocol.UDP)


def test_vip_follows_networks_that_join_and_leave_the_router(town: OpenStackOnLab):
    """The VIP is served on all networks of the router of the VIP's network, and on no others."""
    with balancer(town, "story", "n1v4", "TCP") as story:
        vip = story["vip_address"]
        wait_answers(BOTH, town, "client2", vip)
        town.openstack("alice", "router add subnet r1 n3v4")
        wait_answers(BOTH, town, "client3", vip)
        town.openstack("alice", "router remove subnet r1 n2v4")
        wait_answers({""}, town, "client2", vip)
        town.openstack("alice", "loadbalancer member delete --wait story-pool web2")
        wait_answers({"web1"}, town, "client3", vip)
        wait_answers({"web1"}, town, "client1", vip)
        town.openstack("alice", "router add subnet r1 n2v4")
        town.openstack("alice", "router remove subnet r1 n3v4")
        wait_answers({"web1"}, town, "client2", vip)
        wait_answers({""}, town, "client3", vip)


def test_neutron_floating_ip_of_the_vip_port_is_balanced(town: OpenStackOnLab):
    with balancer(town, "front", "n1v4", "TCP") as front:
        made = town.openstack("alice", f"floating ip create public --port {front['vip_port_id']} -f json")
        address = made["floating_ip_address"]
        for client in ("outside", "client2"):
            wait_answers(BOTH, town, client, address)
        town.openstack("alice", f"floating ip unset --port {address}")
        wait_answers({""}, town, "outside", address)
        town.openstack("alice", f"floating ip delete {address}")


def test_vip_on_a_vlan_provider_network_is_served(town: OpenStackOnLab):
    """Traffic between its machines passes the physical network in its VLAN, without a router."""
    run, shop = town.openstack, town.keystone.ids["shop"]
    run(
        "admin",
        f"network create wire --project {shop} --provider-network-type vlan --provider-physical-network physnet"
        " --provider-segment 102",
    )
    run(
        "alice",
        "subnet create wire4 --network wire --subnet-range 10.9.0.0/24 --gateway none --allocation-pool"
        " start=10.9.0.100,end=10.9.0.200",
    )
    town.machines({"wired1": ("wire", "chassis1"), "wired2": ("wire", "chassis2")})
    made = run("alice", "loadbalancer create --name wired --vip-subnet-id wire4 --wait -f json")
    try:
        run("alice", "loadbalancer listener create --name wired-in --protocol TCP --protocol-port 80 --wait wired")
        run(
            "alice",
            "loadbalancer pool create --name wired-pool --listener wired-in --protocol TCP"
            " --lb-algorithm SOURCE_IP_PORT --wait",
        )
        run(
            "alice",
            f"loadbalancer member create --name wired2 --subnet-id wire4 --protocol-port {PORT}"
            f" --address {town.address('wired2')} --wait wired-pool",
        )
        wait_answers({"wired2"}, town, "wired1", made["vip_address"])
    finally:
        run("alice", "loadbalancer delete --cascade --wait wired")
