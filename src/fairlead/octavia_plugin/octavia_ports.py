"""Ports that Octavia creates in Neutron for VIPs, through its client."""

import re
from collections.abc import Sequence
from typing import Any

from octavia.common import constants

from fairlead.octavia_plugin.neutron import convert_errors, neutron
from fairlead.octavia_plugin.orphans import OctaviaVipPort

_DEVICE = re.compile("lb-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
"""`device_id` of a VIP port (octavia.network.drivers.neutron, `allocate_vip`). Amphora ports have another format."""


class OctaviaPorts:
    """All methods raise NotAnswered."""

    def made(self) -> Sequence[OctaviaVipPort]:
        with convert_errors():
            found = [(each, _DEVICE.fullmatch(each.device_id or "")) for each in _all()]
            return [_vip_port(each, named[1]) for each, named in found if named is not None]

    def delete(self, port_id: str) -> None:
        with convert_errors():
            neutron().delete_port(port_id, ignore_missing=True)


def _all() -> Sequence[Any]:
    return list(neutron().ports(device_owner=constants.OCTAVIA_OWNER))


def _vip_port(port: Any, balancer_id: str) -> OctaviaVipPort:
    addresses = tuple(sorted(each["ip_address"] for each in port.fixed_ips))
    return OctaviaVipPort(id=port.id, balancer=balancer_id, network=port.network_id, addresses=addresses)
