"""Connections that this node's switch tracks: cut by both of their ends, in the zones of those who have them; and where
OVN leads new ones on this node.

Attempts that nobody has answered are found by a listing of all connections (`dpctl/dump-conntrack`), and flushed one
by one: a whole tuple is looked up, and no other connection is looked at.

Two tenants may have the same addresses, and each port of a machine has a zone of its own: a connection is never cut but
in a zone that is named (`dpctl/flush-conntrack`, ovs-vswitchd(8)).
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fairlead.drivers.ovn.control import Control
from fairlead.drivers.ovn.counters import OPENED, PROTOCOLS, parse_services, parse_zones
from fairlead.drivers.ovn.vswitch import Tools
from fairlead.model.addresses import IPAddress, parse_address
from fairlead.model.cutting import Cut
from fairlead.model.loadbalancer import Transport
from fairlead.model.statistics import CountedService

SHARE = 0.25
"""Of the time, for which the switch may be kept from other work: for each cut it looks at every connection that it
tracks."""
LOG = logging.getLogger(__name__)
NUMBERS = {transport: number for number, transport in PROTOCOLS.items()}
_GROUP = re.compile(r"\bgroup:(\d+)")
_BACKEND = re.compile(r"nat\(dst=([^)]+)\)")
_ATTEMPT = re.compile(
    r"^tcp,orig=\(src=(?P<client>[^,]+),dst=(?P<address>[^,]+),sport=(?P<client_port>\d+),dport=(?P<port>\d+)\),"
    r"reply=\(src=(?P<member>[^,]+),dst=[^,]+,sport=(?P<member_port>\d+),dport=\d+\)"
    r".*?,zone=(?P<zone>\d+).*state=SYN_SENT\b",
    re.MULTILINE,
)


class Attempt(NamedTuple):
    """To open a connection, which nobody has answered."""

    zone: int
    client: IPAddress
    client_port: int
    cut: Cut


class Leading(NamedTuple):
    """What new connections to a service find in one place."""

    service: CountedService
    backends: frozenset[str]
    """ADDRESS:PORT."""


class Tracked:
    """Each question raises SwitchError."""

    def __init__(self, bridge: str, tools: Tools, run_dir: Path, most_connections: int) -> None:
        """With more than `most_connections` tracked they are not listed: a switch stands still meanwhile."""
        self._bridge = bridge
        self._most = most_connections
        self._ask = tools.ask
        self._run_dir = run_dir

    async def zones(self) -> Mapping[str, int]:
        """Name -> number."""
        columns = "--columns=external_ids"
        text = await self._ask("ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Bridge", self._bridge)
        return {name: number for number, name in parse_zones(text).items()}

    async def leading(self, addresses: Collection[IPAddress]) -> list[Leading]:
        """By the flows that are there now: those that ovn-controller has made of the newest rows that it knows."""
        found, groups = list[tuple[CountedService, str]](), dict[str, frozenset[str]]()
        for address in addresses:
            where = f"ip,{OPENED},nw_dst={address}" if address.version == 4 else f"ipv6,{OPENED},ipv6_dst={address}"
            found += parse_services(await self._dump("dump-flows", where))
        for number in {each for _, actions in found for each in _GROUP.findall(actions)}:
            groups[number] = frozenset(_BACKEND.findall(await self._dump("dump-groups", number)))
        return [Leading(service, frozenset(_backends(actions, groups))) for service, actions in found]

    async def cut(self, due: Iterable[tuple[int, Cut]]) -> None:
        """Each in its zone."""
        async with Control(self._run_dir) as control:
            for zone, cut in due:
                began = time.monotonic()
                await control.ask("dpctl/flush-conntrack", f"zone={zone}", *render_tuples(cut))
                await asyncio.sleep((time.monotonic() - began) * (1 / SHARE - 1))

    async def unanswered(self) -> list[Attempt]:
        """Of TCP. None where too many connections are tracked: the tracker forgets them itself after some time."""
        tracked = (await self._ask("ovs-appctl", "dpctl/ct-get-nconns")).strip()
        if not tracked.isdecimal() or int(tracked) > self._most:
            LOG.warning(
                "unanswered connections are not flushed: %s are tracked; the limit is most_connections=%d",
                tracked,
                self._most,
            )
            return []
        text = await self._ask("ovs-appctl", "dpctl/dump-conntrack")
        return await asyncio.to_thread(parse_attempts, text)

    async def forget(self, attempts: Iterable[Attempt]) -> None:
        """One by one."""
        async with Control(self._run_dir) as control:
            for each in attempts:
                began = time.monotonic()
                await control.ask("dpctl/flush-conntrack", f"zone={each.zone}", render_attempt(each))
                await asyncio.sleep((time.monotonic() - began) * (1 / SHARE - 1))

    async def settled(self) -> None:
        """When nothing that the switch remembers of its old flows leads packets any more: all revalidators have looked
        at every flow of the datapath."""
        async with Control(self._run_dir) as control:
            await control.ask("revalidator/wait")

    async def _dump(self, what: str, which: str) -> str:
        return await self._ask("ovs-ofctl", "-O", "OpenFlow15", what, self._bridge, which)


def _backends(actions: str, groups: Mapping[str, frozenset[str]]) -> Iterator[str]:
    yield from _BACKEND.findall(actions)
    for number in _GROUP.findall(actions):
        yield from groups[number]


def render_tuples(cut: Cut) -> tuple[str, str]:
    """How the client's packets came, and how the member's go (ovs-vswitchd(8), ct-orig-tuple and ct-reply-tuple)."""
    family, number = "nw" if cut.address.version == 4 else "ipv6", NUMBERS[cut.transport]
    return (
        f"ct_{family}_dst={cut.address},ct_nw_proto={number},ct_tp_dst={cut.port}",
        f"ct_{family}_src={cut.member},ct_nw_proto={number},ct_tp_src={cut.member_port}",
    )


def render_attempt(attempt: Attempt) -> str:
    """The whole tuple of the client's packets."""
    family, cut = "nw" if attempt.client.version == 4 else "ipv6", attempt.cut
    ends = f"ct_{family}_src={attempt.client},ct_{family}_dst={cut.address}"
    return f"{ends},ct_nw_proto={NUMBERS[cut.transport]},ct_tp_src={attempt.client_port},ct_tp_dst={cut.port}"


def parse_attempts(text: str) -> list[Attempt]:
    """As `ovs-appctl dpctl/dump-conntrack` writes them."""
    return [
        Attempt(
            int(found["zone"]),
            parse_address(found["client"]),
            int(found["client_port"]),
            Cut(
                Transport.TCP,
                parse_address(found["address"]),
                int(found["port"]),
                parse_address(found["member"]),
                int(found["member_port"]),
            ),
        )
        for found in _ATTEMPT.finditer(text)
    ]
