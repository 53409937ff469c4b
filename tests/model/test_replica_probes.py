"""Health of a Local IP's replicas: a chassis never uses a down replica, and the next local one takes over."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.changes.monitor_checks import DelayTooShort
from fairlead.changes.probe_limits import TooManyProbes, check_probes
from fairlead.changes.probe_ports import make_probe_ports
from fairlead.changes.refusal import Refused
from fairlead.compilers.ovn import compile_owner
from fairlead.compilers.unsupported import Unsupported
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import OVN_PROBE_TRANSPORTS, Endpoint, Health
from fairlead.model.documents.loadbalancer import MonitorType, Transport
from fairlead.model.documents.local_ip import LocalIP, ReplicaMonitor
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import MILLION, ProbeLimits
from fairlead.model.queries.probes import endpoints, find_source, has_monitors, probe_port_id, why_down, why_unknown
from fairlead.model.queries.replicas import find_serving_replicas, list_usable_replicas
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import HEALTH, derive, derive_all, with_facts
from fairlead.model.snapshot import Snapshot
from harness.case import State, parse_model
from harness.language import parse_chassis, parse_plugged
from harness.probes import observe

MODEL = """
network net1 10.0.0.0/24 fd00::/64
port owner net1 10.0.0.200 fd00::200
port vma net1 10.0.0.11 fd00::11 name=first
port vmb net1 10.0.0.12 fd00::12
port vmc net1 10.0.0.13 fd00::13
probes net1 10.0.0.2
local-ip lip net1 10.0.0.200 port=owner monitor=TCP+port=80 +vma +vmb +vmc
local-ip six net1 fd00::200 port=owner monitor=UDP-CONNECT+port=53 +vma
local-ip plain net1 10.0.0.201 +vma
plugged chassis1 vma vmb
plugged chassis2 vmc
"""
LIP, SIX, PLAIN = (Owner(Kind.LOCAL_IP, name) for name in ("lip", "six", "plain"))
VMA, VMB, VMC = (
    Endpoint(f"vm{each}", parse_address(f"10.0.0.1{number}"), 80, Transport.TCP)
    for number, each in enumerate("abc", start=1)
)
OVER_SIX = Endpoint("vma", parse_address("fd00::11"), 53, Transport.UDP)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def snapshot_of(model: str) -> Snapshot:
    documents, down = parse_model(model.strip(), {})
    plugged, chassis = parse_plugged(model), parse_chassis(model)
    state = State(name="", model=model, expected={}, documents=documents, down=down, plugged=plugged, chassis=chassis)
    return state.snapshot()


def lip(snapshot: Snapshot) -> LocalIP:
    return snapshot.local_ips["lip"]


def served(snapshot: Snapshot) -> dict[str, list[str]]:
    found = find_serving_replicas(snapshot, lip(snapshot))
    return {chassis: [each.port_id for each in there] for chassis, there in found.items()}


def test_replicas_are_probed_by_the_monitor_of_their_local_ip():
    snapshot = snapshot_of(MODEL)
    asked = {name: list(endpoints(snapshot, each)) for name, each in snapshot.local_ips.items()}
    assert asked == {"lip": [VMA, VMB, VMC], "six": [OVER_SIX], "plain": []}
    assert [str(find_source(snapshot, each)) for each in (VMA, VMC)] == ["10.0.0.2"] * 2
    assert str(find_source(snapshot, OVER_SIX)).startswith("fe80::")
    assert has_monitors(snapshot)
    assert not has_monitors(apply_changes(snapshot, Changes(deletes=(LIP, SIX)), 2))


def test_down_replica_serves_no_client_and_the_next_local_one_takes_over():
    snapshot = snapshot_of(MODEL)
    assert served(snapshot) == {"chassis1": ["vma", "vmb"], "chassis2": ["vmc"]}
    snapshot, changed = observe(snapshot, {VMA: Health.ERROR, VMC: Health.ONLINE})
    assert changed == (LIP,)
    assert served(snapshot) == {"chassis1": ["vmb"], "chassis2": ["vmc"]}
    assert (snapshot.down["lip"], snapshot.online["lip"]) == ({"vma"}, {"vmc"})
    snapshot, changed = observe(snapshot, {VMB: Health.ERROR, VMC: Health.STRANDED})
    assert (changed, served(snapshot)) == ((LIP,), {})
    snapshot, changed = observe(snapshot, {VMA: Health.ONLINE, VMB: None})
    assert (changed, served(snapshot)) == ((LIP,), {"chassis1": ["vma", "vmb"]})


def test_probe_results_of_one_monitor_do_not_apply_to_another():
    snapshot, changed = observe(snapshot_of(MODEL), {OVER_SIX: Health.ERROR})
    assert (changed, dict(snapshot.down)) == ((SIX,), {"six": {"vma"}})
    assert served(snapshot) == {"chassis1": ["vma", "vmb"], "chassis2": ["vmc"]}
    assert [each.port_id for each in list_usable_replicas(snapshot, snapshot.local_ips["plain"])] == ["vma"]


def test_probe_results_of_unrequested_endpoints_change_no_owner():
    snapshot = snapshot_of(MODEL)
    strange = Endpoint("vma", VMA.address, 81, Transport.TCP)
    assert list(HEALTH.affected_owners(snapshot, snapshot, {strange: Health.ERROR})) == [LIP, SIX]
    assert observe(snapshot, {strange: Health.ERROR, VMB: Health.ONLINE})[1] == ()


def test_replica_is_down_only_with_a_monitor_and_a_failed_probe():
    snapshot, _ = observe(snapshot_of(MODEL), {VMA: Health.ERROR})
    unwatched = replace(lip(snapshot), health_monitor=None)
    after = apply_changes(snapshot, Changes(puts=(unwatched,)), 2)
    assert find_affected_owners(snapshot, after, [LIP])
    assert dict(derive(after, [LIP]).down) == {}
    again = apply_changes(after, Changes(puts=(lip(snapshot),)), 3)
    assert dict(derive(again, [LIP]).down) == {"lip": {"vma"}}
    assert dict(derive(apply_changes(again, Changes(deletes=(LIP,)), 4), [LIP]).down) == {}


def test_probe_results_that_precede_the_documents_still_apply():
    snapshot = snapshot_of(MODEL)
    documents = [each for name in ("networks", "ports", "local_ips") for each in getattr(snapshot, name).values()]
    early = with_facts(Snapshot(), HEALTH, {VMA: Health.ERROR})
    assert dict(derive_all(apply_changes(early, Changes(puts=tuple(documents)), 1)).down) == {"lip": {"vma"}}


@pytest.mark.parametrize(
    ("change", "health"),
    [
        ({"project_id": "another"}, Health.GONE),
        ({"network_id": "net2"}, Health.GONE),
        ({"fixed_ips": ()}, Health.GONE),
        ({"device_owner": PortUse.VIP.value}, Health.GONE),
        ({"admin_state_up": False}, Health.UNPROBED),
    ],
    ids=str,
)
def test_moved_or_disabled_replica_port_serves_no_client(change: dict[str, object], health: Health):
    snapshot = snapshot_of(MODEL)
    changed = replace(snapshot.ports["vma"], **change)  # type: ignore[arg-type]  # of one attribute each
    after = apply_changes(snapshot, Changes(puts=(changed,)), 2)
    assert LIP in find_affected_owners(snapshot, after, [Owner(Kind.PORT, "vma")])
    assert (VMA in endpoints(after, lip(after))) == (health is Health.UNPROBED)
    assert served(derive(after, [LIP])) == {"chassis1": ["vmb"], "chassis2": ["vmc"]}
    shown = {**why_down(after, lip(after)), **why_unknown(after, lip(after))}
    assert shown["vma"] is health


def test_first_monitor_of_a_subnet_creates_a_probe_port_and_affects_its_users():
    snapshot = snapshot_of(MODEL.replace("probes net1 10.0.0.2\n", ""))
    assert not any("Health_Check" in str(row) for row in compile_owner(snapshot, LIP).values())
    [port] = make_probe_ports(snapshot, lip(snapshot), NOON)
    assert port.id == probe_port_id("10.0.0.0/24")
    after = apply_changes(snapshot, Changes(puts=(port,)), 2)
    assert make_probe_ports(after, lip(after), NOON) == ()
    woken = find_affected_owners(snapshot, after, [Owner(Kind.PORT, port.id)])
    assert {LIP, SIX} <= set(woken)
    assert any(f"vma:{port.fixed_ips[0].address}" in str(row) for row in compile_owner(after, LIP).values())
    assert make_probe_ports(snapshot, snapshot.local_ips["six"], NOON) == ()  # IPv6 needs none
    assert make_probe_ports(snapshot, snapshot.local_ips["plain"], NOON) == ()


@pytest.mark.parametrize("kind", [each for each in MonitorType if each not in OVN_PROBE_TRANSPORTS])
def test_monitor_types_beyond_open_port_checks_are_rejected_for_local_ips(kind: MonitorType):
    snapshot = snapshot_of(MODEL)
    changed = replace(lip(snapshot), health_monitor=ReplicaMonitor(type=kind, port=80))
    after = derive(apply_changes(snapshot, Changes(puts=(changed,)), 2), [LIP])
    with pytest.raises(Unsupported, match=f"ovn does not support health monitors of type {kind} for Local IPs"):
        compile_owner(after, LIP)
    assert (list(endpoints(after, changed)), why_down(after, changed)) == ([], {})


def watched(snapshot: Snapshot, name: str, delay: int, port: int = 80) -> LocalIP:
    return replace(snapshot.local_ips[name], health_monitor=ReplicaMonitor(port=port, delay=delay))


def test_replica_probes_count_towards_project_and_port_probe_rates():
    balancer = "web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP+delay=1}=a/10.0.0.11:80,b/10.0.0.12:80"
    snapshot = snapshot_of(f"{MODEL}{balancer}")
    place = ("demo", "net1", VMA.address)
    assert (snapshot.probed[place], snapshot.probed["demo", "net1", OVER_SIX.address]) == (1_200_000, 200_000)
    assert snapshot.probing["demo"] == 2 * MILLION + 4 * 200_000
    after = apply_changes(snapshot, Changes(deletes=(LIP, SIX)), 2)
    assert (after.probed[place], after.probing["demo"]) == (MILLION, 2 * MILLION)


def test_replica_probe_limits_are_enforced():
    snapshot = snapshot_of(MODEL)
    limits = ProbeLimits(min_delay=2, max_probes_per_second=1, max_probes_per_second_per_port=1)

    def check(limits: ProbeLimits, document: LocalIP) -> object:
        try:
            return check_probes(limits, snapshot, Changes(puts=(document,))).requires_unchanged_model
        except Refused as refused:
            return refused.why

    assert check(limits, watched(snapshot, "lip", 1)) == DelayTooShort(type=MonitorType.TCP, delay=1, least=2)
    assert check(limits, watched(snapshot, "plain", 5)) is True  # 0.8 per second are used, and 0.2 are added
    assert check(limits, watched(snapshot, "plain", 4)) == TooManyProbes(per_second=1)
    many = replace(limits, max_probes_per_second=9)
    assert check(many, watched(snapshot, "plain", 2)) is True  # 0.9 at vma
    assert check(replace(many, min_delay=1), watched(snapshot, "plain", 1)) == TooManyProbes(
        per_second=1, port_id="vma"
    )
    assert check(ProbeLimits(min_delay=9), lip(snapshot)) is False  # existing probes stay allowed


HEARD = st.dictionaries(st.sampled_from([VMA, VMB, VMC, OVER_SIX]), st.sampled_from([*Health, None]), max_size=4)


@given(st.lists(st.one_of(HEARD, st.sampled_from(["watch", "unwatch", "vma", "vmb"])), max_size=12))
def test_serving_replica_follows_from_the_latest_updates_in_any_order(steps: list[object]):
    """The serving replica follows from the last updates, in any order; ports go and return. An owner that `differing`
    omits has unchanged rows."""
    first = snapshot_of(MODEL)
    snapshot, revision = first, 1
    for step in steps:
        before = snapshot
        if isinstance(step, dict):
            snapshot, told = observe(snapshot, step)
        else:
            revision += 1
            changes = _change(first, snapshot, str(step))
            snapshot = apply_changes(snapshot, changes, revision)
            told = find_affected_owners(before, snapshot, changes.owners)
            snapshot = derive(snapshot, told)
        for owner in {LIP, SIX, PLAIN} - set(told):
            assert compile_owner(before, owner) == compile_owner(snapshot, owner)
            assert find_serving_replicas(before, before.local_ips[owner.id]) == find_serving_replicas(
                snapshot, snapshot.local_ips[owner.id]
            )
    fresh = derive_all(replace(snapshot, down=Snapshot().down, online=Snapshot().online))
    assert (fresh.down, fresh.online) == (snapshot.down, snapshot.online)


def _change(first: Snapshot, snapshot: Snapshot, step: str) -> Changes:
    if step == "watch":
        return Changes(puts=(first.local_ips["lip"],))
    if step == "unwatch":
        return Changes(puts=(replace(first.local_ips["lip"], health_monitor=None),))
    owner = Owner(Kind.PORT, step)
    return Changes(deletes=(owner,)) if step in snapshot.ports else Changes(puts=(first.ports[step],))
