"""Connections that this node's switch tracks: cut by both of their ends, in the zones of those who have them; and where
OVN leads new ones on this node.

Two tenants may have the same addresses, and each port of a machine has a zone of its own: a connection is never cut but
in a zone that is named (`dpctl/flush-conntrack`, ovs-vswitchd(8)).
"""

import asyncio
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fairlead.drivers.ovn.control import Control
from fairlead.drivers.ovn.counters import OPENED, PROTOCOLS, parse_services, parse_zones
from fairlead.drivers.ovn.vswitch import Tools
from fairlead.model.addresses import IPAddress
from fairlead.model.cutting import Cut
from fairlead.model.statistics import CountedService

SHARE = 0.25
"""Of the time, for which the switch may be kept from other work: for each cut it looks at every connection that it
tracks."""
NUMBERS = {transport: number for number, transport in PROTOCOLS.items()}
_GROUP = re.compile(r"\bgroup:(\d+)")
_BACKEND = re.compile(r"nat\(dst=([^)]+)\)")


class Leading(NamedTuple):
    """What new connections to a service find in one place."""

    service: CountedService
    backends: frozenset[str]
    """ADDRESS:PORT."""


class Tracked:
    """Each question raises SwitchError."""

    def __init__(self, bridge: str, tools: Tools, run_dir: Path) -> None:
        self._bridge = bridge
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
