"""Python and the kernel compute the same slot for a flow."""

import json
import random
import socket
from ipaddress import IPv4Address, IPv6Address

from fairlead.dataplane.flow_slot import SEED, flow_slot, source_slot
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from harness.net_namespace import NetNamespace, net_namespace, require_root

IP_TRANSPARENT, IPV6_TRANSPARENT = 19, 75
FLOWS = 500
"""Number of flows per IP version."""
VIP4, VIP6 = IPv4Address("203.0.113.5"), IPv6Address("2001:db8::5")
SLOTS = f"mod 256 seed {SEED}"
RULES = f"""table inet seen {{
    set v4 {{ typeof ip saddr . udp sport . ip daddr . meta mark; flags dynamic; }}
    set v6 {{ typeof ip6 saddr . udp sport . ip6 daddr . meta mark; flags dynamic; }}
    set by4 {{ typeof ip saddr . udp sport . ip daddr . meta mark; flags dynamic; }}
    set by6 {{ typeof ip6 saddr . udp sport . ip6 daddr . meta mark; flags dynamic; }}
    chain output {{
        type filter hook output priority raw;
        meta mark set jhash ip saddr . ip daddr . meta l4proto . th sport . th dport {SLOTS} \
            add @v4 {{ ip saddr . udp sport . ip daddr . meta mark }}
        meta mark set jhash ip6 saddr . ip6 daddr . meta l4proto . th sport . th dport {SLOTS} \
            add @v6 {{ ip6 saddr . udp sport . ip6 daddr . meta mark }}
        meta mark set jhash ip saddr . ip daddr {SLOTS} add @by4 {{ ip saddr . udp sport . ip daddr . meta mark }}
        meta mark set jhash ip6 saddr . ip6 daddr {SLOTS} add @by6 {{ ip6 saddr . udp sport . ip6 daddr . meta mark }}
    }}
}}
"""


def test_computed_flow_slots_equal_the_slots_of_the_kernel() -> None:
    require_root("/usr/sbin/nft")
    with net_namespace() as host:
        host.ip("route add local 203.0.113.0/24 dev lo", "route add local 2001:db8::/64 dev lo")
        host.nft(RULES)
        chance = random.Random(5)
        fours = {_flow(chance, IPv4Address("192.0.2.0"), 8) for _ in range(FLOWS)}
        sixes = {_flow(chance, IPv6Address("2001:db8:1::"), 64) for _ in range(FLOWS)}
        with host.inside():
            for client, port in fours:
                _send(socket.AF_INET, client, port, VIP4)
            for client, port in sixes:
                _send(socket.AF_INET6, client, port, VIP6)
        for name, vip, flows in (("v4", VIP4, fours), ("v6", VIP6, sixes)):
            assert _seen(host, name) == {(*flow, flow_slot(flow, (vip, 80), Transport.UDP)) for flow in flows}
            assert _seen(host, name.replace("v", "by")) == {(*flow, source_slot(flow[0], vip)) for flow in flows}


def test_slots_receive_an_even_share_of_flows() -> None:
    counts = [0] * 256
    for port in range(1024, 65536):
        counts[flow_slot((VIP4, port), (VIP4, 443), Transport.TCP)] += 1
    assert 190 < min(counts) <= max(counts) < 320


def _flow(chance: random.Random, network: IPv4Address | IPv6Address, bits: int) -> tuple[IPAddress, int]:
    return network + chance.randrange(1, 2**bits), chance.randrange(1, 2**16)


def _send(family: socket.AddressFamily, client: IPAddress, port: int, vip: IPAddress) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        if family is socket.AF_INET:
            sender.setsockopt(socket.IPPROTO_IP, IP_TRANSPARENT, 1)
        else:
            sender.setsockopt(socket.IPPROTO_IPV6, IPV6_TRANSPARENT, 1)
        sender.bind((str(client), port))
        sender.sendto(b"", (str(vip), 80))


def _seen(host: NetNamespace, name: str) -> set[tuple[IPAddress, int, int]]:
    listed = json.loads(host.run("nft", "-j", "list", "set", "inet", "seen", name))
    kind = IPv4Address if name.endswith("4") else IPv6Address
    elements = next(each["set"]["elem"] for each in listed["nftables"] if "set" in each)
    return {(kind(source), port, slot) for source, port, _, slot in (each["concat"] for each in elements)}
