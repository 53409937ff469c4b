"""A host's own addresses according to its kernel, and those that it reports."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.drivers.native.netlink import ROUTE, Netlink
from fairlead.drivers.native.own_addresses import read_addresses
from fairlead.drivers.native.routing import Routing
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.own_addresses import POLL_INTERVAL, OwnAddresses
from fairlead.node.reports import Reports
from harness.agents import running
from harness.case import read_state
from harness.fixed_slice import FixedSlice
from harness.net_namespace import NetNamespace, require_root

TEXT = """\
network pool announced 203.0.113.0/24
host h1 1 10.20.0.21 10.1.0.0/24 {}
plugged h1
"""
OWN = frozenset(map(parse_address, ("10.1.0.1", "fd00:1::1")))


@pytest.fixture
def machine() -> Iterator[NetNamespace]:
    """A namespace with a bridge, a veth pair, and a VIP on loopback."""
    require_root()
    made = NetNamespace()
    made.ip(
        "link add br0 type bridge",
        "addr add 10.1.0.1/24 dev br0",
        "addr add fd00:1::1/64 dev br0 nodad",
        "link add p0 type veth peer name p1",
        "addr add 10.9.0.1 peer 10.1.0.2/32 dev p0",
        "addr add fd00:9::1 peer fd00:1::2/128 dev p0 nodad",
        "addr add 203.0.113.5/32 dev lo",
    )
    yield made
    made.close()


def test_host_addresses_include_all_interfaces_and_no_peer_addresses(machine: NetNamespace):
    with machine.inside():
        found = read_addresses()
        wanted = map(parse_address, ("10.9.0.1", "fd00:9::1", "203.0.113.5"))
        assert {each for each in found if not (each.is_loopback or each.is_link_local)} == {*OWN, *wanted}
        machine.ip("addr del 10.1.0.1/24 dev br0")
        assert found - read_addresses() == {parse_address("10.1.0.1")}


def test_vips_held_by_the_agent_are_not_addresses_of_the_host(machine: NetNamespace):
    vips = [parse_address("203.0.113.6"), parse_address("2001:db8::6")]
    with machine.inside():
        before = read_addresses()
        routing = Routing(Netlink(ROUTE))
        assert routing.add_vips(vips, vips) == []
        assert set(routing.added_vips()) == set(vips)
        assert read_addresses() == before
        routing.close()


def test_ipv6_router_anycast_addresses_belong_to_a_forwarding_host(machine: NetNamespace):
    machine.ip("link add v0 type veth peer name v1", "link set v0 up", "addr add fd00:2::7/64 dev v0 nodad")
    with machine.inside():
        before = read_addresses()
        Path("/proc/sys/net/ipv6/conf/all/forwarding").write_text("1")
        assert parse_address("fd00:2::") in read_addresses() - before


class AddressReports(Reports):
    def __init__(self) -> None:
        super().__init__(lambda: None, lambda: (), 0)  # type: ignore[arg-type, return-value]
        self.said: asyncio.Queue[frozenset[IPAddress]] = asyncio.Queue()

    def set_own_addresses(self, addresses: frozenset[IPAddress]) -> None:
        self.said.put_nowait(addresses)


def snapshot(other: str = "fd00:1::/64") -> Snapshot:
    return read_state("now", TEXT.format(other), {}, {}).snapshot()


@pytest.mark.virtual_clock
async def test_host_reports_addresses_in_its_prefixes_after_every_declaration(tmp_path: Path):
    """The change of the declaration triggers it; the next poll would be later."""
    kernel = frozenset({*OWN, parse_address("10.20.0.21")})
    given, told, loop = FixedSlice("h1", tmp_path / "slice", snapshot()), AddressReports(), asyncio.get_running_loop()
    async with running(OwnAddresses(given, told, lambda: kernel).run):
        assert await told.said.get() == OWN
        given.replace(snapshot("10.20.0.21/32"), Owner(Kind.HOST, "h1"))
        assert await told.said.get() == OWN - {parse_address("fd00:1::1")} | {parse_address("10.20.0.21")}
        assert loop.time() == 0.0


@pytest.mark.virtual_clock
async def test_failed_address_reads_are_retried_without_a_report(tmp_path: Path):
    answers = iter([None, None, OWN])

    def read() -> frozenset[IPAddress]:
        found = next(answers, OWN)
        if found is None:
            raise OSError("the kernel does not say")
        return found

    told, loop = AddressReports(), asyncio.get_running_loop()
    async with running(OwnAddresses(FixedSlice("h1", tmp_path / "slice", snapshot()), told, read).run):
        assert await told.said.get() == OWN
        assert loop.time() == 2 * POLL_INTERVAL
