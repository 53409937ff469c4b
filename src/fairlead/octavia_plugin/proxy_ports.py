"""The ports in Neutron of proxies: one for each node that is to have one, made and deleted here.

Each is of the project whose load balancers its proxy serves, like the port of their VIP, and is bound to the node's
machine. It is without port security: who may connect to a listener is decided before it leads to a proxy.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fairlead.octavia_plugin.adoption import NotAnswered
from fairlead.octavia_plugin.neutron import answered, neutron

OWNER = "fairlead:load_balancer_proxy"
DEVICE = "fairlead-proxy-"
"""How `device_id` begins; the network's id and the chassis follow. The server knows it by that
(`model/proxy_place.py`)."""


class ProxyPorts:
    """By Octavia's own client. All raise NotAnswered."""

    def networks(self) -> set[str]:
        with answered():
            return {each.network_id for each in neutron().ports(device_owner=OWNER) if _is_ours(each)}

    def settle(self, network_id: str, wanted: Sequence[Mapping[str, Any]]) -> None:
        """Of a project that is not named all go; of the others those that are named come and go. A port that cannot be
        made keeps no other one from being made."""
        with answered():
            there = [each for each in neutron().ports(network_id=network_id, device_owner=OWNER) if _is_ours(each)]
            goes = {each["project_id"]: each["go"] for each in wanted}
            for port in there:
                if port.project_id not in goes or port.id in goes[port.project_id]:
                    neutron().delete_port(port.id, ignore_missing=True)
        had = {(each.project_id, each.device_id) for each in there}
        refused = [*_make_all(network_id, wanted, had)]
        if refused:
            raise NotAnswered("neutron", "; ".join(dict.fromkeys(refused)))


def _is_ours(port: Any) -> bool:
    return str(port.device_id).startswith(f"{DEVICE}{port.network_id}-")


def _make_all(network_id: str, wanted: Sequence[Mapping[str, Any]], had: set[tuple[str, str]]) -> Iterable[str]:
    """Why it could not be done."""
    for place in wanted:
        for each in place["come"]:
            which = place["project_id"], each["device_id"]
            if which not in had:
                had.add(which)
                try:
                    _make(network_id, place["project_id"], each)
                except NotAnswered as error:
                    yield str(error)


def _make(network_id: str, project_id: str, wanted: Mapping[str, str]) -> None:
    """Neutron chooses an address of each IP version, as for any port."""
    with answered():
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
