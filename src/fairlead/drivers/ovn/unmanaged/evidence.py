"""Evidence about unmanaged networks from related rows: subnets and projects. No I/O.

Neutron writes neither subnets nor the project of a network or router. Ports, router ports and DHCP options contain
traces of them. Each row contributes traces, which are counted: a further port on a network of ten thousand is two
increments, and the network is re-evaluated only when a trace appears or disappears.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address
from typing import Any, TypeAlias, TypeVar

from fairlead.drivers.ovn.unmanaged.rows import RouteRow, RouterPortRow, SwitchPortRow
from fairlead.model.documents.addresses import IPAddress, IPNetwork, parse_address, parse_network

METADATA = "network:distributed"
"""`device_owner` of the port that Neutron creates in each network if it has a metadata agent."""
TRUE = "True"
MAX_ADDRESSES_PER_PORT = 100
"""Maximum addresses of one port. Neutron's default is five (max_fixed_ips_per_port)."""


class Malformed(ValueError):
    """A row cannot be parsed; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class AddressInSubnet:
    """A port has an address of this subnet."""

    cidr: IPNetwork


@dataclass(frozen=True, slots=True)
class SubnetId:
    """A subnet has this id."""

    cidr: IPNetwork
    subnet_id: str


@dataclass(frozen=True, slots=True)
class PresumedSubnetId:
    """Same, provided that a port's addresses and subnet ids are in one order."""

    cidr: IPNetwork
    subnet_id: str


@dataclass(frozen=True, slots=True)
class RouterInterface:
    """A router has an address of this subnet, and forwards."""

    cidr: IPNetwork
    address: IPAddress


@dataclass(frozen=True, slots=True)
class SubnetNextHop:
    """External router that is the next hop of a subnet's outgoing packets."""

    subnet_id: str
    address: IPAddress


@dataclass(frozen=True, slots=True)
class OwnerProject:
    """The network belongs to this project."""

    project_id: str


@dataclass(frozen=True, slots=True)
class PortProject:
    """The project has a port on the network."""

    project_id: str


@dataclass(frozen=True, slots=True)
class Localnet:
    physical_network: str
    tag: int | None


Trace: TypeAlias = (
    AddressInSubnet
    | SubnetId
    | PresumedSubnetId
    | RouterInterface
    | SubnetNextHop
    | OwnerProject
    | PortProject
    | Localnet
)
_Trace = TypeVar("_Trace", bound=Trace)


class Evidence:
    """Traces of one network, each with its number of rows."""

    def __init__(self) -> None:
        self._counts: dict[type[Any], dict[Any, int]] = {}

    def all_of(self, kind: type[_Trace]) -> Iterable[_Trace]:
        return self._counts.get(kind, {}).keys()

    def has(self, trace: Trace) -> bool:
        return trace in self._counts.get(type(trace), ())

    def change(self, traces: Iterable[Trace], number: int) -> bool:
        """Add to the counts. Returns whether a trace appeared or disappeared."""
        differs = False
        for trace in traces:
            counts = self._counts.setdefault(type(trace), {})
            count = counts.get(trace, 0) + number
            differs = differs or count in (0, number)
            if count:
                counts[trace] = count
            else:
                del counts[trace]
            if not counts:
                del self._counts[type(trace)]
        return differs

    def __bool__(self) -> bool:
        return bool(self._counts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterEnd:
    """Router side of a switch port."""

    router: str
    """UUID of the router's row."""
    port: RouterPortRow
    routes: tuple[RouteRow, ...] = ()
    """Default routes of a gateway."""

    @property
    def is_gateway(self) -> bool:
        return is_gateway(self.port)


def is_gateway(port: RouterPortRow) -> bool:
    return port.is_gateway == TRUE or port.name.endswith("-lr-lrp-ext")


def traces_of_port(row: SwitchPortRow, end: RouterEnd | None) -> tuple[Trace, ...]:
    """Return the traces of a port. A malformed one contributes its project, so shared networks are recognised."""
    whose = tuple(_project_traces(row))
    try:
        return (*_traces(row, end), *whose)
    except Malformed:
        return whose


def _project_traces(row: SwitchPortRow) -> Iterator[Trace]:
    if row.project_id:
        yield OwnerProject(row.project_id) if row.device_owner == METADATA else PortProject(row.project_id)


def _traces(row: SwitchPortRow, end: RouterEnd | None) -> Iterator[Trace]:
    if row.type == "localnet":
        yield Localnet(row.wire, row.tag)
    elif end is not None:
        yield from _traces_of_router(row, end)
    else:
        yield from (AddressInSubnet(cidr) for _, cidr in read_interfaces(row.cidrs.split()))


def _traces_of_router(row: SwitchPortRow, end: RouterEnd) -> Iterator[Trace]:
    interfaces = interfaces_of(end.port)
    ids = end.port.subnet_ids.split()
    yield from (AddressInSubnet(cidr) for _, cidr in interfaces)
    if len(ids) == len(interfaces) == 1:
        yield SubnetId(interfaces[0][1], ids[0])
    elif len(ids) == len(told := read_interfaces(row.cidrs.split())):
        yield from (PresumedSubnetId(cidr, subnet_id) for (_, cidr), subnet_id in zip(told, ids, strict=True))
    if not end.is_gateway:
        yield from (RouterInterface(cidr, address) for address, cidr in interfaces)
        return
    for route in end.routes:
        if route.subnet_id and (address := read_address(route.nexthop)) is not None:
            yield SubnetNextHop(route.subnet_id, address)


def read_address(text: str) -> IPAddress | None:
    """Parse an address; None if it is malformed."""
    try:
        return parse_address(text)
    except ValueError:
        return None


def interfaces_of(port: RouterPortRow) -> list[tuple[IPAddress, IPNetwork]]:
    """Return the addresses except link-local ones. Raises Malformed."""
    return [each for each in read_interfaces(sorted(port.networks)) if not each[0].is_link_local]


def read_interfaces(texts: Iterable[str]) -> list[tuple[IPAddress, IPNetwork]]:
    """Parse addresses such as `10.0.0.5/24` with their subnets. Raises Malformed."""
    found = [read_interface(text) for text in texts]
    if len(found) > MAX_ADDRESSES_PER_PORT:
        raise Malformed(f"{len(found)} addresses of one port, the limit is {MAX_ADDRESSES_PER_PORT}")
    return found


def read_interface(text: str) -> tuple[IPAddress, IPNetwork]:
    address, _, length = text.partition("/")
    try:
        parsed = parse_address(address)
        bits = parsed.max_prefixlen - int(length)
        if not 0 <= bits < parsed.max_prefixlen:
            raise ValueError
        return parsed, _network(parsed.version, int(parsed) >> bits << bits, int(length))
    except ValueError:
        raise Malformed(f"'{text}' is not an address with a prefix length, such as 10.0.0.5/24") from None


@lru_cache(maxsize=2**14)
def _network(version: int, first: int, length: int) -> IPNetwork:
    """Share one object per network, because it has many ports."""
    address = IPv4Address(first) if version == 4 else IPv6Address(first)
    return parse_network(f"{address}/{length}")
