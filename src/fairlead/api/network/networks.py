"""Networks. A network with its subnets is one document: deleting it deletes them.

Not here, and refused: external networks, provider attributes, QoS policies, availability zones, port security as a
default for new ports.
"""

from fairlead.api.door import Identity
from fairlead.api.fields import NULL, Values, array_schema
from fairlead.api.listing import Item
from fairlead.api.network import errors, parsers, policy
from fairlead.api.network.attributes import STANDARD, Attribute, read_only
from fairlead.api.network.collection import (
    BUILD_STATUS,
    Call,
    Collection,
    Filters,
    View,
    born,
    encode_standard,
    given,
    named,
    network_owner,
    revised,
    sift_nothing,
)
from fairlead.api.network.limits import LARGEST_MTU, LEAST_MTU, LEAST_MTU_IPV6, SUBNETS
from fairlead.api.openapi import IDENTITY, TEXT
from fairlead.model.network import LOAD_BALANCER_PROBE, Network
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import NONE, Changes, Snapshot

_NO_PROVIDER = Attribute(
    parse=parsers.only(because="provider networks are not supported: every network is OVN's own"), nullable=True
)
ATTRIBUTES = {
    **STANDARD,
    "admin_state_up": Attribute(parse=parsers.boolean),
    "mtu": Attribute(parse=parsers.integer(LEAST_MTU, LARGEST_MTU), nullable=True),
    "shared": Attribute(parse=parsers.boolean),
    "status": read_only(TEXT),
    "subnets": read_only(array_schema(IDENTITY, SUBNETS), sifts=False),
    "port_security_enabled": Attribute(
        parse=parsers.only(True, because="port security is switched off port by port, not for a network")
    ),
    "router:external": Attribute(parse=parsers.only(False, because="external networks are not supported yet")),
    "is_default": Attribute(parse=parsers.only(False, because="external networks are not supported yet")),
    "provider:network_type": _NO_PROVIDER,
    "provider:physical_network": _NO_PROVIDER,
    "provider:segmentation_id": _NO_PROVIDER,
    "qos_policy_id": Attribute(parse=parsers.only(because="QoS policies are not supported"), nullable=True),
    "ipv4_address_scope": read_only(NULL),
    "ipv6_address_scope": read_only(NULL),
    "availability_zone_hints": Attribute(
        parse=parsers.only([], because="availability zones are not supported"), put=False, sifts=False
    ),
    "availability_zones": read_only(array_schema(TEXT, 0), sifts=False),
}


def encode_network(view: View, network: Network) -> Item:
    owner = network_owner(network.id)
    return {
        **encode_standard(view, network, owner),
        "admin_state_up": network.admin_state_up,
        "mtu": network.mtu,
        "shared": network.shared,
        "status": BUILD_STATUS[view.status(owner)],
        "subnets": [subnet.id for subnet in network.subnets],
        "port_security_enabled": True,
        "router:external": False,
        "is_default": False,
        "provider:network_type": None,
        "provider:physical_network": None,
        "provider:segmentation_id": None,
        "qos_policy_id": None,
        "ipv4_address_scope": None,
        "ipv6_address_scope": None,
        "availability_zone_hints": [],
        "availability_zones": [],
    }


def create_network(snapshot: Snapshot, call: Call, values: Values) -> Changes:
    standard = born(call, values)
    policy.check(call.caller.may_change(standard["project_id"]), "create_network")
    _check_admin(call, "create_network", {"shared"} if values.get("shared") else set())
    network = Network(
        **standard,
        admin_state_up=values.get("admin_state_up", True),
        mtu=values.get("mtu") or call.mtu,
        shared=values.get("shared", False),
    )
    return Changes(puts=(network,))


def update_network(snapshot: Snapshot, call: Call, network: Network, values: Values) -> Changes:
    _check_admin(call, "update_network", {"shared"} & values.keys())
    fields = given(values, ["name", "description", "admin_state_up", "shared"])
    if "mtu" in values:
        fields["mtu"] = values["mtu"] or call.mtu
    changed = revised(network, call.now, fields)
    check_mtu(changed)
    if network.shared and not changed.shared:
        _check_unshare(snapshot, network)
    return put_network(snapshot, changed)


def put_network(snapshot: Snapshot, network: Network) -> Changes:
    return Changes() if snapshot.networks.get(network.id) == network else Changes(puts=(network,))


def delete_network(snapshot: Snapshot, network: Network) -> Changes:
    """The ports of probes were made for its subnets, and go with them."""
    ports = [snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NONE)]
    if any(port.device_owner != LOAD_BALANCER_PROBE for port in ports):
        raise errors.network_in_use(network.id)
    gone = (Owner(Kind.PORT, port.id) for port in ports)
    return Changes(deletes=(*gone, network_owner(network.id)), rests_on_absence=True)


def check_mtu(network: Network) -> None:
    """IPv6 asks more of a link than IPv4. Raises ApiError 409."""
    if network.mtu < LEAST_MTU_IPV6 and any(subnet.cidr.version == 6 for subnet in network.subnets):
        raise errors.mtu_too_small(network.id, LEAST_MTU_IPV6)


def _check_unshare(snapshot: Snapshot, network: Network) -> None:
    ports = (snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NONE))
    if any(port.project_id != network.project_id for port in ports):
        raise errors.sharing_in_use(network.id)


def _check_admin(call: Call, rule: str, names: set[str]) -> None:
    policy.check_attributes(call.caller.is_admin, rule, names)


def _owner(snapshot: Snapshot, network: Network) -> Owner:
    return network_owner(network.id)


def _sees(snapshot: Snapshot, caller: Identity, network: Network) -> bool:
    return policy.sees_network(caller, network)


def _may_change(snapshot: Snapshot, caller: Identity, network: Network) -> bool:
    return caller.may_change(network.project_id)


def _find(snapshot: Snapshot, network_id: str) -> Network | None:
    return snapshot.networks.get(network_id)


def _candidates(snapshot: Snapshot, filters: Filters) -> "list[Network]":
    return list(named(snapshot.networks, filters))


NETWORKS: Collection[Network] = Collection(
    singular="network",
    plural="networks",
    attributes=ATTRIBUTES,
    find=_find,
    candidates=_candidates,
    owner=_owner,
    sees=_sees,
    may_change=_may_change,
    encode=encode_network,
    sift=sift_nothing,
    create=create_network,
    update=update_network,
    delete=delete_network,
    put=put_network,
)
