"""Traffic counters of this node's Open vSwitch per VIP and port. Read-only.

Sources (ovn-northd(8), ingress tables of a logical switch and router):

* `connections`: packets of load balancing flows, which match new connections (+new) and the address and port, or have
  the port in a register (OVN 25.09 and later). A retransmitted SYN counts again while no answer has been seen.

* `errors`: same for a virtual service without a live member; these flows send the packet to the controller, which
  answers with a reset.

* `bytes_in`: bytes of flows in the pre-stateful stage of a switch, which every packet to the service passes. A router
  has no such flow per port.

* `bytes_out`: bytes of flows in the egress stage that meters by QoS rows, if the service has any
  (`compilers/ovn/reply_counters.py`), after replies are translated back. Without such rows no flow matches only
  replies, because they belong to an established connection. On an external network's switch, which balances nothing,
  such rows also count the requests: `bytes_in`.

* `active`: connection tracking entries with a first packet to the service.

OVN replaces load balancing flows when members change, and all flows when ovn-controller starts; `cookie` and `created`
distinguish a new flow from the previous one.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.drivers.ovn.vswitch.database import OvsTools
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.queries.counter_samples import CounterSample, CounterSamples, CounterValue
from fairlead.model.queries.statistics import ConntrackZone, CountedService, Datapath

NEW_CONNECTION_MATCH = "ct_state=+new+trk"
LB_CONNTRACK_MATCH = "reg0=0x4/0x4"
"""Register bit that makes OVN send a packet to connection tracking for load balancing."""
FAMILIES = ("ip", "ipv6")
METER_ACTION = "meter:"
"""Action of a flow for a QoS row with a rate (ovs-actions(7))."""
REGISTER_MASK = "0xffffff"
"""Mask of a register that holds a protocol and a port."""
PROTOCOLS = {6: Transport.TCP, 17: Transport.UDP, 132: Transport.SCTP}
"""Protocol numbers (IANA)."""
OPEN_TCP_STATES = frozenset({"ESTABLISHED", "FIN_WAIT_1", "CLOSE_WAIT", "CLOSING", "LAST_ACK"})
"""TCP states of established connections, for both directions together. Entries of other protocols count until
expiry."""
_FLOW = re.compile(
    r"cookie=(?P<cookie>0x[0-9a-f]+), duration=(?P<age>[0-9.]+)s, table=\d+, "
    r"n_packets=(?P<packets>\d+), n_bytes=(?P<bytes>\d+), .*?priority=\d+,(?P<match>\S+) actions=(?P<actions>.*)"
)
_CONNECTION = re.compile(
    r"(?P<transport>tcp|udp|sctp),orig=\(src=[^,]+,dst=(?P<address>[^,]+),sport=\d+,dport=(?P<port>\d+)\)"
    r"(?:.*?,zone=(?P<zone>\d+))?(?:.*?,mark=(?P<mark>\d+))?(?:.*state=(?P<state>\w+))?"
)
NATTED_MARK = 2
"""Bit of a connection's mark for load balanced connections (ct_mark.natted of OVN)."""
Parse: TypeAlias = Callable[[str, float], Iterator[tuple[CountedService, str, CounterValue]]]
"""Parses the output of dump-flows, with the time of the command."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings:
    bridge: str
    max_connections: int
    """Connections above which they are not listed, because the switch would stall during the listing."""


class SwitchCounters:
    """Reads the counters. All methods raise SwitchError."""

    def __init__(self, settings: SwitchSettings, tools: OvsTools, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._run = tools.run
        self._clock = clock

    async def read(self) -> CounterSamples:
        counts: dict[CountedService, dict[str, CounterValue]] = {}
        for family in FAMILIES:
            for match in (NEW_CONNECTION_MATCH, LB_CONNTRACK_MATCH):
                await self._count(counts, f"{family},{match}", parse_flows)
        for family in FAMILIES:
            for number in PROTOCOLS:
                await self._count(counts, f"{family},nw_proto={number}", parse_metered)
        active = await self._active()
        return {
            service: CounterSample(counts=counts.get(service, {}), active=active.get(service, 0))
            for service in {*counts, *active}
        }

    async def _count(self, counts: dict[CountedService, dict[str, CounterValue]], match: str, parse: Parse) -> None:
        """Count flows. The command is slow on a busy node, so the flows' ages refer to some moment of its duration."""
        began = self._clock()
        text = await self._run("ovs-ofctl", "-O", "OpenFlow15", "dump-flows", self._settings.bridge, match)
        slack = max(0.0, self._clock() - began)
        for service, name, count in parse(text, began):
            counts.setdefault(service, {})[name] = replace(count, slack=slack)

    async def _active(self) -> Counter[CountedService]:
        tracked = await self._run("ovs-appctl", "dpctl/ct-get-nconns")
        if not tracked.strip().isdecimal() or int(tracked) > self._settings.max_connections:
            return Counter()
        columns = "--columns=external_ids"
        bridge = await self._run(
            "ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Bridge", self._settings.bridge
        )
        connections = await self._run("ovs-appctl", "dpctl/dump-conntrack")
        return parse_connections(connections.splitlines(), parse_zones(bridge))


def parse_flows(text: str, now: float) -> Iterator[tuple[CountedService, str, CounterValue]]:
    """Parse the flows of services, as printed by `ovs-ofctl dump-flows` (ovs-fields(7))."""
    for found in _FLOW.finditer(text):
        service = _parse_match(found["match"])
        if service is None:
            continue
        name, value = "bytes_in", found["bytes"]
        if "+new" in found["match"]:
            name, value = "errors" if "controller(" in found["actions"] else "connections", found["packets"]
        created = now - float(found["age"])
        yield service, name, CounterValue(value=int(value), cookie=int(found["cookie"], 16), created=created)


def parse_services(text: str) -> Iterator[tuple[CountedService, str]]:
    """Parse the flows of services with their actions."""
    for found in _FLOW.finditer(text):
        service = _parse_match(found["match"])
        if service is not None:
            yield service, found["actions"]


def parse_metered(text: str, now: float) -> Iterator[tuple[CountedService, str, CounterValue]]:
    """Parse flows that meter packets from or to a service. One flow may cover several ports of a range, which belong to
    one listener; the first port represents them."""
    for found in _FLOW.finditer(text):
        if METER_ACTION not in found["actions"]:
            continue
        words = found["match"].split(",")
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        transport = next((word.removesuffix("6") for word in words if word.removesuffix("6") in list(Transport)), None)
        side, name = ("src", "bytes_out") if {"nw_src", "ipv6_src"} & fields.keys() else ("dst", "bytes_in")
        address = fields.get(f"nw_{side}") or fields.get(f"ipv6_{side}")
        if transport is None or address is None or not {f"tp_{side}", "metadata"} <= fields.keys():
            continue
        port = int(fields[f"tp_{side}"].partition("/")[0], 0)
        place = Datapath(int(fields["metadata"], 16))
        service = CountedService(place=place, transport=Transport(transport), address=parse_address(address), port=port)
        created = now - float(found["age"])
        yield service, name, CounterValue(value=int(found["bytes"]), cookie=int(found["cookie"], 16), created=created)


def _parse_match(match: str) -> CountedService | None:
    words = match.split(",")
    fields = dict(word.split("=", 1) for word in words if "=" in word)
    service = _named_service(words, fields) or _registered_service(fields)
    address = fields.get("nw_dst") or fields.get("ipv6_dst")
    if service is None or address is None or "metadata" not in fields:
        return None
    transport, port = service
    place = Datapath(int(fields["metadata"], 16))
    return CountedService(place=place, transport=transport, address=parse_address(address), port=port)


def _named_service(words: list[str], fields: Mapping[str, str]) -> tuple[Transport, int] | None:
    transport = next((word.removesuffix("6") for word in words if word.removesuffix("6") in list(Transport)), None)
    return None if transport is None or "tp_dst" not in fields else (Transport(transport), int(fields["tp_dst"]))


def _registered_service(fields: Mapping[str, str]) -> tuple[Transport, int] | None:
    """Read protocol and port of a connection's original packet from a register: reg1[0..15] is the port, reg1[16..23]
    the protocol (OVN 25.09 and later)."""
    value, _, mask = fields.get("reg1", "").partition("/")
    if mask != REGISTER_MASK:
        return None
    protocol, port = divmod(int(value, 16), 1 << 16)
    return (PROTOCOLS[protocol], port) if protocol in PROTOCOLS else None


def parse_zones(text: str) -> Mapping[int, str]:
    """Parse the names of conntrack zones from the bridge's row in ovs-vsctl's JSON."""
    rows = json.loads(text)["data"]
    pairs = (pair for row in rows for pair in row[0][1])
    return {int(value): name.removeprefix("ct-zone-") for name, value in pairs if name.startswith("ct-zone-")}


def parse_connections(lines: Iterable[str], zones: Mapping[int, str]) -> Counter[CountedService]:
    """Count the open connections of each service, from the output of `ovs-appctl dpctl/dump-conntrack`."""
    found: Counter[CountedService] = Counter()
    for line in lines:
        entry = _CONNECTION.match(line)
        if entry is None or not int(entry["mark"] or 0) & NATTED_MARK or int(entry["zone"] or 0) not in zones:
            continue
        transport = Transport(entry["transport"])
        if transport is Transport.TCP and entry["state"] not in OPEN_TCP_STATES:
            continue
        place = ConntrackZone(zones[int(entry["zone"] or 0)])
        address = parse_address(entry["address"])
        found[CountedService(place=place, transport=transport, address=address, port=int(entry["port"]))] += 1
    return found
