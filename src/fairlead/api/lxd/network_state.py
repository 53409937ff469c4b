"""State of a network in Incus's form (api.NetworkState)."""

from fairlead.api.http.front_end import JsonObject
from fairlead.api.http.openapi import NUMBER, TEXT
from fairlead.api.lxd.network_config import uplink_addresses, volatile
from fairlead.changes.declarative_uplinks import link_subnets
from fairlead.changes.network_specs import router_of, spec_subnets
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Network, Router
from fairlead.model.snapshot import Snapshot

FAMILIES = {4: "inet", 6: "inet6"}
COUNTERS = ("bytes_received", "bytes_sent", "packets_received", "packets_sent")
STATE = {
    "type": "object",
    "properties": {
        "addresses": {"type": "array", "items": {"type": "object"}},
        "counters": {"type": "object"},
        "hwaddr": TEXT,
        "mtu": NUMBER,
        "state": {"enum": ["up", "down"]},
        "type": {"const": "broadcast"},
    },
    "required": ["addresses", "bond", "bridge", "counters", "hwaddr", "mtu", "ovn", "state", "type", "vlan"],
}


def encode_state(snapshot: Snapshot, network: Network) -> JsonObject:
    """Encode the state, with the addresses of the router, or of the gateway on an uplink. Traffic counters are always
    0."""
    router = None if network.external else router_of(snapshot, network)
    subnets = link_subnets(network) if network.external else spec_subnets(network)
    segment = network.segment
    tagged = segment is not None and segment.id is not None
    return {
        "addresses": [
            {
                "family": FAMILIES[subnet.cidr.version],
                "address": str(subnet.gateway),
                "netmask": str(subnet.cidr.prefixlen),
                "scope": "link",
            }
            for subnet in subnets
            if subnet.gateway is not None
        ],
        "counters": dict.fromkeys(COUNTERS, 0),
        "hwaddr": _mac(snapshot, network, router),
        "mtu": network.mtu,
        "state": "up" if network.admin_state_up else "down",
        "type": "broadcast",
        "bond": None,
        "bridge": None,
        "vlan": {"lower_device": segment.physical_network, "vid": segment.id} if segment and tagged else None,
        "ovn": None if network.external else _encode_ovn(snapshot, network, router),
    }


def _mac(snapshot: Snapshot, network: Network, router: Router | None) -> str:
    """Return the MAC of the router on this network."""
    found = snapshot.router_interfaces.get(router.id, NO_IDS) if router else NO_IDS
    ports = (snapshot.ports[each] for each in found)
    here = (port for port in ports if port.network_id == network.id and port.fixed_ips)
    first = min(here, key=lambda port: (port.fixed_ips[0].address.version, port.id), default=None)
    return "" if first is None else first.mac_address


def _encode_ovn(snapshot: Snapshot, network: Network, router: Router | None) -> JsonObject:
    """Encode OVN's part; `chassis` is where the router's gateway is bound."""
    gateway = None if router is None else router.gateway
    addresses = uplink_addresses(snapshot, network)
    return {
        "chassis": "" if gateway is None else snapshot.plugged.get(gateway.port_id, ""),
        "logical_router": "" if router is None else router.id,
        "logical_switch": network.id,
        "uplink_ipv4": addresses.get(volatile(4), ""),
        "uplink_ipv6": addresses.get(volatile(6), ""),
    }
