"""Administrators' restrictions on the networks that a project uses. They apply in every API and to every caller."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.network import Network, Port, PortUse, Router
from fairlead.model.documents.trust import NO_RESTRICTIONS, Restrictions
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import ANY_PROJECT, Snapshot, uses_gateway_addresses


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkNotAllowed(Refusal):
    """The project may not connect its routers to this external network."""

    uplink: str
    """Name of the external network."""
    project_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyUplinkAddresses(Refusal):
    """Routers and VIPs of the project would use more addresses of an external network than its limit allows."""

    uplink: str
    """Name of the external network."""
    version: int
    most: int
    project_id: str


def restrictions_of(snapshot: Snapshot, project_id: str) -> Restrictions:
    project = snapshot.projects.get(project_id)
    return NO_RESTRICTIONS if project is None else project.restrictions


def allows_uplink(snapshot: Snapshot, project_id: str, uplink: Network) -> bool:
    allowed = restrictions_of(snapshot, project_id).uplinks
    return allowed is None or uplink.name in allowed


def allows_network(snapshot: Snapshot, project_id: str, name: str) -> bool:
    """Return whether callers in the project may use a network with this name."""
    allowed = restrictions_of(snapshot, project_id).networks
    return allowed is None or name in allowed


def within_restrictions(snapshot: Snapshot, changes: Changes) -> Changes:
    """Return the changes if they stay within the restrictions of their projects. Raises Refused.

    Usage above a restriction may stay or shrink, but not grow. As with quotas, the store rejects the change if another
    one was committed after this check.
    """
    concerned = {each for each in _projects(snapshot, changes) if restrictions_of(snapshot, each) != NO_RESTRICTIONS}
    if not concerned:
        return changes
    after = apply_changes(snapshot, changes, snapshot.revision + 1)
    for put in changes.puts:
        if isinstance(put, Router) and put.gateway is not None:
            _check_uplink(snapshot, after, put)
    for project_id in sorted(concerned):
        _check_addresses(snapshot, after, project_id)
    return replace(changes, requires_unchanged_model=True)


def _projects(snapshot: Snapshot, changes: Changes) -> Iterator[str]:
    """Yield the projects that may use more external networks after these changes."""
    for put in changes.puts:
        match put:
            case Router(project_id=project_id) | LoadBalancer(project_id=project_id):
                yield project_id
            case Port(device_id=router_id) if put.use is PortUse.ROUTER_GATEWAY and router_id in snapshot.routers:
                yield snapshot.routers[router_id].project_id
            case _:
                pass


def _check_uplink(snapshot: Snapshot, after: Snapshot, router: Router) -> None:
    """Check that the project may use the router's external network. Raises Refused."""
    old = snapshot.routers.get(router.id)
    before = None if old is None or old.gateway is None else old.gateway.network_id
    uplink = None if router.gateway is None else after.networks.get(router.gateway.network_id)
    if uplink is None or uplink.id == before or allows_uplink(after, router.project_id, uplink):
        return
    raise Refused(UplinkNotAllowed(uplink=uplink.name, project_id=router.project_id))


def _check_addresses(snapshot: Snapshot, after: Snapshot, project_id: str) -> None:
    """Check the project's addresses on external networks against its limits. Raises Refused."""
    for limit in restrictions_of(snapshot, project_id).uplink_addresses:
        for uplink_id in sorted(after.network_names.get((ANY_PROJECT, limit.uplink), NO_IDS)):
            had, has = (_addresses(each, project_id, uplink_id)[limit.version] for each in (snapshot, after))
            if has > max(had, limit.most):
                why = TooManyUplinkAddresses(
                    uplink=limit.uplink, version=limit.version, most=limit.most, project_id=project_id
                )
                raise Refused(why)


def _addresses(snapshot: Snapshot, project_id: str, uplink_id: str) -> Counter[int]:
    """Return IP version -> number of the external network's addresses that the project's routers and VIPs have."""
    found = Counter[int]()
    for router_id in snapshot.project_gateways.get((project_id, uplink_id), NO_IDS):
        gateway = snapshot.routers[router_id].gateway
        port = None if gateway is None else snapshot.ports.get(gateway.port_id)
        found.update(fixed.address.version for fixed in (port.fixed_ips if port else ()))
        for balancer_id in snapshot.router_vips.get(router_id, NO_IDS):
            balancer = snapshot.load_balancers[balancer_id]
            if balancer.project_id == project_id and not uses_gateway_addresses(snapshot, balancer):
                found.update(vip.address.version for vip in balancer.vips if vip.network_id == uplink_id)
    return found
