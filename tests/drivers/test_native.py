"""Rows of a plain host in a real kernel: read back, written atomically, and removed without residue."""

import asyncio
import random
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from fairlead.dataplane.native import Here, NativeRow, Target, There, Vip, Way
from fairlead.dataplane.rows import Diff, Rows, diff
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.drivers.native.driver import Kept, Native
from fairlead.drivers.native.netlink import NETFILTER, Netlink, nftables
from fairlead.drivers.native.nftables.elements import Changes
from fairlead.drivers.native.nftables.ruleset import TUNNELS
from fairlead.drivers.native.prerequisites import Ground
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Kind, Owner
from harness.apart import Apart
from harness.native_host import EVERYTHING, FOUR, ONE, OTHER, SIX, as_rows, kernel_state, put, service, way
from harness.waiting import eventually

GET_GENERATION = 16
"""NFT_MSG_GETGEN, the netlink message that reads the generation of the ruleset."""


async def test_rows_are_found_again_by_another_process_which_writes_nothing(host: Apart) -> None:
    driver, (owner, its) = Native(), way()
    await driver.open()
    assert await driver.read_all() == {}
    await put(driver, owner, its)
    await put(driver, ONE, EVERYTHING)
    assert await driver.read(ONE) == EVERYTHING
    await driver.close()
    before = host.run("nft", "-a", "list", "ruleset"), host.run("ip", "-d", "rule"), _generation()
    again = Native()
    assert await again.read_all() == {owner: its, ONE: EVERYTHING}
    assert await again.read(ONE) == EVERYTHING
    await again.apply(ONE, diff(EVERYTHING, EVERYTHING))
    assert (host.run("nft", "-a", "list", "ruleset"), host.run("ip", "-d", "rule"), _generation()) == before
    await put(again, ONE, {})
    await put(again, owner, {})
    assert await again.read_all() == {}
    await again.close()


async def test_random_walk_is_always_found_as_it_was_written(host: Apart) -> None:
    chance = random.Random(7)

    driver, reader, wanted = Native(), Native(), dict[Owner, dict[tuple[str, ...], NativeRow]]()
    for number in (2, 3):
        owner, its = way(number)
        await put(driver, owner, its)
        wanted[owner] = dict(its)
    for _ in range(60):
        changes = dict[Owner, Diff]()
        for owner, vip in ((ONE, FOUR), (OTHER, SIX)):
            rows = _chosen(chance, vip)
            changes[owner] = diff(rows, wanted.get(owner, {}))
            wanted[owner] = rows
        await driver.apply_all(changes)
        assert await reader.read_all() == {owner: rows for owner, rows in wanted.items() if rows}
    assert host.run("nft", "list", "map", "inet", "fairlead", "pattern").count(":") <= 256 * 8 + 10
    await driver.close()
    await reader.close()


def _chosen(chance: random.Random, vip: object) -> dict[tuple[str, ...], NativeRow]:
    rows: list[NativeRow] = [Vip(address=vip, held=chance.random() < 0.5)]  # type: ignore[arg-type]
    for port in range(1, chance.randrange(1, 6)):
        slots = [bytes(256), bytes(slot % 2 for slot in range(256)), bytes(slot % 3 for slot in range(256)), b""]
        some = chance.choice(slots)
        if len(some) and chance.random() < 0.3:
            some = bytes([some[0], chance.choice([0, max(some)]), *some[2:]])
        members = ip_address("10.30.1.0") if vip is FOUR else ip_address("fd30::")
        targets: list[Target] = [
            There(host=2),
            There(host=3),
            *(Here(address=members + n, port=n) for n in range(1, 5)),
        ]
        nets = [ip_network("10.0.0.0/9"), ip_network("10.128.0.0/9")] if vip is FOUR else [ip_network("fd00::/9")]
        rows.append(
            service(
                some,
                vip=vip,
                port=port,
                by_source=chance.random() < 0.3,
                targets=tuple(chance.sample(targets, max(some, default=-1) + 1)),
                before=((chance.randrange(256), 3),) if some and chance.random() < 0.3 else (),
                clients=chance.choice([None, (), tuple(nets)]),
            )
        )
    return as_rows(*rows) if chance.random() < 0.9 else {}


async def test_only_what_differs_is_written(host: Apart, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    transact = Ground.transact

    def count(ground: Ground, changes: Changes) -> None:
        written.append(changes.count)
        transact(ground, changes)

    monkeypatch.setattr(Ground, "transact", count)

    driver, base = Native(), service()
    await put(driver, *way())
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=False), base))
    written.clear()
    moved = bytes([1, *base.slots[1:]])
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=False), replace(base, slots=moved)))
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=False), base))
    assert written == [2, 2], "a slot goes and comes"
    both = as_rows(Vip(address=FOUR, held=False), base, replace(base, port=81))
    await put(driver, ONE, both)
    assert written[2] == 2, "a service: its slots and places are there"
    await put(driver, ONE, as_rows(*both.values(), replace(base, port=81, slots=moved)))
    assert written[3] == 256 + 2, "another one goes on with its slots"
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=True), base))
    assert written[4] == 2 + 256
    await driver.close()


@pytest.mark.parametrize("vips", [(FOUR, SIX), (FOUR, FOUR + 1)], ids=["both versions", "two of one"])
async def test_ports_of_a_pool_have_who_serves_them_once(
    host: Apart, monkeypatch: pytest.MonkeyPatch, vips: tuple[IPAddress, ...]
) -> None:
    """Two hundred ports at two VIPs use one pool of 256 members; each slot moves and keeps its previous owner."""
    written: list[int] = []
    transact = Ground.transact

    def count(ground: Ground, changes: Changes) -> None:
        written.append(changes.count)
        transact(ground, changes)

    monkeypatch.setattr(Ground, "transact", count)
    slots = bytes(range(256))

    def of(ports: int, second: bool) -> Rows:
        rows: list[NativeRow] = [Vip(address=vip, held=True) for vip in vips]
        for vip in vips:
            base = ip_address("10.30.0.0") if vip.version == 4 else ip_address("fd30::")
            here = tuple(Here(address=base + each + 512 * second, port=80) for each in range(256))
            before = tuple((slot, 3) for slot in range(256)) if second else ()
            these = service(vip=vip, slots=slots, targets=here, before=before)
            rows += (replace(these, port=1000 + port) for port in range(ports))
        return as_rows(*rows)

    driver = Native()
    for owner, rows in (way(2), way(3)):
        await put(driver, owner, rows)
    for second in (False, True):
        rows = of(200, second)
        await put(driver, ONE, rows)
        assert await driver.read_all() == {way(2)[0]: way(2)[1], way(3)[0]: way(3)[1], ONE: rows}
    assert max(written) < 200 * 2 * 2 + 256 * 2 * 4
    written.clear()
    await put(driver, ONE, of(100, True))
    assert written[0] == 100 * 2 * 2, "the others go on"
    await put(driver, ONE, {})
    left = host.run("nft", "list", "table", "inet", "fairlead")
    assert [each for each in ("10.30.", "fd30::", " . 0x000000ff : ") if each in left] == []
    await driver.remove()


async def test_change_is_made_whole_or_not_at_all(host: Apart) -> None:
    """A change that conflicts with an unmanaged element in Fairlead's map has no effect at all."""

    driver = Native()
    await put(driver, *way())
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=False), service()))
    before = host.run("nft", "list", "ruleset")
    host.nft("add element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    wanted = as_rows(Vip(address=FOUR, held=False), service(), service(port=82), service(port=81))
    with pytest.raises(DriverError):
        await put(driver, ONE, wanted)
    host.nft("delete element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    assert host.run("nft", "list", "ruleset") == before
    host.nft("add element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    assert await driver.read(ONE) == as_rows(Vip(address=FOUR, held=False), service()), "what is of no row is removed"
    await put(driver, ONE, wanted)
    assert await driver.read(ONE) == wanted
    await driver.close()


async def test_what_is_referred_to_has_to_be_there_and_nobody_takes_what_is_anothers(host: Apart) -> None:
    driver = Native()
    with pytest.raises(MissingReference, match="no Way 2"):
        await put(driver, ONE, as_rows(Vip(address=FOUR, held=False), service()))
    with pytest.raises(MissingReference, match="no Vip"):
        await put(driver, ONE, as_rows(service(bytes(256))))
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=True), service(bytes(256))))
    with pytest.raises(DriverError, match=str(ONE)):
        await put(driver, OTHER, as_rows(Vip(address=FOUR, held=True)))
    own = Vip(address=ip_address("192.0.2.77"), held=True)
    with pytest.raises(DriverError, match=r"192\.0\.2\.77"):
        await put(driver, OTHER, as_rows(own))
    assert await driver.read(OTHER) == as_rows(replace(own, held=False))
    await put(driver, ONE, {})
    await put(driver, OTHER, as_rows(Vip(address=FOUR, held=True)))
    await driver.remove()
    assert "192.0.2.77" in host.run("ip", "addr", "show", "lo")


@pytest.mark.parametrize("order", ["together", "old first", "new first"])
async def test_host_that_has_the_number_of_one_that_is_gone_is_led_to_itself(host: Apart, order: str) -> None:
    """A host's number is reused, in any order of updates: once the new next hop is written, no packet goes to the old
    host."""
    (old, its), new = way(), Owner(Kind.HOST, "successor")
    wanted = as_rows(Way(host=2, address=ip_address("10.20.0.99")))

    driver = Native()
    await put(driver, old, its)
    await put(driver, ONE, as_rows(Vip(address=FOUR, held=False), service()))
    gone, comes = diff({}, its), diff(wanted, {})
    if order == "together":
        await driver.apply_all({old: gone, new: comes})
    elif order == "old first":
        await driver.apply(old, gone)
        await driver.apply(new, comes)
    else:
        with pytest.raises(DriverError, match=str(old)):
            await driver.apply(new, comes)
        assert await driver.read(old) == its
        await driver.apply(old, gone)
        await driver.apply(new, comes)
    other = Native()
    for reader in (driver, other):
        found = await reader.read_all()
        assert (found.get(old), found[new]) == (None, wanted)
        assert found[ONE] == as_rows(Vip(address=FOUR, held=False), service())
    await other.close()
    routes = host.run("ip", "route", "show", "table", "all", "proto", "250")
    assert routes.count("10.20.0.99") == 2 * len(TUNNELS), "of both IP versions"
    assert "10.20.0.12" not in routes
    await driver.remove()


@pytest.mark.parametrize("is_fresh", [False, True])
async def test_host_is_left_as_it_was(host: Apart, is_fresh: bool) -> None:
    before = kernel_state(host)

    driver = Native()
    for number in (2, 3):
        await put(driver, *way(number))
    await put(driver, ONE, EVERYTHING)
    theirs = [each for each in kernel_state(host)[0].splitlines() if "theirs" in each]
    assert theirs == [each for each in before[0].splitlines() if "theirs" in each]
    if is_fresh:
        await driver.close()
        driver = Native()
    await driver.remove()
    for now, then in zip(kernel_state(host), before, strict=True):
        assert now == then


async def test_removing_what_was_never_there_changes_nothing(host: Apart) -> None:
    before = kernel_state(host)
    await Native().remove()
    assert kernel_state(host) == before


async def test_local_rule_that_somebody_has_moved_stays_where_it_is(host: Apart) -> None:
    host.ip("rule add pref 100 lookup local", "rule del pref 0")
    before = kernel_state(host)

    driver = Native()
    await put(driver, *way())
    assert "lookup local" in host.run("ip", "rule", "show", "pref", "100")
    await driver.remove()
    assert kernel_state(host) == before


async def test_local_rule_that_somebody_puts_back_to_the_first_place_is_moved_as_ever(host: Apart) -> None:
    before = kernel_state(host)
    host.ip("rule add pref 100 lookup local", "rule del pref 0")

    driver = Native()
    await driver.read_all()
    host.ip("rule add pref 0 lookup local proto kernel", "rule del pref 100")
    assert await driver.look_after() is Kept.MENDED
    assert "lookup local" in host.run("ip", "rule", "show", "pref", "5")
    assert host.run("ip", "rule", "show", "pref", "0") == ""
    await driver.remove()
    assert kernel_state(host) == before


async def test_table_that_somebody_removed_is_made_anew_and_told(host: Apart) -> None:
    driver, lost = Native(), asyncio.Event()
    driver.follow(lost.set)
    await put(driver, *way())
    await put(driver, ONE, EVERYTHING)
    host.run("nft", "flush", "ruleset")
    with pytest.raises(DriverError, match="removed our table"):
        await driver.apply(ONE, diff({}, EVERYTHING))
    await eventually(lost.is_set, "the driver reports that its table is lost")
    assert await driver.read_all() == {}
    assert str(FOUR) not in host.run("ip", "addr", "show", "lo"), "announced is what is led"
    await put(driver, *way())
    await put(driver, ONE, EVERYTHING)
    assert await driver.read(ONE) == EVERYTHING
    await driver.remove()


async def test_saved_ruleset_can_be_loaded_again(host: Apart) -> None:
    """Operators load the tables of a host as one file: a single unreadable table makes nft reject all of them."""

    driver = Native()
    await put(driver, *way())
    await put(driver, ONE, EVERYTHING)
    saved = host.run("nft", "list", "ruleset")
    host.nft(f"flush ruleset\n{saved}")
    assert host.run("nft", "list", "ruleset") == saved
    assert await driver.read_all() == {way()[0]: way()[1], ONE: EVERYTHING}
    await driver.close()


@pytest.mark.slow
async def test_ten_thousand_load_balancers_hold_nobody_up(host: Apart) -> None:
    """Ten thousand load balancers are written in one transaction in short steps, then one of them changes."""

    driver, changes = Native(), dict[Owner, Diff]()
    for place in range(10_000):
        vip = ip_address("198.18.0.0") + place
        rows = as_rows(Vip(address=vip, held=False), service(vip=vip, targets=_here(place)))
        changes[Owner(Kind.LOAD_BALANCER, f"{place:08d}-1111-4111-8111-111111111111")] = diff(rows, {})
    await driver.open()
    await driver.apply_all(changes)
    assert len(await driver.read_all()) == 10_000
    assert host.run("nft", "list", "map", "inet", "fairlead", "pattern").count(" : ") == 256 + 1
    owner, change = next(iter(changes.items()))
    await driver.apply(owner, diff({}, change.creates))
    assert len(await driver.read_all()) == 9_999
    await driver.remove()


def _here(place: int) -> tuple[Target, ...]:
    return tuple(Here(address=ip_address("10.0.0.0") + 4 * place + each, port=80) for each in range(3))


def _generation() -> bytes:
    """Return the generation of the nftables ruleset, which grows with each change."""
    with closing(Netlink(NETFILTER)) as netlink:
        return netlink.find(nftables(GET_GENERATION))[4:]
