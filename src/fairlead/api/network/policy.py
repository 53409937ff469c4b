"""Who may do what: Neutron's default rules (neutron, conf/policies), as far as its roles exist here.

What a caller may not see does not exist for him (404); what he sees and may not change is forbidden (403).
"""

from collections.abc import Iterable

from fairlead.api.network.errors import forbidden
from fairlead.changes.identity import Identity
from fairlead.model.network import Network, Port, Router, Subnet
from fairlead.model.snapshot import Snapshot

WRITERS = frozenset({"admin", "member"})
"""Roles that may change something: of others no body is read."""


def sees_network(caller: Identity, network: Network) -> bool:
    return network.external or uses_network(caller, network)


def uses_network(caller: Identity, network: Network) -> bool:
    """May have ports there, and see its subnets. An external network is for gateways and floating IPs only."""
    return network.shared or caller.may_see(network.project_id)


def sees_subnet(caller: Identity, network: Network, subnet: Subnet) -> bool:
    return uses_network(caller, network) or caller.may_see(subnet.project_id)


def sees_port(snapshot: Snapshot, caller: Identity, port: Port) -> bool:
    """The owner of a network sees who is on it."""
    return caller.may_see(port.project_id) or caller.may_see(snapshot.networks[port.network_id].project_id)


def sees_router(caller: Identity, router: Router) -> bool:
    return caller.may_see(router.project_id)


def check(allowed: bool, rule: str) -> None:
    """Raises ApiError 403."""
    if not allowed:
        raise forbidden(f"rule:{rule}")


def check_attributes(allowed: bool, rule: str, names: Iterable[str]) -> None:
    """The same for attributes that take more than the right to do the action."""
    asked = sorted(names)
    if asked and not allowed:
        raise forbidden(f"(rule:{rule} and ({' and '.join(f'rule:{rule}:{name}' for name in asked)}))")
