"""Which store a URL means. What a store can do is the same for all (`interface`)."""

from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from fairlead.store.interface import Store
from fairlead.store.sqlite import SqliteStore


def _open_sqlite(rest: str) -> Awaitable[Store]:
    return SqliteStore.open(Path(rest))


OPENERS: Mapping[str, Callable[[str], Awaitable[Store]]] = {"sqlite": _open_sqlite}
"""Scheme -> what opens the store, given what stands behind `scheme://`."""


def check_url(url: str) -> None:
    """Raises ValueError for one that means no store."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in OPENERS:
        raise ValueError(f"'{url}' begins with none of {', '.join(f'{each}://' for each in OPENERS)}")
    if not rest.startswith("/") or rest.endswith("/"):
        raise ValueError(f"'{url}' names no file; give it whole, as in {scheme}:///var/lib/fairlead/fairlead.db")


async def open_store(url: str) -> Store:
    """Raises ValueError, and StoreUnavailable when it cannot be opened or was written by a newer version."""
    check_url(url)
    scheme, _, rest = url.partition("://")
    return await OPENERS[scheme](rest)
