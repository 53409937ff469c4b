"""Finds the owners whose sections HAProxy does not load, by loading parts of a configuration.

HAProxy names a line or a file in its error, but no owner. Therefore the owners are halved until a part loads or belongs
to one owner. For k bad owners of n this takes about 2 k log2(n) checks.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from fairlead.drivers.haproxy.process import NotStarted
from fairlead.model.owner import Owner

Check: TypeAlias = Callable[[Sequence[Owner]], Awaitable[None]]
"""Raises NotStarted if the sections of these owners, without any others, are not loaded."""


async def find_unsound(owners: Sequence[Owner], check: Check) -> dict[Owner, str]:
    """Maps each owner whose sections do not load to HAProxy's error. Empty if every part loads: then the fault belongs
    to no owner, such as a missing program or a timeout. Raises OSError."""
    if not owners:
        return {}
    try:
        await check(owners)
    except NotStarted as error:
        if len(owners) == 1:
            return {owners[0]: str(error)}
        half = len(owners) // 2
        return {**await find_unsound(owners[:half], check), **await find_unsound(owners[half:], check)}
    return {}
