"""Evaluation of a run: defects of servers, and effects of repeated requests by clients."""

from harness.address_specification import apply_claim
from harness.ha.disturbances import Disturbance
from harness.ha.evaluation import by_disturbance, contradictions
from harness.ha.load import Attempt, SharedState, Write
from harness.linearizability import UNKNOWN, Operation


def operation(action: str, value: object, asked: float, answered: float = UNKNOWN) -> Operation:
    return Operation(key="10.10.0.1", action=action, value=value, called_at=asked, returned_at=answered)  # type: ignore[arg-type]


def test_object_of_a_repeated_create_may_be_deleted_and_present():
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
    town = SharedState("subnet", "ha", (0,), history=history)
    assert contradictions(town.checked_operations, None, apply_claim) == ["10.10.0.1"]
    town.retried.add("ha1")
    assert not contradictions(town.checked_operations, None, apply_claim)


def test_read_of_a_deleted_object_counts_as_a_server_defect():
    history = [
        operation("create", "ha1", 0.0, 0.1),
        operation("delete", "ha1", 1.2, 1.3),
        operation("read", ("ha1", ""), 2.0, 2.1),
    ]
    assert contradictions(SharedState("subnet", "ha", (0,), history=history).checked_operations, None, apply_claim) == [
        "10.10.0.1"
    ]


def test_pause_is_attributed_to_the_step_that_covers_the_largest_part():
    def write(answered: float) -> Write:
        return Write("as they come", answered, answered, "201", (Attempt(answered, answered, "201"),))

    steps = [Disturbance("kill", "etcd", 0, True, 1.0, 2.0), Disturbance("freeze", "northd", 0, False, 2.0, 3.0)]
    town = SharedState("subnet", "ha", (0,), writes=[write(0.5), write(1.1), write(2.4), write(2.9)], until=3.0)
    found = by_disturbance(town, steps)
    assert found["kill etcd, the leader"]["longest pause, ms"] == 1300
    assert found["freeze northd"]["longest pause, ms"] == 500
