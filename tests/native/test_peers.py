"""Reachability of other hosts by ICMP echo, on loopback, where every address of 127.0.0.0/8 answers."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.compilers.native import NATIVE
from fairlead.dataplane.native import TUNNEL_PORTS
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.checks import PlainCheck
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.node.peers import Peers, ping_targets, tunnel_target
from harness.case import read_case
from harness.fixed_slice import FixedSlice
from harness.waiting import eventually

STORY = """# The second host answers, and the third one is at an address that leads nowhere (RFC 5737).

-- one model --
network pool announced 203.0.113.0/24
host h1 1 127.0.0.1 ::1 10.1.0.0/24
host h2 2 127.0.0.2 10.2.0.0/24
host h3 3 240.0.0.1 10.3.0.0/24
web vip=203.0.113.5 on=pool provider=native tcp:80=a/10.1.0.11,b/10.2.0.11
api vip=203.0.113.6 on=pool provider=native tcp:80=a/10.2.0.11,b/10.3.0.11
plugged h1
"""


def read(folder: Path) -> Snapshot:
    path = folder / "story.txt"
    path.write_text(STORY)
    return read_case(path, (NATIVE,)).states[0].snapshot()


def test_host_probes_all_others_over_a_common_ip_version(tmp_path: Path):
    known = read(tmp_path)
    asked = ping_targets(known, "h1")
    assert {(str(each.address), each.monitor_id) for each in asked} == {("127.0.0.2", "h2"), ("240.0.0.1", "h3")}
    assert {each.check for each in asked.values()} == {PlainCheck(type=MonitorType.PING)}
    assert not ping_targets(known, "nobody")
    six = replace(known.hosts["h2"], addresses=(parse_address("fd00::2"), parse_address("127.0.0.2")))
    only = replace(known.hosts["h3"], addresses=(parse_address("fd00::3"),))
    both = replace(known, hosts=known.hosts.set("h2", six).set("h3", only))
    assert {str(each.address) for each in ping_targets(both, "h1")} == {"127.0.0.2", "fd00::3"}
    assert {str(each.address) for each in ping_targets(both, "h3")} == {"::1", "fd00::2"}


def test_probe_rate_is_limited_with_many_hosts(tmp_path: Path):
    known, three = read(tmp_path), read(tmp_path).hosts["h3"]
    many = {f"h{n}": replace(three, name=f"h{n}", number=n, prefixes=()) for n in range(4, 1_000)}
    crowd = replace(known, hosts=known.hosts.update(many))
    asked = ping_targets(crowd, "h1").values()
    tunnels = [tunnel_target(each) for each in asked]
    assert round(sum(1 / each.schedule.delay for each in (*asked, *tunnels)), 6) <= 1_000
    assert {each.schedule.delay for each in map(tunnel_target, ping_targets(known, "h1").values())} == {1.0}, (
        "icmp_ratelimit"
    )


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="ICMP is asked by a raw socket: needs root")
async def test_host_without_an_answer_is_lost_until_an_answer_arrives(tmp_path: Path):
    await _lose(tmp_path)


async def _lose(folder: Path) -> None:
    given = FixedSlice("h1", folder / "slice", read(folder))
    peers, told = Peers(given), list[Owner]()
    peers.subscribe(told.extend)
    with tunnel("127.0.0.2"), tunnel("127.0.0.3"):
        await _find_again(given, peers, told)


async def _find_again(given: FixedSlice, peers: Peers, told: list[Owner]) -> None:
    running = asyncio.ensure_future(peers.run())
    try:
        await eventually(peers.ready.is_set)
        assert peers.snapshot.lost_hosts == {"h3"}
        assert peers.snapshot is peers.snapshot, "nothing has changed"
        assert told == [Owner(Kind.LOAD_BALANCER, "api")]
        back = replace(given.current.hosts["h3"], addresses=(parse_address("127.0.0.3"),))
        given.replace(replace(given.current, hosts=given.current.hosts.set("h3", back)), Owner(Kind.HOST, "h3"))
        await eventually(lambda: not peers.snapshot.lost_hosts and len(told) > 1)
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait([running])


@contextmanager
def tunnel(address: str) -> Iterator[None]:
    """A socket that discards datagrams, as a tunnel does."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as bound:
        bound.bind((address, TUNNEL_PORTS[0]))
        yield


@pytest.mark.thorough
@pytest.mark.skipif(os.geteuid() != 0, reason="ICMP is asked by a raw socket: needs root")
async def test_host_that_answers_pings_is_lost_until_it_has_a_tunnel(tmp_path: Path) -> None:
    """A host is in this state after a boot, before the agent has applied its rows."""
    known = read(tmp_path)
    given = FixedSlice("h1", tmp_path / "slice", replace(known, hosts=known.hosts.delete("h3")))
    peers = Peers(given)
    running = asyncio.ensure_future(peers.run())
    try:
        await eventually(lambda: peers.snapshot.lost_hosts == {"h2"})
        with tunnel("127.0.0.2"):
            await eventually(lambda: not peers.snapshot.lost_hosts)
        await eventually(lambda: peers.snapshot.lost_hosts == {"h2"})
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_members_behind_a_lost_host_get_no_slot_and_no_previous_owner(tmp_path: Path):
    known = replace(read(tmp_path), lost_hosts=frozenset({"h2"}))
    rows = NATIVE.compile(known, Owner(Kind.LOAD_BALANCER, "web"))
    assert [str(row) for row in rows.values() if "tcp" in str(row)] == [
        "Service tcp 203.0.113.5:80 -> 10.1.0.11:80 256 dealt 0d968558"
    ]
