"""Encoder of networks in LXD's form (LXD's REST API, "networks")."""

from collections.abc import Iterator, Mapping

from fairlead.api.http.front_end import JsonObject, Services
from fairlead.api.http.openapi import FLAG, TEXT, TEXTS
from fairlead.api.lxd.apply_status import PROGRESS, status_of
from fairlead.api.lxd.caller import in_path, in_project, sees
from fairlead.api.lxd.envelope import PREFIX, etag
from fairlead.api.lxd.lookup import name_of, project_of
from fairlead.api.lxd.network_config import encode_config
from fairlead.api.lxd.uplink_config import UPLINKS, encode_uplink_config, uplink_type
from fairlead.changes.balancer_specs import list_declarative
from fairlead.changes.identity import Identity
from fairlead.changes.network_specs import router_of
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import SpecPurpose
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

OVN = "ovn"
TYPES = (OVN, *UPLINKS)
LOCATION = "none"
"""Location of an object that is on no LXD cluster member."""
PLURALS: Mapping[SpecPurpose, str] = {SpecPurpose.FORWARD: "forwards", SpecPurpose.LOAD_BALANCER: "load-balancers"}
CONFIG = {"type": "object", "additionalProperties": TEXT}
SHOWN = {
    "type": "object",
    "properties": {
        "name": TEXT,
        "type": {"enum": [*TYPES]},
        "description": TEXT,
        "config": CONFIG,
        "managed": FLAG,
        "status": {"enum": [*PROGRESS]},
        "used_by": TEXTS,
        "locations": TEXTS,
        "project": TEXT,
    },
    "required": ["config", "description", "locations", "managed", "name", "status", "type", "used_by"],
}


def type_of(network: Network) -> str:
    return uplink_type(network).name if network.external else OVN


def config_of(services: Services, snapshot: Snapshot, network: Network) -> dict[str, str]:
    if network.external:
        return encode_uplink_config(network, services.external_mtu)
    return encode_config(snapshot, network)


def tag_of(services: Services, snapshot: Snapshot, network: Network) -> str:
    """Return the ETag of the editable values (LXD and Incus, networkGet)."""
    name, config = name_of(snapshot, network), config_of(services, snapshot, network)
    return etag([name, True, type_of(network), network.description, config])


def path_of(snapshot: Snapshot, network: Network) -> str:
    return f"{PREFIX}/networks/{in_path(name_of(snapshot, network))}"


def url_of(snapshot: Snapshot, network: Network) -> str:
    return in_project(path_of(snapshot, network), project_of(network))


def encode_network(services: Services, snapshot: Snapshot, caller: Identity, network: Network) -> Steps[JsonObject]:
    used_by = yield from _used_by(snapshot, caller, network)
    return {
        "name": name_of(snapshot, network),
        "type": type_of(network),
        "description": network.description,
        "config": config_of(services, snapshot, network),
        "managed": True,
        "status": status_of(services, snapshot, _owners(snapshot, network)),
        "used_by": used_by,
        "locations": [LOCATION],
        "project": project_of(network),
    }


def _used_by(snapshot: Snapshot, caller: Identity, network: Network) -> Steps[list[str]]:
    """Return the URLs of the visible users of a network: load balancers and forwards, or for an uplink its networks."""
    found = set[str]()
    for use, plural in PLURALS.items() if not network.external else ():
        yield
        for balancer in list_declarative(snapshot, network, use):
            if sees(caller, balancer.project_id):
                path = f"{path_of(snapshot, network)}/{plural}/{balancer.vip.address}"
                found.add(in_project(path, project_of(network)))
    for router_id in snapshot.network_gateways.get(network.id, NO_IDS):
        yield
        for port_id in snapshot.router_interfaces.get(router_id, NO_IDS):
            behind = snapshot.networks[snapshot.ports[port_id].network_id]
            if sees(caller, behind.project_id):
                found.add(url_of(snapshot, behind))
    return sorted(found)


def _owners(snapshot: Snapshot, network: Network) -> Iterator[Owner]:
    """Yield the owners that make up the network."""
    yield Owner(Kind.NETWORK, network.id)
    router = None if network.external else router_of(snapshot, network)
    if router is None:
        return
    yield Owner(Kind.ROUTER, router.id)
    if router.gateway is not None:
        yield Owner(Kind.PORT, router.gateway.port_id)
    for port_id in snapshot.router_interfaces.get(router.id, NO_IDS):
        if snapshot.ports[port_id].network_id == network.id:
            yield Owner(Kind.PORT, port_id)
