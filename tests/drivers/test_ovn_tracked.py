"""Requests to Open vSwitch about connections, and parsing of its replies, in the format of 3.1."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from fairlead.drivers.ovn.vswitch.conntrack import ConnectionAttempt, ConntrackTable, render_tuples
from fairlead.drivers.ovn.vswitch.control import UnixctlConnection
from fairlead.drivers.ovn.vswitch.database import OvsTools, SwitchError
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.conntrack_flush import TrackedConnection
from fairlead.model.queries.statistics import CountedService, Datapath

FLOWS = """OFPST_FLOW reply (OF1.5) (xid=0x2):
 cookie=0xeed36f7f, duration=4.001s, table=14, n_packets=3, n_bytes=222, idle_age=2, \
priority=120,ct_state=+new+trk,tcp,metadata=0x1,nw_dst=10.0.0.150,tp_dst=80 actions=set_field:0/0x2->xreg4,group:5
 cookie=0xeed36f80, duration=4.001s, table=14, n_packets=0, n_bytes=0, idle_age=4, \
priority=120,ct_state=+new+trk,udp,metadata=0x2,nw_dst=10.0.0.150,tp_dst=53 \
actions=ct(commit,table=15,zone=NXM_NX_REG13[0..15],nat(dst=10.0.0.12:5353),exec(set_field:0x2/0x2->ct_mark))
"""
FLOWS_6 = """OFPST_FLOW reply (OF1.5) (xid=0x2):
 cookie=0x1, duration=4.001s, table=14, n_packets=3, n_bytes=222, idle_age=2, \
priority=120,ct_state=+new+trk,tcp6,metadata=0x1,ipv6_dst=fd00:a::150,tp_dst=80 actions=group:6
"""
BUCKET = "bucket=bucket_id:{0},weight:100,actions=ct(commit,table=15,zone=NXM_NX_REG13[0..15],nat(dst={1}),exec())"
TRACKED = """\
tcp,orig=(src=10.0.0.20,dst=10.0.0.150,sport=40001,dport=80),reply=(src=10.0.0.11,dst=10.0.0.20,sport=8080,\
dport=40001),zone=7,mark=2,protoinfo=(state=SYN_SENT)
tcp,orig=(src=10.0.0.20,dst=10.0.0.150,sport=40002,dport=80),reply=(src=10.0.0.11,dst=10.0.0.20,sport=8080,\
dport=40002),zone=7,mark=2,protoinfo=(state=ESTABLISHED)
udp,orig=(src=10.0.0.20,dst=10.0.0.150,sport=40003,dport=53),reply=(src=10.0.0.11,dst=10.0.0.20,sport=5300,\
dport=40003),zone=7,mark=2
tcp,orig=(src=fd00:a::20,dst=fd00:a::150,sport=40004,dport=80),reply=(src=fd00:a::11,dst=fd00:a::20,sport=8080,\
dport=40004),zone=9,mark=2,labels=0x1,protoinfo=(state=SYN_SENT)
"""
GROUPS = {
    "5": ("10.0.0.11:8080", "10.0.0.12:8080"),
    "6": ("[fd00:a::11]:8080", "[fd00:a::12]:8080"),
}
ZONES = [["ct-zone-p1", "7"], ["ct-zone-6ad7_dnat", "9"], ["ovn-nb-cfg", "4"]]


class RecordedTools(OvsTools):
    """Tools with recorded output."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    async def run(self, *words: str, said: str = "") -> str:
        self.asked.append(words)
        if "dump-groups" in words:
            buckets = ",".join(BUCKET.format(number, each) for number, each in enumerate(GROUPS[words[-1]]))
            return f"OFPST_GROUP_DESC reply (OF1.5) (xid=0x2):\n group_id={words[-1]},type=select,{buckets}\n"
        if "dpctl/ct-get-nconns" in words:
            return "4\n"
        if "dpctl/dump-conntrack" in words:
            return TRACKED
        if "dump-flows" in words:
            return FLOWS_6 if "ipv6" in words[-1] else FLOWS
        return json.dumps({"data": [[["map", ZONES]]], "headings": ["external_ids"]})


def service(key: int, transport: Transport, address: str, port: int) -> CountedService:
    return CountedService(place=Datapath(key), transport=transport, address=parse_address(address), port=port)


async def test_backends_of_new_connections_are_read_from_flows_and_groups():
    tools, addresses = RecordedTools(), [parse_address("10.0.0.150"), parse_address("fd00:a::150")]
    found = await ConntrackTable("br-int", tools, Path(), 1000).read_backends(addresses)
    assert {each.service: each.backends for each in found} == {
        service(1, Transport.TCP, "10.0.0.150", 80): {"10.0.0.11:8080", "10.0.0.12:8080"},
        service(2, Transport.UDP, "10.0.0.150", 53): {"10.0.0.12:5353"},
        service(1, Transport.TCP, "fd00:a::150", 80): {"[fd00:a::11]:8080", "[fd00:a::12]:8080"},
    }
    assert [words[-1] for words in tools.asked if "dump-flows" in words] == [
        "ip,ct_state=+new+trk,nw_dst=10.0.0.150",
        "ipv6,ct_state=+new+trk,ipv6_dst=fd00:a::150",
    ]


async def test_conntrack_zones_are_read_from_the_bridge():
    assert (await ConntrackTable("br-int", RecordedTools(), Path(), 1000).zones()) == {"p1": 7, "6ad7_dnat": 9}


def cut(address: str, member: str, transport: Transport = Transport.TCP) -> TrackedConnection:
    return TrackedConnection(transport, parse_address(address), 80, parse_address(member), 8080)


FOUR, SIX = cut("10.0.0.150", "10.0.0.11"), cut("fd00:a::150", "fd00:a::11", Transport.UDP)


def test_flush_tuples_name_both_endpoints():
    assert render_tuples(FOUR) == (
        "ct_nw_dst=10.0.0.150,ct_nw_proto=6,ct_tp_dst=80",
        "ct_nw_src=10.0.0.11,ct_nw_proto=6,ct_tp_src=8080",
    )
    assert render_tuples(SIX) == (
        "ct_ipv6_dst=fd00:a::150,ct_nw_proto=17,ct_tp_dst=80",
        "ct_ipv6_src=fd00:a::11,ct_nw_proto=17,ct_tp_src=8080",
    )


async def with_switch(
    folder: Path, answers: Mapping[str, Any], story: Callable[[ConntrackTable], Awaitable[None]]
) -> list[dict[str, Any]]:
    """Run the story next to a daemon that sends each reply in two parts; return the daemon's requests."""
    asked: list[dict[str, Any]] = []
    answering = set[asyncio.Task[Any] | None]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.add(asyncio.current_task())
        while octets := await reader.read(65536):
            asked.append(json.loads(octets))
            told = {"id": 0, "result": None, "error": None, **answers[asked[-1]["method"]]}
            text = json.dumps(told).encode()
            writer.write(text[:9])
            await writer.drain()
            writer.write(text[9:])
        writer.close()
        await writer.wait_closed()

    (folder / "ovs-vswitchd.pid").write_text("77\n")
    async with await asyncio.start_unix_server(answer, folder / "ovs-vswitchd.77.ctl"):
        await story(ConntrackTable("br-int", RecordedTools(), folder, 1000))
        await asyncio.gather(*(each for each in answering if each is not None))
    return asked


async def test_each_flush_is_limited_to_its_zone(tmp_path: Path):
    async def story(tracked: ConntrackTable) -> None:
        await tracked.flush([(7, FOUR), (9, SIX)])
        await tracked.wait_for_revalidation()

    answers = {"dpctl/flush-conntrack": {"result": ""}, "revalidator/wait": {"result": ""}}
    asked = await with_switch(tmp_path, answers, story)
    assert [(each["method"], each["params"]) for each in asked] == [
        ("dpctl/flush-conntrack", ["zone=7", *render_tuples(FOUR)]),
        ("dpctl/flush-conntrack", ["zone=9", *render_tuples(SIX)]),
        ("revalidator/wait", []),
    ]


def attempt(zone: int, client: str, port: int, which: TrackedConnection) -> ConnectionAttempt:
    return ConnectionAttempt(zone, parse_address(client), port, which)


ATTEMPTS = [
    attempt(7, "10.0.0.20", 40001, FOUR),
    attempt(9, "fd00:a::20", 40004, SIX._replace(transport=Transport.TCP)),
]


async def test_unanswered_attempts_are_listed_and_flushed_by_full_tuple(tmp_path: Path):
    async def story(tracked: ConntrackTable) -> None:
        assert await tracked.list_unanswered() == ATTEMPTS
        await tracked.flush_attempts(ATTEMPTS)

    asked = await with_switch(tmp_path, {"dpctl/flush-conntrack": {"result": ""}}, story)
    assert [each["params"] for each in asked] == [
        ["zone=7", "ct_nw_src=10.0.0.20,ct_nw_dst=10.0.0.150,ct_nw_proto=6,ct_tp_src=40001,ct_tp_dst=80"],
        ["zone=9", "ct_ipv6_src=fd00:a::20,ct_ipv6_dst=fd00:a::150,ct_nw_proto=6,ct_tp_src=40004,ct_tp_dst=80"],
    ]


async def test_connections_above_the_limit_are_not_listed(caplog: pytest.LogCaptureFixture):
    tools = RecordedTools()
    assert await ConntrackTable("br-int", tools, Path(), 3).list_unanswered() == []
    assert tools.asked == [("ovs-appctl", "dpctl/ct-get-nconns")]
    assert "4 connections are tracked, agent.max_tracked_connections is 3" in caplog.text


async def test_switch_errors_and_an_absent_switch_are_reported(tmp_path: Path):
    async def refused(tracked: ConntrackTable) -> None:
        with pytest.raises(SwitchError, match="bad tuple"):
            await tracked.flush([(7, FOUR)])

    await with_switch(tmp_path, {"dpctl/flush-conntrack": {"error": "bad tuple"}}, refused)

    async def nobody() -> None:
        async with UnixctlConnection(tmp_path / "nowhere"):
            pass

    with pytest.raises(SwitchError, match="cannot connect to ovs-vswitchd"):
        await nobody()


async def test_flushes_leave_three_quarters_of_the_time_to_the_switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    rests, real = list[float](), asyncio.sleep

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    async def slow(control: UnixctlConnection, method: str, *words: str) -> str:
        await real(0.02)
        return ""

    async def story(tracked: ConntrackTable) -> None:
        monkeypatch.setattr(UnixctlConnection, "run", slow)
        monkeypatch.setattr(asyncio, "sleep", rest)
        await tracked.flush([(7, FOUR), (9, SIX)])

    await with_switch(tmp_path, {}, story)
    assert len(rests) == 2
    assert all(each >= 0.06 for each in rests)
