"""Times at which members are probed, and verdicts of consecutive results."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.checks import PlainCheck, ProbeSchedule, Target, Verdict
from fairlead.model.documents.health import Endpoint
from fairlead.model.documents.loadbalancer import MonitorType, Transport
from fairlead.node.tracker import (
    MAX_FIRST_DELAY,
    PENDING,
    MemberState,
    Outcome,
    ProbeFailed,
    ProbeSucceeded,
    ProbeVoid,
    Tracker,
    first_due,
    next_due,
    phase_of,
)

GOOD, BAD, BUSY = ProbeSucceeded(0.001), ProbeFailed("refused"), ProbeVoid("busy")
HASTY = ProbeVoid("busy", is_retried_immediately=True)
LETTERS: dict[str, Outcome] = {"+": GOOD, "-": BAD, "?": BUSY}
WORDS = {Verdict.PENDING: ".", Verdict.UP: "u", Verdict.DOWN: "d"}
NOW = 1_000_000.0
FREE = 1_000
"""Free places for probes, more than any of these tests needs."""


def rhythm(delay: float = 5.0, timeout: float = 3.0, up: int = 3, down: int = 3) -> ProbeSchedule:
    return ProbeSchedule(delay=delay, timeout=timeout, max_retries=up, max_retries_down=down)


def target(name: str, how: ProbeSchedule | None = None, project: str = "") -> Target:
    endpoint = Endpoint(name, parse_address("10.0.0.11"), 80, Transport.TCP, "net1", "pool")
    return Target(
        endpoint=endpoint, check=PlainCheck(type=MonitorType.TCP), schedule=how or rhythm(), project_id=project
    )


def verdicts(outcomes: str, up: int = 3, down: int = 3) -> str:
    standing, found = PENDING, ""
    for letter in outcomes:
        standing = standing.after(LETTERS[letter], rhythm(up=up, down=down), NOW)
        found += WORDS[standing.verdict]
    return found


@pytest.mark.parametrize(
    ("outcomes", "found"),
    [
        ("+++", "..u"),
        ("---", "..d"),
        ("++-+++", ".....u"),
        ("--+---", ".....d"),
        ("+++--+--+---", "..uuuuuuuuud"),
        ("---++-+++", "..ddddddu"),
        ("--?-", "...d"),
        ("+++??????", "..uuuuuuu"),
        ("+++--???", "..uuuuuu"),
    ],
)
def test_only_consecutive_results_change_the_verdict_and_void_ones_are_ignored(outcomes: str, found: str):
    assert verdicts(outcomes) == found


def test_single_results_change_the_verdict_with_thresholds_of_one():
    assert verdicts("+-+?-", up=1, down=1) == "uduud"


@given(st.lists(st.sampled_from("+-?"), max_size=40), st.integers(1, 10), st.integers(1, 10))
def test_verdict_follows_the_last_long_enough_run_of_equal_results(outcomes: Sequence[str], up: int, down: int):
    """Consecutive results are counted as in Octavia; void probes are ignored."""
    seen = [each for each in outcomes if each != "?"]
    wanted, row = ".", 0
    for before, each in zip(["", *seen], seen, strict=False):
        row = row + 1 if each == before else 1
        if row >= (up if each == "+" else down):
            wanted = "u" if each == "+" else "d"
    assert (verdicts("".join(outcomes), up, down) or ".")[-1] == wanted


def test_standing_has_the_time_of_the_last_change_and_the_last_error():
    how = rhythm(up=1, down=1)
    up = PENDING.after(ProbeSucceeded(0.25), how, 1.0)
    assert up == MemberState(verdict=Verdict.UP, since=1.0, successes=1, latency=0.25)
    down = up.after(GOOD, how, 2.0).after(BAD, how, 3.0).after(ProbeFailed("no answer"), how, 4.0)
    assert (down.verdict, down.since, down.error, down.latency) == (Verdict.DOWN, 3.0, "no answer", 0.001)
    assert down.after(BUSY, how, 5.0) == replace(down, void_reason="busy")
    doubtful = down.after(HASTY, how, 5.0).after(HASTY, how, 6.0)
    assert doubtful == replace(down, void_reason="busy", void_probes=2)
    assert doubtful.after(BAD, how, 7.0).void_probes == doubtful.after(GOOD, how, 7.0).void_probes == 0
    assert down.after(BUSY, how, 5.0).after(GOOD, how, 6.0) == MemberState(
        verdict=Verdict.UP, since=6.0, successes=1, latency=0.001
    )


@given(st.text(max_size=8), st.floats(0.1, 3600), st.floats(0, 10**7))
def test_next_probe_is_at_its_phase_and_at_least_half_a_delay_later(name: str, delay: float, began: float):
    where = phase_of(target(name).endpoint)
    due = next_due(delay, where, began)
    assert began + delay / 2 <= due <= began + delay * 1.5 + 1e-6
    offset = (due - where * delay) % delay
    assert min(offset, delay - offset) < 1e-3


def run(tracker: Tracker, now: float, until: float, takes: float = 0.0) -> list[tuple[float, str]]:
    """Probed members and times, if each probe takes `takes` seconds."""
    found, flying = list[tuple[float, str]](), list[tuple[float, Target]]()
    while True:
        due = tracker.next_due()
        over = flying[0][0] if flying else None
        now = min(each for each in (due, over, until) if each is not None)
        if now >= until:
            return found
        while flying and flying[0][0] <= now:
            tracker.conclude(flying.pop(0)[1], GOOD, now)
        for each in tracker.take_due(now, 100, FREE):
            found.append((now, each.endpoint.port_id))
            flying.append((now + takes, each))


@given(st.floats(0.1, 60), st.floats(0, 1.0))
def test_member_is_probed_once_per_delay_for_any_probe_duration(delay: float, share: float):
    tracker = Tracker()
    tracker.set_targets([target("vm1", rhythm(delay))], NOW)
    times = [at for at, _ in run(tracker, NOW, NOW + MAX_FIRST_DELAY + 20 * delay, takes=share * delay)]
    assert times[0] <= NOW + MAX_FIRST_DELAY
    gaps = [after - before for before, after in pairwise(times)]
    assert all(0.499 * delay < gap < 1.501 * delay for gap in gaps), gaps
    if share < 0.5:  # the second probe is at its regular time; a slow member's gets there gradually
        assert all(abs(gap - delay) < 1e-3 * delay for gap in gaps[2:]), gaps


def test_probes_of_ten_thousand_members_are_spread_evenly_from_the_start():
    tracker, delay = Tracker(), 5.0
    tracker.set_targets((target(f"vm{number}") for number in range(10_000)), NOW)
    probed = run(tracker, NOW, NOW + 4 * delay)
    assert len(probed) == pytest.approx(40_000, rel=0.1)
    tenths = Counter(int((at - NOW) * 10) for at, _ in probed)
    even = 10_000 / delay / 10
    assert max(tenths.values()) < 2.5 * even  # first probes overlap once with regular ones
    later = {tenth: number for tenth, number in tenths.items() if tenth >= 10 * 2 * delay}
    assert max(later.values()) < 1.5 * even
    assert min(later.values()) > 0.5 * even


def test_probe_phase_of_an_endpoint_is_stable():
    assert phase_of(target("vm1").endpoint) == phase_of(target("vm1", rhythm(60)).endpoint)
    assert first_due(target("vm1", rhythm(60)), NOW) <= NOW + MAX_FIRST_DELAY


def test_late_tracker_skips_missed_probes():
    tracker = Tracker()
    tracker.set_targets([target("vm1")], NOW)
    first = tracker.next_due()
    assert first is not None
    assert [each.endpoint.port_id for each in tracker.take_due(first + 60, 10, FREE)] == ["vm1"]
    assert tracker.take_due(first + 60, 10, FREE) == []
    tracker.conclude(target("vm1"), GOOD, first + 61)
    again = tracker.next_due()
    assert again is not None
    assert again > first + 61


def test_due_probes_are_limited_per_call():
    tracker = Tracker()
    tracker.set_targets([target(f"vm{number}") for number in range(10)], NOW)
    assert [len(tracker.take_due(NOW + 10, 4, FREE)) for _ in range(4)] == [4, 4, 2, 0]


def test_project_with_silent_members_leaves_probe_capacity_for_others():
    """All members of `large` are silent until their timeout; a member of `small` is probed when it is due."""
    tracker, places, flying = Tracker(), 100, list[Target]()
    tracker.set_targets([target(f"l{number}", project="large") for number in range(1_000)], NOW)
    late = NOW + 10
    while taken := tracker.take_due(late, 10, places - len(flying)):
        flying += taken
    assert len(flying) == places / 2
    tracker.set_targets([*tracker.targets, *(target(f"s{number}", project="small") for number in range(10))], late)
    flying += tracker.take_due(late + MAX_FIRST_DELAY, 100, places - len(flying))
    assert Counter(each.project_id for each in flying) == {"large": 50, "small": 10}
    seen = set(flying)
    while flying:  # each finished probe makes room for others, until all have been probed
        tracker.conclude(flying.pop(0), BAD, late + MAX_FIRST_DELAY)
        taken = tracker.take_due(late + MAX_FIRST_DELAY, 100, places - len(flying))
        flying += [each for each in taken if each not in seen]
        for again in set(taken) & seen:
            tracker.conclude(again, BAD, late + MAX_FIRST_DELAY)
        seen |= set(taken)
        assert Counter(each.project_id for each in flying)["large"] <= places / 2
    assert len(seen) == 1_010


def test_waiting_target_is_probed_once_after_a_change_and_never_after_removal():
    tracker = Tracker()
    one, two, three = (target(f"l{number}", project="large") for number in range(3))
    tracker.set_targets([one, two, three], NOW)
    [flying] = tracker.take_due(NOW + 10, 10, 2)
    stays, goes = (each for each in (one, two, three) if each != flying)
    faster = replace(stays, schedule=rhythm(0.5))
    for asked in (faster, stays, faster):
        tracker.change([goes.endpoint], [asked], NOW + 10)
    assert tracker.take_due(NOW + 20, 10, 1) == []
    tracker.conclude(flying, GOOD, NOW + 20)
    asked_next = tracker.take_due(NOW + 20, 10, 10)
    assert (set(asked_next), len(asked_next)) == ({flying, faster}, 2)
    tracker.change([faster.endpoint], (), NOW + 20)
    assert (tracker.take_due(NOW + 21, 10, 10), len(tracker)) == ([], 1)


def settled(tracker: Tracker, who: Target, outcome: Outcome) -> None:
    for _ in range(3):
        due = tracker.next_due()
        assert due is not None
        assert tracker.take_due(due, 10, FREE) == [who]
        tracker.conclude(who, outcome, due)


def test_changed_target_keeps_its_verdict_and_starts_a_new_run():
    tracker, who = Tracker(), target("vm1")
    tracker.set_targets([who], NOW)
    settled(tracker, who, GOOD)
    assert tracker.changed == {who.endpoint}
    faster = target("vm1", rhythm(0.5, down=2))
    tracker.set_targets([faster], NOW + 100)
    assert tracker.states[who.endpoint].verdict is Verdict.UP
    assert (tracker.states[who.endpoint].successes, len(tracker)) == (0, 1)
    due = tracker.next_due()
    assert due is not None
    assert due <= NOW + 100.5
    assert tracker.take_due(due, 10, FREE) == [faster]
    tracker.set_targets([who], due)  # while it is in flight
    tracker.conclude(faster, BAD, due + 0.1)
    assert tracker.states[who.endpoint].failures == 0, "what another question came to says nothing"
    assert tracker.next_due() is not None


def test_removed_target_is_dropped_with_its_pending_probes():
    tracker, who = Tracker(), target("vm1")
    tracker.set_targets([who], NOW)
    due = tracker.next_due()
    assert due is not None
    tracker.take_due(due, 1, FREE)
    tracker.set_targets([], due)
    tracker.conclude(who, BAD, due)
    assert (tracker.states, tracker.next_due(), len(tracker)) == ({}, None, 0)
    tracker.set_targets([who], due)
    tracker.set_targets([], due)
    assert tracker.next_due() is None
