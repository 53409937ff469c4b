"""`fairlead trace`: the fate of a packet in OVN, with a summary that names the deciding object.

It uses OVN's databases and ovn-trace, so it works on any OVN, also without load balancers of Fairlead and without a
running server. The server is queried only for names.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fairlead.dataplane.ovn_trace import IcmpEcho, Packet, Sctp, Tcp, TraceOutcome, Udp
from fairlead.drivers.ovn.trace.tracer import TraceResult
from fairlead.http.server_client import ApiClient, ServerError
from fairlead.model.documents.addresses import IPAddress, parse_address

PROTOCOLS: Mapping[str, Any] = {"tcp": Tcp, "udp": Udp, "sctp": Sctp}
ARRIVING_OUTCOMES = frozenset({TraceOutcome.ANSWERED, TraceOutcome.BALANCED, TraceOutcome.DELIVERED})
LBAAS = "/load-balancer/v2.0/lbaas"
MAX_NAMED_HOSTS = 3
"""Maximum hosts named in one sentence."""


def parse_target(text: str, protocol: str) -> tuple[IPAddress, Packet]:
    """Parse 10.0.0.10:80 or [fd00::10]:80; an address alone for icmp. Raises ValueError with the valid form."""
    if protocol == "icmp":
        return parse_address(text.strip("[]")), IcmpEcho()
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not port.isdecimal() or not 1 <= int(port) <= 65535 or (":" in bare and bare == host):
        raise ValueError(f"expected ADDRESS:PORT or [IPv6]:PORT, got '{text}'")
    packet: Packet = PROTOCOLS[protocol](port=int(port))
    return parse_address(bare), packet


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectNames:
    """Names of the deciding object, if it belongs to Fairlead and the server is available."""

    local_ip_id: str = ""
    balancer_id: str = ""
    balancer: str = ""
    listener_id: str = ""
    listener: str = ""
    members: Mapping[str, str] = field(default_factory=dict)
    """Backend -> name."""


def find_names(answer: TraceResult, port: int, protocol: str, server: ApiClient | None) -> ObjectNames:
    """Find names. The row's mark has the ids of the load balancer and of an ACL's listener; the server has names."""
    kind, _, balancer = answer.row.get("fairlead:owner", "").partition("/")
    if kind == "local-ip":
        return ObjectNames(local_ip_id=balancer)
    if kind != "loadbalancer":
        return ObjectNames()
    _, comma, key = answer.row.get("fairlead:key", "").partition(",")
    listener = key.partition(" ")[0] if comma and answer.row["table"] == "ACL" else ""
    known = ObjectNames(balancer_id=balancer, listener_id=listener)
    if server is None:
        return known
    try:
        return _ask_names(known, server, port, protocol)
    except ServerError:
        return known


def _ask_names(known: ObjectNames, server: ApiClient, port: int, protocol: str) -> ObjectNames:
    balancer = server.request("GET", f"{LBAAS}/loadbalancers/{known.balancer_id}")["loadbalancer"]
    listeners = server.request("GET", f"{LBAAS}/listeners?loadbalancer_id={known.balancer_id}")["listeners"]
    fitting = (each for each in listeners if each["protocol_port"] == port and _transport(each) == protocol)
    listener: Mapping[str, Any] = next(fitting, {"id": known.listener_id, "name": "", "default_pool_id": None})
    pool = listener["default_pool_id"]
    members = server.request("GET", f"{LBAAS}/pools/{pool}/members")["members"] if pool else []
    return ObjectNames(
        balancer_id=known.balancer_id,
        balancer=balancer["name"],
        listener_id=listener["id"],
        listener=listener["name"],
        members={_endpoint(each): each["name"] or each["id"] for each in members},
    )


def _transport(listener: Mapping[str, Any]) -> str:
    return str(listener["protocol"]).lower() if listener["protocol"] in ("UDP", "SCTP") else "tcp"


def _endpoint(member: Mapping[str, Any]) -> str:
    address = parse_address(member["address"])
    return f"{f'[{address}]' if address.version == 6 else address}:{member['protocol_port']}"


def summarize(answer: TraceResult, names: ObjectNames) -> str:
    verdict, row = answer.verdict, answer.row
    whose = f"{row.get('table', 'load balancer')} {row.get('name') or row.get('uuid', '(name unknown)')}"
    if names.balancer_id:
        whose = f"load balancer {_called(names.balancer, names.balancer_id)}"
        whose += f", listener {_called(names.listener, names.listener_id)}" if names.listener_id else ""
    if names.local_ip_id:
        whose = f"Local IP {names.local_ip_id}"
    stage = verdict.step.stage if verdict.step else "the first stage"
    match verdict.outcome:
        case TraceOutcome.BALANCED:
            return f"{whose}: {_members(answer, names)}{_end(verdict.port)}"
        case TraceOutcome.NO_MEMBER:
            return f"{whose}: rejected, because no member accepts connections"
        case TraceOutcome.REFUSED:
            who = f"allowed_cidrs of {whose}" if names.balancer_id else whose
            who = f"the fallback of {whose}" if names.local_ip_id else who
            return f"dropped by {who} (in {stage})"
        case TraceOutcome.NO_LISTENER:
            return "connection refused: the address belongs to a router, and the port has no listener"
        case TraceOutcome.UNRESOLVED:
            return "no route to host: no port in OVN answers the router's ARP or neighbour request"
        case TraceOutcome.ANSWERED:
            return "answered by a router"
        case TraceOutcome.DELIVERED:
            return f"no load balancer; delivered to port {verdict.port}"
        case TraceOutcome.DROPPED:
            return f"dropped in {stage}"


def _called(name: str, identity: str) -> str:
    return f"{name} ({identity})" if name else identity


def _members(answer: TraceResult, names: ObjectNames) -> str:
    slots = answer.verdict.slots
    total = sum(slots.values())
    shares = (
        f"{backend}{f' {names.members[backend]}' if backend in names.members else ''} ({number} of {total} slots)"
        for backend, number in sorted(slots.items(), key=lambda item: -item[1])
    )
    which = "to" if len(slots) == 1 else f"to one of {len(slots)} members, by a hash of the packet:"
    return f"{which} {', '.join(shares)}"


def _end(port: str) -> str:
    return (
        f"; this trace followed one to port {port}" if port else "; this trace followed one, and the packet was dropped"
    )


def encode(answer: TraceResult, names: ObjectNames) -> dict[str, object]:
    """Encode as JSON."""
    verdict = answer.verdict
    return {
        "outcome": verdict.outcome.value,
        "summary": summarize(answer, names),
        "load_balancer": {"id": names.balancer_id, "name": names.balancer} if names.balancer_id else None,
        "listener": {"id": names.listener_id, "name": names.listener} if names.listener_id else None,
        "members": [
            {"endpoint": backend, "name": names.members.get(backend, ""), "slots": number}
            for backend, number in sorted(verdict.slots.items())
        ],
        "slots": sum(verdict.slots.values()),
        "port": verdict.port or None,
        "stage": verdict.step.stage if verdict.step else None,
        "row": dict(answer.row) or None,
        "microflow": answer.microflow,
        "trace": answer.trace,
    }


def describe_flow_target(led: Any) -> str:
    """Describe the destination of a flow to an announced VIP, from the server's answer (`api/operator/flows.py`)."""
    return f"{_describe_slot(led)}{_describe_unresponsive(led.get('unheard', ()))}"


def _describe_slot(led: Any) -> str:
    where = f"slot {led['slot']} of load balancer {led['load_balancer']['name'] or led['load_balancer']['id']}"
    if not led["admitted"]:
        return f"{where}: dropped, because allowed_cidrs of the listener does not include the client"
    if led["endpoint"] is None:
        return f"{where}: rejected, because no member accepts connections"
    name = f" ({led['member']['name']})" if led["member"] and led["member"]["name"] else ""
    before = f"; existing connections continue on host {led['before']}" if led["before"] else ""
    if led["proxy"]:
        return f"{where}: the proxy on host {led['chassis']}, which selects the member{before}"
    return f"{where}: member {led['endpoint']}{name} on host {led['chassis']}{before}"


def _describe_unresponsive(hosts: Sequence[str]) -> str:
    if not hosts:
        return ""
    left_out = len(hosts) - MAX_NAMED_HOSTS
    named = f"{', '.join(hosts[:MAX_NAMED_HOSTS])}{f' and {left_out} more' if left_out > 0 else ''}"
    who = f"agent of host {named} is" if len(hosts) == 1 else f"agents of hosts {named} are"
    return f"; may be outdated: the {who} unresponsive, so the kernel there may have an older configuration"
