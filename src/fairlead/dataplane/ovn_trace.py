"""Input and output of ovn-trace(8) as values: microflows, and verdicts parsed from its text. No I/O.

ovn-trace follows one packet through the logical flows. It picks any one backend of a load balancer, because Open
vSwitch makes the real choice by a hash of the packet. So a Verdict has all backends, each with its number of slots.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Interface, IPv6Interface
from typing import TypeAlias, assert_never

from fairlead.model.documents.addresses import IPAddress

SOURCE_PORT = 32768
CT_NEW = 4  # enough for a packet that crosses two switches and a router
OPTIONS = ("--ct=new",) * CT_NEW
Interface: TypeAlias = IPv4Interface | IPv6Interface


class Untraceable(Exception):
    """No packet can be built for the request; the message names the reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tcp:
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Udp:
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sctp:
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IcmpEcho:
    """ICMP echo request."""


Packet: TypeAlias = Tcp | Udp | Sctp | IcmpEcho


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    port_id: str
    mac: str
    address: IPAddress


@dataclass(frozen=True, slots=True, kw_only=True)
class NeighbourPort:
    """Port on the sender's switch; `of_router` distinguishes router ports from VM ports."""

    mac: str
    addresses: tuple[Interface, ...]
    of_router: bool


def compose_microflow(sender: Sender, destination: IPAddress, packet: Packet, next_hop_mac: str) -> str:
    version = destination.version
    terms = (
        f'inport == "{sender.port_id}"',
        f"eth.src == {sender.mac}",
        f"eth.dst == {next_hop_mac}",
        f"ip{version}.src == {sender.address}",
        f"ip{version}.dst == {destination}",
        "ip.ttl == 64",
        *_packet_terms(packet, version),
    )
    return " && ".join(terms)


def _packet_terms(packet: Packet, version: int) -> tuple[str, ...]:
    match packet:
        case Tcp(port=port):
            return (f"tcp.src == {SOURCE_PORT}", f"tcp.dst == {port}")
        case Udp(port=port):
            return (f"udp.src == {SOURCE_PORT}", f"udp.dst == {port}")
        case Sctp(port=port):
            return (f"sctp.src == {SOURCE_PORT}", f"sctp.dst == {port}")
        case IcmpEcho():
            return (f"icmp{version}.type == {8 if version == 4 else 128}", f"icmp{version}.code == 0")
        case _:
            assert_never(packet)


def choose_mac(neighbours: Sequence[NeighbourPort], next_hop: IPAddress) -> str:
    """Return the MAC that answers for the next hop. Raises Untraceable.

    That is its owner, or a router that answers in its place (a Local IP). An address without an owner is a VIP, which a
    router of the switch answers for.
    """
    for neighbour in sorted(neighbours, key=lambda each: not each.of_router):
        if any(next_hop == interface.ip for interface in neighbour.addresses):
            return neighbour.mac
    for neighbour in neighbours:
        if neighbour.of_router and any(next_hop in interface.network for interface in neighbour.addresses):
            return neighbour.mac
    raise Untraceable(f"next hop {next_hop} is the address of no port and of no router on the switch")


def _is_number(interface: Interface) -> bool:
    """Whether the address is the subnet's network address, which a router has only to mark the subnet as its own."""
    return interface.ip == interface.network.network_address and interface.network.num_addresses > 2


def choose_next_hop(neighbours: Sequence[NeighbourPort], source: IPAddress, destination: IPAddress) -> IPAddress:
    """Choose the next hop as the VM's kernel would, with the subnets of the routers on its switch. Raises Untraceable.

    OVN does not know a VM's gateway; of several routers the one with the lowest address is assumed.
    """
    owned = {interface.ip for each in neighbours for interface in each.addresses}
    links = [interface for each in neighbours if each.of_router for interface in each.addresses]
    links = [interface for interface in links if source in interface.network and not _is_number(interface)]
    if destination in owned or any(destination in link.network for link in links):
        return destination
    if not links:
        raise Untraceable(
            f"no route to {destination}: it is not on the switch, and no router there has an address in the subnet of"
            f" {source}"
        )
    return min(link.ip for link in links)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Logical flow that the packet matched."""

    pipeline: str
    table: int
    stage: str
    priority: int
    uuid: str
    """First eight digits."""
    actions: str


class TraceOutcome(StrEnum):
    ANSWERED = "answered"
    """A router answered the sender."""
    BALANCED = "balanced"
    DELIVERED = "delivered"
    DROPPED = "dropped"
    UNRESOLVED = "nobody"
    """A router sends ARP or ND for the address, and OVN has no answer."""
    NO_LISTENER = "no listener"
    NO_MEMBER = "no member"
    REFUSED = "refused"
    """Dropped or rejected by an ACL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceVerdict:
    outcome: TraceOutcome
    step: Step | None = None
    """The deciding step."""
    slots: Mapping[str, int] = field(default_factory=dict)
    """Backend -> its number of slots."""
    port: str = ""
    """Final output port."""


VIP_PORT_PRIORITY = 120
"""Priority of flows of virtual services with a port; flows for other packets to the address have less (ovn-northd(8),
"DNAT" of routers and "LB" of switches)."""
_WAY = re.compile(r"^(ingress|egress)\(dp=")
_FLOW = re.compile(r"^\s*(\d+)\. (\w+)(?: \([^)]*\))?: .*, priority (\d+), uuid ([0-9a-f]{8})$")
_OUTPUT = re.compile(r'/\* output to "([^"]*)", type "([^"]*)" \*/')
_BACKENDS = re.compile(r"ct_lb(?:_mark)?\(backends=([^;)]*)")


def parse_steps(text: str) -> Iterator[Step]:
    """Parse the flows in ovn-trace's output, in order."""
    pipeline, found, actions = "", None, list[str]()
    for line in [*text.splitlines(), "ingress(dp="]:
        way, flow = _WAY.match(line), _FLOW.match(line)
        if found is not None and (way or flow):
            table, stage, priority, uuid = found
            yield Step(
                pipeline=pipeline,
                table=int(table),
                stage=stage,
                priority=int(priority),
                uuid=uuid,
                actions=" ".join(actions),
            )
            found, actions = None, []
        if way:
            pipeline = way[1]
        elif flow:
            found = flow.groups()
        else:
            actions.append(line.strip())


def judge(text: str, sender: str) -> TraceVerdict:
    """Judge the packet of this port. The first step that rejects it decides."""
    steps = list(parse_steps(text))
    balanced: TraceVerdict | None = None
    for place, step in enumerate(steps):
        backends = _BACKENDS.search(step.actions)
        if backends is not None:
            slots = Counter(each.strip() for each in backends[1].split(","))
            balanced = balanced or TraceVerdict(outcome=TraceOutcome.BALANCED, step=step, slots=dict(slots))
            continue
        outcome = _refusal(step)
        if outcome is not None:
            return TraceVerdict(outcome=outcome, step=_blame(steps[: place + 1]))
    ends = [port for port, kind in _OUTPUT.findall(text) if kind != "patch"]
    port = ends[-1] if ends else ""
    if balanced is not None:
        return TraceVerdict(outcome=TraceOutcome.BALANCED, step=balanced.step, slots=balanced.slots, port=port)
    if not ends:
        return TraceVerdict(outcome=TraceOutcome.DROPPED, step=steps[-1] if steps else None)
    return TraceVerdict(outcome=TraceOutcome.ANSWERED if port == sender else TraceOutcome.DELIVERED, port=port)


def _refusal(step: Step) -> TraceOutcome | None:
    drops = re.search(r"\bdrop\b", step.actions) is not None
    if "_acl" in step.stage and (drops or "reject" in step.actions):
        return TraceOutcome.REFUSED
    if "reject" in step.actions:
        return TraceOutcome.NO_MEMBER if step.priority >= VIP_PORT_PRIORITY else TraceOutcome.NO_LISTENER
    if re.search(r"\b(tcp_reset|sctp_abort|icmp[46]) \{", step.actions):
        return TraceOutcome.NO_LISTENER
    if re.search(r"\b(arp|nd_ns) \{", step.actions) and step.stage.endswith("_arp_request"):
        return TraceOutcome.UNRESOLVED
    return TraceOutcome.DROPPED if drops else None


def _blame(steps: Sequence[Step]) -> Step:
    """Return the ACL evaluation before an ACL action: since OVN 23.06 these are separate stages."""
    if steps[-1].stage.endswith("_acl_action"):
        evaluated = [step for step in steps if step.stage.endswith(("_acl_eval", "_acl_after_lb_eval"))]
        return evaluated[-1] if evaluated else steps[-1]
    return steps[-1]
