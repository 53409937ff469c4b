"""The plan of a lab of plain Linux hosts: names and addresses, which follow from numbers.

    outside ── router1 ── host1 ── machines
            ╲╱         ╲╱
            ╱╲         ╱╲
            ── router2 ── host2 ── machines          (and so on)

Every host and the outside have a link to each router. Each end of a link is named after the node at the other end.
Machines are behind hosts, or outside. Labs are isolated, so all of them may use the same addresses.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

from fairlead.lab.errors import LabError
from fairlead.lab.layout import OUTSIDE

MAX_HOSTS = 16
"""Maximum number of equal-cost next hops of routers."""
VIP_PREFIXES = ("203.0.113.0/24", "2001:db8:f::/48")
"""Networks of which hosts announce the addresses on their `lo` (RFC 5737, RFC 3849)."""
MTU = 1500


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A host or the outside: its own addresses, and those of its machines."""

    name: str
    number: int
    """Number of its links: 0 is outside."""
    asn: int
    """Autonomous system number."""
    loopback_addresses: tuple[str, str]
    """Addresses on `lo`: IPv4, IPv6."""
    prefixes: tuple[str, str]
    """Prefixes of its machines: IPv4, IPv6."""

    def addresses(self, number: int) -> tuple[str, str]:
        """Return the addresses of the machine with this number, from 2 to 254: IPv4 and IPv6, which end in the same
        digits."""
        if not 2 <= number <= 254:
            raise LabError(f"machine number {number} is out of range (2-254)")
        four, six = IPv4Network(self.prefixes[0]), IPv6Network(self.prefixes[1])
        return str(four[number]), str(six[int(str(number), 16)])

    @property
    def gateway(self) -> str:
        """IPv4 gateway of its machines; for IPv6 it is `LINK_GATEWAY`."""
        return str(IPv4Network(self.prefixes[0])[1])


LINK_GATEWAY = "fe80::1"


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricRouter:
    name: str
    number: int
    asn: int
    loopback_addresses: tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class FabricLink:
    """A link between a router and a site, with the addresses of both ends and their prefix lengths."""

    router: FabricRouter
    site: Site
    router_addresses: tuple[str, str]
    """The router's addresses."""
    site_addresses: tuple[str, str]
    """The site's addresses."""


OUTSIDE_SITE = Site(
    name=OUTSIDE,
    number=0,
    asn=65001,
    loopback_addresses=("10.253.0.1", "fd00:fffd::1"),
    prefixes=("198.51.100.0/24", "2001:db8:c::/64"),
)
ROUTERS = tuple(
    FabricRouter(
        name=f"router{number}",
        number=number,
        asn=65000,
        loopback_addresses=(f"10.254.0.{number}", f"fd00:fffe::{number}"),
    )
    for number in (1, 2)
)
"""Routers in one autonomous system: neither accepts the other's routes, so no packet crosses a host between them."""


def plan_hosts(count: int) -> tuple[Site, ...]:
    if not 1 <= count <= MAX_HOSTS:
        raise LabError(f"number of hosts {count} is out of range (1-{MAX_HOSTS})")
    return tuple(
        Site(
            name=f"host{number}",
            number=number,
            asn=65100 + number,
            loopback_addresses=(f"10.255.0.{number}", f"fd00:ffff::{number}"),
            prefixes=(f"10.{100 + number}.0.0/24", f"fd00:{100 + number}::/64"),
        )
        for number in range(1, count + 1)
    )


def link(router: FabricRouter, site: Site) -> FabricLink:
    four, six = f"172.16.{router.number}.", f"fd00:fff{router.number}:{site.number}::"
    return FabricLink(
        router=router,
        site=site,
        router_addresses=(f"{four}{4 * site.number + 1}/30", f"{six}1/64"),
        site_addresses=(f"{four}{4 * site.number + 2}/30", f"{six}2/64"),
    )


def strip_prefix_length(end: str) -> str:
    """Return an address of a link without its prefix length."""
    return end.partition("/")[0]


def is_node_name(name: str) -> bool:
    """Return whether the name is reserved for nodes of the lab."""
    return name == OUTSIDE or re.fullmatch(r"(host|router)\d+", name) is not None
