# ruff: noqa: E501 - lines as the tools write them
"""Parsing of Open vSwitch output about ports and responses. The texts are those of Open vSwitch 3.1 under OVN 23.03."""

from ipaddress import ip_address
from pathlib import Path

import pytest

from fairlead.drivers.ovn.vswitch.announcer import MAX_SINGLE_QUERIES, Announcer, Frame, parse_answers, parse_ports
from fairlead.drivers.ovn.vswitch.database import OvsTools

PORTS = """\
{"data":[["vb",2,["map",[["iface-id","port-b"],["ovn-installed","true"]]]],["br-int",65534,["map",[]]],["va",1,["map",[["iface-id","port-a"]]]],["lost",["set",[]],["map",[["iface-id","port-c"]]]],["broken",-1,["map",[["iface-id","port-d"]]]],["elsewhere",7,["map",[["iface-id","port-e"]]]],["external",1,["map",[]]]],"headings":["name","ofport","external_ids"]}
va
vb
lost
broken
"""
"""Interfaces: one without a number, one that cannot be opened, and one of another bridge."""
FLOWS = """\
OFPST_FLOW reply (OF1.5) (xid=0x6):
 cookie=0xcd28f94f, duration=0.023s, table=27, n_packets=0, n_bytes=0, idle_age=0, priority=50,arp,metadata=0x1,arp_tpa=10.0.0.200,arp_op=1 actions=move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],set_field:02:00:00:00:ff:0a->eth_src,set_field:2->arp_op,move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],set_field:02:00:00:00:ff:0a->arp_sha,move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],set_field:10.0.0.200->arp_spa,move:NXM_NX_REG14[]->NXM_NX_REG15[],set_field:0x1/0x1->reg10,resubmit(,37)
 cookie=0x22a691ca, duration=0.023s, table=33, n_packets=0, n_bytes=0, idle_age=0, priority=80,arp,reg10=0/0x2,metadata=0x1,arp_tpa=10.0.0.9,arp_op=1 actions=clone(set_field:0x2->reg15,resubmit(,37)),set_field:0x8004->reg15,resubmit(,37)
 cookie=0xa6fca797, duration=0.024s, table=33, n_packets=0, n_bytes=0, idle_age=0, priority=75,arp,metadata=0x1,dl_src=02:00:00:00:ff:0a,arp_op=1 actions=set_field:0x8004->reg15,resubmit(,37)
 cookie=0x39420554, duration=0.035s, table=27, n_packets=0, n_bytes=0, idle_age=0, priority=100,icmp6,reg14=0x2,metadata=0x1,ipv6_dst=fd00:a::200,nw_ttl=255,icmp_type=135,icmp_code=0,nd_target=fd00:a::200 actions=resubmit(,28)
 cookie=0xb4b0d9b9, duration=0.035s, table=27, n_packets=0, n_bytes=0, idle_age=0, priority=50,icmp6,metadata=0x1,ipv6_dst=ff02::1:ff00:200,nw_ttl=255,icmp_type=135,icmp_code=0,nd_target=fd00:a::200 actions=controller(userdata=00.00.00.0c.00.00.00.00.00.19.00.10.80.00.08.06.02.00.00.00.ff.0a.00.00.00.19.00.18.80.00.34.10.fd.00.00.0a.00.00.00.00.00.00.00.00.00.00.02.00.00.19.00.18.80.00.3e.10.fd.00.00.0a.00.00.00.00.00.00.00.00.00.00.02.00.00.19.00.10.80.00.42.06.02.00.00.00.ff.0a.00.00.00.1c.00.18.00.20.00.00.00.00.00.00.00.01.1c.04.00.01.1e.04.00.00.00.00.00.19.00.10.00.01.15.08.00.00.00.01.00.00.00.01.ff.ff.00.10.00.00.23.20.00.0e.ff.f8.25.00.00.00)
"""


def test_only_bridge_ports_with_a_number_are_parsed():
    assert parse_ports(PORTS) == {"port-a": 1, "port-b": 2}


def test_arp_and_nd_responders_are_parsed_from_ovn_flows():
    """ARP and ND responders are read from OVN's flows; for ND the flow has the answer that ovn-controller sends."""
    found = (ip_address("10.0.0.200"), "02:00:00:00:ff:0a"), (ip_address("fd00:a::200"), "02:00:00:00:ff:0a")
    assert tuple(parse_answers(FLOWS)) == found


@pytest.fixture
def announcer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Announcer:
    tool = tmp_path / "ovs-ofctl"
    tool.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/said\nwhile read line; do echo "$line" >> {tmp_path}/said; done\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return Announcer("br-int", OvsTools(tmp_path))


async def test_each_frame_is_sent_in_one_packet_out_to_its_ports(announcer: Announcer, tmp_path: Path):
    await announcer.send([Frame(octets=b"\x01\xff", ports=[1, 7]), Frame(octets=b"\x02", ports=[3])])
    assert (tmp_path / "said").read_text() == (
        "-O OpenFlow15 bundle br-int -\n"
        "packet-out in_port=controller packet=01ff actions=output:1,output:7\n"
        "packet-out in_port=controller packet=02 actions=output:3\n"
    )


@pytest.mark.parametrize(
    ("many", "asked"), [(1, 2), (MAX_SINGLE_QUERIES // 2, MAX_SINGLE_QUERIES), (MAX_SINGLE_QUERIES, 2)]
)
async def test_few_addresses_are_looked_up_one_by_one_and_many_in_one_dump(
    announcer: Announcer, tmp_path: Path, many: int, asked: int
):
    addresses = [ip_address(f"{prefix}{number}") for number in range(many) for prefix in ("10.0.0.", "fd00::")]
    assert (await announcer.read_answers(addresses)) == frozenset()
    said = (tmp_path / "said").read_text().splitlines()
    assert len(said) == asked
    assert ("-O OpenFlow15 dump-flows br-int arp,arp_op=1,arp_tpa=10.0.0.0" in said) is (
        len(addresses) <= MAX_SINGLE_QUERIES
    )
