"""Finds the owners with sections that HAProxy does not load, by checking parts of a configuration.

HAProxy's error names a line or a file, but no owner. So the owners are halved until a part loads or has one owner.
For k bad owners of n this takes about 2 k log2(n) checks.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from fairlead.drivers.haproxy.process import NotStarted
from fairlead.model.documents.owner import Owner

Check: TypeAlias = Callable[[Sequence[Owner]], Awaitable[None]]
"""Raises NotStarted if the sections of these owners, without any others, are not loaded."""


async def find_invalid_owners(owners: Sequence[Owner], check: Check) -> dict[Owner, str]:
    """Map each owner with sections that do not load to HAProxy's error. Empty if every part loads: then the fault
    belongs to no owner, for example a missing program or a timeout. Raises OSError."""
    if not owners:
        return {}
    try:
        await check(owners)
    except NotStarted as error:
        if len(owners) == 1:
            return {owners[0]: str(error)}
        half = len(owners) // 2
        return {**await find_invalid_owners(owners[:half], check), **await find_invalid_owners(owners[half:], check)}
    return {}
