"""The operator API's report of members that are down."""

from collections.abc import Mapping
from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from fairlead.api.http.front_end import ApiError
from fairlead.api.operator.routes import _down, _find_owner, _unknown
from fairlead.api.operator.rows import plans
from fairlead.dataplane.native import Vip
from fairlead.dataplane.rows import NO_ROWS, Diff, diff
from fairlead.model.documents.health import Health
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import run_to_completion
from harness.case import parse_model
from harness.down_members import DOCUMENTS, ENDPOINT, MODEL, VM2, WEB
from harness.probes import observe


def test_down_members_are_listed_with_address_and_reason():
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(DOCUMENTS.values())), 1)
    snapshot = apply_changes(snapshot, Changes(deletes=(VM2,)), 2)
    snapshot, _ = observe(snapshot, {ENDPOINT: Health.STRANDED})
    shown = _down(snapshot, WEB)
    assert {member.split()[1]: why for member, why in shown.items()} == {
        "10.0.0.11:80": Health.STRANDED.explanation,
        "10.0.0.12:80": Health.GONE.explanation,
    }
    assert _down(snapshot, VM2) == _down(snapshot, Owner(Kind.LOAD_BALANCER, "gone")) == {}


def test_member_without_probe_results_is_unknown():
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(DOCUMENTS.values())), 1)
    snapshot, _ = observe(snapshot, {ENDPOINT: Health.ONLINE})
    assert [why for member, why in _unknown(snapshot, WEB).items() if " 10.0.0.12:80" in member] == [
        Health.UNPROBED.explanation
    ]
    assert (len(_unknown(snapshot, WEB)), _down(snapshot, WEB)) == (1, {})
    assert _unknown(snapshot, VM2) == _unknown(snapshot, Owner(Kind.LOAD_BALANCER, "gone")) == {}


def test_local_ip_replicas_are_listed_by_port():
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(DOCUMENTS.values())), 1)
    local_ip = "port vm1 net1 10.0.0.11 name=db\nlocal-ip lip net1 10.0.0.200 monitor=TCP+port=80 +vm1 +vm2"
    documents, _ = parse_model(f"{MODEL}\n{local_ip}", {})
    snapshot, _ = observe(apply_changes(snapshot, Changes(puts=tuple(documents.values())), 2), {ENDPOINT: Health.ERROR})
    lip = Owner(Kind.LOCAL_IP, "lip")
    assert _down(snapshot, lip) == {"vm1 10.0.0.11 'db'": Health.ERROR.explanation}
    assert _unknown(snapshot, lip) == {"vm2 10.0.0.12": Health.UNPROBED.explanation}


@pytest.fixture
def many_changes() -> Mapping[Owner, Diff]:
    rows = [Vip(address=IPv4Address(0x0A000000 + number), is_local=True) for number in range(60_000)]
    return {
        Owner(Kind.LOAD_BALANCER, str(number)): diff({row.key: row for row in rows[number::10_000]}, NO_ROWS)
        for number in range(10_000)
    }


async def test_plan_of_ten_thousand_load_balancers_is_built_in_steps(many_changes: Mapping[Owner, Diff]):
    found = await run_in_steps(plans(Snapshot(), {"ovn": many_changes, "other": {}}))
    assert len(found) == 10_000
    assert found["loadbalancer/0"]["create"][0] == "Vip 10.0.0.0 held"
    assert set(found["loadbalancer/0"]["dataplanes"]) == {"ovn"}


PARTS = """
network net1 10.0.0.0/24
web vip=10.0.0.10 on=net1 name=shop tcp:80{monitor=HTTP}=a/10.0.0.11:80,b/[fd00::12]:80
api vip=10.0.0.20 on=net1 tcp:80=a/10.0.0.11:80 udp:53=a/10.0.0.11:53 tcp:81=a/10.0.0.12:81
"""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "web2",
            "'web2' has no rows of its own: it is member 10.0.0.11:80 'web2' of pool 'web' of loadbalancer/web 'shop'",
        ),
        ("web-b", "it is member [fd00::12]:80 of pool 'web' of loadbalancer/web 'shop'; show the load balancer"),
        ("twin", " and 3 more; show the load balancer"),
        ("front", "it is listener 'front' of loadbalancer/web 'shop'"),
        ("none", "'none' does not exist: specify kind/id, an id or a name"),
    ],
)
def test_lookup_of_a_part_name_returns_404_with_its_load_balancer(text: str, words: str):
    documents, _ = parse_model(PARTS.strip(), {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    web, api = snapshot.load_balancers["web"], snapshot.load_balancers["api"]
    (pool,), (listener,) = web.pools, web.listeners
    members = tuple(replace(each, name="web2" if each.id == "web-a" else "") for each in pool.members)
    web = replace(
        web,
        pools=(replace(pool, name="web", members=members),),
        listeners=(replace(listener, name="front"),),
    )
    pools = [
        replace(each, name="twin", members=tuple(replace(member, name="twin") for member in each.members[:1]))
        for each in api.pools
    ]
    api = replace(api, pools=tuple(pools))
    snapshot = apply_changes(snapshot, Changes(puts=(web, api)), 2)
    with pytest.raises(ApiError) as found:
        run_to_completion(_find_owner(snapshot, text))
    assert (found.value.status, words in str(found.value)) == (404, True), str(found.value)
