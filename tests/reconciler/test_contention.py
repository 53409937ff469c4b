"""Write conflicts on a row: immediate repairs at first, then growing delays, which reset after a quiet period."""

from itertools import pairwise

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.reconciler.contention import FORGET_AFTER_SECONDS, FREE_REPAIRS, MAX_PAUSE, MIN_PAUSE, Contention

A, B = Owner(Kind.LOAD_BALANCER, "a"), Owner(Kind.LOAD_BALANCER, "b")


def contend(contention: Contention, rounds: int, now: float = 0.0) -> list[float]:
    """Run rounds in which another writer immediately changes the row after each repair; return the delays."""
    pauses = []
    for _ in range(rounds):
        pauses.append(contention.record_drift(A, now))
        now += pauses[-1]
        contention.record_settled(A, 1, now, repaired=True)
    return pauses


def test_first_repairs_are_immediate_and_later_delays_double():
    pauses = contend(Contention(), 20)
    assert pauses[: FREE_REPAIRS + 2] == [*[0.0] * FREE_REPAIRS, MIN_PAUSE, 2 * MIN_PAUSE]
    assert all(before <= after for before, after in pairwise(pauses))
    assert max(pauses) == pauses[-1] == MAX_PAUSE


def test_repair_delay_is_bounded():
    assert contend(Contention(), 2000)[-1] == MAX_PAUSE


@pytest.mark.parametrize(("silence", "pauses"), [(FORGET_AFTER_SECONDS - 1, True), (FORGET_AFTER_SECONDS + 1, False)])
def test_contention_is_forgotten_after_a_quiet_period(silence: float, pauses: bool):
    contention = Contention()
    for _ in range(FREE_REPAIRS):
        contention.record_drift(A, 0.0)
        contention.record_settled(A, 1, 0.0, repaired=True)
    assert contention.contended(silence) == pauses
    assert (contention.record_drift(A, silence) > 0) is pauses


def test_contention_of_one_owner_does_not_delay_others():
    contention = Contention()
    contend(contention, 10)
    assert contention.record_drift(B, 1.0) == 0.0


def test_many_changes_before_one_repair_count_once():
    contention = Contention()
    for _ in range(100):
        assert contention.record_drift(A, 0.0) == 0.0
    contention.record_settled(A, 1, 0.0, repaired=True)
    assert contention.repairs(A) == 1


def test_changes_without_a_repair_are_no_contention():
    contention = Contention()
    for _ in range(100):
        assert contention.record_drift(A, 0.0) == 0.0
        contention.record_settled(A, 1, 0.0, repaired=False)


def test_standby_counts_repairs_of_the_leader_but_not_its_applies():
    contention = Contention()
    for generation in range(1, 50):  # the other server is faster with each change of the model
        contention.record_drift(A, 0.0)
        contention.record_difference(A, generation)
        contention.record_settled(A, generation + 1, 0.0, repaired=False)
    assert contention.repairs(A) == 0
    for _ in range(FREE_REPAIRS):
        contention.record_drift(A, 0.0)
        contention.record_difference(A, 50)
        contention.record_settled(A, 50, 0.0, repaired=False)
    assert contention.record_drift(A, 0.0) > 0


def test_flapping_health_is_no_contention_for_a_standby():
    """Flapping health is no contention for a standby: it computes other rows first, and then the leader writes them."""
    contention = Contention()
    for _ in range(50):
        contention.record_difference(A, 1)
        assert contention.record_drift(A, 0.0) == 0.0
        contention.record_settled(A, 1, 0.0, repaired=False)
    assert contention.repairs(A) == 0
