"""Rows of a plain host in a real kernel: read back, written atomically, and removed without residue."""

import asyncio
import random
from contextlib import closing
from dataclasses import replace
from ipaddress import ip_address, ip_network

import pytest

from fairlead.dataplane.native import HostTunnel, LocalMember, NativeRow, OtherHost, Target, Vip
from fairlead.dataplane.rows import Diff, Rows, diff
from fairlead.drivers.interface import DriverError, MissingReference
from fairlead.drivers.native.driver import CheckResult, Native
from fairlead.drivers.native.netlink import NETFILTER, Netlink, nftables
from fairlead.drivers.native.nftables.elements import ElementChanges
from fairlead.drivers.native.nftables.ruleset import TUNNELS
from fairlead.drivers.native.prerequisites import Prerequisites
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.owner import Kind, Owner
from harness.native_host import (
    ALL_ROWS,
    FIRST_OWNER,
    FOUR,
    SECOND_OWNER,
    SIX,
    as_rows,
    kernel_state,
    put,
    route_row,
    service,
)
from harness.net_namespace import NetNamespace
from harness.waiting import eventually

GET_GENERATION = 16
"""NFT_MSG_GETGEN, the netlink message that reads the generation of the ruleset."""


async def test_rows_are_read_back_by_another_process_without_writes(host: NetNamespace) -> None:
    driver, (owner, its) = Native(), route_row()
    await driver.open()
    assert await driver.read_all() == {}
    await put(driver, owner, its)
    await put(driver, FIRST_OWNER, ALL_ROWS)
    assert await driver.read(FIRST_OWNER) == ALL_ROWS
    await driver.close()
    before = host.run("nft", "-a", "list", "ruleset"), host.run("ip", "-d", "rule"), _generation()
    again = Native()
    assert await again.read_all() == {owner: its, FIRST_OWNER: ALL_ROWS}
    assert await again.read(FIRST_OWNER) == ALL_ROWS
    await again.apply(FIRST_OWNER, diff(ALL_ROWS, ALL_ROWS))
    assert (host.run("nft", "-a", "list", "ruleset"), host.run("ip", "-d", "rule"), _generation()) == before
    await put(again, FIRST_OWNER, {})
    await put(again, owner, {})
    assert await again.read_all() == {}
    await again.close()


async def test_random_changes_are_read_back_as_written(host: NetNamespace) -> None:
    chance = random.Random(7)

    driver, reader, wanted = Native(), Native(), dict[Owner, dict[tuple[str, ...], NativeRow]]()
    for number in (2, 3):
        owner, its = route_row(number)
        await put(driver, owner, its)
        wanted[owner] = dict(its)
    for _ in range(60):
        changes = dict[Owner, Diff]()
        for owner, vip in ((FIRST_OWNER, FOUR), (SECOND_OWNER, SIX)):
            rows = _chosen(chance, vip)
            changes[owner] = diff(rows, wanted.get(owner, {}))
            wanted[owner] = rows
        await driver.apply_all(changes)
        assert await reader.read_all() == {owner: rows for owner, rows in wanted.items() if rows}
    assert host.run("nft", "list", "map", "inet", "fairlead", "pattern").count(":") <= 256 * 8 + 10
    await driver.close()
    await reader.close()


def _chosen(chance: random.Random, vip: object) -> dict[tuple[str, ...], NativeRow]:
    rows: list[NativeRow] = [Vip(address=vip, is_local=chance.random() < 0.5)]  # type: ignore[arg-type]
    for port in range(1, chance.randrange(1, 6)):
        slots = [bytes(256), bytes(slot % 2 for slot in range(256)), bytes(slot % 3 for slot in range(256)), b""]
        some = chance.choice(slots)
        if len(some) and chance.random() < 0.3:
            some = bytes([some[0], chance.choice([0, max(some)]), *some[2:]])
        members = ip_address("10.30.1.0") if vip is FOUR else ip_address("fd30::")
        targets: list[Target] = [
            OtherHost(host=2),
            OtherHost(host=3),
            *(LocalMember(address=members + n, port=n) for n in range(1, 5)),
        ]
        nets = [ip_network("10.0.0.0/9"), ip_network("10.128.0.0/9")] if vip is FOUR else [ip_network("fd00::/9")]
        rows.append(
            service(
                some,
                vip=vip,
                port=port,
                by_source=chance.random() < 0.3,
                targets=tuple(chance.sample(targets, max(some, default=-1) + 1)),
                previous_owners=((chance.randrange(256), 3),) if some and chance.random() < 0.3 else (),
                clients=chance.choice([None, (), tuple(nets)]),
            )
        )
    return as_rows(*rows) if chance.random() < 0.9 else {}


async def test_only_changed_elements_are_written(host: NetNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    transact = Prerequisites.transact

    def count(ground: Prerequisites, changes: ElementChanges) -> None:
        written.append(changes.count)
        transact(ground, changes)

    monkeypatch.setattr(Prerequisites, "transact", count)

    driver, base = Native(), service()
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=False), base))
    written.clear()
    moved = bytes([1, *base.slots[1:]])
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=False), replace(base, slots=moved)))
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=False), base))
    assert written == [2, 2], "a slot goes and comes"
    both = as_rows(Vip(address=FOUR, is_local=False), base, replace(base, port=81))
    await put(driver, FIRST_OWNER, both)
    assert written[2] == 2, "a service: its slots and places are there"
    await put(driver, FIRST_OWNER, as_rows(*both.values(), replace(base, port=81, slots=moved)))
    assert written[3] == 256 + 2, "another one goes on with its slots"
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=True), base))
    assert written[4] == 2 + 256
    await driver.close()


@pytest.mark.parametrize("vips", [(FOUR, SIX), (FOUR, FOUR + 1)], ids=["both versions", "two of one"])
async def test_ports_of_a_pool_share_one_slot_table(
    host: NetNamespace, monkeypatch: pytest.MonkeyPatch, vips: tuple[IPAddress, ...]
) -> None:
    """Two hundred ports at two VIPs use one pool of 256 members; each slot moves and keeps its previous owner."""
    written: list[int] = []
    transact = Prerequisites.transact

    def count(ground: Prerequisites, changes: ElementChanges) -> None:
        written.append(changes.count)
        transact(ground, changes)

    monkeypatch.setattr(Prerequisites, "transact", count)
    slots = bytes(range(256))

    def of(ports: int, second: bool) -> Rows:
        rows: list[NativeRow] = [Vip(address=vip, is_local=True) for vip in vips]
        for vip in vips:
            base = ip_address("10.30.0.0") if vip.version == 4 else ip_address("fd30::")
            here = tuple(LocalMember(address=base + each + 512 * second, port=80) for each in range(256))
            before = tuple((slot, 3) for slot in range(256)) if second else ()
            these = service(vip=vip, slots=slots, targets=here, previous_owners=before)
            rows += (replace(these, port=1000 + port) for port in range(ports))
        return as_rows(*rows)

    driver = Native()
    for owner, rows in (route_row(2), route_row(3)):
        await put(driver, owner, rows)
    for second in (False, True):
        rows = of(200, second)
        await put(driver, FIRST_OWNER, rows)
        assert await driver.read_all() == {
            route_row(2)[0]: route_row(2)[1],
            route_row(3)[0]: route_row(3)[1],
            FIRST_OWNER: rows,
        }
    assert max(written) < 200 * 2 * 2 + 256 * 2 * 4
    written.clear()
    await put(driver, FIRST_OWNER, of(100, True))
    assert written[0] == 100 * 2 * 2, "the others go on"
    await put(driver, FIRST_OWNER, {})
    left = host.run("nft", "list", "table", "inet", "fairlead")
    assert [each for each in ("10.30.", "fd30::", " . 0x000000ff : ") if each in left] == []
    await driver.remove()


async def test_failed_change_has_no_effect(host: NetNamespace) -> None:
    """A change that conflicts with an unmanaged element in Fairlead's map has no effect at all."""

    driver = Native()
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=False), service()))
    before = host.run("nft", "list", "ruleset")
    host.nft("add element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    wanted = as_rows(Vip(address=FOUR, is_local=False), service(), service(port=82), service(port=81))
    with pytest.raises(DriverError):
        await put(driver, FIRST_OWNER, wanted)
    host.nft("delete element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    assert host.run("nft", "list", "ruleset") == before
    host.nft("add element inet fairlead served4 { 203.0.113.5 . 0:6 . 81 : 0:63 }")
    assert await driver.read(FIRST_OWNER) == as_rows(Vip(address=FOUR, is_local=False), service()), (
        "what is of no row is removed"
    )
    await put(driver, FIRST_OWNER, wanted)
    assert await driver.read(FIRST_OWNER) == wanted
    await driver.close()


async def test_missing_references_and_vips_of_another_owner_are_rejected(host: NetNamespace) -> None:
    driver = Native()
    with pytest.raises(MissingReference, match="no tunnel to host 2"):
        await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=False), service()))
    with pytest.raises(MissingReference, match=r"Vip .* does not exist"):
        await put(driver, FIRST_OWNER, as_rows(service(bytes(256))))
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=True), service(bytes(256))))
    with pytest.raises(DriverError, match=str(FIRST_OWNER)):
        await put(driver, SECOND_OWNER, as_rows(Vip(address=FOUR, is_local=True)))
    own = Vip(address=ip_address("192.0.2.77"), is_local=True)
    with pytest.raises(DriverError, match=r"192\.0\.2\.77"):
        await put(driver, SECOND_OWNER, as_rows(own))
    assert await driver.read(SECOND_OWNER) == as_rows(replace(own, is_local=False))
    await put(driver, FIRST_OWNER, {})
    await put(driver, SECOND_OWNER, as_rows(Vip(address=FOUR, is_local=True)))
    await driver.remove()
    assert "192.0.2.77" in host.run("ip", "addr", "show", "lo")


@pytest.mark.parametrize("order", ["together", "old first", "new first"])
async def test_reused_host_number_leads_to_the_new_host_in_any_order(host: NetNamespace, order: str) -> None:
    """A host's number is reused, in any order of updates: once the new next hop is written, no packet goes to the old
    host."""
    (old, its), new = route_row(), Owner(Kind.HOST, "successor")
    wanted = as_rows(HostTunnel(host=2, address=ip_address("10.20.0.99")))

    driver = Native()
    await put(driver, old, its)
    await put(driver, FIRST_OWNER, as_rows(Vip(address=FOUR, is_local=False), service()))
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
        assert found[FIRST_OWNER] == as_rows(Vip(address=FOUR, is_local=False), service())
    await other.close()
    routes = host.run("ip", "route", "show", "table", "all", "proto", "250")
    assert routes.count("10.20.0.99") == 2 * len(TUNNELS), "of both IP versions"
    assert "10.20.0.12" not in routes
    await driver.remove()


@pytest.mark.parametrize("is_fresh", [False, True])
async def test_removal_restores_the_original_state_of_the_host(host: NetNamespace, is_fresh: bool) -> None:
    before = kernel_state(host)

    driver = Native()
    for number in (2, 3):
        await put(driver, *route_row(number))
    await put(driver, FIRST_OWNER, ALL_ROWS)
    theirs = [each for each in kernel_state(host)[0].splitlines() if "theirs" in each]
    assert theirs == [each for each in before[0].splitlines() if "theirs" in each]
    if is_fresh:
        await driver.close()
        driver = Native()
    await driver.remove()
    for now, then in zip(kernel_state(host), before, strict=True):
        assert now == then


async def test_removal_without_rows_changes_nothing(host: NetNamespace) -> None:
    before = kernel_state(host)
    await Native().remove()
    assert kernel_state(host) == before


async def test_moved_local_rule_stays_in_place(host: NetNamespace) -> None:
    host.ip("rule add pref 100 lookup local", "rule del pref 0")
    before = kernel_state(host)

    driver = Native()
    await put(driver, *route_row())
    assert "lookup local" in host.run("ip", "rule", "show", "pref", "100")
    await driver.remove()
    assert kernel_state(host) == before


async def test_local_rule_restored_to_the_first_place_is_moved_again(host: NetNamespace) -> None:
    before = kernel_state(host)
    host.ip("rule add pref 100 lookup local", "rule del pref 0")

    driver = Native()
    await driver.read_all()
    host.ip("rule add pref 0 lookup local proto kernel", "rule del pref 100")
    assert await driver.check_and_restore() is CheckResult.RESTORED
    assert "lookup local" in host.run("ip", "rule", "show", "pref", "5")
    assert host.run("ip", "rule", "show", "pref", "0") == ""
    await driver.remove()
    assert kernel_state(host) == before


async def test_table_removed_by_another_process_is_reported_and_recreated(host: NetNamespace) -> None:
    driver, lost = Native(), asyncio.Event()
    driver.subscribe(lost.set)
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, ALL_ROWS)
    host.run("nft", "flush", "ruleset")
    with pytest.raises(DriverError, match="nftables table was removed"):
        await driver.apply(FIRST_OWNER, diff({}, ALL_ROWS))
    await eventually(lost.is_set, "the driver reports that its table is lost")
    assert await driver.read_all() == {}
    assert str(FOUR) not in host.run("ip", "addr", "show", "lo"), "announced is what is led"
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, ALL_ROWS)
    assert await driver.read(FIRST_OWNER) == ALL_ROWS
    await driver.remove()


async def test_saved_ruleset_can_be_loaded_again(host: NetNamespace) -> None:
    """Operators load the tables of a host as one file: a single unreadable table makes nft reject all of them."""

    driver = Native()
    await put(driver, *route_row())
    await put(driver, FIRST_OWNER, ALL_ROWS)
    saved = host.run("nft", "list", "ruleset")
    host.nft(f"flush ruleset\n{saved}")
    assert host.run("nft", "list", "ruleset") == saved
    assert await driver.read_all() == {route_row()[0]: route_row()[1], FIRST_OWNER: ALL_ROWS}
    await driver.close()


@pytest.mark.slow
async def test_ten_thousand_load_balancers_are_applied_in_short_steps(host: NetNamespace) -> None:
    """Ten thousand load balancers are written in one transaction in short steps, then one of them changes."""

    driver, changes = Native(), dict[Owner, Diff]()
    for place in range(10_000):
        vip = ip_address("198.18.0.0") + place
        rows = as_rows(Vip(address=vip, is_local=False), service(vip=vip, targets=_here(place)))
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
    return tuple(LocalMember(address=ip_address("10.0.0.0") + 4 * place + each, port=80) for each in range(3))


def _generation() -> bytes:
    """Return the generation of the nftables ruleset, which grows with each change."""
    with closing(Netlink(NETFILTER)) as netlink:
        return netlink.find(nftables(GET_GENERATION))[4:]
