"""Sequential specification of one address that several clients claim, for the linearizability checker."""

from collections.abc import Hashable

from harness.linearizability import Operation


def apply_claim(state: Hashable, operation: Operation) -> tuple[Hashable, ...]:
    """States that may follow `state` after `operation`; none if the operation is impossible in it.

    The state is None (the address is free), or name and description of the load balancer that has it. Names are unique.
    """
    action, value = operation.action, operation.value
    name = state[0] if isinstance(state, tuple) else None
    if action == "create":
        return ((value, ""),) if state is None else ()
    if action == "refused":
        return (state,) if state is not None else ()
    if action == "read":
        return (state,) if state == value else ()
    if action == "gone":
        return (state,) if name != value else ()
    if action == "on its way":
        return (state,) if name == value else ()
    if action == "delete":
        return (None,) if name == value else ()
    assert isinstance(value, tuple)
    return (value,) if name == value[0] else ()
