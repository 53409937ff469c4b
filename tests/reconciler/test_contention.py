"""Write conflicts on a row: immediate repairs at first, then growing delays, which reset after a quiet period."""

from itertools import pairwise

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.reconciler.contention import FIRST_PAUSE, FREE_REPAIRS, LONGEST_PAUSE, QUIET, Contention

A, B = Owner(Kind.LOAD_BALANCER, "a"), Owner(Kind.LOAD_BALANCER, "b")


def fight(contention: Contention, rounds: int, now: float = 0.0) -> list[float]:
    """Run rounds in which another writer immediately changes the row after each repair; return the delays."""
    pauses = []
    for _ in range(rounds):
        pauses.append(contention.notice(A, now))
        now += pauses[-1]
        contention.settle(A, 1, now, repaired=True)
    return pauses


def test_the_first_repairs_are_at_once_and_each_further_one_waits_twice_as_long():
    pauses = fight(Contention(), 20)
    assert pauses[: FREE_REPAIRS + 2] == [*[0.0] * FREE_REPAIRS, FIRST_PAUSE, 2 * FIRST_PAUSE]
    assert all(before <= after for before, after in pairwise(pauses))
    assert max(pauses) == pauses[-1] == LONGEST_PAUSE


def test_an_endless_fight_never_waits_longer():
    assert fight(Contention(), 2000)[-1] == LONGEST_PAUSE


@pytest.mark.parametrize(("silence", "pauses"), [(QUIET - 1, True), (QUIET + 1, False)])
def test_what_is_left_alone_is_forgotten(silence: float, pauses: bool):
    contention = Contention()
    for _ in range(FREE_REPAIRS):
        contention.notice(A, 0.0)
        contention.settle(A, 1, 0.0, repaired=True)
    assert contention.contended(silence) == pauses
    assert (contention.notice(A, silence) > 0) is pauses


def test_others_do_not_wait_for_it():
    contention = Contention()
    fight(contention, 10)
    assert contention.notice(B, 1.0) == 0.0


def test_many_changes_before_one_repair_are_one():
    contention = Contention()
    for _ in range(100):
        assert contention.notice(A, 0.0) == 0.0
    contention.settle(A, 1, 0.0, repaired=True)
    assert contention.repairs(A) == 1


def test_changes_that_need_no_repair_are_no_fight():
    contention = Contention()
    for _ in range(100):
        assert contention.notice(A, 0.0) == 0.0
        contention.settle(A, 1, 0.0, repaired=False)


def test_who_looks_on_counts_what_another_server_puts_right_but_not_what_it_applies():
    contention = Contention()
    for generation in range(1, 50):  # the other server is faster with each change of the model
        contention.notice(A, 0.0)
        contention.differs(A, generation)
        contention.settle(A, generation + 1, 0.0, repaired=False)
    assert contention.repairs(A) == 0
    for _ in range(FREE_REPAIRS):
        contention.notice(A, 0.0)
        contention.differs(A, 50)
        contention.settle(A, 50, 0.0, repaired=False)
    assert contention.notice(A, 0.0) > 0


def test_health_that_flaps_is_no_fight_for_a_server_that_looks_on():
    """Flapping health is no contention for a standby: it computes other rows first, and then the leader writes them."""
    contention = Contention()
    for _ in range(50):
        contention.differs(A, 1)
        assert contention.notice(A, 0.0) == 0.0
        contention.settle(A, 1, 0.0, repaired=False)
    assert contention.repairs(A) == 0
