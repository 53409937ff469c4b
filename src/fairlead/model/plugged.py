"""Which ports are plugged in, and where. It is observed, and never stored: whoever observes says it again.

A port is plugged in where a node has it and its packets flow: a machine's where the machine runs, a router's gateway
where the router leaves. Of what nobody has said anything yet, nobody knows that it is.
"""

from collections.abc import Mapping
from dataclasses import replace

from fairlead.model.network import Port, PortUse
from fairlead.model.snapshot import Snapshot

EVERYWHERE = PortUse.ROUTER_INTERFACE
"""No node has it, because each one does its work."""
_NOWHERE = frozenset({PortUse.FLOATING_IP, PortUse.PROBE, PortUse.VIP})
"""What only holds an address."""
Plugged = Mapping[str, str | None]
"""Port -> the name of the node that has it; None for none."""


def plug(snapshot: Snapshot, news: Plugged) -> Snapshot:
    """The snapshot that knows the news; it costs what is new. No owner's rows depend on it."""
    changed = {port: node for port, node in news.items() if snapshot.plugged.get(port) != node}
    if not changed:
        return snapshot
    with snapshot.plugged.mutate() as plugged:
        for port, node in changed.items():
            if node is None:
                del plugged[port]
            else:
                plugged[port] = node
    return replace(snapshot, plugged=plugged.finish())


def is_plugged(snapshot: Snapshot, port: Port) -> bool:
    return port.use is EVERYWHERE or port.id in snapshot.plugged


def waits_for_a_node(snapshot: Snapshot) -> bool:
    """Whether there is a port whose status depends on what is observed."""
    never = {EVERYWHERE, *_NOWHERE}
    return any(port.use not in never for port in snapshot.ports.values())
