"""What the Open vSwitch of this node has counted for virtual addresses. Nothing is written.

Where each figure comes from (ovn-northd(8), ingress tables of a logical switch and router):

* `connections`: packets of the flows of the load balancing stage, which match connections that are new (+new) and name
  the address and port, or have the port in a register (OVN 25.09 and later); a SYN that is sent again while nobody
  answered counts again.
* `errors`: the same flows of a virtual service without a live member: they give the packet to the controller, which
  answers with a reset.
* `bytes_in`: bytes of the flows of the pre-stateful stage of a switch, which every packet to the service crosses. A
  router has none for each port.
* `bytes_out`: bytes of the flows of the stage of the egress pipeline that meters by QoS rows, where there are any for
  the service (`compilers/ovn/answers.py`). What goes by has been translated back by then. Without such rows nothing has
  a flow for the answers: on their way back they are an established connection like all others. On the switch of an
  external network, which balances nothing, such rows count what comes for a service, too: `bytes_in`.
* `active`: entries of the connection tracker whose first packet went to the service.

OVN makes the flows of the balancing stage anew when the members change, and all flows when ovn-controller starts:
`cookie` and `created` tell a new flow from an old one.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from fairlead.drivers.ovn.vswitch import Tools
from fairlead.model.addresses import parse_address
from fairlead.model.loadbalancer import Transport
from fairlead.model.readings import Count, Reading, Readings
from fairlead.model.statistics import CountedService, Datapath, Zone

OPENED = "ct_state=+new+trk"
CROSSING = "reg0=0x4/0x4"
"""The register bit by which OVN sends a packet to the connection tracker for load balancing."""
FAMILIES = ("ip", "ipv6")
METERED = "meter:"
"""The action of a flow that a QoS row with a rate has made (ovs-actions(7))."""
REGISTERED = "0xffffff"
"""The mask of a register that holds a protocol and a port."""
PROTOCOLS = {6: Transport.TCP, 17: Transport.UDP, 132: Transport.SCTP}
"""The numbers of IANA."""
LIVE = frozenset({"ESTABLISHED", "FIN_WAIT_1", "CLOSE_WAIT", "CLOSING", "LAST_ACK"})
"""States of a TCP connection that was opened and is not over, as the tool sums up both directions. Of other protocols
all entries live until the tracker forgets them."""
_FLOW = re.compile(
    r"cookie=(?P<cookie>0x[0-9a-f]+), duration=(?P<age>[0-9.]+)s, table=\d+, "
    r"n_packets=(?P<packets>\d+), n_bytes=(?P<bytes>\d+), .*?priority=\d+,(?P<match>\S+) actions=(?P<actions>.*)"
)
_CONNECTION = re.compile(
    r"(?P<transport>tcp|udp|sctp),orig=\(src=[^,]+,dst=(?P<address>[^,]+),sport=\d+,dport=(?P<port>\d+)\)"
    r"(?:.*?,zone=(?P<zone>\d+))?(?:.*?,mark=(?P<mark>\d+))?(?:.*state=(?P<state>\w+))?"
)
NATTED = 2
"""The bit of a connection's mark that says that it was load balanced (ct_mark.natted of OVN)."""
Parse: TypeAlias = Callable[[str, float], Iterator[tuple[CountedService, str, Count]]]
"""Of the flows that a switch writes, and the time when it was asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings:
    bridge: str
    most_connections: int
    """With more of them tracked they are not looked at: the switch would stand still while it lists them."""


class Switch:
    """Each question raises SwitchError."""

    def __init__(self, settings: SwitchSettings, tools: Tools, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._ask = tools.ask
        self._clock = clock

    async def read(self) -> Readings:
        counts: dict[CountedService, dict[str, Count]] = {}
        for family in FAMILIES:
            for match in (OPENED, CROSSING):
                await self._count(counts, f"{family},{match}", parse_flows)
        for family in FAMILIES:
            for number in PROTOCOLS:
                await self._count(counts, f"{family},nw_proto={number}", parse_metered)
        active = await self._active()
        return {
            service: Reading(counts=counts.get(service, {}), active=active.get(service, 0))
            for service in {*counts, *active}
        }

    async def _count(self, counts: dict[CountedService, dict[str, Count]], match: str, parse: Parse) -> None:
        """A busy switch, or a busy node, takes long: ages are from some moment of that time."""
        began = self._clock()
        text = await self._ask("ovs-ofctl", "-O", "OpenFlow15", "dump-flows", self._settings.bridge, match)
        slack = max(0.0, self._clock() - began)
        for service, name, count in parse(text, began):
            counts.setdefault(service, {})[name] = replace(count, slack=slack)

    async def _active(self) -> Counter[CountedService]:
        tracked = await self._ask("ovs-appctl", "dpctl/ct-get-nconns")
        if not tracked.strip().isdecimal() or int(tracked) > self._settings.most_connections:
            return Counter()
        columns = "--columns=external_ids"
        bridge = await self._ask(
            "ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Bridge", self._settings.bridge
        )
        connections = await self._ask("ovs-appctl", "dpctl/dump-conntrack")
        return parse_connections(connections.splitlines(), parse_zones(bridge))


def parse_flows(text: str, now: float) -> Iterator[tuple[CountedService, str, Count]]:
    """The flows that name a service, as `ovs-ofctl dump-flows` writes them (ovs-fields(7))."""
    for found in _FLOW.finditer(text):
        service = _parse_match(found["match"])
        if service is None:
            continue
        name, value = "bytes_in", found["bytes"]
        if "+new" in found["match"]:
            name, value = "errors" if "controller(" in found["actions"] else "connections", found["packets"]
        created = now - float(found["age"])
        yield service, name, Count(value=int(value), cookie=int(found["cookie"], 16), created=created)


def parse_services(text: str) -> Iterator[tuple[CountedService, str]]:
    """The flows that name a service, each with what it does."""
    for found in _FLOW.finditer(text):
        service = _parse_match(found["match"])
        if service is not None:
            yield service, found["actions"]


def parse_metered(text: str, now: float) -> Iterator[tuple[CountedService, str, Count]]:
    """The flows that meter what comes from a service, or for it. One flow may have several ports of a range, which are
    one listener's: the first of them stands for all."""
    for found in _FLOW.finditer(text):
        if METERED not in found["actions"]:
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
        yield service, name, Count(value=int(found["bytes"]), cookie=int(found["cookie"], 16), created=created)


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
    """What the connection tracker said of the packet's first one, in a register: reg1[0..15] is the port, reg1[16..23]
    the protocol (OVN 25.09 and later)."""
    value, _, mask = fields.get("reg1", "").partition("/")
    if mask != REGISTERED:
        return None
    protocol, port = divmod(int(value, 16), 1 << 16)
    return (PROTOCOLS[protocol], port) if protocol in PROTOCOLS else None


def parse_zones(text: str) -> Mapping[int, str]:
    """The names of the zones, from the bridge's row as ovs-vsctl writes it in JSON."""
    rows = json.loads(text)["data"]
    pairs = (pair for row in rows for pair in row[0][1])
    return {int(value): name.removeprefix("ct-zone-") for name, value in pairs if name.startswith("ct-zone-")}


def parse_connections(lines: Iterable[str], zones: Mapping[int, str]) -> Counter[CountedService]:
    """The open connections of each service, as `ovs-appctl dpctl/dump-conntrack` writes them."""
    found: Counter[CountedService] = Counter()
    for line in lines:
        entry = _CONNECTION.match(line)
        if entry is None or not int(entry["mark"] or 0) & NATTED or int(entry["zone"] or 0) not in zones:
            continue
        transport = Transport(entry["transport"])
        if transport is Transport.TCP and entry["state"] not in LIVE:
            continue
        place = Zone(zones[int(entry["zone"] or 0)])
        address = parse_address(entry["address"])
        found[CountedService(place=place, transport=transport, address=address, port=int(entry["port"]))] += 1
    return found
