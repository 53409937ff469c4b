"""Workloads from ports of the network API, with the API's addresses, MAC and gateways."""

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from fairlead.lab.errors import LabError
from fairlead.lab.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Attributes of a workload that the API does not have."""

    name: str
    chassis: str
    serve: tuple[int, ...] = ()


def workload_of_port(url: str, port: str, placement: Placement, token: str = "") -> Workload:
    """Return the workload for a port, named by id or name. `token` authenticates the caller. Raises LabError."""
    found = _find(url, "ports", port, token)
    network = _get_by_id(url, "networks", found["network_id"], token)
    subnets = {
        fixed["subnet_id"]: _get_by_id(url, "subnets", fixed["subnet_id"], token) for fixed in found["fixed_ips"]
    }
    return Workload(
        name=placement.name,
        chassis=placement.chassis,
        port_id=found["id"],
        mac=found["mac_address"],
        addresses=tuple(
            f"{fixed['ip_address']}/{ip_network(subnets[fixed['subnet_id']]['cidr']).prefixlen}"
            for fixed in found["fixed_ips"]
        ),
        gateways=tuple(subnet["gateway_ip"] for subnet in subnets.values() if subnet["gateway_ip"]),
        mtu=network["mtu"],
        serve=placement.serve,
    )


def _find(url: str, plural: str, name: str, token: str) -> Any:
    for key in ("id", "name"):
        found = _get(url, f"{plural}?{urllib.parse.urlencode({key: name})}", token)[plural]
        if len(found) == 1:
            return found[0]
        if found:
            raise LabError(f"{len(found)} {plural} are called {name!r}; use an id")
    raise LabError(f"port {name!r} not found at {url}")


def _get_by_id(url: str, plural: str, identity: str, token: str) -> Any:
    return _get(url, f"{plural}/{identity}", token)[plural.removesuffix("s")]


def _get(url: str, path: str, token: str) -> Any:
    headers = {"X-Auth-Token": token} if token else {}
    try:
        asked = urllib.request.Request(f"{url}/network/v2.0/{path}", headers=headers)
        with urllib.request.urlopen(asked, timeout=10) as answer:
            return json.load(answer)
    except (OSError, ValueError) as error:
        raise LabError(f"{url}/network/v2.0/{path}: {error}") from None
