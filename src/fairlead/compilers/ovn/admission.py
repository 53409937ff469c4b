"""Who may connect to a listener (`allowed_cidrs`), as ACLs: one that allows these, and below it one that drops all.

Never as one that drops who is *not* one of several: of a set that is negated ovn-controller makes flows bit by bit, and
multiplies them set member by set member. Four IPv4 prefixes of 24 bits are 20,000 flows on every chassis, and each more
is six times as many, until no memory is left (seen with OVN 23.03).

On switches of others their security groups are ACLs too, below ours: what ours allows theirs would not refuse any more.
So there nothing is allowed, and what is dropped is said prefix by prefix: some 24 for one that is kept.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from fairlead.compilers.ovn.groups import Groups
from fairlead.compilers.ovn.router import PROVIDER
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.ovn_rules import Acl
from fairlead.model import loadbalancer as lb
from fairlead.model.addresses import IPAddress, IPNetwork, all_but
from fairlead.model.port_ranges import Ports

DROP_PRIORITY = 32_000
"""Near the largest that ovn-nb(5) allows: what a tenant forbids for a listener no rule of anybody else permits."""
ALLOW_PRIORITY = DROP_PRIORITY + 1


MOST_DROPPED = 4096
"""Prefixes in one rule that only drops: each is a flow on every chassis."""


def admission(
    groups: Groups, suffix: str, listener: lb.Listener, address: IPAddress, *, allows: bool = True
) -> Iterator[Acl]:
    """Refuses whom the listener does not allow, before OVN looks at load balancers, without an answer.

    Only new connections: the packets of an established one have its member's address by then. Who comes from outside is
    refused where they enter a router: on an external switch, where another tenant may have the same address behind
    theirs. `allows`: whether a rule may allow, and so go before rules of others. Raises Unsupported.
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
    """The match of those that are not allowed, as prefixes that are."""
    dropped = list(islice(all_but(allowed, version), MOST_DROPPED + 1))
    if len(dropped) > MOST_DROPPED:
        asked = f"allowed_cidrs on networks of others that leave more than {MOST_DROPPED} prefixes to be refused"
        raise Unsupported(asked, PROVIDER)
    return _sources(f"ip{version}", dropped)


def _sources(family: str, cidrs: list[IPNetwork]) -> str:
    return f"{family}.src == {{{', '.join(sorted(map(str, cidrs)))}}}"


def port_match(transport: str, ports: Ports, end: str = "dst") -> str:
    """ovn-sb(5), Logical_Flow:match. `end` says whose ports they are."""
    field = f"{transport}.{end}"
    matches = [
        f"{field} == {each.first}"
        if each.first == each.last
        else f"({field} >= {each.first} && {field} <= {each.last})"
        for each in ports
    ]
    return matches[0] if len(matches) == 1 else f"({' || '.join(matches)})"
