"""Provisioning and operating statuses, by Octavia's table.

Rows state which objects an operation sets to PENDING, which it leaves alone, and their statuses after success and after
failure.
"""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.registry.facts import HEALTH
from harness.front_ends.octavia_world import MONITOR, PATHS, OctaviaFrontEnd, machine

KINDS = {
    "lb": "/loadbalancers/{lb}",
    "front": "/listeners/{front}",
    "other": "/listeners/{other}",
    "app": "/pools/{app}",
    "files": "/pools/{files}",
    "a": "/pools/{app}/members/{a}",
    "b": "/pools/{app}/members/{b}",
    "monitor": "/healthmonitors/{monitor}",
    "policy": "/l7policies/{policy}",
    "rule": "/l7policies/{policy}/rules/{rule}",
}
MEMBER = {"address": "10.0.0.13", "protocol_port": 80}
RULE = {"type": "PATH", "compare_type": "ENDS_WITH", "value": ".png"}
NEW = "new"
"""Key of the object that the operation creates."""
TABLE: list[tuple[str, str, object, set[str]]] = [
    ("PUT", "/loadbalancers/{lb}", {"loadbalancer": {}}, {"lb"}),
    ("PUT", "/loadbalancers/{lb}", {"loadbalancer": {"name": "x"}}, {"lb"}),
    ("PUT", "/loadbalancers/{lb}/failover", None, {"lb"}),
    (
        "POST", "/listeners",
        {"listener": {"loadbalancer_id": "{lb}", "protocol": "TCP", "protocol_port": 82}}, {"lb", NEW},
    ),
    ("PUT", "/listeners/{front}", {"listener": {"name": "x"}}, {"lb", "front"}),
    ("DELETE", "/listeners/{front}", None, {"lb"}),
    (
        "POST", "/pools",
        {"pool": {"listener_id": "{other}", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}, {"lb", "other", NEW},
    ),
    (
        "POST", "/pools",
        {"pool": {"loadbalancer_id": "{lb}", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}}, {"lb", NEW},
    ),
    ("PUT", "/pools/{app}", {"pool": {"name": "x"}}, {"lb", "front", "app"}),
    ("PUT", "/pools/{files}", {"pool": {"name": "x"}}, {"lb", "front", "files"}),
    ("DELETE", "/pools/{app}", None, {"lb", "front"}),
    ("POST", "/pools/{app}/members", {"member": MEMBER}, {"lb", "front", "app", NEW}),
    ("PUT", "/pools/{app}/members/{a}", {"member": {"weight": 2}}, {"lb", "front", "app", "a"}),
    ("DELETE", "/pools/{app}/members/{a}", None, {"lb", "front", "app"}),
    (
        "PUT", "/pools/{app}/members",
        {"members": [{"address": "10.0.0.11", "protocol_port": 80, "weight": 9}, MEMBER]},
        {"lb", "front", "app", "a"},
    ),
    ("POST", "/healthmonitors", {"healthmonitor": {**MONITOR, "pool_id": "{files}"}}, {"lb", "front", "files", NEW}),
    ("PUT", "/healthmonitors/{monitor}", {"healthmonitor": {"delay": 9}}, {"lb", "front", "app", "monitor"}),
    ("DELETE", "/healthmonitors/{monitor}", None, {"lb", "front", "app"}),
    ("POST", "/l7policies", {"l7policy": {"listener_id": "{other}", "action": "REJECT"}}, {"lb", "other", NEW}),
    ("PUT", "/l7policies/{policy}", {"l7policy": {"name": "x"}}, {"lb", "front", "policy"}),
    ("DELETE", "/l7policies/{policy}", None, {"lb", "front"}),
    ("POST", "/l7policies/{policy}/rules", {"rule": RULE}, {"lb", "front", "policy", NEW}),
    ("PUT", "/l7policies/{policy}/rules/{rule}", {"rule": {"value": "/x"}}, {"lb", "front", "policy", "rule"}),
    ("DELETE", "/l7policies/{policy}/rules/{rule}", None, {"lb", "front", "policy"}),
]  # fmt: skip


def filled(template: Any, ids: dict[str, str]) -> Any:
    match template:
        case str():
            return template.format(**ids)
        case dict():
            return {key: filled(value, ids) for key, value in template.items()}
        case _:
            return template


def provisioning(door: OctaviaFrontEnd) -> dict[str, str]:
    """Return the provisioning status of each object of the tree that still exists."""
    found = {}
    for name, path in KINDS.items():
        answer = door.call("GET", path)
        if answer.status_code != 404:
            ((_, shown),) = answer.json().items()
            found[name] = shown["provisioning_status"]
    return found


@pytest.mark.parametrize(
    ("method", "path", "body", "pending"), TABLE, ids=[f"{method} {path}" for method, path, *_ in TABLE]
)
@pytest.mark.parametrize("fails", [False, True], ids=["applied", "failed"])
def test_operation_sets_provisioning_statuses_as_in_octavia(
    anything: OctaviaFrontEnd, method: str, path: str, body: object, pending: set[str], fails: bool
):
    door = anything
    door.create_tree()
    door.reconcile()
    assert set(provisioning(door).values()) == {"ACTIVE"}
    answer = door.call_ok(method, path, filled(body, door.ids))
    if NEW in pending:
        ((root, made),) = answer.items()
        assert made["provisioning_status"] == "PENDING_CREATE"
        where = next(known for known in PATHS.values() if known[0] == root)[1]
        new = f"{where.format(**door.ids)}/{made['id']}"
    now = provisioning(door)
    assert {name for name, status in now.items() if status == "PENDING_UPDATE"} == pending - {NEW}
    assert set(now.values()) <= {"PENDING_UPDATE", "ACTIVE"}
    if fails:
        door.break_dataplane()
    door.reconcile()
    expected = {name: "ERROR" if fails and name in pending else "ACTIVE" for name in now}
    assert provisioning(door) == expected
    if NEW in pending:
        shown = door.call_ok("GET", new)[root]
        assert shown["provisioning_status"] == ("ERROR" if fails else "ACTIVE")
        detached = root == "pool" and "other" not in pending
        not_probed = root == "member"
        assert shown["operating_status"] == ("OFFLINE" if fails or detached or not_probed else "ONLINE")


def test_new_tree_is_pending_create_and_online_after_the_first_probes(anything: OctaviaFrontEnd):
    tree = anything.create_tree()
    answers = Counter[tuple[str, str]]()

    def count(shown: Any) -> None:
        if isinstance(shown, dict) and "provisioning_status" in shown:
            answers[shown["provisioning_status"], shown["operating_status"]] += 1
        for inner in shown.values() if isinstance(shown, dict) else shown if isinstance(shown, list) else ():
            count(inner)

    count(tree)
    assert answers == {("PENDING_CREATE", "OFFLINE"): 10}
    anything.reconcile()
    assert operating(anything, "a", "b", "app", "lb") == ["OFFLINE", "OFFLINE", "ONLINE", "ONLINE"], "not probed yet"
    fall(anything)
    assert set(operating(anything, *KINDS)) == {"ONLINE"}


def test_new_member_without_a_monitor_is_no_monitor_immediately(anything: OctaviaFrontEnd):
    anything.create_tree()
    anything.reconcile()
    made = anything.call_ok("POST", "/pools/{files}/members", {"member": {"address": "10.0.0.9", "protocol_port": 1}})
    assert made["member"]["operating_status"] == "NO_MONITOR"


def operating(door: OctaviaFrontEnd, *names: str) -> list[str]:
    return [door.call_ok("GET", KINDS[name]).popitem()[1]["operating_status"] for name in names]


def fall(door: OctaviaFrontEnd, *names: str) -> None:
    """Report both members as probed, with only these down."""
    for name, number in (("a", 11), ("b", 12)):
        endpoint = Endpoint(machine(number), parse_address(f"10.0.0.{number}"), 80, Transport.TCP)
        list(door.server.model.observe(HEALTH, {endpoint: Health.ERROR if name in names else Health.ONLINE}))
    door.reconcile()


def test_member_health_propagates_up_the_tree(anything: OctaviaFrontEnd):
    door = anything
    door.create_tree()
    door.reconcile()
    for down, expected in (
        ((), ["ONLINE", "ONLINE", "ONLINE", "ONLINE", "ONLINE"]),
        (("a",), ["ERROR", "ONLINE", "DEGRADED", "DEGRADED", "ONLINE"]),
        (("a", "b"), ["ERROR", "ERROR", "ERROR", "ERROR", "ONLINE"]),
    ):
        fall(door, *down)
        assert operating(door, "a", "b", "app", "lb", "front") == expected
    tree = door.call_ok("GET", "/loadbalancers/{lb}/status")["statuses"]["loadbalancer"]
    pools = {pool["name"]: pool for pool in tree["listeners"][0]["pools"]}
    assert {name: pool["operating_status"] for name, pool in pools.items()} == {"app": "ERROR", "files": "ONLINE"}
    assert {key: pools["app"]["health_monitor"][key] for key in ("type", "operating_status")} == {
        "type": "TCP",
        "operating_status": "ONLINE",
    }
    assert pools["files"]["health_monitor"] is None
    door.update("monitor", door.ids["monitor"], admin_state_up=False)
    assert operating(door, "a", "b", "app", "lb", "monitor") == [*["NO_MONITOR"] * 2, "ONLINE", "ONLINE", "OFFLINE"]


@pytest.mark.parametrize(
    ("kind", "name", "offline"),
    [
        ("lb", "lb", {*KINDS}),
        ("listener", "front", {"front", "app", "files", "policy", "rule"}),
        ("pool", "app", {"app", "monitor", "a", "b"}),
        ("monitor", "monitor", {"monitor"}),
        ("policy", "policy", {"policy", "rule", "files"}),
        ("rule", "rule", {"rule"}),
        ("member", "a", {"a"}),
    ],
)
def test_disabled_object_is_offline_with_its_children(
    anything: OctaviaFrontEnd, kind: str, name: str, offline: set[str]
):
    door = anything
    door.create_tree()
    door.reconcile()
    fall(door)
    door.update(kind, door.ids[name], admin_state_up=False)
    assert {known for known in KINDS if operating(door, known) == ["OFFLINE"]} == offline


def test_weight_0_drains_a_member_and_a_pool_of_drained_members_is_in_error(anything: OctaviaFrontEnd):
    door = anything
    door.create_tree()
    door.reconcile()
    fall(door)
    door.update("member", door.ids["a"], weight=0)
    assert operating(door, "a", "app") == ["DRAINING", "ONLINE"]
    door.update("member", door.ids["b"], weight=0)
    assert operating(door, "a", "app", "lb") == ["DRAINING", "ERROR", "ERROR"]


def test_objects_are_active_after_a_load_without_part_histories(anything: OctaviaFrontEnd):
    door = anything
    door.create_tree()
    door.reconcile()
    door.update("listener", door.ids["front"], name="x")
    model = door.server.model
    model.snapshot = replace(model.snapshot, part_histories=model.snapshot.part_histories.delete(door.ids["lb"]))
    assert set(provisioning(door).values()) == {"ACTIVE"}
