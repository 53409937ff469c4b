"""Neutron ports of proxies: one per node that runs one, created and deleted here.

A port belongs to the project with the load balancers that the proxy serves, like their VIP ports, and is bound to the
node. Port security is off, because a listener's allowed CIDRs are enforced before the proxy.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.octavia_plugin.adoption import ServiceFailed
from fairlead.octavia_plugin.neutron import convert_errors, neutron

OWNER = "fairlead:load_balancer_proxy"
DEVICE = "fairlead-proxy-"
"""Prefix of `device_id`, followed by the network's id and the chassis. The server identifies the port by it
(`model/documents/proxy_place.py`)."""


class ProxyPorts:
    """Proxy ports, through Octavia's client. All methods raise NotAnswered."""

    def networks(self) -> set[str]:
        with convert_errors():
            return {each.network_id for each in neutron().ports(device_owner=OWNER) if _is_ours(each)}

    def settle(self, network_id: str, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Create and delete ports as listed; ports of unlisted projects are deleted. Failed creations do not stop
        others."""
        with convert_errors():
            there = [each for each in neutron().ports(network_id=network_id, device_owner=OWNER) if _is_ours(each)]
            goes = {each["project_id"]: each["go"] for each in wanted}
            for port in there:
                if port.project_id not in goes or port.id in goes[port.project_id]:
                    neutron().delete_port(port.id, ignore_missing=True)
        had = {(each.project_id, each.device_id) for each in there}
        refused = [*_make_all(network_id, wanted, had)]
        if refused:
            raise ServiceFailed("neutron", "; ".join(dict.fromkeys(refused)))


def _is_ours(port: Any) -> bool:
    return str(port.device_id).startswith(f"{DEVICE}{port.network_id}-")


def _make_all(network_id: str, wanted: Sequence[Mapping[str, Any]], had: set[tuple[str, str]]) -> Iterable[str]:
    """Create the ports, and yield the reasons of failures."""
    for place in wanted:
        for each in place["come"]:
            which = place["project_id"], each["device_id"]
            if which not in had:
                had.add(which)
                try:
                    _make(network_id, place["project_id"], each)
                except ServiceFailed as error:
                    yield str(error)


def _make(network_id: str, project_id: str, wanted: Mapping[str, str]) -> None:
    """Create a port. Neutron allocates an address of each IP version, as for any port."""
    with convert_errors():
        neutron().create_port(
            name="proxy",
            network_id=network_id,
            project_id=project_id,
            is_port_security_enabled=False,
            device_owner=OWNER,
            device_id=wanted["device_id"],
            mac_address=wanted["mac_address"],
            binding_host_id=wanted["host"],
        )
