"""Two fictional dataplanes that show the parts of one: row types, a compiler, and a line in a registry.

`toy` is central. Each network is a Segment, and each listener of its load balancers a Service on it with Targets.
`leaf` is per node: it has a Hook for each member with a port bound there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias, assert_never

from fairlead.compilers.providers import DATAPLANES, Provider, ProviderNames, dataplanes_of
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane, DataplaneScope, in_one_step
from fairlead.dataplane.rows import NO_ROWS, Key, Rows
from fairlead.model.documents.abilities import Feature
from fairlead.model.documents.addresses import render_endpoint
from fairlead.model.documents.loadbalancer import Listener, LoadBalancer, Member, Transport, find_pool, transport
from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.display_names import describe_member
from fairlead.model.snapshot import Snapshot, member_network


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    name: str

    @property
    def key(self) -> Key:
        return "Segment", self.name

    def __str__(self) -> str:
        return f"Segment {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    name: str
    segment: str
    endpoints: tuple[str, ...]

    @property
    def key(self) -> Key:
        return "Service", self.name

    def __str__(self) -> str:
        return f"Service {self.name} on {self.segment}: {' '.join(self.endpoints)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    service: str
    endpoint: str
    weight: int

    @property
    def key(self) -> Key:
        return "Target", self.service, self.name

    def __str__(self) -> str:
        return f"Target {self.name} of {self.service}: {self.endpoint}*{self.weight}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hook:
    """Row of a node."""

    balancer: str
    port: str
    endpoint: str

    @property
    def key(self) -> Key:
        return "Hook", self.balancer, self.port, self.endpoint

    def __str__(self) -> str:
        return f"Hook {self.port} of {self.balancer}: {self.endpoint}"


ToyRow: TypeAlias = Segment | Service | Target | Hook


def references(row: ToyRow) -> tuple[Key, ...]:
    match row:
        case Service(segment=segment):
            return (("Segment", segment),)
        case Target(service=service):
            return (("Service", service),)
        case Segment() | Hook():
            return ()
        case unknown:
            assert_never(unknown)


def compile_toy(view: Snapshot, owner: Owner) -> Rows:
    match view.find(owner):
        case Network(id=name):
            return _by_key(iter([Segment(name=name)]))
        case LoadBalancer() as balancer:
            return _by_key(row for listener in balancer.listeners for row in _listener(view, balancer, listener))
        case _:
            return NO_ROWS


def _listener(view: Snapshot, balancer: LoadBalancer, listener: Listener) -> Iterator[ToyRow]:
    if transport(listener.protocol) is not Transport.TCP:
        raise Unsupported(Feature("listener.protocol", listener.protocol.value), balancer.provider)
    endpoints = tuple(render_endpoint(vip.address, listener.port) for vip in balancer.vips)
    yield Service(name=listener.id, segment=balancer.vip.network_id, endpoints=endpoints)
    pool = find_pool(balancer, listener.default_pool_id)
    down = view.down.get(balancer.id, frozenset())
    for member in pool.members if pool else ():
        if member.takes_connections and member.id not in down:
            endpoint = render_endpoint(member.address, member.port)
            yield Target(name=member.id, service=listener.id, endpoint=endpoint, weight=member.weight)


def compile_leaf(view: Snapshot, owner: Owner) -> Rows:
    balancer = view.find(owner)
    if not isinstance(balancer, LoadBalancer):
        return NO_ROWS
    members = (member for pool in balancer.pools for member in pool.members)
    return _by_key(row for member in members for row in _compile_hook(view, balancer, member))


def _compile_hook(view: Snapshot, balancer: LoadBalancer, member: Member) -> Iterator[Hook]:
    port_id = view.addresses.get((member_network(view, balancer, member), member.address))
    if port_id in view.plugged:
        yield Hook(balancer=balancer.id, port=port_id, endpoint=next(describe_member(member)))


def _by_key(rows: Iterator[ToyRow]) -> Rows:
    return {row.key: row for row in rows}


TOY = Dataplane(
    name="toy",
    title="the toy",
    scope=DataplaneScope.CENTRAL,
    kinds=frozenset({Kind.NETWORK, Kind.LOAD_BALANCER}),
    compile_in_steps=in_one_step(compile_toy),
    references=references,
)
LEAF = Dataplane(
    name="leaf",
    title="the leaves",
    scope=DataplaneScope.NODE,
    kinds=frozenset({Kind.LOAD_BALANCER}),
    compile_in_steps=in_one_step(compile_leaf),
    references=references,
)
PROVIDERS: Mapping[str, Provider] = {
    name: Provider(description=name, dataplanes=frozenset(dataplanes))
    for name, dataplanes in {
        "ovn": ["ovn"],
        "toy": ["toy"],
        "both": ["ovn", "toy"],
        "edge": ["toy", "leaf"],
    }.items()
}
NAMES = ProviderNames(implementations={name: name for name in PROVIDERS}, default="ovn", providers=PROVIDERS)
TOYS = dataplanes_of(NAMES, {**DATAPLANES, TOY.name: TOY, LEAF.name: LEAF})
"""The product's dataplanes and these two, each with the load balancers of its own providers."""
