"""Probe sources on unmanaged networks: only the prober's own port is accepted, and other ports affect no owner."""

from dataclasses import replace

import pytest

from fairlead.model.documents.addresses import IPAddress, parse_address, parse_network
from fairlead.model.documents.loadbalancer import ExternalService, LoadBalancer
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedNetwork, UnmanagedObject, UnmanagedPort, Writer, is_unmanaged
from fairlead.model.queries.probe_devices import probe_device
from fairlead.model.queries.probes import endpoints, find_source
from fairlead.model.queries.unmanaged_probe_ports import (
    find_probe_port,
    is_probe_port_ready,
    required_probe_ports,
    required_probe_subnets,
)
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import AGENTS_PROBE, UNMANAGED, with_facts
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.case import parse_model

MODEL = """\
network net1 by=neutron 10.0.0.0/24 fd00::/64
network net2 by=neutron 10.1.0.0/24
router r1 by=neutron net1=10.0.0.1,fd00::1 net2=10.1.0.1
port vm1 net1 10.0.0.11 fd00::11
port vm2 net2 10.1.0.12
probes net1 10.0.0.2
web vip=10.0.0.10,fd00::10 on=net1 tcp:80{monitor=TCP+delay=5}=a/10.0.0.11:80,b/[fd00::11]:80
far vip=10.0.0.20 on=net1 tcp:80{monitor=TCP+delay=5}=c/10.1.0.12:80
plain vip=10.0.0.30 on=net1 tcp:80=d/10.0.0.11:80
"""
DOCUMENTS, _ = parse_model(MODEL, {})
FOUR, SIX = parse_address("10.0.0.11"), parse_address("fd00::11")
NETWORK = DOCUMENTS[Owner(Kind.NETWORK, "net1")]
assert isinstance(NETWORK, UnmanagedNetwork)
PROBES = next(each for each in DOCUMENTS.values() if isinstance(each, UnmanagedPort) and "hm" in each.device_owner)
WEB = Owner(Kind.LOAD_BALANCER, "web")


def told(snapshot: Snapshot, *foreign: UnmanagedObject, gone: tuple[Owner, ...] = ()) -> Snapshot:
    return with_facts(snapshot, UNMANAGED, {**dict.fromkeys(gone), **{owner_of(each): each for each in foreign}})


def town(*, agents: bool = False) -> Snapshot:
    """Return a model whose load balancers Octavia also has."""
    snapshot = told(Snapshot(), *(each for each in DOCUMENTS.values() if is_unmanaged(each)))
    balancers = (each for each in DOCUMENTS.values() if isinstance(each, LoadBalancer))
    kept = [replace(elsewhere(each), kept=ExternalService(made_port=True)) for each in balancers]
    return with_facts(apply_changes(snapshot, Changes(puts=tuple(kept)), 1), AGENTS_PROBE, agents)


def elsewhere(balancer: LoadBalancer) -> LoadBalancer:
    """Set the subnets of members outside the VIP's network."""
    if balancer.id != "far":
        return balancer
    pool = balancer.pools[0]
    return replace(balancer, pools=(replace(pool, members=(replace(pool.members[0], subnet_id="10.1.0.0/24"),)),))


def sources(snapshot: Snapshot, balancer: str = "web") -> dict[IPAddress, IPAddress | None]:
    found = endpoints(snapshot, snapshot.load_balancers[balancer])
    return {each.address: find_source(snapshot, each) for each in found}


def test_members_are_probed_from_the_port_of_the_network_owner():
    with_port = town()
    without = told(with_port, gone=(owner_of(PROBES),))
    assert sources(with_port)[FOUR] == parse_address("10.0.0.2")
    assert sources(without)[FOUR] is None
    assert sources(without)[SIX] == sources(with_port)[SIX] is not None, "OVN's probes need no port for IPv6"
    assert sources(with_port, "far") == {parse_address("10.1.0.12"): None}, "on its own network there is none"


@pytest.mark.parametrize(
    "changes",
    [
        {"project_id": "stranger"},
        {"project_id": ""},
        {"device_id": "ovn-lb-hm-fairlead-net2"},
        {"device_id": "ovn-lb-hm-fairlead"},
        {"device_owner": "compute:nova"},
    ],
    ids=str,
)
def test_probe_ports_of_tenants_are_not_accepted(changes: dict[str, str]):
    """Probe ports of tenants are not accepted, because Neutron lets them choose the device_id of their own ports."""
    snapshot = town()
    strange = replace(PROBES, id="00000000-0000-4000-8000-000000000000", **changes)
    alone = told(told(snapshot, gone=(owner_of(PROBES),)), strange)
    assert find_probe_port(alone, "net1") is None
    both = told(snapshot, strange)
    assert find_probe_port(both, "net1") == PROBES
    news = {owner_of(strange): strange}
    assert WEB not in UNMANAGED.affected_owners(snapshot, both, news)


def test_first_of_several_probe_ports_is_used():
    first, last = (replace(PROBES, id=f"{digit}0000000-0000-4000-8000-000000000000") for digit in "0f")
    assert find_probe_port(told(town(), first, last), "net1") == first


def test_network_without_a_project_has_no_probe_port():
    assert find_probe_port(told(town(), replace(NETWORK, project_id="")), "net1") is None


def test_probe_port_change_affects_only_monitored_load_balancers():
    snapshot, news = town(), {owner_of(PROBES): None}
    without = told(snapshot, gone=(owner_of(PROBES),))
    heard = set(UNMANAGED.affected_owners(snapshot, without, news))
    assert heard == {WEB, Owner(Kind.LOAD_BALANCER, "far")}, "who is monitored and may have members there"
    moved = replace(PROBES, fixed_ips=(replace(PROBES.fixed_ips[0], address=parse_address("10.0.0.3")),))
    assert WEB in UNMANAGED.affected_owners(snapshot, told(snapshot, moved), {owner_of(moved): moved})
    same = replace(PROBES, name="renamed")
    assert WEB not in UNMANAGED.affected_owners(snapshot, told(snapshot, same), {owner_of(same): same})
    nobodys = replace(NETWORK, project_id="")
    assert WEB in UNMANAGED.affected_owners(snapshot, told(snapshot, nobodys), {owner_of(nobodys): nobodys})


def test_probe_port_covers_monitored_subnets_and_is_ready_with_addresses():
    snapshot, four = town(), frozenset({parse_network("10.0.0.0/24")})
    assert run_to_completion(required_probe_ports(snapshot, snapshot.load_balancers["web"])) == {"net1": four}
    assert run_to_completion(required_probe_ports(snapshot, snapshot.load_balancers["plain"])) == {}
    assert run_to_completion(required_probe_subnets(snapshot, "net2")) == {parse_network("10.1.0.0/24")}
    assert run_to_completion(required_probe_subnets(snapshot, "net1")) == four
    assert (is_probe_port_ready(snapshot, "net1", four), is_probe_port_ready(snapshot, "net2", frozenset())) == (
        True,
        False,
    )
    elsewhere = told(snapshot, replace(PROBES, fixed_ips=()))
    assert (is_probe_port_ready(elsewhere, "net1", four), is_probe_port_ready(elsewhere, "net1", frozenset())) == (
        False,
        True,
    )


def test_lxd_networks_and_balancers_outside_octavia_need_no_probe_port():
    snapshot = town()
    lxd = told(snapshot, replace(NETWORK, writer=Writer.LXD))
    assert run_to_completion(required_probe_ports(lxd, lxd.load_balancers["web"])) == {}
    alone = apply_changes(snapshot, Changes(puts=(replace(snapshot.load_balancers["far"], kept=None),)), 2)
    assert run_to_completion(required_probe_subnets(alone, "net2")) is None


def test_agents_send_probes_from_the_neutron_probe_port():
    snapshot = town(agents=True)
    six = replace(snapshot.load_balancers["web"], id="six", additional_vips=())
    members = tuple(each for each in six.pools[0].members if each.address.version == 6)
    six = replace(six, pools=(replace(six.pools[0], members=members),))
    assert run_to_completion(required_probe_ports(snapshot, six)) == {"net1": frozenset()}, "its MAC, and no address"
    network = snapshot.networks["net1"]
    device = probe_device(snapshot, network)
    assert device is not None
    assert (device.port_name, device.mac) == (PROBES.row.partition("@")[0], PROBES.mac_address)
    assert set(device.addresses) == set(sources(snapshot).values())
    without = told(snapshot, gone=(owner_of(PROBES),))
    assert probe_device(without, without.networks["net1"]) is None
    assert set(sources(without).values()) == {None}
