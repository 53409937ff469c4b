"""What a network is that is described as a whole: a subnet of each IP version, a router, and its uplink."""

from dataclasses import dataclass

from fairlead.changes.outside import is_translated
from fairlead.model.addresses import IPAddress, IPNetwork
from fairlead.model.indexes import NO_IDS
from fairlead.model.network import Ipv6Mode, Network, Router, Subnet
from fairlead.model.snapshot import Snapshot

VERSIONS = (4, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterAddress:
    """Of the router on a subnet."""

    address: IPAddress
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One IP version of a network."""

    version: int
    router: RouterAddress | None = None
    """None asks for any subnet."""
    nat: bool = False
    """What leaves the router has one of its addresses."""
    dhcp: bool = True
    stateful: bool = False
    """Of IPv6: machines are given their addresses (RFC 8415), instead of making them (RFC 4862)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedNetwork:
    name: str
    description: str = ""
    mtu: int
    uplink_id: str | None = None
    """The external network that its router leaves by; None: it is isolated."""
    families: tuple[Family, ...] = ()
    """In the order of their versions, each once."""
    nameservers: tuple[IPAddress, ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    """Sorted; as it is to be shown again."""


def describe(snapshot: Snapshot, network: Network) -> AskedNetwork:
    """The network as it is, whoever made it: the inverse of making it."""
    router = router_of(snapshot, network)
    gateway = None if router is None else router.gateway
    families = (_family(network, router, version) for version in VERSIONS)
    nameservers = [server for subnet in shown_subnets(network) for server in subnet.dns_nameservers]
    return AskedNetwork(
        name=network.name,
        description=network.description,
        mtu=network.mtu,
        uplink_id=None if gateway is None else gateway.network_id,
        families=tuple(family for family in families if family is not None),
        nameservers=tuple(dict.fromkeys(nameservers)),
        config=network.config,
    )


def shown_subnets(network: Network) -> list[Subnet]:
    """Those that a description has: of each IP version the first."""
    return [subnet for version in VERSIONS if (subnet := shown_subnet(network, version)) is not None]


def shown_subnet(network: Network, version: int) -> Subnet | None:
    return next((subnet for subnet in network.subnets if subnet.cidr.version == version), None)


def router_of(snapshot: Snapshot, network: Network) -> Router | None:
    """The one that was made with it; else the one by whose address machines leave it; else any that it has."""
    own = snapshot.routers.get(network.router_id or "")
    if own is not None:
        return own
    gateways = (snapshot.addresses.get((network.id, each.gateway)) for each in shown_subnets(network) if each.gateway)
    named = (snapshot.ports[each].device_id for each in gateways if each is not None)
    joined = sorted(snapshot.network_routers.get(network.id, NO_IDS))
    return next((snapshot.routers[each] for each in (*named, *joined) if each in snapshot.routers), None)


def _family(network: Network, router: Router | None, version: int) -> Family | None:
    subnet = shown_subnet(network, version)
    if subnet is None or subnet.gateway is None:
        return None
    mode = subnet.ipv6_address_mode
    return Family(
        version=version,
        router=RouterAddress(address=subnet.gateway, cidr=subnet.cidr),
        nat=router is not None and is_translated(router, version),
        dhcp=subnet.enable_dhcp and mode is not Ipv6Mode.SLAAC,
        stateful=mode is Ipv6Mode.DHCPV6_STATEFUL,
    )
