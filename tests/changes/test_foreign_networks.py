"""Load balancers on unmanaged networks: the network's owner allocates addresses, and no unmanaged row is written."""

from dataclasses import replace

import pytest
from immutables import Map

from fairlead.changes.access import NotFound, find_network, find_port, find_subnet
from fairlead.changes.balancers import create_load_balancer, delete_load_balancer
from fairlead.changes.managed_networks import ManagedElsewhere
from fairlead.changes.vips import AdditionalVipRequest, PortHasDevice, VipNeedsPort, VipRequest, choose_vip
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.loadbalancer import ExternalService, LoadBalancer, MonitorType, PlainMonitor
from fairlead.model.documents.network import Network, Port, Subnet
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedPort, Writer
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import UNMANAGED, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot, member_network
from fairlead.runtime.steps import Steps, run_to_completion
from harness.changes.balancing import ASKER, apply_work, member, pool, refusal_of, stored
from harness.changes.world import GUEST, OWNERS, fixed, refusal, subnet

THEIRS = {"writer": Writer.NEUTRON, "row": "neutron-net@0b6f1a1c-7e11-4c0e-9d5e-0b6f1a1c7e11"}
NETWORK = UnmanagedNetwork(id="net", mtu=1442, subnets=(subnet("four", "10.0.0.0/24"),), **THEIRS, **OWNERS)
PORT = UnmanagedPort(
    id="theirs",
    network_id="net",
    mac_address="fa:16:3e:00:00:01",
    fixed_ips=(fixed("four", "10.0.0.7"),),
    **THEIRS,
    **OWNERS,
)
MONITOR = PlainMonitor(id="m", type=MonitorType.TCP, delay=5, timeout=3, max_retries=2, **OWNERS)


def cloud(*ports: UnmanagedPort) -> Snapshot:
    return with_facts(Snapshot(), UNMANAGED, {owner_of(each): each for each in (NETWORK, *ports)})


def asked(identity: str = "lb", **said: str) -> VipRequest:
    return VipRequest(balancer_id=identity, project_id="owner", new_port_id=f"vip-{identity}", **said)  # type: ignore[arg-type]


def balanced(snapshot: Snapshot, identity: str = "lb", **fields: object) -> Steps[Changes]:
    vip = choose_vip(snapshot, ASKER, asked(identity, port_id="theirs"))
    wanted = LoadBalancer(id=identity, provider="fairlead", vip=vip.vips[0], **OWNERS, **fields)  # type: ignore[arg-type]
    return create_load_balancer(snapshot, ASKER, wanted, vip)


@pytest.mark.parametrize("said", [{"subnet_id": "four"}, {"network_id": "net"}])
def test_vip_on_an_unmanaged_network_requires_a_port(said: dict[str, str]):
    why = refusal(choose_vip, cloud(), ASKER, asked(**said))
    assert why == VipNeedsPort(network_id="net", writer=Writer.NEUTRON)


@pytest.mark.parametrize("said", [{"subnet_id": "four"}, {"network_id": "net"}, {"port_id": "theirs"}])
@pytest.mark.parametrize("writer", [Writer.LXD, Writer.INCUS])
def test_vips_on_networks_of_lxd_and_incus_are_refused(writer: Writer, said: dict[str, str]):
    """VIPs on LXD's and Incus' networks are refused, because OVN does not answer ARP for unplugged ports there."""
    network, port = (replace(each, writer=writer) for each in (NETWORK, PORT))
    snapshot = with_facts(Snapshot(), UNMANAGED, {owner_of(each): each for each in (network, port)})
    why = refusal(choose_vip, snapshot, ASKER, asked(**said))
    assert why == ManagedElsewhere(network=network.name, writer=writer)
    stranger = replace(ASKER, identity=GUEST)
    assert isinstance(refusal(choose_vip, snapshot, stranger, asked(**said)), NotFound)


def test_unmanaged_vip_port_is_used_and_kept_on_delete():
    snapshot = cloud(PORT)
    changes = run_to_completion(balanced(snapshot))
    assert [put.id for put in changes.puts] == ["lb"]
    made = stored(apply_work(snapshot, balanced(snapshot)))
    assert (made.vip.port_id, made.vip.subnet_id, made.owns_vip_port) == ("theirs", "four", False)
    gone = delete_load_balancer(apply_work(snapshot, balanced(snapshot)), ASKER, "lb", cascade=True)
    assert gone == Changes(deletes=(Owner(Kind.LOAD_BALANCER, "lb"),))


def test_port_created_by_octavia_with_a_host_is_accepted_as_vip_port():
    given = replace(PORT, device_owner="Octavia", device_id="lb-lb", host="compute1")
    assert run_to_completion(balanced(cloud(given))).puts


def test_unmanaged_port_serves_at_most_one_load_balancer():
    once = apply_work(cloud(PORT), balanced(cloud(PORT)))
    why = refusal(choose_vip, once, ASKER, asked("other", port_id="theirs"))
    assert why == PortHasDevice(port_id="theirs", device_id="lb-lb")


def test_unmanaged_port_of_another_project_is_not_found():
    strange = replace(ASKER, identity=GUEST)
    assert refusal(choose_vip, cloud(PORT), strange, asked(port_id="theirs")) == NotFound(what=Port, id="theirs")


def test_subnet_unknown_to_ovn_is_accepted_only_from_an_external_service():
    elsewhere = pool("app", member("a", 11, subnet_id="unnamed"))
    assert refusal_of(balanced, cloud(PORT), pools=(elsewhere,)) == NotFound(what=Subnet, id="unnamed")
    made = stored(
        apply_work(cloud(PORT), balanced(cloud(PORT), pools=(elsewhere,), kept=ExternalService(made_port=True)))
    )
    assert member_network(cloud(PORT), made, made.pools[0].members[0]) == "net"
    vip = choose_vip(cloud(PORT), ASKER, asked(port_id="theirs", subnet_id="unnamed"))
    assert [each.subnet_id for each in vip.vips] == ["four"]


def test_additional_vips_use_further_addresses_of_an_unmanaged_port():
    network = replace(NETWORK, subnets=(*NETWORK.subnets, subnet("six", "fd00::/64")))
    given = replace(PORT, fixed_ips=(*PORT.fixed_ips, fixed("six", "fd00::7")))
    snapshot = with_facts(Snapshot(), UNMANAGED, {owner_of(each): each for each in (network, given)})
    six = AdditionalVipRequest(subnet_id="unnamed", address=parse_address("fd00::7"))
    first = replace(asked(port_id="theirs", subnet_id="four"), additional=(six,))
    vip = choose_vip(snapshot, ASKER, first)
    assert [(each.subnet_id, str(each.address)) for each in vip.vips] == [("four", "10.0.0.7"), ("six", "fd00::7")]


def test_ipv4_monitor_on_an_unmanaged_network_needs_an_external_service():
    watched = pool("app", member("a", 11), health_monitor=MONITOR)
    machine = replace(PORT, id="vm", fixed_ips=(fixed("four", "10.0.0.11"),))
    with pytest.raises(Unsupported, match="health monitors of IPv4 members on network net, which Neutron manages"):
        run_to_completion(balanced(cloud(PORT, machine), pools=(watched,)))
    changes = run_to_completion(balanced(cloud(PORT, machine), pools=(watched,), kept=ExternalService(made_port=True)))
    assert [put.id for put in changes.puts] == ["lb"], "no port is made here"
    nobodys = {owner_of(each): each for each in (replace(NETWORK, project_id=""), PORT, machine)}
    with pytest.raises(Unsupported, match="network net, which has no project in the Northbound database"):
        run_to_completion(
            balanced(with_facts(Snapshot(), UNMANAGED, nobodys), pools=(watched,), kept=ExternalService(made_port=True))
        )


def test_chassis_slice_contains_unmanaged_networks_and_ports():
    node = Chassis(name="node", host="node", ports=Map({"theirs": True}))
    view = slice_of(replace(cloud(PORT), chassis=Map({"node": node})), "node")
    assert (set(view.networks), set(view.ports), dict(view.generations)) == ({"net"}, {"theirs"}, {})


def test_unmanaged_objects_are_not_found_by_lookups():
    snapshot = cloud(PORT)
    who = ASKER.identity
    assert refusal(find_network, snapshot, who, "net") == NotFound(what=Network, id="net")
    assert refusal(find_subnet, snapshot, who, "four") == NotFound(what=Subnet, id="four")
    assert refusal(find_port, snapshot, who, "theirs") == NotFound(what=Port, id="theirs")
