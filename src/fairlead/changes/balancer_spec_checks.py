"""Checks of a declarative spec: its backends and its ports.

Each refusal has the index in the list, so that clients can find the entry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fairlead.changes.balancer_checks import TooManyPorts
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents import loadbalancer as lb
from fairlead.model.documents import sizes
from fairlead.model.documents.addresses import IPAddress, is_usable
from fairlead.model.documents.network import Network, subnet_with
from fairlead.model.documents.port_ranges import PortRange, Ports, TargetPort, count_ports, expand

MAX_BACKEND_NAME_LENGTH = 255
"""Maximum length of a backend's name, in characters; it is also a member's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecPort:
    """Ports that clients connect to, with the names of their backends."""

    description: str = ""
    protocol: lb.ListenerProtocol
    ports: Ports
    backends: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorSpec:
    """Health monitor of each pool. Times are in seconds."""

    type: lb.MonitorType | None = None
    """Type of the monitor; None for the type that checks whether a port of the pool's protocol is open."""
    delay: int
    timeout: int
    max_retries: int
    """Consecutive successes that make a backend ONLINE."""
    max_retries_down: int
    """Consecutive failures that make a backend ERROR."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerSpec:
    """Declarative spec of a load balancer or network forward."""

    network_id: str
    use: lb.SpecPurpose
    description: str = ""
    backends: tuple[lb.Backend, ...] = ()
    ports: tuple[SpecPort, ...] = ()
    config: tuple[tuple[str, str], ...] = ()
    """Options as given in the request, sorted by name."""
    algorithm: lb.Algorithm = lb.Algorithm.ROUND_ROBIN
    persistence: lb.SessionPersistence | None = None
    locality: lb.Locality = lb.Locality.NONE
    down_member: lb.DownMember = lb.DownMember.KEEP
    weights: Mapping[str, int] = field(default_factory=dict)
    """Weight by backend name; 1 for other backends."""
    probing: MonitorSpec | None = None
    raw: lb.RawMatch | None = None
    """Required first bytes on every TCP port."""
    default_target: IPAddress | None = None
    """Machine that gets all other traffic of a forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadBackendName(Refusal):
    """The name is empty, too long, or contains white space or control characters."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateBackend(Refusal):
    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetIpVersionMismatch(Refusal):
    """The backend has another IP version than the listen address. A missing name means the default target."""

    index: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetOutsideNetwork(Refusal):
    """The target is in no subnet of the network."""

    index: int
    name: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetNotUsable(Refusal):
    """The target is a network or broadcast address."""

    index: int
    name: str | None
    is_broadcast: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SameAsDefault(Refusal):
    """The backend is the default target, which gets all other traffic, so the port would have no effect."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadTargetPort(Refusal):
    """The range is not within 1 to 65535."""

    index: int
    name: str
    place: int
    """Index of the range in the backend's list."""
    ports: PortRange


@dataclass(frozen=True, slots=True, kw_only=True)
class NoListenPort(Refusal):
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BadListenPort(Refusal):
    """The range is not within 1 to 65535."""

    index: int
    ports: PortRange


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateListenPort(Refusal):
    index: int
    protocol: lb.ListenerProtocol
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoBackends(Refusal):
    """The port has no backend."""

    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnknownBackend(Refusal):
    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuplicateReference(Refusal):
    """A port of the spec lists the same backend twice."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CountMismatch(Refusal):
    """The number of the backend's ports is neither one nor that of the listen ports."""

    index: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyBackends(Refusal):
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightForUnknownBackend(Refusal):
    """No backend has the name of this weight."""

    name: str


def check_spec(network: Network, listen: IPAddress, asked: BalancerSpec) -> None:
    """Check a spec. Raises Refused."""
    if len(asked.backends) > sizes.MAX_BACKENDS:
        raise Refused(TooManyBackends(most=sizes.MAX_BACKENDS))
    if asked.default_target is not None:
        _check_target(network, listen, 0, None, asked.default_target)
    names = set[str]()
    for index, backend in enumerate(asked.backends):
        _check_name(names, index, backend.name)
        if backend.address == asked.default_target:
            raise Refused(SameAsDefault(index=index, name=backend.name))
        _check_target(network, listen, index, backend.name, backend.address)
        bad = _first_bad(backend.port)
        if bad is not None:
            place, ports = bad
            raise Refused(BadTargetPort(index=index, name=backend.name, place=place, ports=ports))
    unknown = next((name for name in asked.weights if name not in names), None)
    if unknown is not None:
        raise Refused(WeightForUnknownBackend(name=unknown))
    _check_ports(asked)


def _check_name(names: set[str], index: int, name: str) -> None:
    if not name or len(name) > MAX_BACKEND_NAME_LENGTH or any(map(str.isspace, name)) or not name.isprintable():
        raise Refused(BadBackendName(index=index, name=name))
    if name in names:
        raise Refused(DuplicateBackend(index=index, name=name))
    names.add(name)


def _check_target(network: Network, listen: IPAddress, index: int, name: str | None, address: IPAddress) -> None:
    if address.version != listen.version:
        raise Refused(TargetIpVersionMismatch(index=index, name=name))
    subnet = subnet_with(network, address)
    if subnet is None:
        raise Refused(TargetOutsideNetwork(index=index, name=name))
    if not is_usable(address, subnet.cidr):
        last = address == subnet.cidr.broadcast_address
        raise Refused(TargetNotUsable(index=index, name=name, is_broadcast=last))


def _first_bad(port: TargetPort) -> tuple[int, PortRange] | None:
    """Return the first invalid range with its index; None if all are valid."""
    match port:
        case None:
            ports: Ports = ()
        case int(number):
            ports = (PortRange(number, number),)
        case ranges:
            ports = ranges
    return next(((place, each) for place, each in enumerate(ports) if not each.is_valid), None)


def _check_ports(asked: BalancerSpec) -> None:
    backends = {backend.name: backend for backend in asked.backends}
    taken = set[tuple[lb.ListenerProtocol, int]]()
    left, targets = sizes.MAX_PORTS, sizes.MAX_ENDPOINTS
    for index, port in enumerate(asked.ports):
        number = _check_range(index, port.ports)
        left, targets = left - number, targets - number * len(port.backends)
        if left < 0:
            raise Refused(TooManyPorts(most=sizes.MAX_PORTS))
        for each in expand(port.ports):
            if (port.protocol, each) in taken:
                raise Refused(DuplicateListenPort(index=index, protocol=port.protocol, port=each))
            taken.add((port.protocol, each))
        if not port.backends:
            raise Refused(NoBackends(index=index))
        _check_backends(index, port.backends, number, backends)
        if targets < 0:
            raise Refused(TooManyPorts(most=sizes.MAX_ENDPOINTS, are_targets=True))


def _check_range(index: int, ports: Ports) -> int:
    """Check the ranges and return the number of ports."""
    if not ports:
        raise Refused(NoListenPort(index=index))
    bad = _first_bad(ports)
    if bad is not None:
        raise Refused(BadListenPort(index=index, ports=bad[1]))
    return count_ports(ports)


def _check_backends(index: int, names: Sequence[str], number: int, backends: Mapping[str, lb.Backend]) -> None:
    seen = set[str]()
    for name in names:
        if name not in backends:
            raise Refused(UnknownBackend(index=index, name=name))
        if name in seen:
            raise Refused(DuplicateReference(index=index, name=name))
        seen.add(name)
        port = backends[name].port
        if port is not None and not isinstance(port, int) and count_ports(port) != number:
            raise Refused(CountMismatch(index=index, name=name))
