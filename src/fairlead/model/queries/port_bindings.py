"""Ports that are plugged in, by the fact `PLUGGED` (`model/registry/facts.py`).

A port is plugged in if a node has it and its packets flow: a machine's port on the machine's node, a router's gateway
on its gateway chassis. A port without a report is not plugged in.
"""

from fairlead.model.documents.network import Port, PortUse
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.snapshot import Snapshot

DISTRIBUTED_USE = PortUse.ROUTER_INTERFACE
"""Use of ports that are distributed to all nodes, so no single node has them."""
_ADDRESS_ONLY_USES = frozenset({PortUse.FLOATING_IP, PortUse.LOCAL_IP, PortUse.PROBE, PortUse.VIP})
"""Uses of ports that only hold an address."""


def is_plugged(snapshot: Snapshot, port: Port) -> bool:
    return port.use is DISTRIBUTED_USE or port.id in snapshot.plugged


def has_pluggable_ports(snapshot: Snapshot) -> bool:
    """Return whether the status of any managed port depends on observation."""
    never = {DISTRIBUTED_USE, *_ADDRESS_ONLY_USES}
    return any(port.use not in never and not is_unmanaged(port) for port in snapshot.ports.values())
