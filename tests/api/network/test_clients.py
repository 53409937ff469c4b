"""Unmodified stock clients against the real application: their output."""

from pathlib import Path

import openstack
import pytest
from openstack.connection import Connection

from harness.shell import OpenStackShell, shell


@pytest.mark.client
def test_cli_manages_networks_subnets_ports_and_routers(clouds: Path):
    """Names are resolved, a port takes extension attributes, and errors are printed in full."""
    four = "--subnet-range 10.0.0.0/24 --gateway 10.0.0.254 --dns-nameserver 1.1.1.1"
    value = "-f value -c"
    steps = [
        ("network create web --mtu 1400 --tag a " + value + " mtu", (0, "1400")),
        (f"subnet create web4 --network web {four} {value} gateway_ip", (0, "10.0.0.254")),
        (
            f"port create vm --network web --fixed-ip subnet=web4,ip-address=10.0.0.11 --tag t {value} fixed_ips",
            (0, "SUBNET"),
        ),
        ("router create r " + value + " external_gateway_info", (0, "None")),
        ("router add subnet r web4", (0, "")),
        ("port list --router r -f value -c Name -c Status", (0, "ACTIVE")),
        ("port list --fixed-ip ip-address=10.0.0.11 --tags t " + value + " Name", (0, "vm")),
        ("network show nothing", (1, "No Network found for nothing")),
    ]
    with shell(clouds) as typed:
        _type(typed, steps)


def _type(typed: OpenStackShell, steps: list[tuple[str, tuple[int, str]]]) -> None:
    for line, expected in steps:
        code, printed = typed.code_and_text(line)
        shown = "SUBNET" if "'ip_address': '10.0.0.11'" in printed else printed
        assert (code, shown) == expected, line
    code, printed = typed.code_and_text("network delete web")
    assert code == 1
    assert "There are one or more ports still in use on the network." in printed


@pytest.mark.client
def test_cli_manages_quotas(clouds: Path):
    """The client first looks up the project, in an Identity API below the endpoint that it was given."""
    value = "-f value -c"
    with shell(clouds) as typed:
        limits = "quota show --network shop -f value"
        assert {"networks -1", "floating_ips -1"} <= set(typed.run_ok(limits).splitlines())
        typed.run_ok("quota set --networks 1 --ports 2 shop")
        assert {"networks 1", "ports 2", "routers -1"} <= set(typed.run_ok(limits).splitlines())
        assert typed.run_ok(f"network create mine --project shop {value} project_id") == "shop"
        typed.run_error("network create yours --project shop", "Quota exceeded for resources: ['network'].")
        typed.run_error("quota set --networks 0 shop", "must be greater than or equal to already used 1")
        typed.run_ok("quota set --networks 0 --force shop")
        assert "networks 0 1 0" in typed.run_ok("quota show --network --usage shop -f value").splitlines()
        listed = typed.run_ok("quota list --network -f json")
        assert [(each["Project ID"], each["Networks"], each["Ports"]) for each in listed] == [("shop", 0, 2)]
        assert "networks -1" in typed.run_ok("quota show --network --default shop -f value").splitlines()
        typed.run_error("quota set --secgroups 1 shop", "Unrecognized attribute(s) 'security_group'")
        typed.run_ok("quota delete --network shop")
        assert typed.run_ok("quota list --network -f json") == []
        assert "shop" in typed.run_ok("project list -f value -c Name").splitlines()
        typed.run_ok("network delete mine")


def test_sdk_manages_networks_and_subnets(cloud: Connection):
    network = cloud.network.create_network(name="sdk", description="d")
    assert cloud.network.find_network("sdk").id == network.id
    assert cloud.network.find_network("nothing") is None
    assert cloud.network.update_network(network, name="sdk2", mtu=1300).mtu == 1300
    six = cloud.network.create_subnet(
        network_id=network.id, cidr="fd00::/64", ip_version=6, ipv6_address_mode="slaac", ipv6_ra_mode="slaac"
    )
    four = cloud.network.create_subnet(
        network_id=network.id,
        cidr="10.1.0.0/24",
        ip_version=4,
        gateway_ip=None,
        enable_dhcp=False,
        allocation_pools=[{"start": "10.1.0.5", "end": "10.1.0.9"}],
        host_routes=[{"destination": "10.9.0.0/16", "nexthop": "10.1.0.2"}],
    )
    assert [subnet.id for subnet in cloud.network.subnets(network_id=network.id)] == [six.id, four.id]
    assert cloud.network.update_subnet(four, dns_nameservers=["9.9.9.9"]).dns_nameservers == ["9.9.9.9"]
    cloud.network.set_tags(network, ["x", "y"])
    assert [found.id for found in cloud.network.networks(tags="x", is_admin_state_up=True)] == [network.id]
    cloud.network.remove_tag(network, "x")
    assert cloud.network.get_network(network.id).tags == ["y"]
    with pytest.raises(openstack.exceptions.BadRequestException, match="overlaps with another subnet"):
        cloud.network.create_subnet(network_id=network.id, cidr="10.1.0.0/25", ip_version=4)
    cloud.network.delete_network(network)
    assert cloud.network.find_subnet(four.id) is None


def test_sdk_manages_ports_and_routers(cloud: Connection):
    network = cloud.network.create_network(name="ports")
    subnet = cloud.network.create_subnet(network_id=network.id, cidr="10.2.0.0/24", ip_version=4)
    ports = list(cloud.network.create_ports([{"network_id": network.id, "name": f"p{n}"} for n in range(3)]))
    assert len({port.fixed_ips[0]["ip_address"] for port in ports}) == 3
    paged = cloud.network.ports(network_id=network.id, limit=2, sort_key="name", sort_dir="desc")
    assert [port.name for port in paged] == ["p2", "p1", "p0"]
    changed = cloud.network.update_port(ports[0], binding_host_id="node1", is_admin_state_up=False, fixed_ips=[])
    assert (changed.binding_host_id, changed.status, changed.fixed_ips) == ("node1", "DOWN", [])
    router = cloud.network.create_router(name="r")
    added = cloud.network.add_interface_to_router(router, subnet_id=subnet.id)
    assert cloud.network.get_port(added["port_id"]).fixed_ips[0]["ip_address"] == "10.2.0.1"
    route = {"destination": "10.8.0.0/16", "nexthop": "10.2.0.9"}
    assert cloud.network.update_router(router, routes=[route]).routes == [route]
    assert cloud.network.update_router(router, routes=[]).routes == []
    with pytest.raises(openstack.exceptions.ConflictException, match="still has ports"):
        cloud.network.delete_router(router)
    cloud.network.remove_interface_from_router(router, subnet_id=subnet.id)
    cloud.network.delete_router(router)
    for port in ports:
        cloud.network.delete_port(port)
    cloud.network.delete_subnet(subnet)
    cloud.network.delete_network(network)
    with pytest.raises(openstack.exceptions.NotFoundException):
        cloud.network.get_network(network.id)


def test_sdk_reads_unsupported_resources_as_empty_lists(cloud: Connection):
    network = cloud.network
    lists = (network.agents, network.security_groups, network.qos_policies, network.ips, network.subnet_pools)
    assert [list(found()) for found in lists] == [[]] * len(lists)
    assert network.find_extension("router").name == "Neutron L3 Router"
    assert network.find_extension("bgp") is None
    assert network.get_quota("default").networks == -1
    assert network.get_quota("default", details=True).ports["reserved"] == 0
    assert network.get_quota_default("default").routers == -1
    assert [quota.project_id for quota in network.quotas()] == []


@pytest.mark.client
def test_cli_manages_external_networks_gateways_and_floating_ips(clouds: Path):
    """External networks, gateways and floating IPs, as in the client's own manual."""
    value = "-f value -c"
    wire = "--provider-network-type vlan --provider-physical-network physnet --provider-segment 100"
    steps = [
        (f"network create public --external {wire} {value} router:external", (0, "True")),
        (
            "subnet create public4 --network public --subnet-range 203.0.113.0/24 -f value -c gateway_ip",
            (0, "203.0.113.1"),
        ),
        ("network list --external -f value -c Name", (0, "public")),
        ("network show public " + value + " provider:segmentation_id", (0, "100")),
        ("network create inside " + value + " router:external", (0, "False")),
        ("subnet create inside4 --network inside --subnet-range 10.3.0.0/24 " + value + " cidr", (0, "10.3.0.0/24")),
        ("router create way " + value + " name", (0, "way")),
        ("router add subnet way inside4", (0, "")),
        (
            "router set way --external-gateway public --fixed-ip subnet=public4,ip-address=203.0.113.9 --disable-snat",
            (0, ""),
        ),
        ("port create vm3 --network inside --fixed-ip ip-address=10.3.0.11 " + value + " name", (0, "vm3")),
        ("port create vm4 --network inside --fixed-ip ip-address=10.3.0.12 " + value + " name", (0, "vm4")),
        (
            f"floating ip create public --floating-ip-address 203.0.113.50 --port vm3 {value} fixed_ip_address",
            (0, "10.3.0.11"),
        ),
        ("floating ip set --port vm4 --fixed-ip-address 10.3.0.12 203.0.113.50", (0, "")),
        ("floating ip show 203.0.113.50 " + value + " fixed_ip_address", (0, "10.3.0.12")),
        ("floating ip list --router way -f value -c Port -c ID", (0, "TWO")),
        ("floating ip unset --port 203.0.113.50", (0, "")),
        ("floating ip show 203.0.113.50 " + value + " status", (0, "DOWN")),
        ("floating ip delete 203.0.113.50", (0, "")),
        ("router set way --external-gateway public --enable-snat", (0, "")),
        ("router unset --external-gateway way", (0, "")),
        ("router show way " + value + " external_gateway_info", (0, "None")),
        ("floating ip list -f value", (0, "")),
    ]
    with shell(clouds) as typed:
        for line, expected in steps:
            code, printed = typed.code_and_text(line)
            shown = "TWO" if len(printed.split()) == 2 else printed
            assert (code, shown) == expected, line
        code, printed = typed.code_and_text("floating ip create inside")
    assert code == 1
    assert "is not a valid external network" in printed
