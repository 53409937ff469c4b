"""Which store a URL means. What a store can do is the same for all (`interface`)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.store.interface import Store
from fairlead.store.sqlite import SqliteStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Both are given what stands behind `scheme://`."""

    check: Callable[[str], None]
    """Raises ValueError, which says what would be right."""
    open: Callable[[str], Awaitable[Store]]
    """Raises StoreUnavailable."""


def _check_file(path: str) -> None:
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError("it names no file; give it whole, as in sqlite:///var/lib/fairlead/fairlead.db")


def _open_file(path: str) -> Awaitable[Store]:
    return SqliteStore.open(Path(path))


SCHEMES: Mapping[str, Scheme] = {"sqlite": Scheme(check=_check_file, open=_open_file)}


def check_url(url: str) -> None:
    """Raises ValueError for one that means no store."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES:
        raise ValueError(f"'{_shown(url)}' begins with none of {', '.join(f'{each}://' for each in SCHEMES)}")
    try:
        SCHEMES[scheme].check(rest)
    except ValueError as error:
        raise ValueError(f"'{_shown(url)}': {error}") from None


def _shown(url: str) -> str:
    """Without the user and password that may stand before the host (RFC 3986, section 3.2.1)."""
    before, at, host = url.rpartition("@")
    return f"{before.partition('://')[0]}://...@{host}" if at else url


async def open_store(url: str) -> Store:
    """Raises ValueError, and StoreUnavailable when it cannot be opened or was written by a newer version."""
    check_url(url)
    scheme, _, rest = url.partition("://")
    return await SCHEMES[scheme].open(rest)
