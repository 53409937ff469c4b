"""Writes rows of load balancers on a plain host of the lab, as an agent would, from a slot table."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

import msgspec

from fairlead.dataplane.native import HostTunnel, LocalMember, NativeRow, OtherHost, Service, Vip
from fairlead.dataplane.rows import Key, diff
from fairlead.drivers.native.driver import Native
from fairlead.lab.native import NativeLab, Site
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner

VIPS = ("203.0.113.20", "2001:db8:f::20")
PORT, MEMBER_PORT, NUMBER = 80, 8080, 21
"""Ports of VIPs and of members, and the last octet of each host's member."""
OWNER = Owner(Kind.LOAD_BALANCER, "11111111-1111-4111-8111-111111111111")
BOTH = Transport.TCP, Transport.UDP


class HostRows(msgspec.Struct, frozen=True):
    host: str
    hosts: list[Site]
    slots: list[int]
    """Host number of the member of each of the 256 slots."""
    is_announced: bool


def write_host_rows(lab: NativeLab, host: str, slots: list[int], held: bool = True) -> None:
    """Replace all rows of a host by these."""
    told = HostRows(host, list(lab.record.chassis), slots, held)
    lab.exec(host, (sys.executable, __file__), stdin=msgspec.json.encode(told).decode())


def _compose_rows(told: HostRows) -> Mapping[Owner, Mapping[Key, NativeRow]]:
    me = next(host for host in told.hosts if host.name == told.host)
    ways = {
        Owner(Kind.HOST, other.name): [HostTunnel(host=other.number, address=ip_address(other.loopback_addresses[0]))]
        for other in told.hosts
        if other != me
    }
    owned = {**ways, OWNER: list(_services(told, me))} if told.slots else {}
    return {owner: {row.key: row for row in rows} for owner, rows in owned.items()}


def _services(told: HostRows, me: Site) -> Iterator[NativeRow]:
    order = list(dict.fromkeys(told.slots))
    for vip, member in zip(map(ip_address, VIPS), map(ip_address, me.addresses(NUMBER)), strict=True):
        yield Vip(address=vip, is_local=told.is_announced)
        for transport in BOTH:
            yield Service(
                vip=vip,
                transport=transport,
                port=PORT,
                by_source=False,
                slots=bytes(order.index(number) for number in told.slots),
                targets=tuple(
                    LocalMember(address=member, port=MEMBER_PORT) if number == me.number else OtherHost(host=number)
                    for number in order
                ),
            )


async def write(told: HostRows) -> None:
    driver = Native()
    await driver.open()
    applied, wanted = await driver.read_all(), _compose_rows(told)
    for owner in sorted({*applied, *wanted}, key=lambda each: each.kind is Kind.LOAD_BALANCER):
        await driver.apply(owner, diff(wanted.get(owner, {}), applied.get(owner, {})))
    await driver.open_tunnels()
    if not wanted:
        await driver.remove()
    await driver.close()


if __name__ == "__main__":
    asyncio.run(write(msgspec.json.decode(sys.stdin.read(), type=HostRows)))
