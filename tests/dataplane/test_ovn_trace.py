"""Parsing of ovn-trace output; texts are those of OVN 23.03, shortened, with stages of newer releases."""

from ipaddress import ip_address, ip_interface

import pytest

from fairlead.dataplane.ovn_trace import (
    IcmpEcho,
    NeighbourPort,
    Sctp,
    Sender,
    Tcp,
    TraceOutcome,
    Udp,
    Untraceable,
    choose_mac,
    choose_next_hop,
    compose_microflow,
    judge,
    parse_steps,
)

BEGIN = """\
# tcp,reg14=0x4,vlan_tci=0x0000,nw_src=10.0.0.20,nw_dst=10.0.0.100,tp_src=32768,tp_dst=80,tcp_flags=0

ingress(dp="net1", inport="client")
-----------------------------------
 0. ls_in_check_port_sec (northd.c:8432): 1, priority 50, uuid e84f9407
    reg0[15] = check_in_port_sec();
    next;
"""
BALANCED = """\
12. ls_in_lb (northd.c:7558): ct.new && ip4.dst == 10.0.0.100 && tcp.dst == 80, priority 120, uuid c6860bf8
    reg0[1] = 0;
    ct_lb_mark(backends=10.0.0.12:8080,10.0.0.11:8080,10.0.0.12:8080,10.0.0.12:8080; hash_fields="ip_src");

ct_lb_mark
----------
"""
ROUTED = """\
egress(dp="net1", inport="client", outport="vip-net1")
------------------------------------------------------
 9. ls_out_apply_port_sec (northd.c:5777): 1, priority 0, uuid 12fb7487
    output;
    /* output to "vip-net1", type "patch" */
"""
DELIVERED = """\
egress(dp="net1", inport="vip-net1", outport="vm2")
---------------------------------------------------
 9. ls_out_apply_port_sec (northd.c:5777): 1, priority 0, uuid 12fb7487
    output;
    /* output to "vm2", type "" */
"""
BACK = DELIVERED.replace("vm2", "client")
REJECTED = """\
12. ls_in_lb (northd.c:7558): ct.new && ip4.dst == 10.0.0.100 && tcp.dst == 81, priority 120, uuid ef4c8fea
    reg0 = 0;
    reject { outport <-> inport; next(pipeline=egress, table=5); };

tcp_reset
---------
    outport <-> inport;
"""
DENIED = """\
 8. ls_in_acl (northd.c:6543): reg0[9] == 1 && (ip4.src != {192.0.2.0/24}), priority 33000, uuid e6590a2d
    drop;
"""
DENIED_NEWER = """\
 8. ls_in_acl_eval (northd.c:6700): reg0[9] == 1 && (ip4.src != {192.0.2.0/24}), priority 33000, uuid e6590a2d
    reg8[17] = 1;
    next;
 9. ls_in_acl_action (northd.c:6800): reg8[17] == 1, priority 1000, uuid aaaaaaaa
    reg8[16] = 0;
    /* drop */
"""
CLOSED = """\
 3. lr_in_ip_input (northd.c:13510): ip4 && ip4.dst == 10.0.0.100 && !ip.later_frag && tcp, priority 80, uuid 4e3b4cb6
    tcp_reset { eth.dst <-> eth.src; ip4.dst <-> ip4.src; next; };
"""
ASKED = """\
21. lr_in_arp_request (northd.c:12930): eth.dst == 00:00:00:00:00:00 && ip4, priority 100, uuid 11111111
    arp { eth.dst = ff:ff:ff:ff:ff:ff; arp.spa = reg1; arp.tpa = reg0; arp.op = 1; output; };
"""
LOST = """\
13. lr_in_ip_routing (northd.c:10200): 1, priority 0, uuid 22222222
    drop;
"""


@pytest.mark.parametrize(
    ("text", "outcome", "uuid", "port"),
    [
        (BEGIN + BALANCED + ROUTED + DELIVERED, TraceOutcome.BALANCED, "c6860bf8", "vm2"),
        (BEGIN + BALANCED, TraceOutcome.BALANCED, "c6860bf8", ""),
        (BEGIN + REJECTED + BACK, TraceOutcome.NO_MEMBER, "ef4c8fea", ""),
        (BEGIN + DENIED, TraceOutcome.REFUSED, "e6590a2d", ""),
        (BEGIN + DENIED_NEWER, TraceOutcome.REFUSED, "e6590a2d", ""),
        (BEGIN + BALANCED + ROUTED + DENIED, TraceOutcome.REFUSED, "e6590a2d", ""),
        (BEGIN + ROUTED + CLOSED + BACK, TraceOutcome.NO_LISTENER, "4e3b4cb6", ""),
        (BEGIN + ROUTED + ASKED + BACK, TraceOutcome.UNRESOLVED, "11111111", ""),
        (BEGIN + ROUTED + LOST, TraceOutcome.DROPPED, "22222222", ""),
        (BEGIN + DELIVERED, TraceOutcome.DELIVERED, None, "vm2"),
        (BEGIN + ROUTED + BACK, TraceOutcome.ANSWERED, None, "client"),
        (BEGIN, TraceOutcome.DROPPED, "e84f9407", ""),
        ("", TraceOutcome.DROPPED, None, ""),
    ],
)
def test_outcome_of_a_traced_packet_is_parsed(text: str, outcome: TraceOutcome, uuid: str | None, port: str):
    verdict = judge(text, "client")
    assert (verdict.outcome, verdict.step.uuid if verdict.step else None, verdict.port) == (outcome, uuid, port)
    slots = {"10.0.0.12:8080": 3, "10.0.0.11:8080": 1} if outcome is TraceOutcome.BALANCED else {}
    assert verdict.slots == slots


def test_trace_steps_have_pipeline_table_stage_and_priority():
    found = [(step.pipeline, step.table, step.stage, step.priority) for step in parse_steps(BEGIN + ROUTED)]
    assert found == [("ingress", 0, "ls_in_check_port_sec", 50), ("egress", 9, "ls_out_apply_port_sec", 0)]


@pytest.mark.parametrize(
    ("destination", "packet", "words"),
    [
        ("10.0.0.9", Tcp(port=80), "ip4.dst == 10.0.0.9 && ip.ttl == 64 && tcp.src == 32768 && tcp.dst == 80"),
        ("fd00::9", Udp(port=53), "ip6.dst == fd00::9 && ip.ttl == 64 && udp.src == 32768 && udp.dst == 53"),
        ("10.0.0.9", Sctp(port=9), "sctp.dst == 9"),
        ("10.0.0.9", IcmpEcho(), "icmp4.type == 8 && icmp4.code == 0"),
        ("fd00::9", IcmpEcho(), "icmp6.type == 128 && icmp6.code == 0"),
    ],
)
def test_a_packet_is_written_as_a_microflow(destination: str, packet: Tcp | Udp | Sctp | IcmpEcho, words: str):
    to = ip_address(destination)
    sender = Sender(port_id="vm", mac="02:00:00:00:00:01", address=ip_address("10.0.0.1"))
    flow = compose_microflow(sender, to, packet, "02:00:00:00:00:02")
    assert flow.startswith('inport == "vm" && eth.src == 02:00:00:00:00:01 && eth.dst == 02:00:00:00:00:02 && ip')
    assert flow.endswith(words)


def neighbour(mac: str, *addresses: str, router: bool = False) -> NeighbourPort:
    return NeighbourPort(mac=mac, addresses=tuple(map(ip_interface, addresses)), of_router=router)


SWITCH = (
    neighbour("vm", "10.0.0.11", "fd00::11"),
    neighbour("gateway", "10.0.0.1/24", "fd00::1/64", router=True),
    neighbour("owner", "10.0.0.250"),
    neighbour("vip-router", "10.0.0.0/24", "10.0.0.100/24", "fe80::1/64", "fd00::/64", router=True),
    neighbour("vip-router", "10.0.0.250", router=True),
)


@pytest.mark.parametrize(
    ("destination", "next_hop", "mac"),
    [
        ("10.0.0.11", "10.0.0.11", "vm"),
        ("10.0.0.100", "10.0.0.100", "vip-router"),
        ("10.0.0.1", "10.0.0.1", "gateway"),
        ("192.0.2.9", "10.0.0.1", "gateway"),
        ("10.0.0.250", "10.0.0.250", "vip-router"),  # a Local IP
        ("fd00::11", "fd00::11", "vm"),
        ("2001:db8::1", "fd00::1", "gateway"),
        ("10.0.0.200", "10.0.0.200", "gateway"),  # a VIP answered by a tenant's router
    ],
)
def test_destination_mac_is_that_of_the_next_hop(destination: str, next_hop: str, mac: str):
    source = ip_address("10.0.0.20" if "." in destination else "fd00::20")
    found = choose_next_hop(SWITCH, source, ip_address(destination))
    assert (str(found), choose_mac(SWITCH, found)) == (next_hop, mac)


def test_switch_without_a_router_reaches_only_its_own_subnet():
    alone = SWITCH[:1]
    assert str(choose_next_hop(alone, ip_address("10.0.0.20"), ip_address("10.0.0.11"))) == "10.0.0.11"
    with pytest.raises(Untraceable, match=r"no route to 192\.0\.2\.9"):
        choose_next_hop(alone, ip_address("10.0.0.20"), ip_address("192.0.2.9"))
    with pytest.raises(Untraceable, match=r"next hop 10\.0\.0\.99 is the address of no port"):
        choose_mac(alone, ip_address("10.0.0.99"))
