"""Handler of `GET /1.0/network-allocations`: addresses in use and their users (LXD's REST API,
"network-allocations")."""

from collections.abc import Iterable, Iterator

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.front_end import JsonObject, Services
from fairlead.api.http.openapi import FLAG, TEXT, Operation
from fairlead.api.lxd.caller import ALL_PROJECTS, caller_of, in_project, projects_asked
from fairlead.api.lxd.envelope import sync, sync_schema
from fairlead.api.lxd.filters import PROJECT_QUERY
from fairlead.api.lxd.lookup import name_of, networks_of, project_of
from fairlead.api.lxd.network_encode import PLURALS, path_of, url_of
from fairlead.changes.balancer_specs import list_declarative
from fairlead.changes.declarative_uplinks import describe_uplink
from fairlead.changes.network_specs import describe, router_of
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.loadbalancer import SpecPurpose
from fairlead.model.documents.network import Network
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import run_in_steps
from fairlead.runtime.steps import Steps, sort_cooperatively

TYPES = {SpecPurpose.FORWARD: "network-forward", SpecPurpose.LOAD_BALANCER: "network-load-balancer"}
UPLINK = "network-uplink"
"""Type of a router's address on the uplink. LXD has no such type, because it omits these addresses."""
ALLOCATION = {
    "type": "object",
    "properties": {"addresses": TEXT, "used_by": TEXT, "type": TEXT, "nat": FLAG, "hwaddr": TEXT, "network": TEXT},
    "required": ["addresses", "hwaddr", "nat", "network", "type", "used_by"],
}


def allocation_routes(services: Services) -> list[Operation]:
    async def show(request: Request) -> Response:
        """List allocated addresses with prefix lengths; with `all-projects`, of all projects of the caller."""
        caller, snapshot = caller_of(request), services.model.snapshot
        projects = projects_asked(request, snapshot, caller)
        return sync(await run_in_steps(_allocations(snapshot, projects)))

    query = {**PROJECT_QUERY, ALL_PROJECTS: TEXT}
    shown = sync_schema({"type": "array", "items": ALLOCATION})
    return [Operation("GET", "/network-allocations", show, gives={200: shown}, query=query)]


def _allocations(snapshot: Snapshot, projects: Iterable[str]) -> Steps[list[JsonObject]]:
    networks = list[Network]()
    for project in projects:
        networks.extend(networks_of(snapshot, project))
        yield
    ordered = yield from sort_cooperatively(networks, key=lambda each: (project_of(each), name_of(snapshot, each)))
    found = list[JsonObject]()
    for network in ordered:
        for entry in _of_uplink(snapshot, network) if network.external else _of_network(snapshot, network):
            found.append(entry)
            yield
        yield
    return found


def _of_uplink(snapshot: Snapshot, network: Network) -> Iterator[JsonObject]:
    name = name_of(snapshot, network)
    for family in describe_uplink(network).families:
        gateway = family.gateway
        text = f"{gateway.address}/{gateway.cidr.prefixlen}"
        yield _entry(name, text, "network", url_of(snapshot, network))


def _of_network(snapshot: Snapshot, network: Network) -> Iterator[JsonObject]:
    name = name_of(snapshot, network)
    for family in describe(snapshot, network).families:
        if family.router is not None:
            text = f"{family.router.address}/{family.router.cidr.prefixlen}"
            yield _entry(name, text, "network", url_of(snapshot, network), nat=family.nat)
    router = router_of(snapshot, network)
    if (
        router is not None
        and router.gateway is not None
        and network.id == (_first_joined(snapshot, router.id) or network.id)
    ):
        port = snapshot.ports[router.gateway.port_id]
        for fixed in port.fixed_ips:
            url = url_of(snapshot, network)
            yield _entry(name, _host_prefix(fixed.address), UPLINK, url, hwaddr=port.mac_address)
    for use, plural in PLURALS.items():
        for balancer in list_declarative(snapshot, network, use):
            url = in_project(f"{path_of(snapshot, network)}/{plural}/{balancer.vip.address}", project_of(network))
            yield _entry(name, _host_prefix(balancer.vip.address), TYPES[use], url)


def _first_joined(snapshot: Snapshot, router_id: str) -> str:
    """Return the first network of a router, under which its uplink address is listed once."""
    joined = (snapshot.ports[each].network_id for each in snapshot.router_interfaces.get(router_id, NO_IDS))
    return min(joined, default="")


def _entry(name: str, text: str, kind: str, used_by: str, **more: object) -> JsonObject:
    return {"addresses": text, "used_by": used_by, "type": kind, "nat": False, "hwaddr": "", "network": name, **more}


def _host_prefix(address: IPAddress) -> str:
    return f"{address}/{address.max_prefixlen}"
