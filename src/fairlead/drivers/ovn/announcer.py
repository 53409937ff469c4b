"""Frames that this node's Open vSwitch gives to machines, past OVN's flows; and which addresses OVN answers for here.

Nothing is written: a packet-out (OpenFlow 1.5, section 7.3.6) leaves no flow behind.
"""

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fairlead.drivers.ovn.vswitch import Tools
from fairlead.model.addresses import IPAddress, parse_address

Ports: TypeAlias = Mapping[str, int]
"""Logical port -> number of its port on the bridge (OpenFlow)."""
Answer: TypeAlias = tuple[IPAddress, str]
"""An address, and the MAC that is said to have it."""
OPENFLOW = ("-O", "OpenFlow15")
ARP_QUESTION, ND_QUESTION = "arp,arp_op=1", "icmp6,icmp_type=135,icmp_code=0"
"""What asks for a MAC: RFC 826; RFC 4861, section 4.3."""
FEW = 8
"""Addresses that are looked for one by one; with more of them all flows that answer anybody are read."""
_ANSWER = re.compile(r"(?:arp_tpa|nd_target)=(?P<address>[0-9a-f.:]+)(?:,\S*)? actions=(?P<actions>.*)")
_MACS = re.compile(r"set_field:([0-9a-f:]{17})->eth_src|00\.19\.00\.10\.80\.00\.08\.06\.([0-9a-f.]{17})")
"""Setting the sender's MAC: as a text; and in OpenFlow's octets, in what ovn-controller is given to answer with
(ovn-sb(5), action nd_na)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    octets: bytes
    ports: Sequence[int]
    """Of the bridge: those that get it."""


class Announcer:
    """Each question raises SwitchError."""

    def __init__(self, bridge: str, tools: Tools) -> None:
        self._bridge = bridge
        self._ask = tools.ask

    async def ports(self) -> Ports:
        """Those of machines; in one look at the database of the switch."""
        columns = "--columns=name,ofport,external_ids"
        look = ("ovs-vsctl", "--no-wait", "-f", "json", columns, "list", "Interface", "--", "list-ifaces", self._bridge)
        return parse_ports(await self._ask(*look))

    async def send(self, frames: Iterable[Frame]) -> None:
        """All or none of them."""
        lines = "".join(f"{_packet_out(frame)}\n" for frame in frames)
        await self._ask("ovs-ofctl", *OPENFLOW, "bundle", self._bridge, "-", said=lines)

    async def answers(self, addresses: Collection[IPAddress]) -> frozenset[Answer]:
        """What OVN answers on this node to those who ask for one of these. There may be others among them."""
        questions = sorted({_question(each, alone=len(addresses) <= FEW) for each in addresses})
        look = ("ovs-ofctl", *OPENFLOW, "dump-flows", self._bridge)
        texts = [await self._ask(*look, question) for question in questions]
        return frozenset(answer for text in texts for answer in parse_answers(text))


def _question(address: IPAddress, *, alone: bool) -> str:
    if address.version == 4:
        return f"{ARP_QUESTION},arp_tpa={address}" if alone else ARP_QUESTION
    return f"{ND_QUESTION},nd_target={address}" if alone else ND_QUESTION


def _packet_out(frame: Frame) -> str:
    """ovs-ofctl(8), "Packet-Out Syntax"."""
    outputs = ",".join(f"output:{port}" for port in frame.ports)
    return f"packet-out in_port=controller packet={frame.octets.hex()} actions={outputs}"


def parse_ports(text: str) -> Ports:
    """A line with all interfaces in JSON, and then the names of those that the bridge has."""
    table, _, names = text.partition("\n")
    here, found = frozenset(names.split()), dict[str, int]()
    for name, number, (_, pairs) in json.loads(table)["data"]:
        logical = dict(pairs).get("iface-id")
        if name in here and logical and isinstance(number, int) and number > 0:
            found[logical] = number
    return found


def parse_answers(text: str) -> Iterator[Answer]:
    """The flows that answer for an address, as `ovs-ofctl dump-flows` writes them (ovs-fields(7))."""
    for found in _ANSWER.finditer(text):
        for plain, encoded in _MACS.findall(found["actions"]):
            yield parse_address(found["address"]), plain or encoded.replace(".", ":")
