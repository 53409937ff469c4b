"""Concurrent changes of addresses, rules and routes: an interrupted dump is not a consistent snapshot."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fairlead.dataplane.native import Vip
from fairlead.dataplane.rows import diff
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.drivers.native.driver import CheckResult, Native
from fairlead.drivers.native.netlink import ATTEMPTS, Interrupted, Message, Netlink
from harness.native_host import ALL_ROWS, FIRST_OWNER, FOUR, as_rows, put, route_row, service
from harness.net_namespace import NetNamespace

_GET_ADDRESSES, _OTHER_SUBSYSTEMS = 22, 256
ASKING = as_rows(Vip(address=FOUR, is_local=True), service())


def interrupt_dumps(monkeypatch: pytest.MonkeyPatch, comes: Callable[[Message], bool]) -> None:
    """Mark each matching dump as interrupted at its end (NLM_F_DUMP_INTR)."""
    dump = Netlink.dump

    def interrupted(netlink: Netlink, message: Message) -> Iterator[tuple[int, bytes]]:
        yield from dump(netlink, message)
        if comes(message):
            raise Interrupted

    monkeypatch.setattr(Netlink, "dump", interrupted)


def on_first_dump(often: int) -> Callable[[Message], bool]:
    """Match this many dumps of each kind (addresses, rules, routes, devices), then none."""
    had = Counter[Message]()

    def comes(message: Message) -> bool:
        had[message] += 1
        return message.kind < _OTHER_SUBSYSTEMS and had[message] % (often + 1) != 0

    return comes


async def test_interrupted_dump_is_repeated(host: NetNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted dumps are repeated; a host without a default route searches all addresses for one of its own."""
    host.ip("route del default via 10.20.0.1", f"addr add {FOUR}/32 dev lo")
    interrupt_dumps(monkeypatch, on_first_dump(3))

    driver, (owner, its) = Native(), route_row()
    await put(driver, owner, its)
    with pytest.raises(DriverError, match="already an address of this host"):
        await put(driver, FIRST_OWNER, ALL_ROWS)
    host.ip(f"addr del {FOUR}/32 dev lo")
    await put(driver, FIRST_OWNER, ALL_ROWS)
    assert await driver.check_and_restore() is CheckResult.UNCHANGED
    assert await driver.read_all() == await Native().read_only() == {owner: its, FIRST_OWNER: ALL_ROWS}
    await put(driver, FIRST_OWNER, {})
    await driver.remove()


async def test_dump_that_is_always_interrupted_fails_after_bounded_attempts(
    host: NetNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dumps that are always interrupted fail after bounded attempts; earlier writes are read back before the next
    one."""
    host.ip("route del default via 10.20.0.1")
    asked, is_there = list[Message](), [True]

    def comes(message: Message) -> bool:
        if message.kind != _GET_ADDRESSES or not is_there[0]:
            return False
        asked.append(message)
        return True

    driver, (owner, its) = Native(), route_row()
    await put(driver, owner, its)
    interrupt_dumps(monkeypatch, comes)
    with pytest.raises(Unavailable):
        await driver.apply(FIRST_OWNER, diff(ALL_ROWS, {}))
    assert len(asked) == ATTEMPTS
    is_there[0] = False
    await put(driver, FIRST_OWNER, ALL_ROWS)
    assert await driver.read_all() == await Native().read_only() == {owner: its, FIRST_OWNER: ALL_ROWS}
    await driver.remove()


async def test_rows_are_read_back_if_reading_the_forwarding_record_fails(
    host: NetNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written elements are read back if constant changes of nftables prevented reading the notes of connections."""
    elsewhere = as_rows(Vip(address=FOUR, is_local=True), service(slots=bytes(256)))
    is_there = [True]

    def comes(message: Message) -> bool:
        return is_there[0] and b"asked4" in message.body

    driver, (owner, its) = Native(), route_row()
    await put(driver, owner, its)
    await put(driver, FIRST_OWNER, ASKING)
    interrupt_dumps(monkeypatch, comes)
    with pytest.raises(Unavailable):
        await put(driver, FIRST_OWNER, elsewhere)
    is_there[0] = False
    assert await driver.read(FIRST_OWNER) == elsewhere
    await put(driver, FIRST_OWNER, ASKING)
    assert await driver.read_all() == {owner: its, FIRST_OWNER: ASKING}
    await driver.remove()
