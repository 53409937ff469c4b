"""IP and MAC addresses, parsed once at the edge and canonical from there on.

IPv4 and IPv6 use the same functions. An address with a zone (`fe80::1%eth0`) is rejected, because a zone is valid on
one host only.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

IPAddress: TypeAlias = IPv4Address | IPv6Address
IPNetwork: TypeAlias = IPv4Network | IPv6Network
_THIS_NETWORK = IPv4Network("0.0.0.0/8")
_IPV4_MAPPED = IPv6Network("::ffff:0:0/96")
_ALL_HOSTS = IPv4Address("255.255.255.255")


def parse_address(text: str) -> IPAddress:
    """Parse an IP address. Raises ValueError with a message for the caller."""
    if "%" in text or "/" in text:
        raise ValueError(f"'{text}' is not a valid IP address.")
    try:
        return ip_address(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a valid IP address.") from None


def parse_network(text: str) -> IPNetwork:
    """Parse a network in CIDR form and clear its host bits. Raises ValueError with a message for the caller.

    IPv4-mapped IPv6 networks (RFC 4291, 2.5.5.2) are rejected, because no packet carries such an address.
    """
    if "%" in text or "/" not in text:
        raise ValueError(f"'{text}' is not a valid IP subnet.")
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"'{text}' is not a valid IP subnet.") from None
    if isinstance(network, IPv6Network) and network.subnet_of(_IPV4_MAPPED):
        raise ValueError(f"'{text}' is not a valid IP subnet: write it as IPv4.")
    return network


def remove_nested(networks: Iterable[IPNetwork]) -> Iterator[IPNetwork]:
    """Yield the networks that are inside no other one, sorted. All networks must have the same IP version."""
    last: IPNetwork | None = None
    for network in sorted(networks, key=lambda each: (int(each.network_address), each.prefixlen)):
        if last is None or network.network_address not in last:
            last = network
            yield network


def usable_range(cidr: IPNetwork) -> tuple[IPAddress, IPAddress]:
    """Return the first and the last address that a host can use.

    The range excludes the IPv4 network and broadcast addresses (RFC 1122, 3.2.1.3) and the IPv6 subnet-router anycast
    address (RFC 4291, 2.6.1). Point-to-point subnets exclude nothing (RFC 3021, RFC 6164).
    """
    first, last = cidr.network_address, cidr.broadcast_address
    if cidr.prefixlen >= cidr.max_prefixlen - 1:
        return first, last
    return (first + 1, last - 1) if cidr.version == 4 else (first + 1, last)


def is_usable(address: IPAddress, cidr: IPNetwork) -> bool:
    first, last = usable_range(cidr)
    return address.version == cidr.version and int(first) <= int(address) <= int(last)


def is_inside(inner: IPNetwork, outer: IPNetwork) -> bool:
    """Return whether every address of `inner` is in `outer`."""
    return inner.version == outer.version and inner.prefixlen >= outer.prefixlen and inner.network_address in outer


def overlaps(one: IPNetwork, other: IPNetwork) -> bool:
    return is_inside(one, other) or is_inside(other, one)


def complement(kept: Iterable[IPNetwork], version: int) -> Iterator[IPNetwork]:
    """Yield the smallest set of networks that covers all addresses of this IP version except `kept`, in order."""
    bits = 32 if version == 4 else 128
    ranges = sorted((int(each[0]), int(each[-1])) for each in kept if each.version == version)
    begin = 0
    for first, last in (*ranges, (1 << bits, 1 << bits)):
        while begin < first:
            room, step = first - begin, begin & -begin or 1 << bits  # largest aligned block that fits before `first`
            size = min(step, 1 << (room.bit_length() - 1))
            prefix = bits - size.bit_length() + 1
            yield IPv4Network((begin, prefix)) if version == 4 else IPv6Network((begin, prefix))
            begin += size
        begin = max(begin, last + 1)


def is_destination(address: IPAddress) -> bool:
    """Return whether the address can be the destination of a connection across routers.

    Excluded are the unspecified, loopback, multicast and broadcast addresses (RFC 1122, 3.2.1.3; RFC 4291, 2.5 to 2.7),
    link-local addresses (RFC 3927; RFC 4291, 2.5.6), which are valid on one link only, and IPv4-mapped IPv6 addresses
    (RFC 4291, 2.5.5.2), which no packet carries.
    """
    mapped = address.version == 6 and address.ipv4_mapped is not None
    nobody = address.is_unspecified or address in _THIS_NETWORK or address == _ALL_HOSTS
    return not (mapped or nobody or address.is_multicast or address.is_loopback or address.is_link_local)


def render_endpoint(address: IPAddress, port: int) -> str:
    """Format an endpoint as ovn-nb(5) Load_Balancer:vips does: `10.0.0.1:80`, `[fd00::1]:80`."""
    return f"[{address!s}]:{port}" if isinstance(address, IPv6Address) else f"{address!s}:{port}"


def render_address(address: IPAddress) -> str:
    """Format an address as ovn-nb(5) Load_Balancer:ip_port_mappings does: `10.0.0.1`, `[fd00::1]`."""
    return f"[{address}]" if address.version == 6 else str(address)


def render_interface(address: IPAddress, network: IPNetwork) -> str:
    """Format an address with its prefix length as ovn-nb(5) Logical_Router_Port:networks does: `10.0.0.1/24`."""
    return f"{address}/{network.prefixlen}"


def derive_link_local(mac: str) -> IPv6Address:
    """Return the IPv6 link-local address of an interface with this MAC (RFC 4291, appendix A: modified EUI-64)."""
    octets = [int(part, 16) for part in mac.split(":")]
    eui64 = bytes([octets[0] ^ 2, octets[1], octets[2], 0xFF, 0xFE, *octets[3:]])
    return IPv6Address(bytes([0xFE, 0x80, 0, 0, 0, 0, 0, 0]) + eui64)


def choose_mac(seed: str, taken: Callable[[str], bool]) -> str:
    """Return a free MAC with Neutron's default prefix (fa:16:3e). The same seed and allocations give the same MAC.

    Raises LookupError if all 2^24 addresses are allocated.
    """
    start = hash_to_int(seed) % 2**24
    for step in range(2**24):
        number = (start + step) % 2**24
        mac = f"fa:16:3e:{number >> 16:02x}:{number >> 8 & 255:02x}:{number & 255:02x}"
        if not taken(mac):
            return mac
    raise LookupError("no MAC address is free")


def derive_mac(seed: str) -> str:
    """Return a locally administered MAC (IEEE 802:
    second bit of the first octet) for a port that no request created."""
    number = hash_to_int(seed) % 2**40
    return "0e:" + ":".join(f"{number >> shift & 255:02x}" for shift in (32, 24, 16, 8, 0))


def hash_to_int(seed: str) -> int:
    """Return a 64-bit number derived from the seed by SHA-256."""
    return int.from_bytes(hashlib.sha256(seed.encode()).digest()[:8], "big")
