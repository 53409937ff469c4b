# ruff: noqa: E501 - lines as the tools write them
"""Parsing of Open vSwitch counters. The texts are those of Open vSwitch 3.1 under OVN 23.03."""

from collections import Counter
from itertools import chain, repeat
from pathlib import Path

import pytest

from fairlead.drivers.ovn.vswitch.counters import (
    SwitchCounters,
    SwitchSettings,
    parse_connections,
    parse_flows,
    parse_metered,
    parse_zones,
)
from fairlead.drivers.ovn.vswitch.database import OvsTools, SwitchError
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.counter_samples import CounterValue
from fairlead.model.queries.statistics import CountedService, parse_place

FLOWS = """\
OFPST_FLOW reply (OF1.5) (xid=0x6):
 cookie=0x4566d864, duration=10.731s, table=20, n_packets=400, n_bytes=29600, idle_age=1, priority=120,ct_state=+new+trk,tcp,metadata=0x1,nw_dst=10.0.0.94,tp_dst=80 actions=set_field:0/0x2000000000000000000000000->xxreg0,group:3
 cookie=0xf2d7bdb9, duration=3.607s, table=20, n_packets=7, n_bytes=469, idle_age=0, priority=120,ct_state=+new+trk,udp6,metadata=0x1f,ipv6_dst=fd00:a::10,tp_dst=53 actions=group:5
 cookie=0xb0c55855, duration=10.500s, table=15, n_packets=9, n_bytes=0, hard_age=3, idle_age=10, priority=120,ct_state=+new-rel+trk,sctp,metadata=0x3,nw_dst=10.0.0.94,tp_dst=80 actions=group:1
 cookie=0x6c9f23ac, duration=2.5s, table=20, n_packets=3, n_bytes=222, idle_age=1, priority=120,ct_state=+new+trk,tcp6,metadata=0x1,ipv6_dst=fd00:a::10,tp_dst=80 actions=set_field:0/0xffffffff000000000000000000000000->xxreg0,controller(userdata=00.00.00.16)
 cookie=0xf3285d55, duration=14.899s, table=14, n_packets=2000, n_bytes=142400, idle_age=1, priority=120,tcp,reg0=0x4/0x4,metadata=0x1,nw_dst=10.0.0.94,tp_dst=80 actions=ct(table=15,zone=NXM_NX_REG13[0..15],nat)
 cookie=0xf8229bf6, duration=22.393s, table=14, n_packets=3665, n_bytes=329858, idle_age=0, priority=110,ip,reg0=0x4/0x4,metadata=0x1 actions=ct(table=15,zone=NXM_NX_REG13[0..15],nat)
 cookie=0x9e8fa807, duration=291.839s, table=23, n_packets=5, n_bytes=0, idle_age=291, priority=100,ct_state=+new+trk,ip,reg0=0x40/0x40,metadata=0x2 actions=resubmit(,70)
 cookie=0xc7f39edd, duration=8.302s, table=15, n_packets=6, n_bytes=0, idle_age=8, priority=100,ct_state=+new+trk,ip,reg14=0x5,metadata=0x3,nw_dst=203.0.113.81 actions=ct(commit,table=16,zone=NXM_NX_REG11[0..15],nat(dst=10.0.0.94))
"""
ZONES = """\
{"data":[[["map",[["ct-zone-44243bdb-e627-4f8f-a30e-da0b3fd45059","8"],["ct-zone-d848de81-ef4d-4c69-8633-845bf0146326_dnat","4"],["ovn-nb-cfg","2"]]]]],"headings":["external_ids"]}"""
NAMES = {8: "44243bdb-e627-4f8f-a30e-da0b3fd45059", 4: "d848de81-ef4d-4c69-8633-845bf0146326_dnat"}
CONNECTIONS = """\
tcp,orig=(src=10.0.0.132,dst=10.0.0.94,sport=37068,dport=80),reply=(src=10.0.0.249,dst=10.0.0.132,sport=8080,dport=37068),zone=8,mark=2,protoinfo=(state=ESTABLISHED)
tcp,orig=(src=10.0.0.132,dst=10.0.0.94,sport=37069,dport=80),reply=(src=10.0.0.249,dst=10.0.0.132,sport=8080,dport=37069),zone=8,mark=10,protoinfo=(state=CLOSING)
tcp,orig=(src=10.0.0.132,dst=10.0.0.94,sport=37070,dport=80),reply=(src=10.0.0.249,dst=10.0.0.132,sport=8080,dport=37070),zone=8,mark=2,protoinfo=(state=TIME_WAIT)
tcp,orig=(src=10.0.0.132,dst=10.0.0.94,sport=37071,dport=80),reply=(src=10.0.0.249,dst=10.0.0.132,sport=8080,dport=37071),zone=8,mark=2,protoinfo=(state=SYN_SENT)
tcp,orig=(src=10.0.0.132,dst=10.0.0.249,sport=37068,dport=8080),reply=(src=10.0.0.249,dst=10.0.0.132,sport=8080,dport=37068),zone=8,protoinfo=(state=ESTABLISHED)
udp,orig=(src=fd00:a::1,dst=fd00:a::10,sport=5000,dport=53),reply=(src=fd00:a::2,dst=fd00:a::1,sport=53,dport=5000),zone=4,mark=2
udp,orig=(src=fd00:a::1,dst=fd00:a::10,sport=5001,dport=53),reply=(src=fd00:a::2,dst=fd00:a::1,sport=53,dport=5001),zone=5,mark=2
icmp,orig=(src=10.0.0.132,dst=10.0.0.94,id=1,type=8,code=0),reply=(src=10.0.0.94,dst=10.0.0.132,id=1,type=0,code=0),zone=8,mark=2
"""


def service(place: str, transport: str, address: str, port: int) -> CountedService:
    return CountedService(
        place=parse_place(place), transport=Transport(transport), address=parse_address(address), port=port
    )


def test_only_flows_of_a_service_are_parsed():
    assert list(parse_flows(FLOWS, 100.0)) == [
        (
            service("datapath:1", "tcp", "10.0.0.94", 80),
            "connections",
            CounterValue(value=400, cookie=0x4566D864, created=100 - 10.731),
        ),
        (
            service("datapath:31", "udp", "fd00:a::10", 53),
            "connections",
            CounterValue(value=7, cookie=0xF2D7BDB9, created=100 - 3.607),
        ),
        (
            service("datapath:3", "sctp", "10.0.0.94", 80),
            "connections",
            CounterValue(value=9, cookie=0xB0C55855, created=89.5),
        ),
        (
            service("datapath:1", "tcp", "fd00:a::10", 80),
            "errors",
            CounterValue(value=3, cookie=0x6C9F23AC, created=97.5),
        ),
        (
            service("datapath:1", "tcp", "10.0.0.94", 80),
            "bytes_in",
            CounterValue(value=142400, cookie=0xF3285D55, created=100 - 14.899),
        ),
    ]


NEWER_FLOWS = """\
 cookie=0x30de4618, duration=1.5s, table=23, n_packets=10, n_bytes=740, idle_age=0, priority=120,ct_state=+new+trk,ip,reg1=0x60050/0xffffff,metadata=0x1,nw_dst=10.0.0.216 actions=set_field:0x5000000000/0xffff00000000->xxreg0,group:1
 cookie=0x9d3f3d73, duration=1.5s, table=18, n_packets=4, n_bytes=0, idle_age=1, priority=120,ct_state=+new-rel+trk,ipv6,reg1=0x110035/0xffffff,metadata=0x3,ipv6_dst=fd00:a::7c10 actions=group:4
 cookie=0x245f8ac2, duration=1.5s, table=21, n_packets=10, n_bytes=940, idle_age=0, priority=100,ct_state=+new+trk,ipv6,metadata=0x1 actions=push:NXM_NX_XXREG1[0..7],resubmit(,22)
 cookie=0x1, duration=1.5s, table=23, n_packets=10, n_bytes=740, priority=120,ct_state=+new+trk,ip,reg1=0x10050/0xffffff,metadata=0x1,nw_dst=10.0.0.216 actions=group:1
 cookie=0x2, duration=1.5s, table=23, n_packets=10, n_bytes=740, priority=120,ct_state=+new+trk,ip,reg1=0x50/0xffff,metadata=0x1,nw_dst=10.0.0.216 actions=group:1
"""
"""Flows of OVN 26.03 under Open vSwitch 4.0; the last two match no service: ICMP, and a register of another meaning."""


def test_flows_with_the_service_in_a_register_are_parsed():
    assert list(parse_flows(NEWER_FLOWS, 100.0)) == [
        (
            service("datapath:1", "tcp", "10.0.0.216", 80),
            "connections",
            CounterValue(value=10, cookie=0x30DE4618, created=98.5),
        ),
        (
            service("datapath:3", "udp", "fd00:a::7c10", 53),
            "connections",
            CounterValue(value=4, cookie=0x9D3F3D73, created=98.5),
        ),
    ]


METERED_FLOWS = """\
 cookie=0x71, duration=4.25s, table=48, n_packets=20, n_bytes=1720, idle_age=1, priority=1000,tcp,metadata=0x1,nw_src=10.0.0.94,tp_src=80 actions=meter:1,resubmit(,49)
 cookie=0x72, duration=4.5s, table=48, n_packets=9, n_bytes=900, idle_age=1, priority=1000,udp6,metadata=0x1f,ipv6_src=fd00:a::10,tp_src=0x1f40/0xffc0 actions=meter:1,resubmit(,49)
 cookie=0x75, duration=4.5s, table=22, n_packets=9, n_bytes=700, idle_age=1, priority=1000,tcp,metadata=0x4,nw_dst=203.0.113.50,tp_dst=80 actions=meter:1,resubmit(,23)
 cookie=0x73, duration=4.5s, table=48, n_packets=9, n_bytes=900, priority=3002,ip,reg15=0x2,metadata=0x1 actions=meter:2,resubmit(,49)
 cookie=0x74, duration=4.5s, table=48, n_packets=9, n_bytes=900, priority=1000,tcp,metadata=0x1,nw_src=10.0.0.94,tp_src=81 actions=resubmit(,49)
"""
"""Meters; the third counts traffic from outside, the fourth is an unmanaged limit, the fifth is no meter."""


def test_byte_counters_are_parsed_from_flows_that_meter_a_service():
    assert list(parse_metered(METERED_FLOWS, 100.0)) == [
        (
            service("datapath:1", "tcp", "10.0.0.94", 80),
            "bytes_out",
            CounterValue(value=1720, cookie=0x71, created=95.75),
        ),
        (
            service("datapath:31", "udp", "fd00:a::10", 8000),
            "bytes_out",
            CounterValue(value=900, cookie=0x72, created=95.5),
        ),
        (
            service("datapath:4", "tcp", "203.0.113.50", 80),
            "bytes_in",
            CounterValue(value=700, cookie=0x75, created=95.5),
        ),
    ]


def test_conntrack_zones_have_the_names_of_ovn_controller():
    assert parse_zones(ZONES) == NAMES


def test_open_connections_to_a_service_are_counted_in_known_zones():
    assert parse_connections(CONNECTIONS.splitlines(), NAMES) == Counter(
        {
            service(f"zone:{NAMES[8]}", "tcp", "10.0.0.94", 80): 2,
            service(f"zone:{NAMES[4]}", "udp", "fd00:a::10", 53): 1,
        }
    )


def tool(folder: Path, name: str, script: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def switch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SwitchCounters:
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return SwitchCounters(SwitchSettings(bridge="br-int", max_connections=10), OvsTools(tmp_path), lambda: 0.0)


async def test_switch_error_includes_the_message_of_its_tool(switch: SwitchCounters, tmp_path: Path):
    tool(tmp_path, "ovs-ofctl", "echo 'ovs-ofctl: br-int is not a bridge or a socket' >&2; exit 1")
    with pytest.raises(SwitchError, match="br-int is not a bridge or a socket"):
        await switch.read()


async def test_missing_tool_is_named_in_the_error(
    switch: SwitchCounters, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SwitchError, match="ovs-vsctl: No such file or directory"):
        await OvsTools(tmp_path).chassis()


async def test_connections_above_the_limit_are_not_listed(switch: SwitchCounters, tmp_path: Path):
    tool(tmp_path, "ovs-ofctl", "true")
    tool(tmp_path, "ovs-appctl", 'test "$1" = dpctl/ct-get-nconns && echo 11')
    assert (await switch.read()) == {}


async def test_late_reply_of_a_busy_switch_matches_the_same_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A late reply of a busy switch matches the same flow: sent at 0, answered at 5, with a flow that is 10.731 s old
    by then."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    (tmp_path / "flows").write_text(FLOWS)
    tool(tmp_path, "ovs-ofctl", f'test "$5" = ip,ct_state=+new+trk && cat {tmp_path}/flows || true')
    tool(tmp_path, "ovs-appctl", "echo 11")
    settings = SwitchSettings(bridge="br-int", max_connections=10)
    looks = []
    for times in ([0.0, 5.0], [5.0, 5.0]):
        clock = chain(times, repeat(times[-1]))
        looks.append(await SwitchCounters(settings, OvsTools(tmp_path), lambda clock=clock: next(clock)).read())
    asked = service("datapath:1", "tcp", "10.0.0.94", 80)
    late, at_once = (each[asked].counts["connections"] for each in looks)
    assert (late.slack, at_once.created - late.created) == (5.0, 5.0)
    assert at_once.is_same_counter(late)
    assert late.is_same_counter(at_once)
