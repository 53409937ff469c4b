"""Destination of a flow to an announced VIP, computed without a packet, as each host would."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from fairlead.compilers.native.compiler import proxied, slot_tables
from fairlead.dataplane.flow_slot import flow_slot, source_slot
from fairlead.dataplane.interface import Flow, FlowTarget
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Transport
from fairlead.model.documents.port_ranges import expand
from fairlead.model.documents.previous_slot_owners import VipService
from fairlead.model.queries.host_proxies import hashes_source_only, host_slots
from fairlead.model.queries.placement import find_member_host, find_routing_host
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps


def explain(snapshot: Snapshot, flow: Flow) -> Steps[FlowTarget | None]:
    """Return the destination; None if no load balancer has the address and port. One step per port."""
    for network_id in snapshot.announced:
        port_id = snapshot.addresses.get((network_id, flow.destination[0]), "")
        balancer = snapshot.load_balancers.get(snapshot.vip_owner.get(port_id, ""))
        if balancer is None:
            continue
        for listener in _proxied_at(balancer, flow):
            return _with_unresponsive(snapshot, balancer, flow, _proxy_target(snapshot, balancer, listener, flow))
        for service in slot_tables(snapshot, balancer):
            if (service.vip, service.port) == flow.destination and service.transport is flow.transport:
                return _with_unresponsive(snapshot, balancer, flow, _flow_target(snapshot, balancer, service, flow))
            yield
    return None


def _proxied_at(balancer: LoadBalancer, flow: Flow) -> Iterator[Listener]:
    if flow.transport is Transport.TCP:
        for listener in proxied(balancer):
            vips = (vip.address for vip in balancer.vips)
            if flow.destination in product(vips, expand(listener.ports)):
                yield listener


def _proxy_target(snapshot: Snapshot, balancer: LoadBalancer, listener: Listener, flow: Flow) -> FlowTarget:
    slot = source_slot(flow.client[0], flow.destination[0]) if hashes_source_only(balancer, listener) else _slot(flow)
    slots = host_slots(snapshot, balancer, listener)
    led = FlowTarget(
        balancer_id=balancer.id,
        listener_id=listener.id,
        slot=slot,
        member=None,
        is_admitted=_is_admitted(listener, flow),
    )
    if not slots.current:
        return led
    had = snapshot.hosts.get(slots.previous[slot])
    before = had.name if had is not None and had.draining else ""
    return replace(
        led,
        member=(flow.destination[0], listener.proxy_port),
        is_proxy=True,
        chassis=slots.current[slot],
        previous_owner=before,
    )


def _flow_target(snapshot: Snapshot, balancer: LoadBalancer, service: VipService, flow: Flow) -> FlowTarget:
    slot = source_slot(flow.client[0], service.vip) if service.hashes_source_only else _slot(flow)
    member = service.slots[slot] if service.slots else None
    here = _chassis_of(snapshot, balancer, member[0] if member else None)
    before = _chassis_of(snapshot, balancer, service.previous_owners.get(slot))
    return FlowTarget(
        balancer_id=balancer.id,
        listener_id=service.listener.id,
        slot=slot,
        member=member,
        chassis=here,
        previous_owner=before if before != here else "",
        is_admitted=_is_admitted(service.listener, flow),
    )


def _with_unresponsive(snapshot: Snapshot, balancer: LoadBalancer, flow: Flow, led: FlowTarget) -> FlowTarget:
    """Add the unresponsive chassis that the flow may pass.

    Routers may send it to any host that holds the VIP: hosts with members, and any with a proxy. A flow from a client
    behind a host enters at that host.
    """
    members = {member.address for pool in balancer.pools for member in pool.members}
    members.update(each.before for each in balancer.moved)
    names = {_chassis_of(snapshot, balancer, address) for address in members} | {led.chassis, led.previous_owner}
    names.update(snapshot.hosts if led.is_proxy else ())
    client = find_routing_host(snapshot, flow.client[0])
    names.update(() if client is None else (client[0].name,))
    return replace(led, unresponsive=tuple(sorted(name for name in names - {""} if not _is_responsive(snapshot, name))))


def _is_responsive(snapshot: Snapshot, host: str) -> bool:
    """Whether the host's agent is connected and receives changes."""
    agent = snapshot.agents.get(host)
    return agent is not None and agent.is_responsive and not agent.is_disconnected


def _is_admitted(listener: Listener, flow: Flow) -> bool:
    return not listener.allowed_cidrs or any(flow.client[0] in cidr for cidr in listener.allowed_cidrs)


def _slot(flow: Flow) -> int:
    return flow_slot(flow.client, flow.destination, flow.transport)


def _chassis_of(snapshot: Snapshot, balancer: LoadBalancer, address: IPAddress | None) -> str:
    host = find_member_host(snapshot, balancer, address) if address is not None else None
    return "" if host is None else host.name
