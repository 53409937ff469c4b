"""The address allocator: addresses for ports and for services, and addresses that neither may have."""

from ipaddress import ip_address, ip_network

from fairlead.changes.addresses import (
    AddressHolder,
    AddressInUse,
    AddressIsAutomatic,
    AddressOutsideSubnet,
    AddressRequest,
    GatewayInPool,
    NoFreeAddress,
    NoSubnetOnNetwork,
    PoolsOverlap,
    check_gateway,
    check_pools,
    choose_fixed_ips,
    choose_service_address,
    choose_subnet,
)
from fairlead.model.documents.network import AllocationPool, FixedIP, Ipv6Mode, Network, Port, Subnet
from fairlead.model.snapshot import Snapshot
from harness.changes.world import OWNERS, fixed, refusal, snapshot_with, subnet

MAC = "fa:16:3e:00:00:01"
MADE_OF_MAC = ip_address("fd00::f816:3eff:fe00:1")
SMALL, SIX, AUTOMATIC = (
    subnet("four", "10.0.0.0/30"),
    subnet("six", "fd01::/64"),
    subnet("auto", "fd00::/64", ipv6_address_mode=Ipv6Mode.SLAAC),
)


def taking(network: Network, *addresses: FixedIP) -> Snapshot:
    port = Port(id="other", network_id=network.id, mac_address="fa:16:3e:00:00:02", fixed_ips=addresses, **OWNERS)
    return snapshot_with(network, port)


def network(*subnets: Subnet) -> Network:
    return Network(id="net", mtu=1442, subnets=subnets, **OWNERS)


def test_port_gets_an_address_of_each_family_and_slaac_derives_from_the_mac():
    net = network(SMALL, AUTOMATIC)
    holder = AddressHolder(port_id="p", mac=MAC, network=net)
    assert choose_fixed_ips(taking(net), holder, None) == (
        fixed("four", "10.0.0.2"),
        FixedIP(subnet_id="auto", address=MADE_OF_MAC),
    )
    wanted = (AddressRequest(subnet_id="auto", address=ip_address("fd00::2")),)
    assert refusal(choose_fixed_ips, taking(net), holder, wanted) == AddressIsAutomatic(
        address=ip_address("fd00::2"), subnet_id="auto"
    )


def test_port_keeps_its_address_on_a_requested_subnet():
    net = network(SMALL, SIX)
    held = fixed("six", "fd01::7")
    holder = AddressHolder(port_id="p", mac=MAC, network=net, current_addresses=(held,))
    asked = (AddressRequest(subnet_id="six"), AddressRequest(subnet_id="four"))
    assert choose_fixed_ips(taking(net), holder, asked) == (held, fixed("four", "10.0.0.2"))


def test_allocated_address_is_refused_for_ports_and_services():
    net = network(SMALL)
    full, two = taking(net, fixed("four", "10.0.0.2")), ip_address("10.0.0.2")
    holder = AddressHolder(port_id="p", mac=MAC, network=net)
    taken = AddressInUse(address=two, subnet_id="four")
    assert refusal(choose_fixed_ips, full, holder, (AddressRequest(address=two),)) == taken
    assert refusal(choose_service_address, full, "net", SMALL, two, "seed") == taken
    assert refusal(choose_fixed_ips, full, holder, None) == NoFreeAddress(network_id="net")
    assert refusal(choose_service_address, full, "net", SMALL, None, "seed") == NoFreeAddress(
        network_id="net", subnet_id="four"
    )


def test_service_cannot_have_the_gateway_address_but_a_port_can():
    net, gateway = network(SMALL), ip_address("10.0.0.1")
    holder = AddressHolder(port_id="p", mac=MAC, network=net)
    assert choose_fixed_ips(taking(net), holder, (AddressRequest(address=gateway),)) == (fixed("four", "10.0.0.1"),)
    assert refusal(choose_service_address, taking(net), "net", SMALL, gateway, "seed") == AddressInUse(
        address=gateway, subnet_id="four"
    )
    outside = ip_address("10.0.0.3")
    assert refusal(choose_service_address, taking(net), "net", SMALL, outside, "seed") == AddressOutsideSubnet(
        address=outside, subnet_id="four", cidr=SMALL.cidr
    )


def test_service_on_a_slaac_subnet_gets_a_pool_address():
    chosen = choose_service_address(taking(network(AUTOMATIC)), "net", AUTOMATIC, None, "seed")
    assert chosen.address in AUTOMATIC.cidr
    assert chosen.address != MADE_OF_MAC


def test_service_subnet_is_one_with_a_free_address_if_any():
    net = network(SIX, SMALL)
    assert choose_subnet(taking(net), net, None) is SMALL
    assert choose_subnet(taking(net, fixed("four", "10.0.0.2")), net, None) is SIX
    assert choose_subnet(taking(net), net, ip_address("fd01::9")) is SIX
    nowhere = ip_address("10.9.0.1")
    assert refusal(choose_subnet, taking(net), net, nowhere) == NoSubnetOnNetwork(network_id="net", address=nowhere)


def test_allocation_pools_must_not_overlap_or_contain_the_gateway():
    pools = [
        AllocationPool(start=ip_address(first), end=ip_address(last))
        for first, last in (("10.9.0.10", "10.9.0.20"), ("10.9.0.2", "10.9.0.10"))
    ]
    cidr = ip_network("10.9.0.0/24")
    assert refusal(check_pools, tuple(pools), cidr) == PoolsOverlap(one=pools[1], other=pools[0], cidr=cidr)
    gateway = ip_address("10.9.0.15")
    assert refusal(check_gateway, tuple(pools), gateway) == GatewayInPool(gateway=gateway, pool=pools[0])
