"""Which owners keep a configuration from being loaded, found by loading parts of it.

A check of HAProxy names the first line that it does not accept, or a file, and no owner. So the owners are halved until
each part loads or is one owner's: two checks for each halving, so about 2 k log2(n) for k bad ones of n.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from fairlead.drivers.haproxy.process import NotStarted
from fairlead.model.owner import Owner

Check: TypeAlias = Callable[[Sequence[Owner]], Awaitable[None]]
"""Raises NotStarted if the sections of these owners, without any others, are not loaded."""


async def find_unsound(owners: Sequence[Owner], check: Check) -> dict[Owner, str]:
    """Maps each owner whose sections are not loaded to HAProxy's complaint. Empty if each of them loads by itself: then
    the fault is no owner's, such as a program that is missing or that took too long. Raises OSError."""
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
