"""Hosts whose operators set packet and connection marks: for several uplinks, or for a policy engine."""

import re
import socket
from collections.abc import Iterator
from itertools import product

import pytest

from fairlead.dataplane.flow_slot import flow_slot
from fairlead.model.documents.loadbalancer import Transport
from harness.fabric import HOSTS, PORT, VIPS, ClientFlow, Fabric, fabric
from harness.net_namespace import NetNamespace, require_root

pytestmark = pytest.mark.slow

EVEN = bytes(slot % 3 for slot in range(256))
BOTH = Transport.TCP, Transport.UDP
BIT = "meta mark set meta mark | 0x40000"
MARKING = {
    "a bit of each packet": BIT,
    "a bit that is kept with the connection": f"ct mark set ct mark | 0x40000; {BIT}",
    "an uplink's number": "ct state new ct mark set 0x2; ct mark != 0 meta mark set ct mark",
    "an uplink's number beside others": "ct state new ct mark set 0x40002; ct mark != 0 meta mark set ct mark",
}

SEEN = """
table inet theirs {
    chain marked {
        meta mark & BIT == BIT ct mark & 0x3000 == 0 counter return
        counter
    }
    chain forward {
        type filter hook forward priority filter; policy accept;
        oifname "m0" ct status & dnat == dnat jump marked
    }
}
"""


@pytest.fixture
def site() -> Iterator[Fabric]:
    require_root("/usr/sbin/nft")
    with fabric() as made:
        yield made


def mark(host: NetNamespace, marking: str, priority: str, *, own: bool = True) -> None:
    """Add an operator's marking rules, and rules that count packets to the machine behind the host, by mark."""
    bit = 0x40000 if "0x40000" in marking else 2
    hooks = {"prerouting": "filter"} | ({"output": "route"} if own else {})
    for hook, kind in hooks.items():
        begins = f"type {kind} hook {hook} priority {priority};"
        host.nft(f"table inet theirs {{\nchain {hook} {{\n{begins}\n" + marking.replace("; ", "\n") + "\n}\n}\n")
    host.nft(SEEN.replace("BIT", str(bit)))


def counted(host: NetNamespace) -> list[int]:
    """Return the packets to the machine behind the host: those with a mark, and those without."""
    return [
        int(each) for each in re.findall(r"packets (\d+)", host.run("nft", "list", "chain", "inet", "theirs", "marked"))
    ]


@pytest.mark.parametrize("priority", ["mangle - 5", "mangle + 5"])
@pytest.mark.parametrize("marking", MARKING)
def test_vips_are_served_and_operator_marks_are_kept(site: Fabric, marking: str, priority: str) -> None:
    for host in site.hosts.values():
        mark(host, MARKING[marking], priority, own="number" not in marking)
    site.open()
    with site.hosts[1].inside():
        own = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True)
    for number in HOSTS:
        site.serve(number, EVEN)
    for entry, vip, transport in product(HOSTS, VIPS, BOTH):
        site.route_to(entry)
        flows = [site.flow(transport, vip) for _ in range(8)]
        flows += [site.flow(transport, vip, where) for where in (site.hosts[2], site.members[3]) for _ in range(4)]
        for _ in range(2):
            assert [flow.request() for flow in flows] == [_expected(flow) for flow in flows], (entry, vip, transport)
    own.close()
    for number, host in site.hosts.items():
        marked, bare = counted(host)
        assert marked > 50
        assert bare == 0, f"{bare} of {marked + bare} packets of host {number} had lost their mark"


def test_flows_survive_moved_slots_beside_operator_marks(site: Fabric) -> None:
    for host in site.hosts.values():
        mark(host, BIT, "mangle - 5")
    site.open()
    for number in HOSTS:
        site.serve(number, EVEN)
    site.route_to(1)
    flows = [site.flow(*each) for each in product(BOTH, VIPS) for _ in range(16)]
    names = [flow.request() for flow in flows]
    drained = bytes(slot % 2 if place == 2 else place for slot, place in enumerate(EVEN))
    for number in HOSTS:
        mine = {slot: 3 for slot, place in enumerate(EVEN) if place == 2 and drained[slot] == number - 1}
        site.serve(number, drained, before=mine)
        assert [flow.request() for flow in flows] == names, f"host {number} was told"
    for entry in HOSTS:
        site.route_to(entry)
        assert [flow.request() for flow in flows] == names, f"by host {entry}"


def _expected(flow: ClientFlow) -> str:
    return f"m{EVEN[flow_slot(flow.client, (flow.vip, PORT), flow.transport)] + 1}"
