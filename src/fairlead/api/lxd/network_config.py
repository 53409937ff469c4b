"""Decoder and encoder of the config of LXD networks of type `ovn` (LXD's documentation, "OVN network").

A key is shown with the client's spelling as long as its value is still true. A key that the client did not set is shown
if its value differs from LXD's default.
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
    or_word,
    read_config,
    read_flag,
    read_mtu,
    router_address,
    wrong,
)
from fairlead.api.lxd.go_texts import quote
from fairlead.api.lxd.lookup import find_uplink, name_of
from fairlead.changes.declarative_networks import default_uplink
from fairlead.changes.network_specs import VERSIONS, NetworkIpFamily, NetworkSpec, RouterAddress, describe, router_of
from fairlead.model.documents.network import Network
from fairlead.model.snapshot import Snapshot

NONE, AUTO = "none", "auto"
MTU = "bridge.mtu"
VOLATILE, CHOSEN = "volatile.", "The value is set by the server"
MAX_IPV6_PREFIX_LENGTH = 64
"""Maximum prefix length of an IPv6 subnet."""
_NOT_STORED = ("network", "ipv4.address", "ipv6.address")
"""Keys that are not stored as config, because the model has their values; likewise the `volatile` keys."""


def volatile(version: int) -> str:
    """Return the key of the router's address on the uplink."""
    return f"volatile.network.ipv{version}.address"


def _any(text: str) -> str:
    return text


_OF_VERSIONS: Mapping[str, Callable[[int], Rule]] = {
    "address": lambda version: or_word(NONE, router_address(version, single=True), AUTO),
    "dhcp": lambda _: read_flag,
    "nat": lambda _: read_flag,
}
RULES: Mapping[str, Rule] = {
    "network": _any,
    MTU: read_mtu,
    "dns.nameservers": list_of(any_address),
    "ipv6.dhcp.stateful": read_flag,
    **{f"ipv{version}.{key}": rule(version) for version in VERSIONS for key, rule in _OF_VERSIONS.items()},
    **{volatile(version): address_of(version) for version in VERSIONS},
}


def encode_config(snapshot: Snapshot, network: Network) -> dict[str, str]:
    """Encode the config. The MTU is always shown, as by LXD for a network with an uplink."""
    asked, said = describe(snapshot, network), dict(network.config)
    uplink = snapshot.networks.get(asked.uplink_id or "")
    config = {key: text for key, text in said.items() if key.startswith(USER)}
    config["network"] = NONE if uplink is None else name_of(snapshot, uplink)
    families = {family.version: family for family in asked.families}
    for version in VERSIONS:
        config |= _family_config(version, families.get(version), said, isolated=uplink is None)
    config |= shown(MTU, asked.mtu, None, said, RULES)
    config |= shown("dns.nameservers", asked.nameservers, (), said, RULES)
    return dict(sorted((config | uplink_addresses(snapshot, network)).items()))


def _family_config(
    version: int, family: NetworkIpFamily | None, said: Mapping[str, str], *, isolated: bool
) -> dict[str, str]:
    prefix = f"ipv{version}"
    if family is None or family.router is None:
        return {f"{prefix}.address": NONE}
    config = {f"{prefix}.address": f"{family.router.address}/{family.router.cidr.prefixlen}"}
    if isolated and f"{prefix}.nat" in said:
        config[f"{prefix}.nat"] = said[f"{prefix}.nat"]
    else:
        config |= shown(f"{prefix}.nat", family.nat, False, said, RULES)
    config |= shown(f"{prefix}.dhcp", family.dhcp, True, said, RULES)
    return config | (shown("ipv6.dhcp.stateful", family.stateful, False, said, RULES) if version == 6 else {})


def shown(key: str, truth: Any, default: Any, said: Mapping[str, str], rules: Mapping[str, Rule]) -> dict[str, str]:
    """Return the key with its stored spelling if that is still true, otherwise the actual value unless it is the
    default."""
    text = said.get(key)
    if text is not None and _in_order(rules[key](text)) == _in_order(truth):
        return {key: text}
    return {} if truth == default else {key: render(truth)}


def _in_order(value: Any) -> Any:
    """Normalise a value for comparison; the order of a list is irrelevant."""
    return sorted(map(str, value)) if isinstance(value, tuple) else value


def render(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def uplink_addresses(snapshot: Snapshot, network: Network) -> dict[str, str]:
    router = router_of(snapshot, network)
    port = None if router is None or router.gateway is None else snapshot.ports.get(router.gateway.port_id)
    return {volatile(fixed.address.version): str(fixed.address) for fixed in reversed(port.fixed_ips)} if port else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkRequest:
    """Network in a request."""

    name: str
    description: str
    config: Mapping[str, str]
    project_id: str


def decode_network(snapshot: Snapshot, said: NetworkRequest, default_mtu: int, old: Network | None) -> NetworkSpec:
    """Decode a network. `old` is the existing network, which keeps its volatile keys. Raises ApiError 400, Refused."""
    name, config = said.name, said.config
    values = read_config(name, RULES, config)
    there = {} if old is None else uplink_addresses(snapshot, old)
    for key in map(volatile, VERSIONS):
        if config.get(key) and config[key] != there.get(key):
            raise wrong(name, key, CHOSEN)
    kept = {key: text for key, text in config.items() if text and key not in (*_NOT_STORED, *map(volatile, VERSIONS))}
    if kept.get(MTU) == str(values.get(MTU)):
        del kept[MTU]  # shown in this form anyway
    return NetworkSpec(
        name=name,
        description=said.description,
        mtu=values.get(MTU, default_mtu),
        uplink_id=_uplink(snapshot, config.get("network", ""), said.project_id),
        families=tuple(_families(values, is_new=old is None)),
        nameservers=values.get("dns.nameservers", ()),
        config=tuple(sorted(kept.items())),
    )


def _uplink(snapshot: Snapshot, name: str, project_id: str) -> str | None:
    if name == NONE:
        return None
    uplink = find_uplink(snapshot, name) if name else default_uplink(snapshot, project_id)
    if uplink is None:
        text = f'Option "network" value {quote(name)} is not one of the allowed uplink networks in project'
        raise ApiError(400, text)
    return uplink.id


def _families(values: Mapping[str, Any], *, is_new: bool) -> list[NetworkIpFamily]:
    """Return the IP families. A new network has both by default; an automatic subnet has NAT by default."""
    found = []
    for version in VERSIONS:
        prefix = f"ipv{version}"
        address = values.get(f"{prefix}.address", AUTO if is_new else NONE)
        if address == NONE:
            continue
        router: RouterAddress | None = None if address == AUTO else address
        if router is not None and version == 6 and router.cidr.prefixlen > MAX_IPV6_PREFIX_LENGTH:
            raise ApiError(400, f"IPv6 subnet must be at least a /{MAX_IPV6_PREFIX_LENGTH}")
        dhcp: bool = values.get(f"{prefix}.dhcp", True)
        stateful = version == 6 and dhcp and values.get("ipv6.dhcp.stateful", False)
        nat: bool = values.get(f"{prefix}.nat", router is None)
        found.append(NetworkIpFamily(version=version, router=router, nat=nat, dhcp=dhcp, stateful=stateful))
    return found
