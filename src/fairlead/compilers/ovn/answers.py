"""What counts the bytes of answers: QoS rows that limit nothing, where the operator wants them (ADR 48).

A row is in the egress pipeline of the client's switch, behind the stage that translates answers back: so it matches the
address and the port that the client has asked. Its rate is the largest that a meter takes, and its priority the
least, so that a row of anybody else (Neutron's of a policy that limits a port) goes before it and is not undone. What
such a row takes is not counted.

They are on switches of the project alone, so on no external network and on no shared network of another project.
"""

from collections.abc import Iterable, Iterator

from fairlead.compilers.ovn.admission import port_match
from fairlead.dataplane.ovn_rules import Qos
from fairlead.model import loadbalancer as lb
from fairlead.model.addresses import IPAddress
from fairlead.model.domain import Topology
from fairlead.model.foreign import row_of
from fairlead.model.snapshot import Snapshot

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


def counting_rows(switches: Iterable[str], listener: lb.Listener, address: IPAddress) -> Iterator[Qos]:
    """One for each switch, whichever ports the listener has."""
    ports = port_match(lb.transport(listener.protocol).value, listener.ports, "src")
    for switch in switches:
        yield Qos(
            name=f"{listener.id} {address} {switch}",
            switch=switch,
            priority=PRIORITY,
            match=f"ip{address.version}.src == {address} && {ports}",
            rate=UNLIMITED,
        )
