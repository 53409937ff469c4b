"""Members and pools for tests of slot assignment."""

from collections.abc import Sequence
from datetime import UTC, datetime
from ipaddress import ip_address

from fairlead.model.documents.apportionment import MAX_SLOTS
from fairlead.model.documents.loadbalancer import Algorithm, Member, Pool, PoolProtocol
from harness.pools import with_members

COMMON = {"project_id": "p", "created_at": datetime(2026, 1, 1, tzinfo=UTC)}


def keys(table: Sequence[int]) -> tuple[int, ...]:
    """Member of each hash value, repeated to the largest table size to compare tables of different sizes."""
    return tuple(table) * (MAX_SLOTS // len(table)) if table else ()


def make_member(number: int, weight: int = 1, *, version: int = 4, backup: bool = False) -> Member:
    address = ip_address(f"10.0.0.{number + 1}" if version == 4 else f"fd00::{number + 1:x}")
    return Member(id=f"m{number}", ordinal=number, address=address, port=80, weight=weight, backup=backup, **COMMON)


def make_pool(*members: Member) -> Pool:
    pool = Pool(id="p", protocol=PoolProtocol.TCP, algorithm=Algorithm.SOURCE_IP_PORT, **COMMON)
    return with_members(pool, members)
