"""LXD's networks of type `physical`: their config keys, decoded and encoded (LXD's documentation, "Physical network").

`parent` is a physical network as OVN's chassis know them (`ovn-bridge-mappings`). Listen addresses of the routes are
answered for on the wire whatever `ovn.ingress_mode` says; machines of a network without translation never are: what is
outside routes to them by the network's `volatile.network.ipv4.address` and `volatile.network.ipv6.address`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.lxd.config_texts import (
    USER,
    Rule,
    any_address,
    list_of,
    network_of,
    one_of,
    range_of,
    read_config,
    read_mtu,
    read_parent,
    read_vlan,
    router_address,
    wrong,
)
from fairlead.api.lxd.go_texts import quote
from fairlead.api.lxd.network_config import render, shown
from fairlead.changes.network_descriptions import VERSIONS, RouterAddress
from fairlead.changes.uplinks import AskedUplink, WireFamily, describe_uplink
from fairlead.model.network import AllocationPool, Network

_OF_VERSIONS: Mapping[str, Callable[[int], Rule]] = {
    "gateway": lambda version: router_address(version, single=False),
    "ovn.ranges": lambda version: list_of(range_of(version)),
    "routes": lambda version: list_of(network_of(version)),
}
RULES: Mapping[str, Rule] = {
    "parent": read_parent,
    "vlan": read_vlan,
    "mtu": read_mtu,
    "dns.nameservers": list_of(any_address),
    "ovn.ingress_mode": one_of("l2proxy", "routed"),
    **{f"ipv{version}.{key}": rule(version) for version in VERSIONS for key, rule in _OF_VERSIONS.items()},
}


def encode_uplink_config(network: Network, default_mtu: int) -> dict[str, str]:
    asked, said = describe_uplink(network), dict(network.config)
    config = {key: text for key, text in said.items() if key.startswith(USER) or key == "ovn.ingress_mode"}
    if asked.physical_network:
        config["parent"] = asked.physical_network
    config |= shown("vlan", asked.tag, None, said, RULES)
    config |= shown("mtu", asked.mtu, default_mtu, said, RULES)
    config |= shown("dns.nameservers", asked.nameservers, (), said, RULES)
    for family in asked.families:
        prefix, gateway = f"ipv{family.version}", family.gateway
        config[f"{prefix}.gateway"] = f"{gateway.address}/{gateway.cidr.prefixlen}"
        ranges = said.get(f"{prefix}.ovn.ranges", "")
        if family.ranges:
            same = ranges and RULES[f"{prefix}.ovn.ranges"](ranges) == family.ranges
            config[f"{prefix}.ovn.ranges"] = ranges if same else _render(family.ranges)
    for version in VERSIONS:
        routes = tuple(route for route in asked.routes if route.version == version)
        config |= shown(f"ipv{version}.routes", routes, (), said, RULES)
    return dict(sorted(config.items()))


def _render(ranges: tuple[AllocationPool, ...]) -> str:
    return render(tuple(f"{each.start}-{each.end}" for each in ranges))


def decode_uplink(
    name: str, description: str, config: Mapping[str, str], default_mtu: int, old: Network | None
) -> AskedUplink:
    """`old` is the uplink as it is, if it is there already. One that another door made may have no parent. Raises
    ApiError 400."""
    values = read_config(name, RULES, config)
    if "parent" not in values and (old is None or old.segment is not None):
        raise wrong(name, "parent", "Required value")
    said = {key: text for key, text in config.items() if text and key != "parent" and not key.endswith(".gateway")}
    return AskedUplink(
        name=name,
        description=description,
        mtu=values.get("mtu", default_mtu),
        physical_network=values.get("parent", ""),
        tag=values.get("vlan"),
        families=tuple(family for version in VERSIONS if (family := _family(name, values, version)) is not None),
        routes=tuple(route for version in VERSIONS for route in values.get(f"ipv{version}.routes", ())),
        nameservers=values.get("dns.nameservers", ()),
        config=tuple(sorted(said.items())),
    )


def _family(name: str, values: Mapping[str, Any], version: int) -> WireFamily | None:
    """Raises ApiError 400."""
    gateway: RouterAddress | None = values.get(f"ipv{version}.gateway")
    ranges: tuple[AllocationPool, ...] = values.get(f"ipv{version}.ovn.ranges", ())
    if gateway is not None:
        return WireFamily(version=version, gateway=gateway, ranges=ranges)
    if ranges:
        raise wrong(name, f"ipv{version}.ovn.ranges", f"Cannot be used without {quote(f'ipv{version}.gateway')}")
    return None
