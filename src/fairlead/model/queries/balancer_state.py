"""Status of a load balancer from its applied state and the observations of its members and proxies."""

from immutables import Map

from fairlead.model.documents.balancer_status import BalancerStatus
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.loadbalancer import LoadBalancer, Member
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import AppliedState
from fairlead.model.queries.delegated_probing import is_responsive
from fairlead.model.queries.placement import find_member_host
from fairlead.model.queries.proxies import derive_proxy_status
from fairlead.model.snapshot import Snapshot, find_owned_vips, member_network, vip_gateway


def derive_balancer_status(snapshot: Snapshot, balancer: LoadBalancer, applied: AppliedState) -> BalancerStatus:
    """Return the status of this load balancer; `applied` is its applied state."""
    is_announced = balancer.vip.network_id in snapshot.announced
    return BalancerStatus(
        balancer=balancer,
        generation=snapshot.generations.get(Owner(Kind.LOAD_BALANCER, balancer.id), snapshot.revision),
        histories=snapshot.part_histories.get(balancer.id, Map()),
        applied=applied,
        down=frozenset(_member(key) for key in snapshot.down.get(balancer.id, ())),
        online=snapshot.online.get(balancer.id, frozenset()),
        agents_probe=snapshot.agents_probe,
        cannot_answer=lambda member: _cannot_answer(snapshot, balancer, member),
        is_unrouted=lambda member: is_announced and not _has_routing_agent(snapshot, balancer, member),
        is_fully_applied=lambda: (
            not is_announced
            or (_are_hosts_responsive(snapshot, balancer) and not _has_apply_failure(snapshot, balancer))
        ),
        proxy_status=lambda listener: derive_proxy_status(snapshot, balancer, listener),
    )


def _member(key: HealthKey) -> str:
    return key if isinstance(key, str) else key[0]


def _cannot_answer(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> bool:
    """Return whether no answer from the member is possible.

    The VIP has lost its gateway, or its port on an unmanaged network, or a newer VIP has the member's address, which a
    switch does not balance twice.
    """
    if balancer.router_id is not None and vip_gateway(snapshot, balancer) is None:
        return True
    if not find_owned_vips(snapshot, balancer):
        return True
    where = member_network(snapshot, balancer, member), member.address
    port = snapshot.ports.get(snapshot.addresses.get(where, ""))
    return port is not None and port.use is PortUse.VIP


def _has_routing_agent(snapshot: Snapshot, balancer: LoadBalancer, member: Member) -> bool:
    """Return whether the member is behind a host with a known agent. An unresponsive agent's rows remain in the kernel,
    which continues to serve."""
    host = find_member_host(snapshot, balancer, member.address)
    return host is not None and host.name in snapshot.agents


def _are_hosts_responsive(snapshot: Snapshot, balancer: LoadBalancer) -> bool:
    """Return whether the agents of all hosts with members are responsive."""
    members = (member for pool in balancer.pools for member in pool.members)
    hosts = (find_member_host(snapshot, balancer, each.address) for each in members)
    return all(host is None or is_responsive(snapshot, host.name) for host in hosts)


def _has_apply_failure(snapshot: Snapshot, balancer: LoadBalancer) -> bool:
    """Return whether any host reports that it failed to apply the load balancer. Clients there may not be served,
    wherever the members are."""
    owner = str(Owner(Kind.LOAD_BALANCER, balancer.id))
    telling = (agent for agent in snapshot.agents.values() if agent.apply_failures and agent.is_responsive)
    return any(each.owner == owner for agent in telling for each in agent.apply_failures)
