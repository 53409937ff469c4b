"""The work queue: each owner once, first come first served, and failures do not delay other owners."""

from functools import partial

import pytest

from fairlead.model.documents.owner import Kind, Owner
from fairlead.reconciler.queue import MAX_BACKOFF, MIN_BACKOFF, MIN_BATCH_OWNERS, Queue

A, B = Owner(Kind.LOAD_BALANCER, "a"), Owner(Kind.LOAD_BALANCER, "b")


def test_owner_queued_several_times_is_returned_once():
    queue = Queue()
    for _ in range(5):
        queue.add([A], 0.0)
    assert queue.pop(0.0) == A
    assert queue.pop(0.0) is None


def test_repeatedly_queued_owner_does_not_starve_others():
    queue = Queue()
    queue.add([A], 0.0)
    queue.add([B], 0.0)
    assert queue.pop(0.0) == A
    queue.add([A], 0.0)
    assert queue.pop(0.0) == B
    assert queue.pop(0.0) == A


def test_small_and_large_batches_alternate_in_the_queue():
    queue = Queue()
    many = [Owner(Kind.LOAD_BALANCER, f"{number:03}") for number in range(10 * MIN_BATCH_OWNERS)]
    queue.add(many, 0.0)
    few = [Owner(Kind.LOAD_BALANCER, f"x{number}") for number in range(4)]
    for each in few:
        queue.add([each, many[-1]], 1.0)  # a queued owner keeps its place
    assert (len(queue), queue.oldest(), queue.unsettled()) == (10 * MIN_BATCH_OWNERS + 4, 0.0, 0.0)
    found = [queue.pop(1.0) for _ in range(8)]
    assert found == [few[0], many[0], few[1], many[1], few[2], many[2], few[3], many[3]]
    assert [queue.pop(1.0) for _ in range(10 * MIN_BATCH_OWNERS)] == [*many[4:], None, None, None, None]


def test_retry_delay_doubles_up_to_a_limit():
    queue, waits, now = Queue(), [], 0.0
    for _ in range(10):
        queue.failed(A, now)
        assert queue.pop(now) is None
        due = queue.next_due()
        assert due is not None
        waits.append(due - now)
        now = due
        assert queue.pop(now) == A
    assert waits[:3] == pytest.approx([MIN_BACKOFF, MIN_BACKOFF * 2, MIN_BACKOFF * 4])
    assert max(waits) == pytest.approx(MAX_BACKOFF)


def test_new_change_ends_a_back_off_and_success_clears_the_failures():
    queue = Queue()
    queue.failed(A, 0.0)
    queue.add([A], 0.01)
    assert queue.pop(0.01) == A
    assert queue.next_due() is None
    queue.done(A)
    queue.failed(A, 1.0)
    assert queue.next_due() == 1.0 + MIN_BACKOFF


def test_recovered_dataplane_ends_every_back_off():
    queue = Queue()
    queue.failed(A, 0.0)
    queue.failed(B, 0.0)
    queue.retry_now(0.0)
    assert {queue.pop(0.0), queue.pop(0.0)} == {A, B}
    assert len(queue) == 0


def test_owner_that_fails_for_hours_is_still_retried():
    """The retry delay is bounded: unbounded doubling would overflow after 1,024 failures, within an hour and a half."""
    queue, now = Queue(), 0.0
    queue.add([A], now)
    for _ in range(3000):
        assert queue.pop(now) == A
        queue.failed(A, now)
        now += MAX_BACKOFF
    assert queue.next_due() == now


def test_unreachable_owner_waits_for_recovery_without_a_failure_count():
    queue = Queue()
    queue.add([A], 0.0)
    assert queue.pop(0.0) == A
    queue.delay_until_reconnect(A, 0.0)
    assert queue.pop(MAX_BACKOFF) is None
    queue.retry_now(MAX_BACKOFF)
    assert queue.pop(MAX_BACKOFF) == A
    queue.failed(A, MAX_BACKOFF)
    assert queue.next_due() == MAX_BACKOFF + MIN_BACKOFF, "that was no failure of the owner's"


def test_batch_takes_owners_of_one_queue_line_up_to_an_excluded_one():
    queue = Queue()
    many = [Owner(Kind.LOAD_BALANCER, f"{number:03}") for number in range(2 * MIN_BATCH_OWNERS)]
    queue.add(many, 0.0)
    queue.add([A], 0.0)
    queue.add([B], 0.0)
    assert [queue.pop(0.0), queue.pop_another(()), queue.pop_another(())] == [A, B, None]
    assert [queue.pop(0.0), queue.pop_another({many[2]}), queue.pop_another({many[2]})] == [many[0], many[1], None]
    assert queue.pop(0.0) == many[2]


def test_failed_batch_returns_to_the_front_with_its_age():
    queue = Queue()
    many = [Owner(Kind.LOAD_BALANCER, f"{number:03}") for number in range(2 * MIN_BATCH_OWNERS)]
    queue.add(many, 1.0)
    taken = [queue.pop(2.0), queue.pop_another(()), queue.pop_another(())]
    queue.add([many[1]], 3.0)
    queue.requeue_first([each for each in taken if each], 4.0)
    assert (queue.oldest(), queue.unsettled()) == (1.0, 1.0)
    assert [queue.pop(4.0), queue.pop(4.0), queue.pop(4.0)] == [many[1], many[0], many[2]], "few take turns with many"
    assert queue.pop(4.0) == many[3]


def test_tenants_are_served_round_robin() -> None:
    """A new tenant waits for at most one owner of a tenant that has a thousand queued."""
    queue = Queue(tenant_of)
    queue.add([Owner(Kind.LOAD_BALANCER, f"large/{number}") for number in range(1000)], 0.0)
    for number in range(15):
        queue.add([Owner(Kind.LOAD_BALANCER, f"busy/{number}")], 0.0)
    assert queue.pop(1.0) == Owner(Kind.LOAD_BALANCER, "busy/0")
    queue.add([Owner(Kind.LOAD_BALANCER, f"small/{number}") for number in range(2)], 1.0)
    order = [tenant_of(owner) for owner in iter(partial(queue.pop, 2.0), None)]
    assert len(order) == 1016
    assert order[:5] == ["large", "busy", "large", "small", "large"]
    assert order.index("small") <= 3, "one owner of each line and of each tenant before it"


def test_owners_of_one_tenant_keep_their_order() -> None:
    queue = Queue(tenant_of)
    owners = [Owner(Kind.LOAD_BALANCER, f"{tenant}/{number}") for tenant in "ab" for number in range(3)]
    for owner in owners:
        queue.add([owner], 0.0)
    assert queue.oldest() == 0.0
    queue.add([owners[0]], 5.0)  # it keeps its place
    assert [owner.id for owner in iter(partial(queue.pop, 9.0), None)] == ["a/0", "b/0", "a/1", "b/1", "a/2", "b/2"]
    assert (len(queue), queue.oldest()) == (0, None)


def tenant_of(owner: Owner) -> str:
    return owner.id.partition("/")[0]
