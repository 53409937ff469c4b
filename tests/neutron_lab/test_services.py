"""The harness itself: the stock client finds real services, machines communicate, and recorded rows match Neutron's."""

import pytest

from harness.neutron_lab.cloud import PORT, OpenStackOnLab
from harness.neutron_lab.rows import read, read_recording, shape

pytestmark = pytest.mark.neutron


def test_octavia_lists_providers_and_machines_on_neutron_networks_communicate(stack: OpenStackOnLab):
    stack.openstack("alice", "network create plain")
    stack.openstack("alice", "subnet create plain4 --network plain --subnet-range 10.20.0.0/24")
    stack.openstack("alice", "subnet create plain6 --network plain --ip-version 6 --subnet-range fd20::/64")
    providers = stack.openstack("alice", "loadbalancer provider list -f json")
    assert {each["name"] for each in providers} == {"fairlead", "ovn"}

    stack.machines({"plain1": ("plain", "chassis1"), "plain2": ("plain", "chassis2")})

    assert stack.answers("plain1", stack.address("plain2"), PORT) == {"plain2"}
    assert stack.answers("plain1", stack.address("plain2", 6), PORT) == {"plain2"}


def test_recorded_rows_have_the_columns_and_keys_that_neutron_writes(stack: OpenStackOnLab):
    """Columns and keys of the recorded rows are those of the real ones."""
    alice, administrator = stack.connection_of("alice").network, stack.connection_of("admin").network
    flat = {"provider_network_type": "flat", "provider_physical_network": "physnet"}
    vlan = {**flat, "provider_network_type": "vlan", "provider_segmentation_id": 101}
    administrator.create_network(name="vlan", **vlan)
    outside = administrator.find_network("public")  # a physical network has one flat network
    if outside is None:
        outside = administrator.create_network(name="public", is_router_external=True, **flat)
        administrator.create_subnet(network_id=outside.id, ip_version=4, cidr="203.0.113.0/24", enable_dhcp=False)
    router = alice.create_router(name="seen", external_gateway_info={"network_id": outside.id})
    seen = alice.create_network(name="seen")
    for version, cidr, more in ((4, "10.21.0.0/24", {}), (6, "fd21::/64", {"ipv6_address_mode": "slaac"})):
        modes = {**more, "ipv6_ra_mode": "slaac"} if more else {}
        subnet = alice.create_subnet(network_id=seen.id, ip_version=version, cidr=cidr, **modes)
        alice.add_interface_to_router(router, subnet_id=subnet.id)
    port = administrator.create_port(
        network_id=seen.id,
        device_owner="Octavia",
        device_id="lb-1",
        is_admin_state_up=False,
        binding_host_id="chassis1",
    )
    address = next(each["ip_address"] for each in port.fixed_ips if "." in each["ip_address"])
    administrator.create_ip(floating_network_id=outside.id, port_id=port.id, fixed_ip_address=address)

    written, taken = shape(read(stack.lab)), shape(read_recording())

    read_by_us = (
        "Logical_Switch",
        "Logical_Switch_Port",
        "Logical_Router",
        "Logical_Router_Port",
        "NAT",
        "DHCP_Options",
    )
    assert {table: taken[table] - written[table] for table in read_by_us} == {table: set() for table in read_by_us}
