"""Proxies of plain hosts: owners of a listener's slots, owners of older connections, and status."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from immutables import Map

from fairlead.model.documents.agent import Agent, ApplyFailure
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import OperatingStatus
from fairlead.model.queries.host_proxies import HostSlots, host_slots
from fairlead.model.queries.proxies import derive_proxy_status
from fairlead.model.queries.secrets import find_allowed_secrets
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import PROXIES, UNREACHABLE_HOSTS, with_facts
from fairlead.model.snapshot import Snapshot
from harness.case import read_state

NAMES = tuple(f"h{number}" for number in range(1, 9))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def model(serving: tuple[str, ...], draining: tuple[str, ...] = (), more: str = "") -> Snapshot:
    lines = ["network pool announced 203.0.113.0/24"]
    for number, name in enumerate(NAMES, 1):
        lines.append(f"host {name} {number} 10.20.0.{number} 10.{number}.0.0/24{' draining' * (name in draining)}")
        if name in serving:
            lines.append(f"serves {name} pool/demo 2000")
    lines.append(f"web vip=203.0.113.5 on=pool provider=native http:80{{proxy=2000{more}}}=a/10.1.0.11:8080")
    return read_state("now", "\n".join(lines), {}, {}).snapshot()


def dealt(serving: tuple[str, ...], draining: tuple[str, ...] = ()) -> HostSlots:
    snapshot = model(serving, draining)
    balancer = snapshot.load_balancers["web"]
    return host_slots(snapshot, balancer, balancer.listeners[0])


@pytest.mark.parametrize("count", range(1, len(NAMES) + 1))
def test_host_slot_shares_are_near_even_for_any_number_of_hosts(count: int):
    slots = dealt(NAMES[:count])
    assert len(slots.current) == len(slots.previous) == 256
    shares = [slots.current.count(name) for name in NAMES[:count]]
    assert sum(shares) == 256
    assert min(shares) > 0.6 * 256 / count


def test_new_host_takes_its_own_slots_and_records_the_previous_owners():
    for first, second in combinations(NAMES, 2):
        others = tuple(name for name in NAMES if name != second)
        without, together = dealt(others), dealt(NAMES)
        for had, has, before in zip(without.current, together.current, together.previous, strict=True):
            assert has in (had, second)
            assert before == had if has == second else before != has
        assert first in together.current


@settings(max_examples=50)
@given(st.sets(st.sampled_from(NAMES), min_size=1), st.sets(st.sampled_from(NAMES)))
def test_drained_host_keeps_connections_and_gets_no_new_ones_if_others_serve(serving: set[str], leaving: set[str]):
    before, after = dealt((*sorted(serving),)), dealt((*sorted(serving),), (*sorted(leaving),))
    if serving <= leaving:
        assert after == before
        return
    for had, has, known in zip(before.current, after.current, after.previous, strict=True):
        assert has not in leaving
        assert has == had or known == had


def test_slots_without_a_second_host_have_no_previous_owner():
    assert dealt(()) == HostSlots()
    assert set(dealt(NAMES[:1]).previous) == {""}


def agent(name: str, *owners: str, heard: bool = True) -> Agent:
    unapplied = tuple(ApplyFailure(dataplane="haproxy", owner=owner, error="no") for owner in owners)
    return Agent(name=name, since=NOON, heartbeat=5.0, is_responsive=heard, apply_failures=unapplied)


WEB, NET, ALL = "loadbalancer/web", "network/pool", NAMES[:2]


@pytest.mark.parametrize(
    ("serving", "agents", "wanted"),
    [
        (ALL, {"h1": agent("h1"), "h2": agent("h2")}, OperatingStatus.ONLINE),
        (ALL[:1], {"h1": agent("h1"), "h2": agent("h2", "host/h2")}, OperatingStatus.ONLINE),
        (ALL[:1], {"h1": agent("h1"), "h2": agent("h2", NET)}, OperatingStatus.ONLINE),
        (ALL[:1], {"h1": agent("h1"), "h2": agent("h2", WEB)}, OperatingStatus.DEGRADED),
        (ALL[:1], {}, OperatingStatus.ONLINE),
        ((), {"h1": agent("h1"), "h2": agent("h2", "host/h2")}, OperatingStatus.OFFLINE),
        ((), {"h1": agent("h1", "host/h1"), "h2": agent("h2", NET)}, OperatingStatus.ERROR),
        ((), {"h1": agent("h1", heard=False)}, OperatingStatus.ERROR),
        ((), {}, OperatingStatus.ERROR),
    ],
)
def test_listener_status_follows_the_host_agents(
    serving: tuple[str, ...], agents: Mapping[str, Agent], wanted: OperatingStatus
):
    snapshot = replace(model(serving), agents=Map(agents))
    balancer = snapshot.load_balancers["web"]
    assert derive_proxy_status(snapshot, balancer, balancer.listeners[0]) is wanted


def test_keys_are_sent_to_declared_hosts_only():
    text = "network pool announced 203.0.113.0/24\nhost h1 1 10.20.0.1 10.1.0.0/24\n"
    text += "web vip=203.0.113.5 on=pool provider=native terminated_https:443{proxy=2000,show=web.pem}=a/10.1.0.11:8080"
    snapshot = read_state("now", text, {}, {}).snapshot()
    assert [each.reference for each in find_allowed_secrets(snapshot, "h1", "web")] == ["web.pem"]
    assert find_allowed_secrets(snapshot, "h2", "web") == ()


def owners(found: Iterable[Owner]) -> set[str]:
    return {str(owner) for owner in found} & {WEB, NET}


def test_drained_or_lost_host_affects_load_balancers_without_members_there():
    old, new = model(NAMES), model(NAMES, NAMES[-1:])
    assert WEB in owners(find_affected_owners(old, new, [Owner(Kind.HOST, NAMES[-1])]))
    lost = frozenset(NAMES[-1:])
    assert WEB in owners(UNREACHABLE_HOSTS.affected_owners(old, with_facts(old, UNREACHABLE_HOSTS, lost), lost))


def test_first_and_last_proxied_load_balancer_affect_the_network_too():
    new = model(NAMES)
    old = apply_changes(new, Changes(deletes=(Owner(Kind.LOAD_BALANCER, "web"),)), new.revision)
    for change in ((old, new), (new, old)):
        assert owners(find_affected_owners(*change, [Owner(Kind.LOAD_BALANCER, "web")])) == {WEB, NET}


def test_proxy_report_affects_the_load_balancer_of_its_listener():
    old, new = model(()), model(NAMES[:1])
    assert owners(PROXIES.affected_owners(old, new, dict(new.proxies))) == {WEB}
