"""Declarative spec of a network: a subnet per IP version, a router and its uplink, as in LXD's API."""

from dataclasses import dataclass

from fairlead.changes.untranslated_prefixes import is_translated
from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.indexes import NO_IDS
from fairlead.model.documents.network import Ipv6Mode, Network, Router, Subnet
from fairlead.model.snapshot import Snapshot

VERSIONS = (4, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterAddress:
    """Address of the router on a subnet."""

    address: IPAddress
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkIpFamily:
    """Part of a network with one IP version."""

    version: int
    router: RouterAddress | None = None
    """Router address; None for any subnet."""
    nat: bool = False
    """Whether traffic that leaves the router gets one of its addresses."""
    dhcp: bool = True
    stateful: bool = False
    """Stateful IPv6: addresses are assigned (RFC 8415), and not derived by the machine (RFC 4862)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkSpec:
    name: str
    description: str = ""
    mtu: int
    uplink_id: str | None = None
    """External network of the router's gateway; None for an isolated network."""
    families: tuple[NetworkIpFamily, ...] = ()
    """Sorted by IP version, each at most once."""
    nameservers: tuple[IPAddress, ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    """Options as given in the request, sorted by name."""


def describe(snapshot: Snapshot, network: Network) -> NetworkSpec:
    """Return the spec of a network, however it was created."""
    router = router_of(snapshot, network)
    gateway = None if router is None else router.gateway
    families = (_family(network, router, version) for version in VERSIONS)
    nameservers = [server for subnet in spec_subnets(network) for server in subnet.dns_nameservers]
    return NetworkSpec(
        name=network.name,
        description=network.description,
        mtu=network.mtu,
        uplink_id=None if gateway is None else gateway.network_id,
        families=tuple(family for family in families if family is not None),
        nameservers=tuple(dict.fromkeys(nameservers)),
        config=network.config,
    )


def spec_subnets(network: Network) -> list[Subnet]:
    """Return the subnets of the spec: the first one of each IP version."""
    return [subnet for version in VERSIONS if (subnet := spec_subnet(network, version)) is not None]


def spec_subnet(network: Network, version: int) -> Subnet | None:
    return next((subnet for subnet in network.subnets if subnet.cidr.version == version), None)


def router_of(snapshot: Snapshot, network: Network) -> Router | None:
    """Return the network's router. It is the one created with it, otherwise the one with its gateway address, otherwise
    any router on it."""
    own = snapshot.routers.get(network.router_id or "")
    if own is not None:
        return own
    gateways = (snapshot.addresses.get((network.id, each.gateway)) for each in spec_subnets(network) if each.gateway)
    named = (snapshot.ports[each].device_id for each in gateways if each is not None)
    joined = sorted(snapshot.network_routers.get(network.id, NO_IDS))
    return next((snapshot.routers[each] for each in (*named, *joined) if each in snapshot.routers), None)


def _family(network: Network, router: Router | None, version: int) -> NetworkIpFamily | None:
    subnet = spec_subnet(network, version)
    if subnet is None or subnet.gateway is None:
        return None
    mode = subnet.ipv6_address_mode
    return NetworkIpFamily(
        version=version,
        router=RouterAddress(address=subnet.gateway, cidr=subnet.cidr),
        nat=router is not None and is_translated(router, version),
        dhcp=subnet.enable_dhcp and mode is not Ipv6Mode.SLAAC,
        stateful=mode is Ipv6Mode.DHCPV6_STATEFUL,
    )
