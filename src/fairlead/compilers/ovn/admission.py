"""Access control of listeners (`allowed_cidrs`) as ACLs: one allows the CIDRs, one with lower priority drops the rest.

A single ACL with a negated address set would not scale: ovn-controller expands the negation bit by bit and multiplies
it by the members of the set. Four IPv4 /24 prefixes give 20,000 flows on every chassis, and each further prefix six
times as many, until memory runs out (seen with OVN 23.03).

On unmanaged switches security groups are ACLs too, with lower priority. An `allow` ACL of ours would bypass them. So
there is no `allow` ACL, and the drop ACL lists the complement of the allowed prefixes: about 24 for each allowed one.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from fairlead.compilers.ovn.groups import Groups
from fairlead.compilers.ovn.router import PROVIDER
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_rules import Acl
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress, IPNetwork, complement
from fairlead.model.documents.port_ranges import Ports

DROP_PRIORITY = 32_000
"""Near the maximum of ovn-nb(5), so that rules of other users cannot override a listener's `allowed_cidrs`."""
ALLOW_PRIORITY = DROP_PRIORITY + 1


MAX_DROPPED_PREFIXES = 4096
"""Maximum prefixes in one complement: each is a flow on every chassis."""


def admission(
    groups: Groups, suffix: str, listener: lb.Listener, address: IPAddress, *, allows: bool = True
) -> Iterator[Acl]:
    """Yield ACLs that drop disallowed clients before OVN's load balancers, without an answer.

    Only new connections match, because packets of established ones already have the member's address. Clients outside
    are dropped where they enter a router, and not on the external switch, where another tenant may have the same
    address behind its gateway. `allows` is whether `allow` ACLs may precede those of other users. Raises Unsupported.
    """
    family = f"ip{address.version}"
    allowed = [cidr for cidr in listener.allowed_cidrs if cidr.version == address.version]
    if not listener.allowed_cidrs or any(cidr.prefixlen == 0 for cidr in allowed):
        return
    transport = lb.transport(listener.protocol).value
    words = [f"{family}.dst == {address}", *([port_match(transport, listener.ports)] if listener.ports else [])]
    name = f"{listener.id} {address} {suffix}".rstrip()
    if not allows and allowed:
        words.append(_others(tuple(allowed), address.version))
        allowed = []
    yield from _pair(name, groups.inside, "from-lport", words, family, allowed)
    if groups.outside is not None:
        words.insert(0, f"outport == @{groups.outside}")
        yield from _pair(f"{name} outside", groups.outside, "to-lport", words, family, allowed)


def _pair(
    name: str, group: str, direction: str, words: list[str], family: str, allowed: list[IPNetwork]
) -> Iterator[Acl]:
    match = " && ".join(words)
    drop = Acl(name=name, group=group, match=match, priority=DROP_PRIORITY, direction=direction)
    yield drop
    if allowed:
        match = f"{match} && {_sources(family, allowed)}"
        yield replace(drop, name=f"{name} allowed", match=match, priority=ALLOW_PRIORITY, action="allow")


@lru_cache(maxsize=256)
def _others(allowed: tuple[IPNetwork, ...], version: int) -> str:
    """Match for clients that are not allowed: the complement of the allowed prefixes."""
    dropped = list(islice(complement(allowed, version), MAX_DROPPED_PREFIXES + 1))
    if len(dropped) > MAX_DROPPED_PREFIXES:
        asked = f"allowed_cidrs on unmanaged networks with more than {MAX_DROPPED_PREFIXES} prefixes to reject"
        raise Unsupported(asked, PROVIDER)
    return _sources(f"ip{version}", dropped)


def _sources(family: str, cidrs: list[IPNetwork]) -> str:
    return f"{family}.src == {{{', '.join(sorted(map(str, cidrs)))}}}"


def port_match(transport: str, ports: Ports, end: str = "dst") -> str:
    """Port match (ovn-sb(5), Logical_Flow:match). `end` is "dst" or "src"."""
    field = f"{transport}.{end}"
    matches = [
        f"{field} == {each.first}"
        if each.first == each.last
        else f"({field} >= {each.first} && {field} <= {each.last})"
        for each in ports
    ]
    return matches[0] if len(matches) == 1 else f"({' || '.join(matches)})"
