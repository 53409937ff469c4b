"""Maps a store URL to its implementation. All stores have the same interface (`interface`)."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fairlead.store.bulk import BulkStore
from fairlead.store.etcd_access import Access, check_access, parse_location
from fairlead.store.interface import Store
from fairlead.store.revision_offset import OffsetStore
from fairlead.store.sqlite import SqliteStore
from fairlead.store.sqlite_bulk import SqliteBulkStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """Functions of a URL scheme. Each takes the part after `scheme://` and the credentials."""

    check: Callable[[str, Access], None]
    """Raises ValueError with the correct form."""
    open: Callable[[str, Access], Awaitable[Store]]
    """Raises StoreUnavailable."""
    find: Callable[[str, Access], Awaitable[BulkStore]]
    """Open for whole-store operations; a file must exist. Raises Absent and StoreUnavailable."""
    make: Callable[[str, Access], Awaitable[BulkStore]]


def _check_file(path: str, access: Access) -> None:
    if access != Access():
        raise ValueError(
            "store.ca, store.certificate, store.key, store.user and store.password_file are for etcd, not for a file"
        )
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(
            "the path must be the absolute path of a file; example: sqlite:///var/lib/fairlead/fairlead.db"
        )


def _open_file(path: str, _: Access) -> Awaitable[Store]:
    return SqliteStore.open(Path(path))


def _find_file(path: str, _: Access) -> Awaitable[BulkStore]:
    return SqliteBulkStore.find(Path(path))


def _make_file(path: str, _: Access) -> Awaitable[BulkStore]:
    return SqliteBulkStore.open(Path(path))


def _check_etcd(rest: str, access: Access) -> None:
    parse_location(rest)
    check_access(access)


async def _open_etcd(rest: str, access: Access) -> Store:
    from fairlead.store.etcd import EtcdStore  # gRPC is an optional dependency

    return OffsetStore(await EtcdStore.open(parse_location(rest), access))


async def _find_etcd(rest: str, access: Access) -> BulkStore:
    from fairlead.store.etcd_bulk import EtcdBulkStore

    return await EtcdBulkStore.open(parse_location(rest), access)


SCHEMES: Mapping[str, Scheme] = {
    "sqlite": Scheme(check=_check_file, open=_open_file, find=_find_file, make=_make_file),
    "etcd": Scheme(check=_check_etcd, open=_open_etcd, find=_find_etcd, make=_find_etcd),
}
NO_ACCESS = Access()


def check_url(url: str, access: Access = NO_ACCESS) -> None:
    """Raise ValueError if the URL names no store."""
    scheme, colon, rest = url.partition("://")
    if not colon or scheme not in SCHEMES:
        raise ValueError(f"'{_shown(url)}' must begin with one of {', '.join(f'{each}://' for each in SCHEMES)}")
    try:
        SCHEMES[scheme].check(rest, access)
    except ValueError as error:
        raise ValueError(f"'{_shown(url)}': {error}") from None


def _shown(url: str) -> str:
    """Mask the user and password in a URL (RFC 3986, section 3.2.1)."""
    before, at, host = url.rpartition("@")
    return f"{before.partition('://')[0]}://...@{host}" if at else url


async def open_store(url: str, access: Access = NO_ACCESS) -> Store:
    """Open a store. Raises ValueError, and StoreUnavailable if it cannot be opened or a newer version wrote it."""
    check_url(url, access)
    scheme, _, rest = url.partition("://")
    return await SCHEMES[scheme].open(rest, access)


async def find_bulk_store(url: str, access: Access = NO_ACCESS) -> BulkStore:
    """Open an existing store for whole-store operations. Raises ValueError, Absent and StoreUnavailable."""
    check_url(url, access)
    scheme, _, rest = url.partition("://")
    return await SCHEMES[scheme].find(rest, access)


async def create_bulk_store(url: str, access: Access = NO_ACCESS) -> BulkStore:
    """Open a store for whole-store operations, creating a missing file. Raises ValueError and StoreUnavailable."""
    check_url(url, access)
    scheme, _, rest = url.partition("://")
    return await SCHEMES[scheme].make(rest, access)
