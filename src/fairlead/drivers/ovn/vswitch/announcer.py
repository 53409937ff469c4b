"""Packets injected into VM ports through Open vSwitch, bypassing OVN's flows; and the ARP/ND answers of OVN on this
node.

No flow is written: a packet-out (OpenFlow 1.5, section 7.3.6) has no lasting effect.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.drivers.ovn.vswitch.database import OvsTools
from fairlead.model.documents.addresses import IPAddress, parse_address

Ports: TypeAlias = Mapping[str, int]
"""Logical port -> OpenFlow port number on the bridge."""
Answer: TypeAlias = tuple[IPAddress, str]
"""An address and the MAC that OVN answers for it."""
OPENFLOW = ("-O", "OpenFlow15")
ARP_REQUEST_MATCH, ND_REQUEST_MATCH = "arp,arp_op=1", "icmp6,icmp_type=135,icmp_code=0"
"""Matches of requests for a MAC: RFC 826; RFC 4861, section 4.3."""
MAX_SINGLE_QUERIES = 8
"""Maximum addresses queried one by one; for more, all answering flows are read."""
_ANSWER = re.compile(r"(?:arp_tpa|nd_target)=(?P<address>[0-9a-f.:]+)(?:,\S*)? actions=(?P<actions>.*)")
_MACS = re.compile(r"set_field:([0-9a-f:]{17})->eth_src|00\.19\.00\.10\.80\.00\.08\.06\.([0-9a-f.]{17})")
"""Actions that set the sender's MAC: as text, and as OpenFlow octets in a userdata (ovn-sb(5), action nd_na)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    octets: bytes
    ports: Sequence[int]
    """Destination ports on the bridge."""


class Announcer:
    """Access to the bridge. All methods raise SwitchError."""

    def __init__(self, bridge: str, tools: OvsTools) -> None:
        self._bridge = bridge
        self._run = tools.run

    async def ports(self) -> Ports:
        """Return the ports of VMs, from one query of the switch's database."""
        columns = "--columns=name,ofport,external_ids"
        look = ("ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Interface", "--", "list-ifaces", self._bridge)
        return parse_ports(await self._run(*look))

    async def send(self, frames: Iterable[Frame]) -> None:
        """Send all frames, atomically."""
        lines = "".join(f"{_packet_out(frame)}\n" for frame in frames)
        await self._run("ovs-ofctl", *OPENFLOW, "bundle", self._bridge, "-", said=lines)

    async def read_answers(self, addresses: Collection[IPAddress]) -> frozenset[Answer]:
        """Return OVN's answers on this node for these addresses, and possibly for others."""
        questions = sorted({_answer_flow_match(each, alone=len(addresses) <= MAX_SINGLE_QUERIES) for each in addresses})
        look = ("ovs-ofctl", *OPENFLOW, "dump-flows", self._bridge)
        texts = [await self._run(*look, question) for question in questions]
        return frozenset(answer for text in texts for answer in parse_answers(text))


def _answer_flow_match(address: IPAddress, *, alone: bool) -> str:
    if address.version == 4:
        return f"{ARP_REQUEST_MATCH},arp_tpa={address}" if alone else ARP_REQUEST_MATCH
    return f"{ND_REQUEST_MATCH},nd_target={address}" if alone else ND_REQUEST_MATCH


def _packet_out(frame: Frame) -> str:
    """Render a packet-out (ovs-ofctl(8), "Packet-Out Syntax")."""
    outputs = ",".join(f"output:{port}" for port in frame.ports)
    return f"packet-out in_port=controller packet={frame.octets.hex()} actions={outputs}"


def parse_ports(text: str) -> Ports:
    """Parse one line of JSON with all interfaces, followed by the names of the bridge's."""
    table, _, names = text.partition("\n")
    here, found = frozenset(names.split()), dict[str, int]()
    for name, number, (_, pairs) in json.loads(table)["data"]:
        logical = dict(pairs).get("iface-id")
        if name in here and logical and isinstance(number, int) and number > 0:
            found[logical] = number
    return found


def parse_answers(text: str) -> Iterator[Answer]:
    """Parse flows that answer ARP or ND, as printed by `ovs-ofctl dump-flows` (ovs-fields(7))."""
    for found in _ANSWER.finditer(text):
        for plain, encoded in _MACS.findall(found["actions"]):
            yield parse_address(found["address"]), plain or encoded.replace(".", ":")
