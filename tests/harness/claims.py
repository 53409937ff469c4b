"""What can be answered about one address that several clients want."""

from collections.abc import Hashable

from harness.histories import Operation


def claim(state: Hashable, operation: Operation) -> tuple[Hashable, ...]:
    """Of one address: nothing, or the name and description of the load balancer that has it. Names are used once."""
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
