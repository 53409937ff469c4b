"""Concurrent changes of addresses, rules and routes: an interrupted dump is not a consistent snapshot."""

from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from fairlead.dataplane.native import Vip
from fairlead.dataplane.rows import diff
from fairlead.drivers.interface import DriverError, Unavailable
from fairlead.drivers.native.driver import Kept, Native
from fairlead.drivers.native.netlink import ATTEMPTS, Interrupted, Message, Netlink
from harness.apart import Apart
from harness.native_host import EVERYTHING, FOUR, ONE, as_rows, put, service, way

_GET_ADDRESSES, _OTHER_SUBSYSTEMS = 22, 256
ASKING = as_rows(Vip(address=FOUR, held=True), service())


def come_between(monkeypatch: pytest.MonkeyPatch, comes: Callable[[Message], bool]) -> None:
    """Mark each matching dump as interrupted at its end (NLM_F_DUMP_INTR)."""
    dump = Netlink.dump

    def interrupted(netlink: Netlink, message: Message) -> Iterator[tuple[int, bytes]]:
        yield from dump(netlink, message)
        if comes(message):
            raise Interrupted

    monkeypatch.setattr(Netlink, "dump", interrupted)


def at_first(often: int) -> Callable[[Message], bool]:
    """Match this many dumps of each kind (addresses, rules, routes, devices), then none."""
    had = Counter[Message]()

    def comes(message: Message) -> bool:
        had[message] += 1
        return message.kind < _OTHER_SUBSYSTEMS and had[message] % (often + 1) != 0

    return comes


async def test_what_somebody_has_changed_meanwhile_is_read_again(host: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted dumps are repeated; a host without a default route searches all addresses for one of its own."""
    host.ip("route del default via 10.20.0.1", f"addr add {FOUR}/32 dev lo")
    come_between(monkeypatch, at_first(3))

    driver, (owner, its) = Native(), way()
    await put(driver, owner, its)
    with pytest.raises(DriverError, match="itself"):
        await put(driver, ONE, EVERYTHING)
    host.ip(f"addr del {FOUR}/32 dev lo")
    await put(driver, ONE, EVERYTHING)
    assert await driver.look_after() is Kept.WHOLE
    assert await driver.read_all() == await Native().look() == {owner: its, ONE: EVERYTHING}
    await put(driver, ONE, {})
    await driver.remove()


async def test_whoever_never_stops_is_waited_for_no_longer_than_is_said(
    host: Apart, monkeypatch: pytest.MonkeyPatch
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

    driver, (owner, its) = Native(), way()
    await put(driver, owner, its)
    come_between(monkeypatch, comes)
    with pytest.raises(Unavailable):
        await driver.apply(ONE, diff(EVERYTHING, {}))
    assert len(asked) == ATTEMPTS
    is_there[0] = False
    await put(driver, ONE, EVERYTHING)
    assert await driver.read_all() == await Native().look() == {owner: its, ONE: EVERYTHING}
    await driver.remove()


async def test_what_was_written_is_read_again_when_it_is_not_known_who_was_asked(
    host: Apart, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written elements are read back if constant changes of nftables prevented reading the notes of connections."""
    elsewhere = as_rows(Vip(address=FOUR, held=True), service(slots=bytes(256)))
    is_there = [True]

    def comes(message: Message) -> bool:
        return is_there[0] and b"asked4" in message.body

    driver, (owner, its) = Native(), way()
    await put(driver, owner, its)
    await put(driver, ONE, ASKING)
    come_between(monkeypatch, comes)
    with pytest.raises(Unavailable):
        await put(driver, ONE, elsewhere)
    is_there[0] = False
    assert await driver.read(ONE) == elsewhere
    await put(driver, ONE, ASKING)
    assert await driver.read_all() == {owner: its, ONE: ASKING}
    await driver.remove()
