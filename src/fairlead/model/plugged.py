"""Which ports are plugged in: what the fact `PLUGGED` says of a port (`model/facts.py`).

A port is plugged in where a node has it and its packets flow: a machine's where the machine runs, a router's gateway
where the router leaves. A port of which nobody has said anything yet is not.
"""

from fairlead.model.foreign import is_foreign
from fairlead.model.network import Port, PortUse
from fairlead.model.snapshot import Snapshot

EVERYWHERE = PortUse.ROUTER_INTERFACE
"""No node has it, because each one does its work."""
_NOWHERE = frozenset({PortUse.FLOATING_IP, PortUse.LOCAL_IP, PortUse.PROBE, PortUse.VIP})
"""What only holds an address."""


def is_plugged(snapshot: Snapshot, port: Port) -> bool:
    return port.use is EVERYWHERE or port.id in snapshot.plugged


def waits_for_a_node(snapshot: Snapshot) -> bool:
    """Whether there is a port of ours whose status depends on what is observed."""
    never = {EVERYWHERE, *_NOWHERE}
    return any(port.use not in never and not is_foreign(port) for port in snapshot.ports.values())
