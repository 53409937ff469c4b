"""Our table where there is none, and in place of an older release's: no packet finds it empty meanwhile.

Rules alone are replaced in one transaction, and sets stay. A set cannot get another type: nft refuses that. Then a new
table is made beside the old one, asleep; it gets the elements; and when it is awake the old one is put to sleep, and
removed. Twice, for a table cannot get another name. For a moment both are awake, and both decide alike. One
transaction for all would refuse packets: those that are among the old rules then find maps of which all is gone.
"""

import time
from collections.abc import Callable, Mapping
from typing import TypeAlias

from fairlead.drivers.interface import DriverError
from fairlead.drivers.native.elements import Changes, Elements, Shape, read_elements, read_shape
from fairlead.drivers.native.netlink import Netlink, absent, attributes, be32, nftables, text
from fairlead.drivers.native.nft import NftError, load
from fairlead.drivers.native.ruleset import ABOUT, CLOSED, NOTED, SHAPES, about, closing, layout_of, ruleset

_NEW_TABLE, _GET_TABLE, _DELETE_TABLE = 0, 1, 2
_NAME, _FLAGS, _HANDLE = 1, 2, 4
_DORMANT = 1
_PASSING = 0.05
"""Seconds for packets that are among the rules: by far more than any takes."""
_Carry: TypeAlias = Callable[[Shape, Elements], Elements]
CARRIED: Mapping[str, _Carry] = {}
"""What becomes of an older release's elements, by the name of the set: where keys or values have another length or
another meaning now. Without an entry they are the same where their lengths are, and the set begins empty where not."""


def beside(table: str) -> str:
    """The name of the other one, while there are two."""
    return f"{table}-next"


def renew(netlink: Netlink, table: str) -> None:
    """May be ended at any point, and is gone on with by the next agent. Raises DriverError, Interrupted, OSError."""
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
    """Which table it is: one that was made anew has another. None at all: b""."""
    return _find(netlink, table).get(_HANDLE, b"")


def said_about(netlink: Netlink, table: str) -> str | None:
    """What our table says of itself; None if there is none. Raises Interrupted, OSError."""
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
    """When no packet is among its rules any more."""
    if _is_awake(netlink, table):
        netlink.transact([nftables(_NEW_TABLE, text(_NAME, table), be32(_FLAGS, _DORMANT))])
        time.sleep(_PASSING)
    if _find(netlink, table):
        netlink.transact([nftables(_DELETE_TABLE, text(_NAME, table))])


def _move(netlink: Netlink, old: str, new: str) -> None:
    """To a table of this release, whatever there was of it."""
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
    """Elements of a set of that name, as they are in this release."""
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
