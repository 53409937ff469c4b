"""Fixtures for tests of networking rules: a network shared by its owner, a guest's port on it, and other networks."""

from ipaddress import ip_address, ip_network
from typing import Any

import pytest

from fairlead.changes.addresses import default_pools
from fairlead.changes.identity import Identity
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.network import FixedIP, Network, Port, Subnet
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Aggregate, Snapshot
from harness.api import NOON

OWNER, GUEST, STRANGER = (
    Identity(user=name, project_id=name, roles=frozenset({"member", "reader"})) for name in ("owner", "guest", "other")
)
ADMIN = Identity(user="admin", project_id="admin", roles=frozenset({"admin"}))
OWNERS: dict[str, Any] = {"project_id": "owner", "created_at": NOON}
GUESTS: dict[str, Any] = {"project_id": "guest", "created_at": NOON}


def subnet(name: str, text: str, **fields: Any) -> Subnet:
    cidr = ip_network(text)
    return Subnet(
        **{"id": name, "cidr": cidr, "gateway": cidr[1], "allocation_pools": default_pools(cidr, cidr[1])}
        | OWNERS
        | fields
    )


def fixed(subnet_id: str, address: str) -> FixedIP:
    return FixedIP(subnet_id=subnet_id, address=ip_address(address))


CIDR = ip_network("10.0.0.0/24")
NETWORK = Network(id="net", mtu=1442, subnets=(subnet("four", str(CIDR)),), shared=True, **OWNERS)
PORT = Port(
    id="port", network_id="net", mac_address="fa:16:3e:00:00:01", fixed_ips=(fixed("four", "10.0.0.7"),), **GUESTS
)


def snapshot_with(*documents: Aggregate) -> Snapshot:
    return apply_changes(Snapshot(), Changes(puts=documents), 1)


def refusal(rule: Any, *arguments: Any) -> Refusal:
    with pytest.raises(Refused) as refused:
        rule(*arguments)
    return refused.value.why
