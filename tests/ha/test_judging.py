"""Evaluation of a run: defects of servers, and effects of repeated requests by clients."""

from harness.claims import claim
from harness.ha.judging import by_way, contradictions
from harness.ha.load import Attempt, Town, Write
from harness.ha.nemesis import Step
from harness.histories import UNKNOWN, Operation


def operation(action: str, value: object, asked: float, answered: float = UNKNOWN) -> Operation:
    return Operation(key="10.10.0.1", action=action, value=value, asked=asked, answered=answered)  # type: ignore[arg-type]


def test_a_name_that_was_sent_twice_may_be_gone_and_be_there():
    """A create without a response was executed, another client deleted its result, and the create was repeated.

    A request for the first object returns 404, while the second has its name.
    """
    history = [
        operation("create", "ha1", 0.0),
        operation("read", ("ha1", ""), 1.0, 1.1),
        operation("delete", "ha1", 1.2, 1.3),
        operation("create", "ha1", 2.0, 5.0),
        operation("read", ("ha1", ""), 3.0, 3.1),
        operation("gone", "ha1", 3.2, 3.3),
    ]
    town = Town("subnet", "ha", (0,), history=history)
    assert contradictions(town.judged, None, claim) == ["10.10.0.1"]
    town.tried_again.add("ha1")
    assert not contradictions(town.judged, None, claim)


def test_a_read_of_what_is_gone_is_held_against_servers():
    history = [
        operation("create", "ha1", 0.0, 0.1),
        operation("delete", "ha1", 1.2, 1.3),
        operation("read", ("ha1", ""), 2.0, 2.1),
    ]
    assert contradictions(Town("subnet", "ha", (0,), history=history).judged, None, claim) == ["10.10.0.1"]


def test_a_pause_is_whole_though_the_next_step_has_begun_and_belongs_to_the_step_that_has_most_of_it():
    def write(answered: float) -> Write:
        return Write("as they come", answered, answered, "201", (Attempt(answered, answered, "201"),))

    steps = [Step("kill", "etcd", 0, True, 1.0, 2.0), Step("freeze", "northd", 0, False, 2.0, 3.0)]
    town = Town("subnet", "ha", (0,), writes=[write(0.5), write(1.1), write(2.4), write(2.9)], until=3.0)
    found = by_way(town, steps)
    assert found["kill etcd, the leader"]["longest pause, ms"] == 1300
    assert found["freeze northd"]["longest pause, ms"] == 500
