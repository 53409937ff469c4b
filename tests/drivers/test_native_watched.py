"""Drift of a plain host: each removal is detected immediately and restored, and unrelated changes are left alone."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.dataplane.native import Vip
from fairlead.drivers.interface import DriverError
from fairlead.drivers.native import change_monitor
from fairlead.drivers.native import driver as driving
from fairlead.drivers.native.driver import CheckResult, Native
from fairlead.drivers.native.observed import MissingParts
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.registry.slices import slice_of
from fairlead.node.plain_host import PlainHost
from fairlead.node.reports import Reports
from harness.case import read_case
from harness.fixed_slice import FixedSlice
from harness.native_host import FIRST_OWNER as OWNER
from harness.native_host import FOUR, SIX, as_rows, kernel_state, put, route_row, service
from harness.net_namespace import NetNamespace
from harness.waiting import eventually, eventually_equal, pause

pytestmark = pytest.mark.slow

SERVED = as_rows(Vip(address=FOUR, is_local=True), Vip(address=SIX, is_local=True), service())
TABLES = 0xFA1E0000
ROUTES = f"local {FOUR} table {TABLES}"
KEPT = "ip rule add pref 32766 lookup main; ip rule add pref 32767 lookup default"
REMOVED = {
    "the table": "nft delete table inet fairlead",
    "all of nftables": "nft flush ruleset",
    "an address": f"ip addr del {FOUR}/32 dev lo",
    "an address of IPv6": f"ip addr del {SIX}/128 dev lo",
    "all rules": f"ip rule flush; {KEPT}; ip rule add fwmark 0x1001 lookup 1007 pref 300",
    "all rules of IPv6": "ip -6 rule flush; ip -6 rule add pref 32766 lookup main",
    "a rule": "ip rule del pref 4 fwmark 0x1002/0x3fff",
    "local addresses are first again": "ip rule add pref 0 lookup local",
    "a route": f"ip route flush table {TABLES + 0x1002}",
    "a route of IPv6": f"ip -6 route flush table {TABLES + 0x2002}",
    "a device": "ip link del fl-second",
    "a device is down": "ip link set fl-table down",
    "the address of a device": "ip addr flush dev fl-back",
}
LOST = "the table", "all of nftables"
STORY = """# A host with a member of its own, beside another one that answers.

-- one model --
network pool announced 203.0.113.0/24
host h1 1 127.0.0.1 10.1.0.0/24
host h2 2 127.0.0.2 10.2.0.0/24
web vip=203.0.113.5 on=pool provider=native tcp:80=a/10.1.0.11,b/10.2.0.11
plugged h1
plugged h2
"""


def _state(host: NetNamespace) -> list[str]:
    """Return the host's state without device numbers, which differ after a device was recreated."""
    rules = [host.run("ip", *each.split()) for each in ("rule", "-6 rule", "route show table all proto 250")]
    more = "-6 route show table all proto 250", "-br addr", "-br link"
    shown = [*rules, *(host.run("ip", *each.split()) for each in more), host.run("nft", "list", "ruleset")]
    return ["\n".join(sorted(line.partition(" fe80")[0].rstrip() for line in each.splitlines())) for each in shown]


@dataclass
class Clock:
    """Clock of the driver's checks. It stands still, so a check takes no time and needs no pause after it."""

    now: float = 0.0
    looks: list[float] = field(default_factory=list)
    """Times at which the driver compared its rows with the kernel."""

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, find_missing = Clock(), driving.find_missing

    def look(*args: object) -> MissingParts:
        made.looks.append(made.now)
        return find_missing(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(driving, "time", made)
    monkeypatch.setattr(change_monitor, "time", made)
    monkeypatch.setattr(driving, "find_missing", look)
    return made


@pytest.mark.parametrize("removed", REMOVED)
async def test_removed_state_is_detected_and_restored(host: NetNamespace, clock: Clock, removed: str) -> None:
    driver, (other, its) = Native(), route_row()
    await put(driver, other, its)
    await put(driver, OWNER, SERVED)
    await _settled(driver, clock)
    before = _state(host)
    host.run("sh", "-c", REMOVED[removed])
    kept = await driver.check_and_restore()
    assert kept is (CheckResult.LOST if removed in LOST else CheckResult.RESTORED)
    if kept is CheckResult.LOST:
        await driver.read_all()
        await put(driver, other, its)
        with suppress(DriverError):
            await put(driver, OWNER, SERVED)
    assert _state(host)[:-1] == before[:-1]
    assert kept is CheckResult.LOST or _state(host) == before, "of nftables nothing is touched"
    await _settled(driver, clock)
    await driver.remove()


async def _settled(driver: Native, clock: Clock) -> None:
    """Wait for the kernel's late events about new devices: states and link-local addresses."""

    async def looks_for_a_while() -> int:
        before = len(clock.looks)
        for _ in range(10):
            assert await driver.check_and_restore() is CheckResult.UNCHANGED
            pause(0.03)
        return len(clock.looks) - before

    await eventually_equal(looks_for_a_while, 0)


async def test_unrelated_and_own_changes_trigger_no_check(host: NetNamespace, clock: Clock) -> None:
    driver, (other, its) = Native(), route_row()
    await put(driver, other, its)
    await put(driver, OWNER, as_rows(Vip(address=FOUR, is_local=True), service()))
    await _settled(driver, clock)
    clock.looks.clear()
    routes = [f"10.77.{each}.0/24 via 10.20.0.1" for each in range(200)]
    routes += [f"fd77:{each}::/64 via fd20::1" for each in range(200)]
    lines = [f"route {verb} {each}" for each in routes for verb in ("add", "del")]
    host.ip(*lines, *lines, "route add 10.98.0.0/16 via 10.20.0.1 table 77")
    await put(driver, OWNER, {})
    await put(driver, OWNER, as_rows(Vip(address=FOUR, is_local=True), service()))
    await _settled(driver, clock)
    assert clock.looks == []
    for number, verb in enumerate(("add", "del"), 1):
        host.ip(f"addr {verb} 10.20.0.99/24 dev d0")
        assert await driver.check_and_restore() is CheckResult.UNCHANGED
        assert len(clock.looks) == number
    await driver.remove()


def _asks_from(host: NetNamespace, vip: object) -> str:
    shown = host.run("ip", "route", "get", str(vip)).split()
    return shown[shown.index("src") + 1] if "src" in shown else ""


async def test_host_reaches_its_vips_from_an_address_assigned_later(host: NetNamespace, clock: Clock) -> None:
    """A source address that the host gets later, by DHCP or router advertisement, is used; before, it may have none but
    VIPs. IPv6 first runs duplicate address detection. Changes of the route are repaired, and nothing else is read
    again."""

    async def looks_until_it_asks_from(driver: Native, wanted: dict[IPAddress, str]) -> None:
        async def asks_from() -> dict[IPAddress, str]:
            assert await driver.check_and_restore() is CheckResult.UNCHANGED
            return {vip: _asks_from(host, vip) for vip in wanted}

        await eventually_equal(asks_from, wanted)

    host.ip("addr flush dev d0", "addr del 192.0.2.77/32 dev lo")
    driver = Native()
    await put(driver, *route_row())
    await put(driver, OWNER, SERVED)
    await _settled(driver, clock)
    assert {_asks_from(host, vip) for vip in (FOUR, SIX)} <= {"", str(FOUR), str(SIX), "::1", "127.0.0.1"}
    host.set_sysctl("net/ipv6/conf/d0/accept_dad", 1)
    added = "addr add 10.20.0.11/24 dev d0\naddr add fd20::12/64 dev d0\naddr show dev d0\n"
    assert "tentative" in host.run("ip", "-batch", "-", text=added)
    await looks_until_it_asks_from(driver, {FOUR: "10.20.0.11", SIX: "fd20::12"})
    host.ip("addr del 10.20.0.11/24 dev d0", "addr add 10.20.0.12/24 dev d0")
    await looks_until_it_asks_from(driver, {FOUR: "10.20.0.12", SIX: "fd20::12"})
    host.ip(f"route del {ROUTES}")
    await looks_until_it_asks_from(driver, {FOUR: "10.20.0.12", SIX: "fd20::12"})
    await driver.remove()


async def test_checks_take_a_tenth_of_the_time_at_any_rate_of_change(
    host: NetNamespace, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Checks take a tenth of the time however much changes: one second passes between two changes, and one per
    check."""

    def look(*_: object) -> MissingParts:
        clock.looks.append(clock.now)
        clock.now += 1
        return MissingParts(has_prerequisites=True, tunnels=[], vips=[], received_vips=[])

    monkeypatch.setattr(driving, "find_missing", look)

    driver = Native()
    await put(driver, *route_row())
    while clock.now < 50:
        clock.now += 1
        host.ip(*("rule add pref 900 lookup 77", "rule del pref 900") * 50)
        assert await driver.check_and_restore() is CheckResult.UNCHANGED
    await driver.remove()
    assert clock.looks == [1, 12, 23, 34, 45]


@asynccontextmanager
async def _serving(folder: Path) -> AsyncIterator[FixedSlice]:
    path = folder / "story.txt"
    path.write_text(STORY)
    given = FixedSlice("h1", folder / "slice", slice_of(read_case(path, (NATIVE,)).states[0].snapshot(), "h1"))
    task = asyncio.create_task(PlainHost(given, Reports(lambda: None, lambda: (), 0), Native()).run())  # type: ignore[arg-type,return-value]
    try:
        yield given
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        driver = Native()
        await driver.remove()


async def test_agent_restores_flushed_rules_at_the_next_check(
    host: NetNamespace, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed rules are restored by the next check; a check that began before the removal may miss it."""
    looks: list[CheckResult] = []
    look_after = Native.check_and_restore

    async def noted(driver: Native) -> CheckResult:
        looks.append(await look_after(driver))
        return looks[-1]

    monkeypatch.setattr(Native, "check_and_restore", noted)

    def serves() -> bool:
        shown = host.run("ip", "addr", "show", "lo") + host.run("nft", "list", "ruleset") + host.run("ip", "rule")
        return all(each in shown for each in ("203.0.113.5/32", "10.1.0.11", "0x1002"))

    async with _serving(tmp_path):
        await eventually(serves)
        for removed in ("nft flush ruleset", "ip rule flush", "ip addr flush dev lo") * 2:
            await eventually(lambda: looks[-2:], is_enough=lambda last: last == [CheckResult.UNCHANGED] * 2)
            looks.clear()
            host.run("sh", "-c", removed if "lo" not in removed else f"{removed} to 203.0.113.0/24")
            await eventually(serves)
            await eventually(lambda: looks, is_enough=lambda ended: len(ended) >= 2)
            assert {*looks[:2]} - {CheckResult.UNCHANGED}, looks
    assert "203.0.113.5" not in "".join(kernel_state(host))


async def test_tunnels_are_opened_after_all_rows_are_applied(
    host: NetNamespace, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tunnels are opened last, after all rows, at the start and after the table was recreated."""
    seen: list[tuple[bool, bool, bool]] = []
    open_tunnels = Native.open_tunnels

    def shown() -> tuple[bool, bool, bool]:
        rows = host.run("nft", "list", "ruleset")
        held = host.run("ip", "addr", "show", "lo")
        return "10.1.0.11" in rows, "203.0.113.5/32" in held, "udp . 4790" in rows

    async def noted(driver: Native) -> None:
        seen.append(shown())
        await open_tunnels(driver)

    monkeypatch.setattr(Native, "open_tunnels", noted)
    async with _serving(tmp_path):
        await eventually(shown, is_enough=lambda found: found == (True, True, False))
        assert seen == [(True, True, True)]
        host.run("nft", "flush", "ruleset")
        await eventually(lambda: len(seen) == 2)
        await eventually(shown, is_enough=lambda found: found == (True, True, False))
    assert seen == [(True, True, True)] * 2


async def test_vip_address_added_by_another_process_is_not_adopted(host: NetNamespace, clock: Clock) -> None:
    """A VIP's address that another process has added to the host is not Fairlead's: the owner fails after a resync,
    with the reason."""

    driver, (other, its) = Native(), route_row()
    await put(driver, other, its)
    await put(driver, OWNER, SERVED)
    await _settled(driver, clock)
    host.ip(f"addr del {FOUR}/32 dev lo", f"addr add {FOUR}/32 dev lo")
    assert await driver.check_and_restore() is CheckResult.LOST
    await driver.read_all()
    with pytest.raises(DriverError, match=f"VIP {FOUR} is already an address of this host"):
        await put(driver, OWNER, SERVED)
    host.ip(f"addr del {FOUR}/32 dev lo")
    await put(driver, OWNER, SERVED)
    await _settled(driver, clock)
    await driver.remove()


async def test_failed_change_does_not_count_as_drift(host: NetNamespace, clock: Clock) -> None:
    """A failed change must not count as drift, or everything would be restored repeatedly; real drift is still
    found."""

    driver, (other, its) = Native(), route_row()
    await put(driver, other, its)
    await put(driver, OWNER, SERVED)
    host.nft(f"add element inet fairlead served4 {{ {FOUR} . 0:6 . 81 : 0:63 }}")
    wanted = SERVED | as_rows(service(port=81))
    for removed in ("", "an address", "all of nftables"):
        with pytest.raises(DriverError):
            await put(driver, OWNER, wanted)
        host.run("sh", "-c", REMOVED[removed] if removed else "true")
        assert await driver.check_and_restore() is (CheckResult.LOST if removed else CheckResult.UNCHANGED)
        if removed == "an address":
            await put(driver, OWNER, SERVED)
        host.nft(f"add element inet fairlead served4 {{ {FOUR} . 0:6 . 81 : 0:63 }}")
    assert await driver.read_all() == {}
    await driver.remove()
