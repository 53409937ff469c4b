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
from fairlead.drivers.native.netlink import Netlink, absent, attributes, be32, nftables, text
from fairlead.drivers.native.nftables.elements import Changes, Elements, Shape, read_elements, read_shape
from fairlead.drivers.native.nftables.nft import NftError, load
from fairlead.drivers.native.nftables.ruleset import ABOUT, CLOSED, NOTED, SHAPES, about, closing, layout_of, ruleset

_NEW_TABLE, _GET_TABLE, _DELETE_TABLE = 0, 1, 2
_NAME, _FLAGS, _HANDLE = 1, 2, 4
_DORMANT = 1
_PASSING = 0.05
"""Seconds that packets have to leave the old rules; far more than they need."""
_Carry: TypeAlias = Callable[[Shape, Elements], Elements]
CARRIED: Mapping[str, _Carry] = {}
"""Conversions of older elements, by set name, for sets with another length or meaning of keys or values. Without an
entry, elements of equal length are kept, and other sets start empty."""


def beside(table: str) -> str:
    """Name of the second table during an upgrade."""
    return f"{table}-next"


def renew(netlink: Netlink, table: str) -> None:
    """Create or upgrade the table; continues an interrupted upgrade. Raises DriverError, Interrupted and OSError."""
    if _is_awake(netlink, beside(table)):
        _move(netlink, beside(table), table)
        return
    _remove(netlink, beside(table))
    said = said_about(netlink, table)
    if said == about():
        return
    if said is None:
        _load(ruleset(table) + closing(table))
        return
    if _fits(said):
        _load(ruleset(table))
        return
    _move(netlink, table, beside(table))
    _move(netlink, beside(table), table)


def handle(netlink: Netlink, table: str) -> bytes:
    """Handle of the table, which changes when it is re-created; b"" without a table."""
    return _find(netlink, table).get(_HANDLE, b"")


def said_about(netlink: Netlink, table: str) -> str | None:
    """Return the table's description of itself; None without a table. Raises Interrupted and OSError."""
    if not handle(netlink, table):
        return None
    said: Elements = {}
    with absent():
        said = read_elements(netlink, table, ABOUT)
    return b"".join(said.values()).decode(errors="replace")


def _fits(said: str | None) -> bool:
    return layout_of(said or "") == layout_of(about())


def remove(netlink: Netlink, table: str) -> None:
    for each in (table, beside(table)):
        _remove(netlink, each)


def _find(netlink: Netlink, table: str) -> Mapping[int, bytes]:
    found = b""
    with absent():
        found = netlink.find(nftables(_GET_TABLE, text(_NAME, table)))
    return attributes(found[4:])


def _is_awake(netlink: Netlink, table: str) -> bool:
    found = _find(netlink, table)
    return bool(found) and not int.from_bytes(found.get(_FLAGS, b"")) & _DORMANT


def _remove(netlink: Netlink, table: str) -> None:
    """Delete a table after packets have left its rules."""
    if _is_awake(netlink, table):
        netlink.transact([nftables(_NEW_TABLE, text(_NAME, table), be32(_FLAGS, _DORMANT))])
        time.sleep(_PASSING)
    if _find(netlink, table):
        netlink.transact([nftables(_DELETE_TABLE, text(_NAME, table))])


def _move(netlink: Netlink, old: str, new: str) -> None:
    """Move the elements to a new table of this release, replacing any remains of an earlier attempt."""
    _remove(netlink, new)
    _load(ruleset(new, "flags dormant;"))
    changes, carried = Changes(new), {} if _fits(said_about(netlink, old)) else CARRIED
    for shape in (*SHAPES, *NOTED, CLOSED):
        changes.add(shape, _carried(netlink, old, shape, carried))
    if changes:
        netlink.transact(changes.messages())
    netlink.transact([nftables(_NEW_TABLE, text(_NAME, new), be32(_FLAGS, 0))])
    _remove(netlink, old)


def _carried(netlink: Netlink, old: str, shape: Shape, carried: Mapping[str, _Carry]) -> Elements:
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
