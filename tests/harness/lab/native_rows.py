"""Writes rows of load balancers on a plain host of the lab, as an agent would, from a slot table."""

import asyncio
import sys
from collections.abc import Iterator, Mapping
from ipaddress import ip_address

import msgspec

from fairlead.dataplane.native import Here, NativeRow, Service, There, Vip, Way
from fairlead.dataplane.rows import Key, diff
from fairlead.drivers.native.driver import Native
from fairlead.lab.native import NativeLab, Site
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner

VIPS = ("203.0.113.20", "2001:db8:f::20")
PORT, BEHIND, NUMBER = 80, 8080, 21
"""Ports of VIPs and of members, and the last octet of each host's member."""
OWNER = Owner(Kind.LOAD_BALANCER, "11111111-1111-4111-8111-111111111111")
BOTH = Transport.TCP, Transport.UDP


class Told(msgspec.Struct, frozen=True):
    host: str
    hosts: list[Site]
    slots: list[int]
    """Host number of the member of each of the 256 slots."""
    held: bool


def tell(lab: NativeLab, host: str, slots: list[int], held: bool = True) -> None:
    """Replace all rows of a host by these."""
    told = Told(host, list(lab.record.chassis), slots, held)
    lab.exec(host, (sys.executable, __file__), stdin=msgspec.json.encode(told).decode())


def _rows(told: Told) -> Mapping[Owner, Mapping[Key, NativeRow]]:
    me = next(host for host in told.hosts if host.name == told.host)
    ways = {
        Owner(Kind.HOST, other.name): [Way(host=other.number, address=ip_address(other.own[0]))]
        for other in told.hosts
        if other != me
    }
    owned = {**ways, OWNER: list(_services(told, me))} if told.slots else {}
    return {owner: {row.key: row for row in rows} for owner, rows in owned.items()}


def _services(told: Told, me: Site) -> Iterator[NativeRow]:
    order = list(dict.fromkeys(told.slots))
    for vip, member in zip(map(ip_address, VIPS), map(ip_address, me.addresses(NUMBER)), strict=True):
        yield Vip(address=vip, held=told.held)
        for transport in BOTH:
            yield Service(
                vip=vip,
                transport=transport,
                port=PORT,
                by_source=False,
                slots=bytes(order.index(number) for number in told.slots),
                targets=tuple(
                    Here(address=member, port=BEHIND) if number == me.number else There(host=number) for number in order
                ),
            )


async def write(told: Told) -> None:
    driver = Native()
    await driver.open()
    applied, wanted = await driver.read_all(), _rows(told)
    for owner in sorted({*applied, *wanted}, key=lambda each: each.kind is Kind.LOAD_BALANCER):
        await driver.apply(owner, diff(wanted.get(owner, {}), applied.get(owner, {})))
    await driver.open_tunnels()
    if not wanted:
        await driver.remove()
    await driver.close()


if __name__ == "__main__":
    asyncio.run(write(msgspec.json.decode(sys.stdin.read(), type=Told)))
