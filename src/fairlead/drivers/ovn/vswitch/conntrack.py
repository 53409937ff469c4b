"""Connection tracking of this node's switch: flushing connections in the conntrack zones of both ends, and the backends
of new connections.

Unanswered connection attempts are found by listing all connections (`dpctl/dump-conntrack`), and flushed one by one by
their full tuple, which needs no scan.

Tenants may have overlapping addresses, and each VM port has a zone of its own, so connections are flushed only within a
named zone (`dpctl/flush-conntrack`, ovs-vswitchd(8)).
"""

import asyncio
import logging
import re
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from fairlead.drivers.ovn.vswitch.control import UnixctlConnection
from fairlead.drivers.ovn.vswitch.counters import NEW_CONNECTION_MATCH, PROTOCOLS, parse_services, parse_zones
from fairlead.drivers.ovn.vswitch.database import OvsTools
from fairlead.model.documents.addresses import IPAddress, parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.conntrack_flush import TrackedConnection
from fairlead.model.queries.statistics import CountedService

MAX_TIME_SHARE = 0.25
"""Maximum share of time that flushing may occupy the switch, because each flush scans all tracked connections."""
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


class ConnectionAttempt(NamedTuple):
    """Connection attempt without an answer."""

    zone: int
    client: IPAddress
    client_port: int
    connection: TrackedConnection


class ServiceBackends(NamedTuple):
    """Backends of new connections to a service in one place."""

    service: CountedService
    backends: frozenset[str]
    """ADDRESS:PORT."""


class ConntrackTable:
    """Access to conntrack. All methods raise SwitchError."""

    def __init__(self, bridge: str, tools: OvsTools, run_dir: Path, most_connections: int) -> None:
        """Connections above `most_connections` are not listed, because the switch stalls during the listing."""
        self._bridge = bridge
        self._max_connections = most_connections
        self._run = tools.run
        self._run_dir = run_dir

    async def zones(self) -> Mapping[str, int]:
        """Return zone name -> number."""
        columns = "--columns=external_ids"
        text = await self._run("ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Bridge", self._bridge)
        return {name: number for number, name in parse_zones(text).items()}

    async def read_backends(self, addresses: Collection[IPAddress]) -> list[ServiceBackends]:
        """Return the present backends, from flows that ovn-controller has installed from its newest rows."""
        found, groups = list[tuple[CountedService, str]](), dict[str, frozenset[str]]()
        for address in addresses:
            where = (
                f"ip,{NEW_CONNECTION_MATCH},nw_dst={address}"
                if address.version == 4
                else f"ipv6,{NEW_CONNECTION_MATCH},ipv6_dst={address}"
            )
            found += parse_services(await self._dump("dump-flows", where))
        for number in {each for _, actions in found for each in _GROUP.findall(actions)}:
            groups[number] = frozenset(_BACKEND.findall(await self._dump("dump-groups", number)))
        return [ServiceBackends(service, frozenset(_backends(actions, groups))) for service, actions in found]

    async def flush(self, due: Iterable[tuple[int, TrackedConnection]]) -> None:
        """Flush each connection in its zone."""
        async with UnixctlConnection(self._run_dir) as control:
            for zone, cut in due:
                began = time.monotonic()
                await control.run("dpctl/flush-conntrack", f"zone={zone}", *render_tuples(cut))
                await asyncio.sleep((time.monotonic() - began) * (1 / MAX_TIME_SHARE - 1))

    async def list_unanswered(self) -> list[ConnectionAttempt]:
        """Return unanswered TCP attempts; none if too many connections are tracked: they expire by themselves."""
        tracked = (await self._run("ovs-appctl", "dpctl/ct-get-nconns")).strip()
        if not tracked.isdecimal() or int(tracked) > self._max_connections:
            LOG.warning(
                "not flushing unanswered connections: %s connections are tracked, agent.max_tracked_connections is %d",
                tracked,
                self._max_connections,
            )
            return []
        text = await self._run("ovs-appctl", "dpctl/dump-conntrack")
        return await asyncio.to_thread(parse_attempts, text)

    async def flush_attempts(self, attempts: Iterable[ConnectionAttempt]) -> None:
        """Flush attempts one by one."""
        async with UnixctlConnection(self._run_dir) as control:
            for each in attempts:
                began = time.monotonic()
                await control.run("dpctl/flush-conntrack", f"zone={each.zone}", render_attempt(each))
                await asyncio.sleep((time.monotonic() - began) * (1 / MAX_TIME_SHARE - 1))

    async def wait_for_revalidation(self) -> None:
        """Wait until the datapath has no flows of old OpenFlow flows: all revalidators have checked every flow."""
        async with UnixctlConnection(self._run_dir) as control:
            await control.run("revalidator/wait")

    async def _dump(self, what: str, which: str) -> str:
        return await self._run("ovs-ofctl", "-O", "OpenFlow15", what, self._bridge, which)


def _backends(actions: str, groups: Mapping[str, frozenset[str]]) -> Iterator[str]:
    yield from _BACKEND.findall(actions)
    for number in _GROUP.findall(actions):
        yield from groups[number]


def render_tuples(cut: TrackedConnection) -> tuple[str, str]:
    """Render the original and reply tuples to match (ovs-vswitchd(8), ct-orig-tuple and ct-reply-tuple)."""
    family, number = "nw" if cut.address.version == 4 else "ipv6", NUMBERS[cut.transport]
    return (
        f"ct_{family}_dst={cut.address},ct_nw_proto={number},ct_tp_dst={cut.port}",
        f"ct_{family}_src={cut.member},ct_nw_proto={number},ct_tp_src={cut.member_port}",
    )


def render_attempt(attempt: ConnectionAttempt) -> str:
    """Render the full original tuple."""
    family, cut = "nw" if attempt.client.version == 4 else "ipv6", attempt.connection
    ends = f"ct_{family}_src={attempt.client},ct_{family}_dst={cut.address}"
    return f"{ends},ct_nw_proto={NUMBERS[cut.transport]},ct_tp_src={attempt.client_port},ct_tp_dst={cut.port}"


def parse_attempts(text: str) -> list[ConnectionAttempt]:
    """Parse the output of `ovs-appctl dpctl/dump-conntrack`."""
    return [
        ConnectionAttempt(
            int(found["zone"]),
            parse_address(found["client"]),
            int(found["client_port"]),
            TrackedConnection(
                Transport.TCP,
                parse_address(found["address"]),
                int(found["port"]),
                parse_address(found["member"]),
                int(found["member_port"]),
            ),
        )
        for found in _ATTEMPT.finditer(text)
    ]
