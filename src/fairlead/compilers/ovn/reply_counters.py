"""QoS rows without an effective limit that count the bytes of replies, if the operator enables them (ADR 48).

A row is in the egress pipeline of the client's switch, after replies are translated back, so it matches the VIP and its
port. Its rate is the maximum of a meter and its priority the minimum, so that QoS rows of other users (Neutron's
bandwidth limits) take precedence. Traffic that matches those is not counted.

The rows are on the project's switches and, for addresses of an external network, on that network's switch, because the
address is unique there. There they also count requests of clients outside, because no router flow does so per port. A
shared network of another project has none.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from fairlead.compilers.ovn.admission import port_match
from fairlead.dataplane.ovn_rules import Qos
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.unmanaged import row_name
from fairlead.model.queries.domain import Topology
from fairlead.model.snapshot import Snapshot, floating_ips_of

PRIORITY = 1
"""Minimum priority that counts: OVN uses 0 for all other packets."""
UNLIMITED = (1 << 32) - 1
"""4.29 Tbit/s (ovn-nb(5), QoS:bandwidth)."""


def counting_switches(snapshot: Snapshot, balancer: lb.LoadBalancer) -> tuple[str, ...]:
    """Return the switches that count replies of this load balancer."""
    if not snapshot.counts_answers:
        return ()
    networks = Topology(snapshot).domain_of(balancer).networks
    return tuple(sorted(row_name(snapshot.networks[each]) for each in networks))


def outside_switches(snapshot: Snapshot, balancer: lb.LoadBalancer) -> Mapping[IPAddress, str]:
    """Return address -> switch of its external network, for each address that clients outside connect to."""
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
    return {address: row_name(snapshot.networks[network]) for address, network in found.items()}


def counting_rows(switches: Iterable[str], listener: lb.Listener, address: IPAddress) -> Iterator[Qos]:
    """Yield one row per switch, whatever number of ports the listener has."""
    for switch in switches:
        yield _row(f"{listener.id} {address} {switch}", switch, listener, address, "src")


def outside_rows(switch: str, listener: lb.Listener, address: IPAddress) -> Iterator[Qos]:
    """Yield the rows that count replies to, and requests of, clients outside."""
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
