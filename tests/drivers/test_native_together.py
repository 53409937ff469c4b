"""Many owners of a plain host in one batch, in a real kernel: VIPs, moves between owners, and a restart."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.dataplane.native import HostTunnel, LocalMember, NativeRow, OtherHost, Service, Vip
from fairlead.dataplane.rows import Key, Row, diff
from fairlead.drivers.interface import BulkDriver, DriverError
from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.netlink import Message, Netlink
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.loop import Reconciler
from fairlead.runtime.steps import Steps
from harness.net_namespace import NetNamespace, net_namespace, require_root

pytestmark = pytest.mark.slow

Rows = Mapping[Key, NativeRow]
MANY = 300
EVEN = bytes(slot % 2 for slot in range(256))
ROW_COUNTS = 2
"""Remainder, modulo 4, of the type of an rtnetlink(7) message that only reads."""
RULE = 32
"""RTM_NEWRULE: the rules are put again at each start, although they exist."""


@pytest.fixture
def host() -> Iterator[NetNamespace]:
    require_root("/usr/sbin/nft")
    with net_namespace() as made:
        made.set_sysctl("net/ipv6/conf/default/accept_dad", 0)
        made.ip(
            "link add d0 type veth peer name d1",
            "addr add 10.20.0.11/24 dev d0",
            "addr add fd20::11/64 dev d0 nodad",
            "link set d0 up",
            "link set d1 up",
            "addr add 198.18.0.9/32 dev lo",
            "route add default via 10.20.0.1",
            "route add default via fd20::1",
        )
        with made.inside():
            yield made


def owner(number: int) -> Owner:
    return Owner(Kind.LOAD_BALANCER, f"{number:08d}-1111-4111-8111-111111111111")


def rows(vip: IPAddress, member: int, *, held: bool = True) -> Rows:
    here = LocalMember(address=ip_address("10.30.0.0" if vip.version == 4 else "fd30::") + member, port=80)
    service = Service(
        vip=vip, transport=Transport.TCP, port=80, by_source=False, slots=EVEN, targets=(here, OtherHost(host=2))
    )
    return {row.key: row for row in (Vip(address=vip, is_local=held), service)}


def route_row(host: int, name: str = "", at: str = "10.20.0.12") -> tuple[Owner, Rows]:
    its = HostTunnel(host=host, address=ip_address(at))
    return Owner(Kind.HOST, name or f"host{host}"), {its.key: its}


def many(first: str) -> dict[Owner, Rows]:
    return {owner(place): rows(ip_address(first) + place, place) for place in range(MANY)}


async def put(driver: Native, wanted: Mapping[Owner, Rows]) -> None:
    known = await driver.read_some(list(wanted))
    await driver.apply_all({each: diff(its, known[each]) for each, its in wanted.items()})


def addresses(host: NetNamespace) -> set[str]:
    shown = host.run("ip", "-o", "addr", "show", "dev", "lo")
    return {line.split()[3].partition("/")[0] for line in shown.splitlines()} - {"127.0.0.1", "::1", "198.18.0.9"}


def led_own(host: NetNamespace) -> list[str]:
    """Return the routes of the table; `ip` fails for a table without routes."""
    shown = f"route show table {0xFA1E0000} 2>/dev/null || true"
    return [host.run("sh", "-c", f"ip {family} {shown}") for family in ("-4", "-6")]


def test_native_driver_is_a_bulk_driver() -> None:
    assert isinstance(Native(), BulkDriver)


@pytest.mark.parametrize("first", ["198.18.1.0", "2001:db8::1:0"])
async def test_many_vips_are_read_back_by_another_process_without_writes(
    host: NetNamespace, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, wanted = Native(), dict([route_row(2)]) | many(first)
    await driver.open()
    await put(driver, wanted)
    assert await driver.read_all() == wanted
    assert len(addresses(host)) == MANY
    shown = led_own(host)
    assert sum(each.count("src ") for each in shown) == MANY
    await driver.close()
    asked = list[int]()
    send = Netlink._send

    def listen(netlink: Netlink, messages: list[Message]) -> None:
        messages = list(messages)
        asked.extend(each.kind for each in messages)
        send(netlink, messages)

    monkeypatch.setattr(Netlink, "_send", listen)
    again = Native()
    await again.open()
    before = len(asked)
    assert await again.read_all() == wanted
    wrote = [each for each in asked[before:] if each < 256 and each % 4 != ROW_COUNTS and each != RULE]
    assert wrote == [], "neither routes nor addresses"
    monkeypatch.undo()
    assert led_own(host) == shown
    await put(again, {each: {} for each in wanted})
    assert await again.read_all() == {}
    assert (addresses(host), led_own(host)) == (set(), ["", ""])
    await again.remove()


async def test_removed_route_is_restored(host: NetNamespace) -> None:
    driver, wanted = Native(), dict([route_row(2)]) | many("198.18.1.0")
    await put(driver, wanted)
    shown = led_own(host)
    host.ip(f"route del local 198.18.1.7 table {0xFA1E0000}")
    assert await driver.read_all() == wanted
    assert led_own(host) == shown
    await driver.remove()


async def test_vip_equal_to_a_host_address_is_rejected_and_other_vips_are_held(host: NetNamespace) -> None:
    driver, wanted = Native(), dict([route_row(2)]) | many("198.18.0.0")
    with pytest.raises(DriverError, match=r"198\.18\.0\.9"):
        await put(driver, wanted)
    assert len(addresses(host)) == MANY - 1
    found, vip = await driver.read_all(), ip_address("198.18.0.9")
    assert {each for each in wanted if found[each] != wanted[each]} == {owner(9)}
    assert found[owner(9)] == rows(vip, 9, held=False)
    await driver.remove()
    assert "198.18.0.9" in host.run("ip", "addr", "show", "lo")


async def test_vips_and_host_numbers_swap_owners_in_one_transaction(host: NetNamespace) -> None:
    one, other = (ip_address(f"203.0.113.{each}") for each in (5, 6))

    driver, reader = Native(), Native()
    host3, its3 = route_row(3)
    await put(driver, {**dict([route_row(2)]), host3: its3, owner(1): rows(one, 1), owner(2): rows(other, 2)})
    swaps: list[dict[Owner, Rows]] = [
        {owner(1): rows(other, 1), owner(2): rows(one, 2)},
        {owner(1): {}, owner(3): rows(other, 3)},
        {owner(1): rows(other, 1), owner(3): {}},
        {**dict([route_row(3, "new", "10.20.0.13")]), host3: {}},
        {host3: its3, Owner(Kind.HOST, "new"): {}},
    ]
    for swap in swaps:
        await put(driver, swap)
        known, found = dict(await driver.read_some([owner(1), owner(2), owner(3)])), await reader.read_all()
        assert {each: its for each, its in known.items() if its} == {
            each: its for each, its in found.items() if each.kind is Kind.LOAD_BALANCER
        }
        assert {each: found.get(each, {}) for each in swap} == swap
        assert addresses(host) == {str(one), str(other)}
    await reader.close()
    await driver.remove()


async def test_conflicting_owners_in_one_batch_are_rejected(host: NetNamespace) -> None:
    vip = ip_address("203.0.113.5")

    driver = Native()
    await put(driver, dict([route_row(2)]))
    with pytest.raises(DriverError, match=str(owner(1))):
        await put(driver, {owner(1): rows(vip, 1), owner(2): rows(vip, 2)})
    with pytest.raises(DriverError, match="host3"):
        await put(driver, dict([route_row(3), route_row(3, "new")]))
    assert await driver.read_all() == dict([route_row(2)])
    await put(driver, {owner(1): rows(vip, 1)})
    with pytest.raises(DriverError, match=str(owner(1))):
        await put(driver, {owner(1): {**rows(vip, 9)}, owner(2): rows(vip, 2)})
    await driver.remove()


async def test_host_without_an_own_address_has_no_route_for_its_own_vip_packets(host: NetNamespace) -> None:
    """A host without an address of its own has no route to VIPs for its own packets, because with a VIP as source,
    which the kernel may choose, the replies would be lost."""
    host.ip("addr del 10.20.0.11/24 dev d0", "addr del 198.18.0.9/32 dev lo")

    driver, wanted = Native(), many("198.18.1.0")
    wanted = {each: {key: row for key, row in its.items() if isinstance(row, Vip)} for each, its in wanted.items()}
    await put(driver, wanted)
    assert led_own(host)[0] == ""
    assert await driver.read_all() == wanted
    await put(driver, {owner(0): {key: replace(row, is_local=False) for key, row in wanted[owner(0)].items()}})  # type: ignore[type-var]
    assert len(addresses(host)) == MANY - 1
    await driver.remove()


def reconciler_of(driver: Native, wanted: Mapping[Owner, Rows]) -> Reconciler:
    def compile_in_steps(_: Snapshot, which: Owner) -> Steps[Mapping[Key, Row]]:
        yield
        return wanted.get(which, {})

    dataplane, snapshot = replace(NATIVE, compile_in_steps=compile_in_steps), Snapshot()
    return Reconciler(dataplane=dataplane, driver=driver, snapshot=lambda: snapshot, clock=lambda: 0.0)


async def rest(reconciler: Reconciler) -> None:
    while await reconciler.step():
        pass


async def test_batch_rejected_by_the_kernel_is_applied_owner_by_owner(host: NetNamespace) -> None:
    """A batch that the kernel rejects is applied owner by owner; an unmanaged element conflicts with one of them."""

    driver, wanted = Native(), dict([route_row(2)]) | many("198.18.1.0")
    await driver.open()
    reconciler = reconciler_of(driver, wanted)
    assert await driver.read_all() == {}
    host.nft("add element inet fairlead served4 { 198.18.1.7 . 0:6 . 80 : 0:63 }")
    reconciler.mark(wanted)
    await rest(reconciler)
    assert await driver.read_all() == wanted
    assert (reconciler.statistics.failed, len(reconciler)) == (0, 0)
    assert {reconciler.applied(each).error for each in wanted} == {None}
    await driver.remove()


async def test_owner_that_the_host_cannot_apply_fails_alone_and_is_retried(host: NetNamespace) -> None:
    driver, wanted = Native(), dict([route_row(2)]) | many("198.18.0.0")
    reconciler = reconciler_of(driver, wanted)
    reconciler.mark(wanted)
    await rest(reconciler)
    failed = {each for each in wanted if reconciler.applied(each).error is not None}
    assert failed == {owner(9)}
    assert "198.18.0.9" in (reconciler.applied(owner(9)).error or "")
    assert reconciler.next_due() is not None
    assert len(addresses(host)) == MANY - 1
    host.ip("addr del 198.18.0.9/32 dev lo")
    reconciler.retry_now()
    await rest(reconciler)
    assert await driver.read_all() == wanted
    await driver.remove()
