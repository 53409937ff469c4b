"""What counts the bytes of answers: QoS rows that limit nothing, where the operator wants them (ADR 48).

A row is in the egress pipeline of the client's switch, behind the stage that translates answers back: so it matches the
address and the port that the client has asked. Its rate is the largest that a meter takes, and its priority the
least, so that a row of anybody else (Neutron's of a policy that limits a port) goes before it and is not undone. What
such a row takes is not counted.

They are on switches of the project, and for an address that an external network gave, on the switch of that network: it
is nobody else's there. There rows count what clients outside send, too: no flow of a router does it for each port. On a
shared network of another project there are none.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from fairlead.compilers.ovn.admission import port_match
from fairlead.dataplane.ovn_rules import Qos
from fairlead.model import loadbalancer as lb
from fairlead.model.addresses import IPAddress
from fairlead.model.domain import Topology
from fairlead.model.foreign import row_of
from fairlead.model.snapshot import Snapshot, floating_ips_of

PRIORITY = 1
"""The least that counts: OVN lets everything else pass with 0."""
UNLIMITED = (1 << 32) - 1
"""4.29 Tbit/s (ovn-nb(5), QoS:bandwidth)."""


def counting_switches(snapshot: Snapshot, balancer: lb.LoadBalancer) -> tuple[str, ...]:
    """The rows of the switches on which answers of this load balancer are counted."""
    if not snapshot.counts_answers:
        return ()
    networks = Topology(snapshot).domain_of(balancer).networks
    return tuple(sorted(row_of(snapshot.networks[each]) for each in networks))


def outside_switches(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Mapping[IPAddress, str]:
    """Of each address that clients outside connect to: the row of the external network's switch that it is from."""
    if not snapshot.counts_answers:
        return {}
    found = {
        floating.address: floating.network_id
        for vip in balancer.vips
        for floating in floating_ips_of(snapshot, vip)
        if floating.address_port_id in snapshot.ports
    }
    if balancer.router_id is not None:
        found |= {vip.address: vip.network_id for vip in balancer.vips}
    return {address: row_of(snapshot.networks[network]) for address, network in found.items()}


def counting_rows(switches: Iterable[str], listener: lb.Listener, address: IPAddress) -> Iterator[Qos]:
    """One for each switch, whichever ports the listener has."""
    for switch in switches:
        yield _row(f"{listener.id} {address} {switch}", switch, listener, address, "src")


def outside_rows(switch: str, listener: lb.Listener, address: IPAddress) -> Iterator[Qos]:
    """What clients outside get, and what they send."""
    yield from counting_rows([switch], listener, address)
    yield _row(f"{listener.id} {address} {switch} in", switch, listener, address, "dst")


def _row(name: str, switch: str, listener: lb.Listener, address: IPAddress, side: Literal["src", "dst"]) -> Qos:
    ports = port_match(lb.transport(listener.protocol).value, listener.ports, side)
    return Qos(
        name=name,
        switch=switch,
        priority=PRIORITY,
        match=f"ip{address.version}.{side} == {address} && {ports}",
        rate=UNLIMITED,
        direction="to-lport" if side == "src" else "from-lport",
    )
