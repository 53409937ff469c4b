"""Access control of networking: visibility, use and change of resources. Resources that the caller may not see are
reported as not found.

Front ends check access to the resource that they show or change; rules check access to other resources that a change
refers to.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import network as networks
from fairlead.model.documents.network import Network, Port, Resource, Subnet
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.snapshot import Snapshot


class Verb(StrEnum):
    CREATE = "create"
    UPDATE = "update"
    DELETE = "delete"
    ADD = "add"
    REMOVE = "remove"
    """Removal of a router interface, or of a replica of a Local IP."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotFound(Refusal):
    what: type[Resource]
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAllowed(Refusal):
    """The caller may not perform this operation, or may not set these fields."""

    verb: Verb
    what: type[Resource]
    fields: frozenset[str] = frozenset()


def check(allowed: bool, verb: Verb, what: type[Resource]) -> None:
    if not allowed:
        raise Refused(NotAllowed(verb=verb, what=what))


def check_own(asker: Identity, verb: Verb, resource: Resource) -> None:
    """Check that the caller may change a resource that only its own project may change. Raises Refused."""
    check(asker.may_change(resource.project_id), verb, type(resource))


def check_owner(asker: Identity, project_id: str, what: type[Resource]) -> None:
    """Check the project of a new resource: the caller's own, or any for an administrator. Raises Refused."""
    own = {"project_id"} if project_id != asker.project_id else set[str]()
    check_fields(asker.is_admin, Verb.CREATE, what, own)
    check(asker.may_change(project_id), Verb.CREATE, what)


def check_fields(allowed: bool, verb: Verb, what: type[Resource], fields: Iterable[str]) -> None:
    """Check the permission for fields that need more than the permission for the operation. Raises Refused."""
    said = frozenset(fields)
    if said and not allowed:
        raise Refused(NotAllowed(verb=verb, what=what, fields=said))


def can_see_network(asker: Identity, network: Network) -> bool:
    """Return whether the caller may see the network. Unmanaged networks are shown by their own API only."""
    return not is_unmanaged(network) and (network.external or can_use_network(asker, network))


def can_use_network(asker: Identity, network: Network) -> bool:
    """Return whether the caller may have ports on the network and see its subnets. An external network is for gateways
    and floating IPs only."""
    return network.shared or asker.may_see(network.project_id)


def can_see_subnet(asker: Identity, network: Network, subnet: Subnet) -> bool:
    return not is_unmanaged(network) and (can_use_network(asker, network) or asker.may_see(subnet.project_id))


def can_see_port(snapshot: Snapshot, asker: Identity, port: Port) -> bool:
    """Return whether the caller may see the port; the owner of a network sees all its ports."""
    if is_unmanaged(port):
        return False
    return asker.may_see(port.project_id) or asker.may_see(snapshot.networks[port.network_id].project_id)


def may_change_port(snapshot: Snapshot, asker: Identity, port: Port) -> bool:
    """Return whether the caller may change the port; the owner of a network may change all its ports."""
    if is_unmanaged(port):
        return False
    return asker.may_change(port.project_id) or asker.may_change(snapshot.networks[port.network_id].project_id)


def may_change_subnet(snapshot: Snapshot, asker: Identity, subnet: Subnet) -> bool:
    network = network_of(snapshot, subnet)
    if is_unmanaged(network):
        return False
    if network.announced:
        return asker.is_admin
    return asker.may_change(network.project_id) or asker.may_change(subnet.project_id)


def find_network(snapshot: Snapshot, asker: Identity, network_id: str) -> Network:
    """Return a network that the caller may see. Raises Refused."""
    network = snapshot.networks.get(network_id)
    if network is None or not can_see_network(asker, network):
        raise Refused(NotFound(what=Network, id=network_id))
    return network


def find_subnet(snapshot: Snapshot, asker: Identity, subnet_id: str) -> Subnet:
    """Return a subnet that the caller may see. Raises Refused."""
    found = subnet_of(snapshot, subnet_id)
    if found is None or not can_see_subnet(asker, network_of(snapshot, found), found):
        raise Refused(NotFound(what=Subnet, id=subnet_id))
    return found


def find_port(snapshot: Snapshot, asker: Identity, port_id: str) -> Port:
    """Return a port that the caller may see. Raises Refused."""
    port = snapshot.ports.get(port_id)
    if port is None or not can_see_port(snapshot, asker, port):
        raise Refused(NotFound(what=Port, id=port_id))
    return port


def network_of(snapshot: Snapshot, subnet: Subnet) -> Network:
    return snapshot.networks[snapshot.subnet_network[subnet.id]]


def subnet_of(snapshot: Snapshot, subnet_id: str) -> Subnet | None:
    """Return the subnet, of any project; None if there is none."""
    network = snapshot.networks.get(snapshot.subnet_network.get(subnet_id, ""))
    return None if network is None else networks.find_subnet(network, subnet_id)
