"""Ports that are plugged in, by the fact `PLUGGED` (`model/registry/facts.py`).

A port is plugged in if a node has it and its packets flow: a machine's port on the machine's node, a router's gateway
on its gateway chassis. A port without a report is not plugged in.
"""

from fairlead.model.documents.network import Port, PortUse
from fairlead.model.documents.unmanaged import is_foreign
from fairlead.model.snapshot import Snapshot

EVERYWHERE = PortUse.ROUTER_INTERFACE
"""Use of ports that are distributed to all nodes, so no single node has them."""
_NOWHERE = frozenset({PortUse.FLOATING_IP, PortUse.LOCAL_IP, PortUse.PROBE, PortUse.VIP})
"""Uses of ports that only hold an address."""


def is_plugged(snapshot: Snapshot, port: Port) -> bool:
    return port.use is EVERYWHERE or port.id in snapshot.plugged


def waits_for_a_node(snapshot: Snapshot) -> bool:
    """Return whether the status of any managed port depends on observation."""
    never = {EVERYWHERE, *_NOWHERE}
    return any(port.use not in never and not is_foreign(port) for port in snapshot.ports.values())
