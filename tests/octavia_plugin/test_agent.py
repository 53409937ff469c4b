"""The agent checks load balancers that are named, pending or in doubt, and skips none after a failed request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from octavia_lib.api.drivers.exceptions import UpdateStatusError

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import ServiceFailed
from fairlead.octavia_plugin.agent import (
    MAX_CHECKS_PER_STEP,
    PENDING_SETTLE_SECONDS,
    RECHECK_INTERVAL,
    RECONNECT_INTERVAL,
    SETTLE_SECONDS,
    AgentSettings,
    OctaviaAgent,
)
from fairlead.octavia_plugin.api_client import Comparison
from fairlead.octavia_plugin.differences import KINDS, PENDING, OctaviaState, OctaviaStatus
from fairlead.octavia_plugin.findings import Finding, FindingType, sentence

ACTIVE, CREATED = OctaviaStatus("ACTIVE", "ONLINE"), OctaviaStatus("PENDING_CREATE", "OFFLINE")
LOST = OctaviaStatus("PENDING_UPDATE", "ONLINE")


@dataclass
class World:
    """Octavia, its library and Fairlead's front end, as the agent uses them. Reading the clock advances it."""

    octavia: dict[str, OctaviaStatus] = field(default_factory=dict)
    fairlead: dict[str, OctaviaStatus] = field(default_factory=dict)
    figures: dict[str, int] = field(default_factory=dict)
    wanted: dict[str, str] = field(default_factory=dict)
    """Name of each load balancer in Octavia; `stored` has the name in Fairlead."""
    stored: dict[str, str] = field(default_factory=dict)
    revision: int = 1
    fails: Exception | None = None
    takes_nothing: ServerError | None = None
    refuses: Exception | None = None
    looked: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    heard: list[Finding] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    counted: list[list[str]] = field(default_factory=list)
    policies: set[str] = field(default_factory=set)
    """L7 policies of all load balancers in Octavia; Fairlead gets them with the next update."""
    prepared: set[str] = field(default_factory=set)
    """Load balancers in Fairlead that are prepared for a takeover."""
    now: float = 1000.0

    def agent(self, **conduct: Any) -> OctaviaAgent:
        made = AgentSettings(on_finding=self.heard.append, **conduct)
        return OctaviaAgent(self, self, self, self.clock, conduct=made)  # type: ignore[arg-type]

    def clock(self) -> float:
        self.now += 1e-6
        return self.now

    def pending(self) -> Sequence[str]:
        return [each for each, standing in self.octavia.items() if standing.provisioning in PENDING]

    def ids(self) -> Sequence[str]:
        return list(self.octavia)

    def look(self, balancer_id: str) -> OctaviaState | None:
        self.looked.append(balancer_id)
        found = self.octavia.get(balancer_id)
        whole = {"id": balancer_id, "name": self.wanted.get(balancer_id, "")}
        parts = {"l7policies": dict.fromkeys(self.policies, CREATED)}
        return OctaviaState(balancer=found, parts=parts, whole=whole) if found else None

    def statuses(self, balancer_id: str) -> Mapping[str, Any] | None:
        if self.fails:
            raise self.fails
        found = self.fairlead.get(balancer_id)
        if found is None:
            return None
        said = {"provisioning_status": found.provisioning, "operating_status": found.operating}
        when = {"created_at": datetime.now(UTC).isoformat(), "revision": self.revision}
        if balancer_id in self.prepared:
            return {"id": balancer_id, **when, **said, "takeover": "prepared", **{kind: [] for kind in KINDS}}
        parts: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        if self.revision > 1:
            parts["l7policies"] = [{"id": each, **said, **when} for each in self.policies]
        return {"id": balancer_id, **when, **said, **parts}

    def compare(self, whole: Mapping[str, Any]) -> Comparison:
        self.asked.append(whole["id"])
        said, stored = whole["name"], self.stored.get(whole["id"], "")
        attributes = {"name": {"said": said, "stored": stored}}
        one = {"kind": "loadbalancers", "id": whole["id"], "missing": False, "attributes": attributes}
        return Comparison([one] if said != stored else [], self.revision)

    def replace(self, whole: Mapping[str, Any], revision: int | None) -> None:
        if self.takes_nothing:
            raise self.takes_nothing
        assert revision == self.revision
        self.revision += 1
        self.stored[whole["id"]] = whole["name"]

    def post(self, path: str, root: str, body: Mapping[str, Any]) -> None:
        if self.takes_nothing:
            raise self.takes_nothing
        assert (path, root) == ("/loadbalancers", "loadbalancer")
        self.fairlead[body["id"]] = ACTIVE
        if body.get("takeover"):
            self.prepared.add(body["id"])

    def delete(self, path: str) -> None:
        self.deleted.append(path)
        self.fairlead.pop(path.removeprefix("/loadbalancers/").removesuffix("?cascade=true"))

    def statistics(self, balancer_ids: Sequence[str]) -> Sequence[Mapping[str, Any]]:
        if self.fails:
            raise self.fails
        return [{"id": each, "bytes_in": self.figures[each]} for each in balancer_ids if each in self.figures]

    def update_loadbalancer_status(self, status: Mapping[str, Any]) -> None:
        if self.refuses:
            raise self.refuses
        for each in status.get("loadbalancers", ()):
            old = self.octavia[each["id"]]
            self.octavia[each["id"]] = OctaviaStatus(
                each.get("provisioning_status", old.provisioning), each.get("operating_status", old.operating)
            )

    def update_listener_statistics(self, statistics: Mapping[str, Any]) -> None:
        self.counted.append([each["id"] for each in statistics["listeners"]])


def test_pending_load_balancer_in_octavia_is_checked_without_a_request():
    world = World(octavia={"a": CREATED, "b": ACTIVE}, fairlead={"a": ACTIVE, "b": ACTIVE})
    assert world.agent().step() == 0
    assert (world.looked, world.octavia) == (["a"], {"a": ACTIVE, "b": ACTIVE})


def test_check_covers_load_balancers_of_either_side():
    world = World(octavia={"a": ACTIVE}, fairlead={"b": ACTIVE})
    agent = world.agent()
    agent.enqueue([*world.octavia, *world.fairlead])
    agent.step()
    assert world.looked == ["a", "b"]


@pytest.mark.parametrize(
    ("octavia", "patience", "after"),
    [(ACTIVE, SETTLE_SECONDS, "ERROR"), (LOST, PENDING_SETTLE_SECONDS, "ERROR")],
    ids=["rest", "pending"],
)
def test_lasting_difference_sets_error_after_the_grace_period(octavia: OctaviaStatus, patience: float, after: str):
    world = World(octavia={"a": octavia}, takes_nothing=ServerError("no", 501))
    agent = world.agent()
    agent.enqueue(["a"])
    agent.step()
    world.now += patience - 0.1
    agent.step()
    assert world.octavia["a"] == octavia
    world.now += max(RECHECK_INTERVAL, 0.2)
    agent.step()
    agent.step()
    assert world.octavia["a"].provisioning == after
    assert [each.what for each in world.heard][:2] == [FindingType.MISSING, FindingType.REFUSED]


@pytest.mark.parametrize(
    ("octavia", "patience"), [(CREATED, 0.0), (LOST, PENDING_SETTLE_SECONDS)], ids=["created", "changed"]
)
def test_l7_policies_missing_in_fairlead_are_added_before_active(octavia: OctaviaStatus, patience: float):
    """L7 policies created with it are missing in Fairlead, and it is not ACTIVE without them."""
    world = World(octavia={"a": octavia}, fairlead={"a": ACTIVE}, policies={"p"}, wanted={"a": "new"})
    agent = world.agent()
    agent.step()
    if patience:
        assert (world.stored, world.octavia["a"]) == ({}, octavia)
        world.now += patience
        agent.step()
    assert (world.stored, world.octavia["a"]) == ({"a": "new"}, octavia)
    agent.step()
    assert world.octavia["a"] == ACTIVE


def test_grace_period_restarts_when_the_difference_disappears():
    """The check came between a request's write in Fairlead and its commit in Octavia."""
    world = World(octavia={"a": ACTIVE})
    agent = world.agent()
    agent.enqueue(["a"])
    agent.step()
    world.fairlead["a"] = ACTIVE
    world.now += RECHECK_INTERVAL
    agent.step()
    del world.fairlead["a"]
    world.now += SETTLE_SECONDS
    agent.enqueue(["a"])
    agent.step()
    assert world.octavia["a"] == ACTIVE


def test_load_balancer_never_committed_in_octavia_is_deleted():
    world = World(fairlead={"a": ACTIVE})
    agent = world.agent()
    agent.enqueue(["a"])
    agent.step()
    world.now += SETTLE_SECONDS
    agent.step()
    assert world.deleted == ["/loadbalancers/a?cascade=true"]


@pytest.mark.parametrize("which", ["fairlead", "octavia"])
def test_check_is_repeated_after_a_failed_request(which: str):
    world = World(octavia={"a": CREATED}, fairlead={"a": ACTIVE})
    agent = world.agent()
    if which == "fairlead":
        world.fails = ServerError("it makes a mistake", 500)
    else:
        world.refuses = UpdateStatusError(fault_string="locked")
    agent.step()
    agent.step()
    assert (world.looked, world.octavia["a"]) == (["a"], CREATED), "not before a pause"
    world.fails = world.refuses = None
    world.now += RECHECK_INTERVAL
    agent.step()
    assert world.octavia["a"] == ACTIVE


def test_unreachable_server_is_tried_once_per_pause():
    many = [str(number) for number in range(10)]
    world = World(octavia=dict.fromkeys(many, CREATED), fairlead=dict.fromkeys(many, ACTIVE))
    world.fails = ServerError("it does not answer")
    agent = world.agent()
    assert (agent.step(), len(world.looked)) == (0, 1)
    for _ in range(100):  # no request is repeated before the pause is over
        assert (agent.step(), len(world.looked)) == (0, 1)
    assert 0 < agent.seconds_until_due() < RECONNECT_INTERVAL
    world.fails = None
    world.now += RECONNECT_INTERVAL
    agent.step()
    world.now += RECHECK_INTERVAL
    agent.step()
    assert set(world.octavia.values()) == {ACTIVE}


def test_step_is_bounded_and_the_rest_is_checked_next():
    many = [str(number) for number in range(MAX_CHECKS_PER_STEP + 3)]
    world = World(octavia=dict.fromkeys(many, CREATED), fairlead=dict.fromkeys(many, ACTIVE))
    agent = world.agent()
    assert agent.step() == 3
    assert agent.step() == 0
    assert world.looked == many


def test_statistics_are_reported_only_when_changed():
    world = World(octavia=dict.fromkeys("abc", ACTIVE), figures={"a": 1, "b": 2})
    agent = world.agent()
    agent.count()
    world.figures["b"] = 3
    agent.count()
    agent.count()
    world.fails = ServerError("it does not answer")
    agent.count()
    assert world.counted == [["a", "b"], ["b"]]
    world.fails = None
    del world.octavia["a"], world.figures["a"]
    agent.count()
    world.octavia["a"], world.figures["a"] = ACTIVE, 1
    agent.count()
    assert world.counted == [["a", "b"], ["b"], ["a"]]  # no state is kept of deleted load balancers


def test_load_balancer_lost_by_fairlead_is_recreated():
    world = World(octavia={"a": ACTIVE})
    agent = world.agent()
    agent.enqueue(["a"])
    agent.step()
    assert world.fairlead == {}
    world.now += SETTLE_SECONDS
    agent.step()
    agent.step()
    assert (world.fairlead, world.octavia) == ({"a": ACTIVE}, {"a": ACTIVE})
    assert [each.what for each in world.heard] == [FindingType.MISSING]


def differing() -> World:
    """Fairlead has stored a name that Octavia has not committed."""
    return World(octavia={"a": ACTIVE}, fairlead={"a": ACTIVE}, wanted={"a": "old"}, stored={"a": "new"})


def test_lasting_value_difference_is_corrected_and_read_once():
    world = differing()
    agent = world.agent()
    agent.enqueue(["a"])
    for _ in range(int(SETTLE_SECONDS / RECHECK_INTERVAL)):
        agent.step()
        world.now += RECHECK_INTERVAL
    assert (world.stored, world.asked, world.heard) == ({"a": "new"}, ["a"], [])
    agent.step()
    assert world.stored == {"a": "old"}
    assert [sentence(each) for each in world.heard] == [
        "load balancer a: name is 'old' in Octavia and 'new' in Fairlead"
    ]
    agent.step()
    agent.enqueue(["a"])
    agent.step()
    assert (world.asked, agent.seconds_until_due()) == (["a", "a"], None)


def test_values_that_keep_changing_are_not_corrected():
    """With fast requests, every check comes between the write and the commit of one of them."""
    world = differing()
    agent = world.agent()
    agent.enqueue(["a"])
    for number in range(3 * int(SETTLE_SECONDS / RECHECK_INTERVAL)):
        agent.step()
        world.now += RECHECK_INTERVAL
        world.stored["a"] = f"new {number}"
        world.revision += 1
        agent.enqueue(["a"])
    assert world.stored["a"].startswith("new")
    world.wanted["a"] = world.stored["a"]
    agent.enqueue(["a"])
    agent.step()
    assert (agent.seconds_until_due(), world.heard) == (None, [])


def test_values_are_not_compared_while_octavia_is_pending():
    world = differing()
    world.octavia["a"], world.fairlead["a"] = LOST, OctaviaStatus("PENDING_UPDATE", "ONLINE")
    agent = world.agent(settle_seconds=0)
    agent.step()
    assert (world.asked, world.stored) == ([], {"a": "new"})


def test_rejected_correction_is_logged_once_until_a_change():
    world = differing()
    world.takes_nothing = ServerError("connection_limit", 501)
    agent = world.agent(settle_seconds=0)
    for _ in range(3):
        agent.enqueue(["a"])
        agent.step()
    assert [each.what for each in world.heard] == [FindingType.VALUE, FindingType.REFUSED]
    world.takes_nothing = None
    agent.enqueue_all()
    agent.step()
    agent.step()
    assert world.stored == {"a": "old"}


def test_dry_run_reports_differences_and_changes_nothing():
    world = differing()
    world.octavia["b"], world.fairlead["c"], world.octavia["d"] = ACTIVE, ACTIVE, CREATED
    world.fairlead["d"] = ACTIVE
    before = (dict(world.octavia), dict(world.fairlead), dict(world.stored))
    agent = world.agent(settle_seconds=0, is_dry=True)
    agent.enqueue("abcd")
    agent.step()
    assert (world.octavia, world.fairlead, world.stored, world.deleted) == (*before, [])
    assert {(each.what, each.balancer) for each in world.heard} == {
        (FindingType.VALUE, "a"),
        (FindingType.MISSING, "b"),
        (FindingType.UNKNOWN, "c"),
        (FindingType.STATUS, "d"),
    }
    assert agent.seconds_until_due() is None


def test_prepared_load_balancer_committed_in_octavia_is_taken_and_reported():
    world = World(octavia={"a": LOST}, fairlead={"a": ACTIVE, "b": ACTIVE}, prepared={"a", "b"})
    agent = OctaviaAgent(world, world, world, lambda: world.now, finish=world.prepared.remove)  # type: ignore[arg-type]
    agent.enqueue(["a", "b"])
    agent.step()
    assert (world.prepared, world.octavia) == ({"b"}, {"a": LOST}), "b is another provider's in Octavia"
    agent.step()
    assert (world.octavia, world.deleted) == ({"a": ACTIVE}, [])


def test_lost_prepared_load_balancer_is_prepared_again_and_taken():
    """Octavia has it as Fairlead's. Without the takeover request the other provider's rows would remain."""
    world = World(octavia={"a": LOST, "b": ACTIVE})
    taken = list[str]()

    def finish(balancer_id: str) -> None:
        world.prepared.remove(balancer_id)
        taken.append(balancer_id)

    agent = OctaviaAgent(world, world, world, lambda: world.now, finish=finish)  # type: ignore[arg-type]
    agent.enqueue(["a", "b"])
    for _ in range(int(SETTLE_SECONDS / RECHECK_INTERVAL) + 3):
        agent.step()
        world.now += RECHECK_INTERVAL
    assert (taken, world.prepared) == (["a"], set())
    assert (world.octavia, world.fairlead) == ({"a": ACTIVE, "b": ACTIVE}, {"a": ACTIVE, "b": ACTIVE})


def test_failed_completion_of_a_takeover_is_retried():
    world = World(octavia={"a": LOST}, fairlead={"a": ACTIVE}, prepared={"a"})

    def fail(_: str) -> None:
        raise ServiceFailed("neutron", "Neutron: no route to host")

    agent = OctaviaAgent(world, world, world, lambda: world.now, finish=fail)  # type: ignore[arg-type]
    for _ in range(3):
        agent.step()
        world.now += RECHECK_INTERVAL
    assert len(world.looked) == 3
    assert world.octavia == {"a": LOST}
