"""Probe results as members that are up, down or unknown."""

from dataclasses import replace
from uuid import UUID, uuid5

import pytest

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Health
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.probes import (
    derive_health,
    endpoints,
    find_source,
    probe_port_id,
    subnets_without_probe_source,
)
from fairlead.model.registry.changeset import Changes, apply_changes
from harness.probes import API, FIRST, MODEL, SECOND, SIX, UNKNOWN_ENDPOINT, WEB, observe, snapshot_of


def test_no_member_is_down_before_the_first_probe_result():
    snapshot = derive_health(snapshot_of(MODEL), (WEB, API))
    assert (dict(snapshot.down), dict(snapshot.online)) == ({}, {})
    assert set(endpoints(snapshot, snapshot.load_balancers["web"])) == {FIRST, SECOND, SIX}


def test_probe_result_applies_to_all_load_balancers_with_the_endpoint():
    snapshot, changed = observe(snapshot_of(MODEL), {FIRST: Health.ERROR, SECOND: Health.ONLINE, SIX: Health.ONLINE})
    assert changed == (API, WEB)
    assert dict(snapshot.down) == {"web": {"web-a"}, "api": {"api-c"}}
    assert dict(snapshot.online) == {"web": {"web-b", "web-six"}}
    snapshot, changed = observe(snapshot, {FIRST: Health.ONLINE})
    assert changed == (API, WEB)
    assert (dict(snapshot.down), snapshot.online["api"]) == ({}, {"api-c"})


def test_only_results_that_change_rows_report_affected_owners():
    snapshot, changed = observe(snapshot_of(MODEL), {FIRST: Health.ONLINE, UNKNOWN_ENDPOINT: Health.ERROR})
    assert (changed, dict(snapshot.down)) == ((), {})
    _, changed = observe(snapshot, {FIRST: None})
    assert changed == ()


def test_member_serves_again_after_its_probe_result_is_withdrawn():
    snapshot, _ = observe(snapshot_of(MODEL), {SECOND: Health.ERROR})
    snapshot, changed = observe(snapshot, {SECOND: None})
    assert (changed, dict(snapshot.down), dict(snapshot.health)) == ((WEB,), {}, {})


def test_health_is_removed_with_its_load_balancer():
    snapshot, _ = observe(snapshot_of(MODEL), {FIRST: Health.ERROR})
    snapshot = derive_health(apply_changes(snapshot, Changes(deletes=(WEB,)), 2), [WEB])
    assert dict(snapshot.down) == {"api": {"api-c"}}
    assert set(snapshot.watched[FIRST.address]) == {"api"}
    snapshot = derive_health(apply_changes(snapshot, Changes(deletes=(API,)), 3), [API])
    assert (dict(snapshot.watched), dict(snapshot.down)) == ({}, {})


def test_member_is_down_after_its_port_is_deleted():
    snapshot = apply_changes(snapshot_of(MODEL), Changes(deletes=(Owner(Kind.PORT, "vm2"),)), 2)
    assert dict(derive_health(snapshot, (WEB, API)).down) == {"web": {"web-b"}}


@pytest.mark.parametrize("what", ["monitor", "pool", "balancer"])
def test_members_of_disabled_monitors_pools_or_balancers_are_not_probed(what: str):
    snapshot, _ = observe(snapshot_of(MODEL), {FIRST: Health.ERROR})
    balancer = snapshot.load_balancers["api"]
    pool = balancer.pools[0]
    if what == "monitor":
        assert pool.health_monitor is not None
        pool = replace(pool, health_monitor=replace(pool.health_monitor, admin_state_up=False))
    if what == "pool":
        pool = replace(pool, admin_state_up=False)
    changed = replace(balancer, pools=(pool, *balancer.pools[1:]), admin_state_up=what != "balancer")
    snapshot = derive_health(apply_changes(snapshot, Changes(puts=(changed,)), 2), [API])
    assert "api" not in snapshot.down


def test_probe_source_is_the_probe_port_or_a_link_local_address():
    snapshot = snapshot_of(MODEL)
    assert str(find_source(snapshot, FIRST)) == "10.0.0.2"
    assert str(find_source(snapshot, SIX)).startswith("fe80::")
    assert snapshot.ports[probe_port_id("10.0.0.0/24")].device_owner == PortUse.PROBE
    assert subnets_without_probe_source(snapshot, snapshot.load_balancers["web"]) == {}
    snapshot = snapshot_of(MODEL.replace("probes net1 10.0.0.2\n", ""))
    assert find_source(snapshot, FIRST) is None
    assert subnets_without_probe_source(snapshot, snapshot.load_balancers["web"]) == {"10.0.0.0/24": "net1"}


def test_probe_port_id_is_a_uuid5_of_the_subnet():
    namespace = UUID("5d3b5a0e-5c37-5a52-8f0c-6f2b7a6a1d0e")
    for number in range(64):
        assert probe_port_id(f"subnet {number}") == str(uuid5(namespace, f"subnet {number}"))


@pytest.mark.parametrize("address", ["203.0.113.10", "203.0.113.50"])
def test_gateway_and_floating_ip_addresses_are_not_probed(address: str):
    outside = "network public external 203.0.113.0/24\nfloating f1 public=203.0.113.50\nrouter r1 "
    model = MODEL.strip().splitlines()
    model.insert(1, f"{outside}gateway:public=203.0.113.10")
    snapshot = snapshot_of("\n".join(model).replace("b/10.0.0.12:80,", f"b/{address}:80,"))
    balancer = snapshot.load_balancers["web"]
    [pool] = balancer.pools
    members = tuple(replace(m, subnet_id="203.0.113.0/24") if m.id == "web-b" else m for m in pool.members)
    balancer = replace(balancer, pools=(replace(pool, members=members),))
    assert snapshot.addresses["public", parse_address(address)]
    assert set(endpoints(snapshot, balancer)) == {FIRST, SIX}


def test_member_on_another_subnet_is_probed_from_that_subnet():
    elsewhere = "network net2 10.0.0.0/24 10.0.1.0/24\nport vm3 net2 10.0.1.11\nprobes net2 10.0.1.2\n"
    snapshot = snapshot_of(elsewhere + MODEL.strip().replace("b/10.0.0.12:80,", "b/10.0.1.11:80,"))
    balancer = snapshot.load_balancers["web"]
    assert {endpoint.port_id for endpoint in endpoints(snapshot, balancer)} == {"vm1"}
    [pool] = balancer.pools
    members = tuple(replace(m, subnet_id="10.0.1.0/24") if m.id == "web-b" else m for m in pool.members)
    balancer = replace(balancer, pools=(replace(pool, members=members),))
    [found] = (endpoint for endpoint in endpoints(snapshot, balancer) if endpoint.port_id == "vm3")
    assert str(find_source(snapshot, found)) == "10.0.1.2"
