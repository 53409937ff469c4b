"""Config keys of LXD networks that are uplinks: decoding and encoding (LXD documentation, "Physical network" and
"Bridge network").

A `physical` network names a physical network of OVN's chassis (`ovn-bridge-mappings`) by `parent`. A `bridge`
network is a bridge that exists on the hosts: the name that it was created with is the physical network's, also after
a rename, and its address is the gateway. Fairlead creates no bridges, so the keys that configure one are stored and
returned without effect.

OVN answers ARP and neighbour solicitation for listen addresses in the routes, whatever `ovn.ingress_mode` is. It
never does for machines of a network without NAT: the outside reaches these by routes through the network's
`volatile.network.ipv4.address` and `volatile.network.ipv6.address`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.config_texts import (
    USER,
    Rule,
    address_of,
    any_address,
    list_of,
    network_of,
    one_of,
    or_word,
    range_of,
    read_config,
    read_flag,
    read_interface,
    read_mtu,
    read_parent,
    read_vlan,
    router_address,
    wrong,
)
from fairlead.api.lxd.network_config import AUTO, NONE, render, shown
from fairlead.changes.declarative_networks import derive_any_address
from fairlead.changes.declarative_uplinks import UplinkIpFamily, UplinkSpec, describe_uplink
from fairlead.changes.network_specs import VERSIONS, RouterAddress
from fairlead.model.documents.network import AllocationPool, Network

PHYSICAL, BRIDGE = "physical", "bridge"
TYPE = "type"
"""Key in `Network.config` that marks an uplink as a bridge. No client key has this name."""
Rules = Mapping[str, Rule]


def _of_versions(rules: Mapping[str, Callable[[int], Rule]]) -> dict[str, Rule]:
    return {f"ipv{version}.{key}": rule(version) for version in VERSIONS for key, rule in rules.items()}


def _any(text: str) -> str:
    return text


_SHARED: Rules = {
    "dns.nameservers": list_of(any_address),
    **_of_versions(
        {
            "ovn.ranges": lambda version: list_of(range_of(version)),
            "routes": lambda version: list_of(network_of(version)),
        }
    ),
}
_BRIDGE_RULES: Rules = {
    **dict.fromkeys(("bridge.external_interfaces", "bridge.hwaddr", "raw.dnsmasq", "security.acls"), _any),
    **dict.fromkeys(("dns.domain", "dns.search", "dns.zone.forward", "ipv4.dhcp.routes"), _any),
    **dict.fromkeys(("dns.zone.reverse.ipv4", "dns.zone.reverse.ipv6"), _any),
    "bridge.driver": one_of("native", "openvswitch"),
    "dns.mode": one_of("none", "managed", "dynamic"),
    "ipv4.dhcp.gateway": or_word(NONE, address_of(4)),
    "ipv6.dhcp.stateful": read_flag,
    **{f"security.acls.default.{way}.action": one_of("allow", "drop", "reject") for way in ("ingress", "egress")},
    **{f"security.acls.default.{way}.logged": read_flag for way in ("ingress", "egress")},
    **{f"bgp.ipv{version}.nexthop": address_of(version) for version in VERSIONS},
    **_of_versions(
        {
            **dict.fromkeys(("dhcp", "firewall", "nat", "routing"), lambda _: read_flag),
            "dhcp.expiry": lambda _: _any,
            "dhcp.ranges": lambda version: list_of(range_of(version)),
            "nat.address": address_of,
            "nat.order": lambda _: one_of("before", "after"),
        }
    ),
}
"""Keys that configure the bridge on a host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkType:
    name: str
    gateway: str
    """Suffix of the key with the gateway's address, for an IP version."""
    mtu: str
    """Key of the MTU."""
    rules: Rules
    unvalidated_keys: frozenset[str]
    """Keys that are stored and returned unchanged."""


UPLINKS: Mapping[str, UplinkType] = {
    each.name: each
    for each in (
        UplinkType(
            name=PHYSICAL,
            gateway="gateway",
            mtu="mtu",
            rules={
                **_SHARED,
                "parent": read_parent,
                "vlan": read_vlan,
                "mtu": read_mtu,
                "ovn.ingress_mode": one_of("l2proxy", "routed"),
                **_of_versions({"gateway": lambda version: router_address(version, single=False)}),
            },
            unvalidated_keys=frozenset({"ovn.ingress_mode"}),
        ),
        UplinkType(
            name=BRIDGE,
            gateway="address",
            mtu="bridge.mtu",
            rules={
                **_SHARED,
                **_BRIDGE_RULES,
                "bridge.mtu": read_mtu,
                **_of_versions({"address": lambda version: or_word(NONE, router_address(version, single=False), AUTO)}),
            },
            unvalidated_keys=frozenset(_BRIDGE_RULES),
        ),
    )
}


def uplink_type(network: Network) -> UplinkType:
    """Return the type of an uplink: `physical` unless it was created as a bridge."""
    return UPLINKS[dict(network.config).get(TYPE, PHYSICAL)]


def encode_uplink_config(network: Network, default_mtu: int) -> dict[str, str]:
    asked, said, kind = describe_uplink(network), dict(network.config), uplink_type(network)
    config = {key: text for key, text in said.items() if key.startswith(USER) or key in kind.unvalidated_keys}
    if kind.name == PHYSICAL and asked.physical_network:
        config["parent"] = asked.physical_network
    config |= shown("vlan", asked.tag, None, said, kind.rules) if kind.name == PHYSICAL else {}
    config |= shown(kind.mtu, asked.mtu, default_mtu, said, kind.rules)
    config |= shown("dns.nameservers", asked.nameservers, (), said, kind.rules)
    for version in VERSIONS:
        family = next((each for each in asked.families if each.version == version), None)
        config |= _encode_family(kind, version, family, said)
        routes = tuple(route for route in asked.routes if route.version == version)
        config |= shown(f"ipv{version}.routes", routes, (), said, kind.rules)
    return dict(sorted(config.items()))


def _encode_family(
    kind: UplinkType, version: int, family: UplinkIpFamily | None, said: Mapping[str, str]
) -> dict[str, str]:
    """Encode the keys of an IP version. Without a gateway the ranges belong to no subnet, and are returned
    unchanged."""
    key, ranges = f"ipv{version}.ovn.ranges", said.get(f"ipv{version}.ovn.ranges", "")
    if family is None:
        kept = {key: ranges} if ranges else {}
        return kept | ({f"ipv{version}.{kind.gateway}": NONE} if kind.name == BRIDGE else {})
    gateway = family.gateway
    config = {f"ipv{version}.{kind.gateway}": f"{gateway.address}/{gateway.cidr.prefixlen}"}
    if family.ranges:
        same = ranges and kind.rules[key](ranges) == family.ranges
        config[key] = ranges if same else _render(family.ranges)
    return config


def _render(ranges: tuple[AllocationPool, ...]) -> str:
    return render(tuple(f"{each.start}-{each.end}" for each in ranges))


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkRequest:
    """Uplink as described by a request."""

    name: str
    description: str
    config: Mapping[str, str]
    kind: UplinkType


def decode_uplink(said: UplinkRequest, default_mtu: int, old: Network | None) -> UplinkSpec:
    """Decode a request for an uplink. `old` is the present uplink; None for a new one. One created through another
    API may have no parent. Raises ApiError 400."""
    name, kind = said.name, said.kind
    values = read_config(name, kind.rules, said.config)
    parent = _bridge(name, old) if kind.name == BRIDGE else values.get("parent", "")
    if not parent and (old is None or old.segment is not None):
        raise wrong(name, "parent", "Required value")
    families = (_family(said, values, version, is_new=old is None) for version in VERSIONS)
    return UplinkSpec(
        name=name,
        description=said.description,
        mtu=values.get(kind.mtu, default_mtu),
        physical_network=parent,
        tag=values.get("vlan"),
        families=tuple(family for family in families if family is not None),
        routes=tuple(route for version in VERSIONS for route in values.get(f"ipv{version}.routes", ())),
        nameservers=values.get("dns.nameservers", ()),
        config=tuple(sorted(_unvalidated_values(said).items())),
    )


def _bridge(name: str, old: Network | None) -> str:
    """Return the physical network of a bridge: its name when it is created. It stays after that, because the hosts map
    it in `ovn-bridge-mappings`. Raises ApiError 400."""
    if old is None or name != old.name:
        try:
            read_interface(name)
        except ValueError as error:
            raise ApiError(400, f"Invalid network name: {error}") from None
    return name if old is None or old.segment is None else old.segment.physical_network


def _unvalidated_values(said: UplinkRequest) -> dict[str, str]:
    elsewhere = {"parent", *(f"ipv{version}.{said.kind.gateway}" for version in VERSIONS)}
    kept = {key: text for key, text in said.config.items() if text and key not in elsewhere}
    return kept | ({TYPE: BRIDGE} if said.kind.name == BRIDGE else {})


def _family(said: UplinkRequest, values: Mapping[str, Any], version: int, *, is_new: bool) -> UplinkIpFamily | None:
    """Decode the keys of an IP version. Without a gateway it is None, as in Incus, whatever the ranges are. A new
    bridge without the key gets any address."""
    unsaid = AUTO if is_new and said.kind.name == BRIDGE else NONE
    address: RouterAddress | str = values.get(f"ipv{version}.{said.kind.gateway}", unsaid)
    if address == AUTO:
        address = derive_any_address(said.name, version)
    if isinstance(address, str):
        return None
    return UplinkIpFamily(version=version, gateway=address, ranges=values.get(f"ipv{version}.ovn.ranges", ()))
