"""Upgrade of the rules under traffic: no packet is lost, and existing elements stay."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from fairlead.dataplane.rows import Rows
from fairlead.drivers.native import table_upgrade
from fairlead.drivers.native.driver import Native
from fairlead.drivers.native.netlink import Message, Netlink
from fairlead.drivers.native.nftables import ruleset as text
from fairlead.drivers.native.nftables.elements import Elements, Shape
from fairlead.drivers.native.nftables.ruleset import SHAPES
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Owner
from harness.fabric import HOSTS, VIPS, ClientFlow, Fabric, fabric
from harness.native_host import ALL_ROWS, FIRST_OWNER, put, route_row
from harness.net_namespace import NetNamespace, require_root
from harness.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
WHOLE = {route_row()[0]: route_row()[1], FIRST_OWNER: ALL_ROWS}
RULES = text.rules()
UNANSWERED = 8
"""Datagrams of a flow; those of all flows fit into the socket buffer of one member."""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def other_rules() -> str:
    """Return the rules of a release that has one more rule."""
    return RULES.replace("chain dealt4 {", "chain dealt4 {\n        counter")


def other_types() -> str:
    """Return rules of a release with a swapped key, a longer key, and a hook of another priority."""
    swapped = RULES.replace(
        "pattern { typeof meta priority . meta mark :", "pattern { typeof meta mark . meta priority :"
    )
    swapped = swapped.replace("meta priority . meta mark map @pattern", "meta mark . meta priority map @pattern")
    moved = swapped.replace("hook prerouting priority raw;", "hook prerouting priority -301;")
    longer = moved.replace("set ways { typeof meta mark; }", "set ways { typeof meta mark . meta mark; }")
    assert len({RULES, swapped, moved, longer}) == 4
    return longer


def _swapped(_: Shape, elements: Elements) -> Elements:
    return {key[4:] + key[:4]: data for key, data in elements.items()}


def _resized(shape: Shape, elements: Elements) -> Elements:
    return {key[:4] if shape.key == 8 else key + key: data for key, data in elements.items()}


@contextmanager
def release(rules: Callable[[], str], patch: pytest.MonkeyPatch) -> Iterator[None]:
    with patch.context() as patched:
        patched.setattr(text, "rules", rules)
        if rules is other_types:
            older = [replace(each, key=8) if each.name == "ways" else each for each in SHAPES]
            patched.setattr(table_upgrade, "SHAPES", older)
        yield


@pytest.fixture(autouse=True)
def carried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_upgrade, "CONVERSIONS", {"pattern": _swapped, "ways": _resized})


async def renewed() -> None:
    """Start and stop an agent."""
    driver = Native()
    try:
        await driver.open()
    finally:
        await driver.close()


async def found() -> Mapping[Owner, Rows]:
    driver = Native()
    try:
        return await driver.read_all()
    finally:
        await driver.close()


@pytest.mark.slow
@pytest.mark.parametrize("rules", [other_rules, other_types])
def test_rule_upgrade_loses_no_packet(site: Fabric, rules: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    flows = [
        site.flow(transport, vip) for transport in (Transport.UDP, Transport.TCP) for vip in VIPS for _ in range(9)
    ]
    names = [flow.request() for flow in flows]
    assert set(names) == {"m1", "m2", "m3"}
    with _steady(flows[:18]) as lost:
        for _ in range(3):
            with release(rules, monkeypatch):
                for number in HOSTS:
                    site.run_on_host(number, renewed())
                assert [flow.request() for flow in flows[18:]] == names[18:]
            for number in HOSTS:
                site.run_on_host(number, renewed())
    assert lost == {flow.client: 0 for flow in flows[:18]}
    assert [flow.request() for flow in flows] == names
    for number in HOSTS:
        found = site.run_on_host(number, site.drivers[number].read_all())
        assert found == {owner: rows for (at, owner), rows in site.applied.items() if at == number}


@contextmanager
def _steady(flows: list[ClientFlow]) -> Iterator[dict[tuple[object, int], int]]:
    """Send datagrams of each flow every few milliseconds, with at most `UNANSWERED` in flight per flow. Yield the
    counts of unanswered datagrams by flow, which are complete after the block."""
    lost: dict[tuple[object, int], int] = {}
    sent = {flow.client: 0 for flow in flows}
    ended = threading.Event()

    def talk(flow: ClientFlow) -> None:
        answered = 0
        flow.socket.setblocking(False)
        while not ended.wait(0.005):
            with suppress(BlockingIOError):
                while flow.socket.recv(100):
                    answered += 1
            if sent[flow.client] - answered < UNANSWERED:
                flow.socket.send(b"who")
                sent[flow.client] += 1
        flow.socket.settimeout(DEADLINE)
        with suppress(TimeoutError):
            while answered < sent[flow.client]:
                answered += bool(flow.socket.recv(100))
        lost[flow.client] = sent[flow.client] - answered

    def all_send() -> None:
        before = dict(sent)
        wait_until(lambda: min(sent[flow.client] - before[flow.client] for flow in flows) > 25)

    threads = [threading.Thread(target=talk, args=(flow,)) for flow in flows]
    for each in threads:
        each.start()
    try:
        all_send()
        yield lost
        all_send()
    finally:
        ended.set()
        for each in threads:
            each.join()


@pytest.mark.parametrize("rules", [other_rules, other_types])
async def test_rule_upgrade_keeps_rows_and_installs_the_rules_of_the_release(
    host: NetNamespace, rules: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = Native()
    for owner, rows in WHOLE.items():
        await put(driver, owner, rows)
    await driver.close()
    before = host.run("nft", "list", "ruleset")
    with release(rules, monkeypatch):
        await renewed()
        other = host.run("nft", "list", "ruleset")
    assert other != before
    assert "fairlead-next" not in other
    if rules is other_types:
        assert await Native().read_only() == {}, "what its elements mean is not known"
    assert await found() == WHOLE
    assert sorted(host.run("nft", "list", "ruleset").splitlines()) == sorted(before.splitlines())
    await Native().remove()


@pytest.mark.parametrize("calls", range(12))
async def test_interrupted_rule_upgrade_is_completed_by_the_next_agent(
    host: NetNamespace, calls: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An upgrade that is killed after any number of transactions is completed by the next agent."""

    driver = Native()
    for owner, rows in WHOLE.items():
        await put(driver, owner, rows)
    await driver.close()
    with release(other_types, monkeypatch):
        await renewed()
    with monkeypatch.context() as patched, suppress(Killed):
        patched.setattr(Netlink, "transact", _Killing(calls))
        await renewed()
    assert await found() == WHOLE
    assert "fairlead-next" not in host.run("nft", "list", "ruleset")
    await Native().remove()


class Killed(Exception):
    pass


class _Killing:
    def __init__(self, calls: int) -> None:
        self._left = calls
        self._transact = Netlink.transact

    def __get__(self, netlink: Netlink, _: type) -> Callable[[list[Message]], None]:
        def transact(messages: list[Message]) -> None:
            if not self._left:
                raise Killed
            self._left -= 1
            self._transact(netlink, messages)

        return transact


async def test_removal_deletes_both_tables_of_an_interrupted_upgrade(host: NetNamespace) -> None:
    await renewed()
    host.nft("table inet fairlead-next { flags dormant; }")
    await Native().remove()
    assert "inet fairlead" not in host.run("nft", "list", "tables")
