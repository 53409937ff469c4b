"""Providers: what does the work, and the names by which tenants choose it.

Names are an operator's: several may lead to one implementation, because clients switch features by the name. A load
balancer is stored with its name, and what that name means is looked up. So is who compiles it: each dataplane of its
provider, and no other.
"""

import re
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fairlead.compilers.haproxy import HAPROXY
from fairlead.compilers.haproxy.abilities import ABILITIES as OF_PROXIES
from fairlead.compilers.native import NATIVE
from fairlead.compilers.native.abilities import ABILITIES as OF_HOSTS
from fairlead.compilers.native.abilities import WITH_AGENTS as OF_PROBING_HOSTS
from fairlead.compilers.ovn import OVN
from fairlead.compilers.ovn.abilities import ABILITIES, WITH_AGENTS
from fairlead.compilers.ovn.members import check_change
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane
from fairlead.dataplane.rows import NO_ROWS, Rows
from fairlead.model.abilities import Abilities, Feature, either
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps

Check: TypeAlias = Callable[[Snapshot, LoadBalancer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    description: str
    dataplanes: frozenset[str]
    """The names of those that have the rows of its load balancers."""
    abilities: Abilities = field(default_factory=Abilities)
    """What its load balancers may ask for."""
    announces: bool = False
    """Whether its VIPs are addresses that hosts announce: those are on announced networks, and all others' are not."""
    alone: "Provider | None" = None
    """If its listeners may lead to proxies, which agents of nodes run: what it is in a deployment where none do."""
    with_agents: Abilities | None = None
    """The same in a deployment whose agents probe, if that is something else."""
    remedy: str = ""
    """By what an operator gives it more abilities; nothing if it has all that it may have."""
    check: Check = lambda _, __: None
    """Refuses in a change what may be stored all the same: a member's address may become a VIP's after the member was
    made. Raises Unsupported. The snapshot is the one before the change."""
    flavor_capabilities: Mapping[str, str] = field(default_factory=dict)
    availability_zone_capabilities: Mapping[str, str] = field(default_factory=dict)
    """The keys that a profile may have, and what each means: only what has an effect."""

    def abilities_in(self, snapshot: Snapshot) -> Abilities:
        """Those that it has in this deployment."""
        return self.with_agents if self.with_agents is not None and snapshot.agents_probe else self.abilities


VIP_NETWORKS = "valid_vip_networks"
"""Octavia's own key of an availability zone, which its API reads whoever the provider is."""


ZONES = {VIP_NETWORKS: "List of the ids of networks on which VIPs may be."}


def _by_name(*dataplanes: Dataplane) -> Mapping[str, Dataplane]:
    return {dataplane.name: dataplane for dataplane in dataplanes}


DATAPLANES = _by_name(OVN, HAPROXY, NATIVE)
"""All that there are. Where an owner has rows in several, its rows in one do not refer to those in another."""
_SWITCHES = Provider(
    description="Decides in Open vSwitch on the node where the connection starts by rows of the OVN Northbound"
    " database.",
    dataplanes=frozenset({OVN.name}),
    abilities=ABILITIES,
    with_agents=WITH_AGENTS,
    check=check_change,
    availability_zone_capabilities=ZONES,
)
_HOSTS = Provider(
    description="Decides by the packet filter of plain Linux hosts on whichever a packet comes in. Their routing"
    " daemons announce VIPs.",
    dataplanes=frozenset({NATIVE.name}),
    abilities=OF_HOSTS,
    with_agents=OF_PROBING_HOSTS,
    announces=True,
    availability_zone_capabilities=ZONES,
)
_REMEDY = "agents of nodes do more: probes.by = 'agents' in the configuration"
IMPLEMENTATIONS: Mapping[str, Provider] = {
    "fairlead": replace(
        _SWITCHES,
        description="As ovn; what asks for more than a switch can do is led to an HAProxy on the node where the"
        " connection starts.",
        dataplanes=frozenset({OVN.name, HAPROXY.name}),
        abilities=either(WITH_AGENTS, OF_PROXIES),
        with_agents=None,
        alone=replace(_SWITCHES, remedy=_REMEDY),
    ),
    "ovn": _SWITCHES,
    "native": replace(
        _HOSTS,
        description=f"{_HOSTS.description} What asks for more than a packet says is led to an HAProxy on one of these"
        " hosts.",
        dataplanes=frozenset({NATIVE.name, HAPROXY.name}),
        abilities=replace(either(OF_PROBING_HOSTS, OF_PROXIES), localities=OF_HOSTS.localities),
        with_agents=None,
        alone=replace(_HOSTS, remedy=_REMEDY),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What tenants may choose, in the order in which it is listed: name -> implementation. `default` is one of them."""

    implementations: Mapping[str, str]
    default: str
    providers: Mapping[str, Provider] = field(default_factory=lambda: IMPLEMENTATIONS)

    def __contains__(self, name: str) -> bool:
        return name in self.implementations

    def __getitem__(self, name: str) -> Provider:
        return self.providers[self.implementations[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.implementations)

    def share_zones(self, name: str, other: str) -> bool:
        """Whether an availability zone of one is one of the other's too: both heed the same keys."""
        first, second = self[name], self[other]
        return first.availability_zone_capabilities == second.availability_zone_capabilities


def without_proxies(names: Names) -> Names:
    """In a deployment whose nodes run none: what would have them is what packets alone allow, and says so."""
    alone = {name: each.alone for name, each in names.providers.items() if each.alone is not None}
    return replace(names, providers=ChainMap(alone, names.providers))  # type: ignore[arg-type]


def proxied_names(names: Names) -> frozenset[str]:
    """Those whose load balancers may lead to proxies."""
    return frozenset(name for name in names if names[name].alone is not None)


def dataplanes_of(names: Names, known: Mapping[str, Dataplane] = DATAPLANES) -> tuple[Dataplane, ...]:
    """The dataplanes that any of these names leads to, each of which compiles the load balancers of its own alone."""
    return tuple(
        _for_its_own(dataplane, names)
        for dataplane in known.values()
        if any(dataplane.name in names[name].dataplanes for name in names)
    )


def _for_its_own(dataplane: Dataplane, names: Names) -> Dataplane:
    """As it is, if all names lead to it: then nobody has to be asked whose a load balancer is."""
    own = frozenset(name for name in names if dataplane.name in names[name].dataplanes)
    if own == frozenset(names):
        return dataplane

    def compile_own(view: Snapshot, owner: Owner) -> Steps[Rows]:
        return (yield from dataplane.compile_in_steps(view, owner)) if narrowed.concerns(view, owner) else NO_ROWS

    narrowed = replace(dataplane, providers=own, compile_in_steps=compile_own)
    return narrowed


def checked_by(dataplanes: Sequence[Dataplane]) -> Callable[[Snapshot, Owner], Steps[None]]:
    """What raises Unsupported for an owner that one of these cannot have: a change is accepted if all compile it.

    A dataplane of nodes is asked for what it would have if the whole deployment were one node.
    """

    def check(snapshot: Snapshot, owner: Owner) -> Steps[None]:
        for dataplane in dataplanes:
            if dataplane.concerns(snapshot, owner):
                yield from dataplane.compile_in_steps(snapshot, owner)

    return check


def with_advice(
    check: Callable[[Snapshot, Owner], Steps[None]], names: Names
) -> Callable[[Snapshot, Owner], Steps[None]]:
    """The same check, which says of what is refused how an operator could have it."""

    def advise(snapshot: Snapshot, owner: Owner) -> Steps[None]:
        try:
            yield from check(snapshot, owner)
        except Unsupported as refused:
            known = isinstance(refused.asked, Feature) and refused.provider in names
            remedy = names[refused.provider].remedy if known else ""
            raise Unsupported(refused.asked, refused.provider, remedy) from None

    return advise


DEFAULT_NAMES = "fairlead=fairlead,ovn=ovn"
DEFAULT_NAME = "fairlead"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""As long as Octavia lets a name be, of what needs no quotes in a path or in a configuration."""


def parse_names(text: str, default: str) -> Names:
    """NAME=IMPLEMENTATION,... Raises ValueError."""
    found: dict[str, str] = {}
    for part in (each.strip() for each in text.split(",") if each.strip()):
        name, equals, implementation = (word.strip() for word in part.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(
                f"'{part}' is not NAME=IMPLEMENTATION; a name has letters, digits, dots, _ and -, 64 at most"
            )
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(f"'{part}': there is no '{implementation}'; there is {', '.join(IMPLEMENTATIONS)}")
        if name in found:
            raise ValueError(f"'{name}' stands there twice")
        found[name] = implementation
    if default not in found:
        raise ValueError(f"the default '{default}' is none of the names {', '.join(found)}")
    return Names(implementations=found, default=default)


DEFAULT = without_proxies(parse_names(DEFAULT_NAMES, DEFAULT_NAME))
"""Of a deployment whose nodes have no agents."""
