"""Used and total addresses of networks (Neutron API reference, "Network IP availability")."""

from collections import Counter
from collections.abc import Container

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services, identity, json_response
from fairlead.api.http.openapi import IDENTITY, NUMBER, TEXT, TEXTS, Operation
from fairlead.api.network import errors
from fairlead.changes import access
from fairlead.changes.identity import Identity
from fairlead.changes.subnets import MAX_SUBNETS
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network, Subnet
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps
from fairlead.schema import array_schema, object_schema

_FIGURES = {"total_ips": NUMBER, "used_ips": NUMBER}
_SUBNET = {**_FIGURES, "subnet_id": IDENTITY, "subnet_name": TEXT, "cidr": TEXT, "ip_version": NUMBER}
_NETWORK = {
    **_FIGURES,
    **dict.fromkeys(("network_name", "project_id", "tenant_id"), TEXT),
    "network_id": IDENTITY,
    "subnet_ip_availability": array_schema(object_schema(_SUBNET, _SUBNET), MAX_SUBNETS),
}


def availability_routes(services: Services) -> list[Operation]:
    async def list_all(request: Request) -> Response:
        snapshot, wanted = services.model.snapshot, frozenset(request.query_params.getlist("network_id"))
        found = await run_in_steps(_encode_all(snapshot, identity(request), wanted))
        return json_response({"network_ip_availabilities": found})

    async def show(request: Request) -> Response:
        snapshot, key = services.model.snapshot, request.path_params["id"]
        network = snapshot.networks.get(key)
        if network is None or not _sees(identity(request), network):
            raise errors.not_found("network", key)
        return json_response({"network_ip_availability": encode_availability(snapshot, network)})

    path, network = "/network-ip-availabilities", object_schema(_NETWORK, _NETWORK)
    every = object_schema({"network_ip_availabilities": {"type": "array", "items": network}})
    one = object_schema({"network_ip_availability": network})
    return [
        Operation("GET", path, list_all, gives={200: every}, query={"network_id": TEXTS}),
        Operation("GET", path + "/{id}", show, gives={200: one}),
    ]


def _encode_all(snapshot: Snapshot, caller: Identity, wanted: Container[str]) -> Steps[list[JsonObject]]:
    """Encode the networks in `wanted`, or if it is empty all that the caller may use."""
    found = []
    for network in snapshot.networks.values():
        if _sees(caller, network) and (not wanted or network.id in wanted):
            found.append(encode_availability(snapshot, network))
        yield
    return found


def _sees(caller: Identity, network: Network) -> bool:
    """Return whether the caller may see the network here. Unmanaged networks are excluded, because their own API knows
    all their addresses."""
    return not is_unmanaged(network) and access.can_use_network(caller, network)


def encode_availability(snapshot: Snapshot, network: Network) -> JsonObject:
    ports = (snapshot.ports[port_id] for port_id in snapshot.network_ports.get(network.id, NO_IDS))
    used = Counter(fixed.subnet_id for port in ports for fixed in port.fixed_ips)
    subnets = [_encode_subnet(subnet, used[subnet.id]) for subnet in network.subnets]
    return {
        "network_id": network.id,
        "network_name": network.name,
        "project_id": network.project_id,
        "tenant_id": network.project_id,
        "total_ips": sum(subnet["total_ips"] for subnet in subnets),
        "used_ips": sum(subnet["used_ips"] for subnet in subnets),
        "subnet_ip_availability": subnets,
    }


def _encode_subnet(subnet: Subnet, used: int) -> JsonObject:
    """Encode a subnet; the total is the size of its allocation pools."""
    return {
        "subnet_id": subnet.id,
        "subnet_name": subnet.name,
        "cidr": str(subnet.cidr),
        "ip_version": subnet.cidr.version,
        "total_ips": sum(int(pool.end) - int(pool.start) + 1 for pool in subnet.allocation_pools),
        "used_ips": used,
    }
