"""Parsers of LXD's config values, with LXD's error texts (LXD and Incus, shared/validate)."""

import re
from collections.abc import Callable, Mapping
from ipaddress import ip_interface
from typing import Any, TypeVar

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd.go_texts import quote
from fairlead.changes.network_specs import RouterAddress
from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_address
from fairlead.model.documents.network import AllocationPool

TRUE, FALSE = frozenset({"true", "1", "yes", "on"}), frozenset({"false", "0", "no", "off"})
MIN_MTU, MAX_MTU = 68, 16384  # bytes; the rules require 1280 with IPv6
MAX_VLAN = 4094
MAX_NAME_LENGTH = 255
"""Maximum characters of a physical network's name, as of Neutron's provider:physical_network."""
MIN_INTERFACE_LENGTH, MAX_INTERFACE_LENGTH = 2, 15
"""Characters of the name of a Linux network device."""
USER = "user."
"""Prefix of free keys, with values that are not validated."""
Rule = Callable[[str], Any]
"""Parser of a non-empty value. Raises ValueError."""
_NAME = re.compile(r"[-_a-zA-Z0-9.]+")
_T = TypeVar("_T")


def read_config(network: str, rules: Mapping[str, Rule], config: Mapping[str, str]) -> dict[str, Any]:
    """Parse the non-empty values of a config. Raises ApiError 400."""
    values: dict[str, Any] = {}
    for key in sorted(rules.keys() & config.keys()):
        if config[key]:
            try:
                values[key] = rules[key](config[key])
            except ValueError as error:
                raise wrong(network, key, str(error)) from None
    for key in sorted(config.keys() - rules.keys()):
        if not key.startswith(USER):
            raise ApiError(400, f"Invalid option for network {quote(network)} option {quote(key)}")
    return values


def wrong(network: str, key: str, why: str) -> ApiError:
    return ApiError(400, f"Invalid value for network {quote(network)} option {quote(key)}: {why}")


def read_flag(text: str) -> bool:
    if text.lower() not in TRUE | FALSE:
        raise ValueError(f"Invalid value for a boolean {quote(text)}")
    return text.lower() in TRUE


def read_mtu(text: str) -> int:
    number = _number(text)
    if number is None:
        raise ValueError(f"Invalid MTU {quote(text)}")
    if not MIN_MTU <= number <= MAX_MTU:
        raise ValueError(f"Out of MTU range ({MIN_MTU}-{MAX_MTU}) {quote(text)}")
    return number


def read_vlan(text: str) -> int | None:
    """Parse a VLAN id; 0 means untagged."""
    number = _number(text)
    if number is None:
        raise ValueError(f"Invalid VLAN ID {quote(text)}")
    if number > MAX_VLAN:
        raise ValueError(f"Out of VLAN ID range (0-{MAX_VLAN}) {quote(text)}")
    return number or None


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def read_parent(text: str) -> str:
    """Parse the name of a physical network, which nodes map to a bridge."""
    if len(text) > MAX_NAME_LENGTH:
        raise ValueError(f"Network interface is too long (maximum {MAX_NAME_LENGTH} characters)")
    if not _NAME.fullmatch(text):
        raise ValueError("Network interface contains invalid characters")
    return text


def read_interface(text: str) -> str:
    """The name of a bridge on the hosts, which is that of the physical network too."""
    if len(text) < MIN_INTERFACE_LENGTH:
        raise ValueError(f"Network interface is too short (minimum {MIN_INTERFACE_LENGTH} characters)")
    if len(text) > MAX_INTERFACE_LENGTH:
        raise ValueError(f"Network interface is too long (maximum {MAX_INTERFACE_LENGTH} characters)")
    return read_parent(text)


def one_of(*words: str) -> Rule:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"Invalid value {quote(text)} (not one of [{' '.join(words)}])")
        return text

    return read


def or_word(word: str, rule: Rule, *more: str) -> Rule:
    """Make a parser that also accepts these words."""
    return lambda text: text if text in (word, *more) else rule(text)


def list_of(rule: Callable[[str], _T]) -> Callable[[str], tuple[_T, ...]]:
    def read(text: str) -> tuple[_T, ...]:
        return tuple(_item(rule, each.strip()) for each in text.split(","))

    return read


def _item(rule: Callable[[str], _T], text: str) -> _T:
    try:
        return rule(text)
    except ValueError as error:
        raise ValueError(f"Item {quote(text)}: {error}") from None


def address_of(version: int) -> Callable[[str], IPAddress]:
    def read(text: str) -> IPAddress:
        found = _address(text)
        if found is None or found.version != version:
            raise ValueError(f"Not an IPv{version} address {quote(text)}")
        return found

    return read


def any_address(text: str) -> IPAddress:
    found = _address(text)
    if found is None:
        raise ValueError(f"Not an IP address {quote(text)}")
    return found


def _address(text: str) -> IPAddress | None:
    """Parse an IP address; None for IPv4-mapped IPv6 addresses and other text."""
    try:
        found = parse_address(text)
    except ValueError:
        return None
    return None if found.version == 6 and found.ipv4_mapped is not None else found


def router_address(version: int, *, single: bool) -> Callable[[str], RouterAddress]:
    """Make a parser of a router's address with its prefix; `single` allows a prefix of one address."""

    def read(text: str) -> RouterAddress:
        address, network = _with_prefix(text)
        if address.version != version:
            raise ValueError(f"Not an IPv{version} address {quote(text)}")
        alone = single and network.prefixlen == network.max_prefixlen
        if address == network.network_address and not alone:
            raise ValueError(f"Not a usable IPv{version} address {quote(text)}")
        return RouterAddress(address=address, cidr=network)

    return read


def network_of(version: int) -> Callable[[str], IPNetwork]:
    def read(text: str) -> IPNetwork:
        address, network = _with_prefix(text)
        if address.version != version:
            raise ValueError(f"Not an IPv{version} network {quote(text)}")
        if address != network.network_address:
            raise ValueError(f"Not an IPv{version} network address {quote(text)}")
        return network

    return read


def _with_prefix(text: str) -> tuple[IPAddress, IPNetwork]:
    address, slash, prefix = text.partition("/")
    found = _address(address)
    if found is None or not slash or not (prefix.isascii() and prefix.isdecimal()) or len(prefix) > 3:
        raise ValueError(f"invalid CIDR address: {text}")
    if int(prefix) > found.max_prefixlen:
        raise ValueError(f"invalid CIDR address: {text}")
    interface = ip_interface(f"{found}/{int(prefix)}")
    return found, interface.network


def range_of(version: int) -> Callable[[str], AllocationPool]:
    def read(text: str) -> AllocationPool:
        ends = text.split("-", 1)
        if len(ends) != 2:
            raise ValueError("IP range must contain start and end IP addresses")
        start, end = map(address_of(version), ends)
        return AllocationPool(start=start, end=end)

    return read
