"""What it costs a switch to cut the connections of a member that is down, by how many connections it tracks.

Half of them are in the zone of the client and go to two members, one of which is down; the others are in another zone.
They are UDP: one frame each, sent into a bridge of its own of a lab's switch, in user space.

    sudo python benchmarks/conntrack_flush.py [--connections 10000]
"""

import argparse
import asyncio
import socket
import statistics
import struct
import sys
import time
from collections.abc import Iterator

from fairlead.drivers.ovn.vswitch.conntrack import render_tuples
from fairlead.drivers.ovn.vswitch.control import UnixctlConnection
from fairlead.lab import Lab, take_down
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.conntrack_flush import TrackedConnection

NAME, NODE, BRIDGE = "cuts", "chassis1", "br-cuts"
VIP, DEAD, ALIVE = "10.0.0.150", "10.0.0.11", "10.0.0.12"
OWN_ZONE, OTHER_ZONE = 7, 8
REPEATS = 10
"""Number of flushes of each kind; the median is reported."""


def frames(count: int) -> Iterator[bytes]:
    """Frames, each with a different source address and port."""
    for number in range(count):
        source = parse_address(f"10.1.{number % 250}.{1 + number // 250 % 250}").packed
        datagram = struct.pack("!HHHH", 1024 + number // 2 % 60000, 80, 8, 0)
        target = parse_address(VIP).packed
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(datagram), 1, 0x4000, 64, 17, 0) + source + target
        total = sum(struct.unpack("!10H", header))
        header = header[:10] + struct.pack("!H", ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + header[12:]
        yield bytes.fromhex("020000000001020000000002") + b"\x08\x00" + header + datagram


def flows() -> Iterator[str]:
    """Flows that select zone and member by the lowest bits of the source port."""
    for bits in range(4):
        zone, member = (OWN_ZONE if bits < 2 else OTHER_ZONE), (DEAD if bits % 2 else ALIVE)
        yield f"udp,tp_src={bits}/3,actions=ct(commit,zone={zone},nat(dst={member}:8080))"


def prepare(lab: Lab) -> None:
    vsctl = ["ovs-vsctl", "--no-wait", "--may-exist", "add-br", BRIDGE]
    lab.exec(NODE, [*vsctl, "--", "set", "bridge", BRIDGE, "datapath_type=netdev"])
    lab.exec(NODE, ["ip", "link", "add", "cuts0", "type", "veth", "peer", "name", "cuts1"])
    for end in ("cuts0", "cuts1"):
        lab.exec(NODE, ["ip", "link", "set", end, "up"])
    lab.exec(NODE, ["ovs-vsctl", "add-port", BRIDGE, "cuts1"])
    lab.exec(NODE, ["ovs-ofctl", "del-flows", BRIDGE])
    for flow in flows():
        lab.exec(NODE, ["ovs-ofctl", "add-flow", BRIDGE, flow])


def tracked(lab: Lab) -> int:
    return int(lab.exec(NODE, ["ovs-appctl", "dpctl/ct-get-nconns"]))


def fill(lab: Lab, count: int) -> int:
    """Send frames, and return the number of tracked connections."""
    lab.exec(NODE, [sys.executable, __file__, "--send", str(count)], timeout=120)
    return tracked(lab)


def send(count: int) -> None:
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sending:
        sending.bind(("cuts0", 0))
        for number, frame in enumerate(frames(count)):
            sending.send(frame)
            if number % 50 == 0:
                time.sleep(0.01)


async def measure(lab: Lab, count: int) -> None:
    found = fill(lab, count)
    alive, dead = (
        TrackedConnection(Transport.UDP, parse_address(VIP), 80, parse_address(each), 8080) for each in (ALIVE, DEAD)
    )
    async with UnixctlConnection(lab.layout.node_directory(NODE)) as control:

        async def cut(zone: int, cut: TrackedConnection) -> float:
            began = time.perf_counter()
            await control.run("dpctl/flush-conntrack", f"zone={zone}", *render_tuples(cut))
            return time.perf_counter() - began

        nothing = statistics.median([await cut(OTHER_ZONE + 1, alive) for _ in range(REPEATS)])
        took = await cut(OWN_ZONE, dead)
        left = tracked(lab)
        again = statistics.median([await cut(OWN_ZONE, dead) for _ in range(REPEATS)])
        began = time.perf_counter()
        await control.run("revalidator/wait")
        settled = time.perf_counter() - began
    told = [f"{1000 * each:.1f} ms" for each in (nothing, took, again, settled)]
    print(f"| {found:,} | {found - left:,} | {' | '.join(told)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--connections", type=int, action="append", help="tracked in all; repeat for more")
    parser.add_argument("--send", type=int, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.send:
        send(asked.send)
        return
    take_down(NAME)
    print(
        "| tracked | cut | a zone without any | the cut | the same again | switch settled |\n|---|---|---|---|---|---|"
    )
    for count in asked.connections or [1_000, 10_000]:
        lab = Lab.up(NAME, chassis=1)
        try:
            prepare(lab)
            asyncio.run(measure(lab, count))
        finally:
            take_down(NAME)


if __name__ == "__main__":
    main()
