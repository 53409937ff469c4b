"""Creation of the nftables table, and its upgrade from an older release without a gap for packets.

If only rules differ, they are replaced in one transaction, and sets stay. nft cannot change the type of a set. In that
case a new, dormant table is created beside the old one and gets its elements. After the new one is activated, the old
one is made dormant and deleted. This is done twice, because a table cannot be renamed. For a moment both are active and
decide equally. A single transaction would reject packets, because packets in the old rules would find empty maps.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.netlink import Netlink, attributes, be32, ignore_absent, nftables, text
from fairlead.drivers.native.nftables.elements import ElementChanges, Elements, Shape, read_elements, read_shape
from fairlead.drivers.native.nftables.nft import NftError, load
from fairlead.drivers.native.nftables.ruleset import (
    CLOSED,
    QUERIED_SETS,
    SHAPES,
    TABLE_DIGESTS,
    closing,
    compute_digests,
    layout_of,
    ruleset,
)

_NEW_TABLE, _GET_TABLE, _DELETE_TABLE = 0, 1, 2
_NAME, _FLAGS, _HANDLE = 1, 2, 4
_DORMANT = 1
_DRAIN_SECONDS = 0.05
"""Seconds that packets have to leave the old rules; far more than they need."""
_Convert: TypeAlias = Callable[[Shape, Elements], Elements]
CONVERSIONS: Mapping[str, _Convert] = {}
"""Conversions of older elements, by set name, for sets with another length or meaning of keys or values. Without an
entry, elements of equal length are kept, and other sets start empty."""


def upgrade_table_name(table: str) -> str:
    """Name of the second table during an upgrade."""
    return f"{table}-next"


def renew(netlink: Netlink, table: str) -> None:
    """Create or upgrade the table; continues an interrupted upgrade. Raises DriverError, Interrupted and OSError."""
    if _is_active(netlink, upgrade_table_name(table)):
        _move(netlink, upgrade_table_name(table), table)
        return
    _remove(netlink, upgrade_table_name(table))
    said = read_description(netlink, table)
    if said == compute_digests():
        return
    if said is None:
        _load(ruleset(table) + closing(table))
        return
    if _fits(said):
        _load(ruleset(table))
        return
    _move(netlink, table, upgrade_table_name(table))
    _move(netlink, upgrade_table_name(table), table)


def handle(netlink: Netlink, table: str) -> bytes:
    """Handle of the table, which changes when it is re-created; b"" without a table."""
    return _find(netlink, table).get(_HANDLE, b"")


def read_description(netlink: Netlink, table: str) -> str | None:
    """Return the table's description of itself; None without a table. Raises Interrupted and OSError."""
    if not handle(netlink, table):
        return None
    said: Elements = {}
    with ignore_absent():
        said = read_elements(netlink, table, TABLE_DIGESTS)
    return b"".join(said.values()).decode(errors="replace")


def _fits(said: str | None) -> bool:
    return layout_of(said or "") == layout_of(compute_digests())


def remove(netlink: Netlink, table: str) -> None:
    for each in (table, upgrade_table_name(table)):
        _remove(netlink, each)


def _find(netlink: Netlink, table: str) -> Mapping[int, bytes]:
    found = b""
    with ignore_absent():
        found = netlink.find(nftables(_GET_TABLE, text(_NAME, table)))
    return attributes(found[4:])


def _is_active(netlink: Netlink, table: str) -> bool:
    found = _find(netlink, table)
    return bool(found) and not int.from_bytes(found.get(_FLAGS, b"")) & _DORMANT


def _remove(netlink: Netlink, table: str) -> None:
    """Delete a table after packets have left its rules."""
    if _is_active(netlink, table):
        netlink.transact([nftables(_NEW_TABLE, text(_NAME, table), be32(_FLAGS, _DORMANT))])
        time.sleep(_DRAIN_SECONDS)
    if _find(netlink, table):
        netlink.transact([nftables(_DELETE_TABLE, text(_NAME, table))])


def _move(netlink: Netlink, old: str, new: str) -> None:
    """Move the elements to a new table of this release, replacing any remains of an earlier attempt."""
    _remove(netlink, new)
    _load(ruleset(new, "flags dormant;"))
    changes, carried = ElementChanges(new), {} if _fits(read_description(netlink, old)) else CONVERSIONS
    for shape in (*SHAPES, *QUERIED_SETS, CLOSED):
        changes.add(shape, _convert_elements(netlink, old, shape, carried))
    if changes:
        netlink.transact(changes.messages())
    netlink.transact([nftables(_NEW_TABLE, text(_NAME, new), be32(_FLAGS, 0))])
    _remove(netlink, old)


def _convert_elements(netlink: Netlink, old: str, shape: Shape, carried: Mapping[str, _Convert]) -> Elements:
    """Return the elements of an old set, converted to this release."""
    before = read_shape(netlink, old, shape)
    if before is None:
        return {}
    elements = read_elements(netlink, old, before)
    if (carry := carried.get(shape.name)) is not None:
        return carry(before, elements)
    return elements if (before.key, before.data) == (shape.key, shape.data) else {}


def _load(rules: str) -> None:
    try:
        load(rules)
    except NftError as error:
        raise DriverError(f"nftables: {error}") from None
