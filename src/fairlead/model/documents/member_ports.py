"""Ports of a pool's members: those that its listeners lead to, and those that its health monitor probes."""

from collections.abc import Sequence

from fairlead.model.documents.loadbalancer import Listener, Member, Pool
from fairlead.model.documents.port_ranges import Ports, TargetPort, expand, expand_targets


def target_ports(listeners: Sequence[Listener], member: Member) -> tuple[int, ...]:
    """Return the member's ports without duplicates, in the order of the pool's listeners (`listeners_by_pool`)."""
    return (
        (member.port,)
        if isinstance(member.port, int)
        else _member_ports(_expand_listener_ports(listeners), member.port)
    )


def _expand_listener_ports(listeners: Sequence[Listener]) -> Sequence[Sequence[int]]:
    """Return the ports of each listener."""
    return [tuple(expand(listener.ports)) for listener in listeners]


def _member_ports(listened: Sequence[Sequence[int]], port: Ports | None) -> tuple[int, ...]:
    return tuple(dict.fromkeys([number for each in listened for number in expand_targets(port, each)]))


def probed_ports(listeners: Sequence[Listener], member: Member) -> tuple[int, ...]:
    """Return the ports where a health monitor probes the member, given the listeners of its pool."""
    return target_ports(listeners, member) if member.monitor_port is None else (member.monitor_port,)


def count_probed_ports(pool: Pool, listeners: Sequence[Listener]) -> Sequence[int]:
    """Return the number of probed ports of each member of the pool, given its listeners.

    Most of a thousand members have the same port, so each port is counted once.
    """
    ports = {member.port for member in pool.members if not isinstance(member.port, int)}
    listened = _expand_listener_ports(listeners) if ports else ()
    counted: dict[TargetPort, int] = {port: len(_member_ports(listened, port)) for port in ports}
    return [counted.get(member.port, 1) if member.monitor_port is None else 1 for member in pool.members]
