"""Providers: implementations of load balancers, and the names for tenants to select them.

Operators define the names. Several names may select one implementation, because clients enable features by provider
name. A load balancer is stored with the name, which is resolved when it is used. The dataplanes of its provider, and no
others, compile it.
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
from fairlead.model.documents.abilities import Abilities, Feature, combine_abilities
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.owner import Owner
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps

Check: TypeAlias = Callable[[Snapshot, LoadBalancer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    description: str
    dataplanes: frozenset[str]
    """Names of the dataplanes with rows of its load balancers."""
    abilities: Abilities = field(default_factory=Abilities)
    """Features that its load balancers may use."""
    announces: bool = False
    """Whether hosts announce its VIPs. Such VIPs are on announced networks, and all others are not."""
    without_proxies: "Provider | None" = None
    """The provider to use where nodes run no proxies; None if it never uses proxies."""
    with_agents: Abilities | None = None
    """Abilities in a deployment where agents probe, if different."""
    remedy: str = ""
    """Advice for operators on how to get more abilities; empty if there are none."""
    check: Check = lambda _, __: None
    """Extra check of a change, for states that may arise in stored documents too (a member's address that becomes a
    VIP).

    Raises Unsupported. The snapshot is the one before the change.
    """
    flavor_capabilities: Mapping[str, str] = field(default_factory=dict)
    availability_zone_capabilities: Mapping[str, str] = field(default_factory=dict)
    """Keys that a profile may have, with descriptions; only keys with an effect."""

    def abilities_in(self, snapshot: Snapshot) -> Abilities:
        """Abilities in this deployment."""
        return self.with_agents if self.with_agents is not None and snapshot.agents_probe else self.abilities


VIP_NETWORKS = "valid_vip_networks"
"""Availability zone key of Octavia itself, which its API reads for every provider."""


ZONES = {VIP_NETWORKS: "List of ids of the networks that VIPs may be on."}


def _by_name(*dataplanes: Dataplane) -> Mapping[str, Dataplane]:
    return {dataplane.name: dataplane for dataplane in dataplanes}


DATAPLANES = _by_name(OVN, HAPROXY, NATIVE)
"""All dataplanes. If an owner has rows in several, its rows in one do not refer to those in another."""
_SWITCHES = Provider(
    description="Balances connections in Open vSwitch on the node of the client through rows of the OVN Northbound"
    " database.",
    dataplanes=frozenset({OVN.name}),
    abilities=ABILITIES,
    with_agents=WITH_AGENTS,
    check=check_change,
    availability_zone_capabilities=ZONES,
)
_HOSTS = Provider(
    description="Balances connections in the packet filter of the plain Linux host that receives the packet. The"
    " routing daemons of the hosts announce VIPs.",
    dataplanes=frozenset({NATIVE.name}),
    abilities=OF_HOSTS,
    with_agents=OF_PROBING_HOSTS,
    announces=True,
    availability_zone_capabilities=ZONES,
)
_REMEDY = "set health.prober = 'agents' to enable the features of agents"
IMPLEMENTATIONS: Mapping[str, Provider] = {
    "fairlead": replace(
        _SWITCHES,
        description="Like ovn; listeners with features that a switch lacks are served by an HAProxy on the node of the"
        " client.",
        dataplanes=frozenset({OVN.name, HAPROXY.name}),
        abilities=combine_abilities(WITH_AGENTS, OF_PROXIES),
        with_agents=None,
        without_proxies=replace(_SWITCHES, remedy=_REMEDY),
    ),
    "ovn": _SWITCHES,
    "native": replace(
        _HOSTS,
        description=f"{_HOSTS.description} Listeners with features that a packet filter lacks are served by an HAProxy"
        " on one of these hosts.",
        dataplanes=frozenset({NATIVE.name, HAPROXY.name}),
        abilities=replace(combine_abilities(OF_PROBING_HOSTS, OF_PROXIES), localities=OF_HOSTS.localities),
        with_agents=None,
        without_proxies=replace(_HOSTS, remedy=_REMEDY),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderNames:
    """Provider names for tenants, in listing order: name -> implementation. `default` is one of them."""

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
        """Whether the two providers have the same availability zones, because they use the same keys."""
        first, second = self[name], self[other]
        return first.availability_zone_capabilities == second.availability_zone_capabilities


def without_proxies(names: ProviderNames) -> ProviderNames:
    """Names for a deployment without proxies: providers that use them have only the abilities of packet filters."""
    alone = {name: each.without_proxies for name, each in names.providers.items() if each.without_proxies is not None}
    return replace(names, providers=ChainMap(alone, names.providers))  # type: ignore[arg-type]


def proxied_names(names: ProviderNames) -> frozenset[str]:
    """Names of providers that may use proxies."""
    return frozenset(name for name in names if names[name].without_proxies is not None)


def dataplanes_of(names: ProviderNames, known: Mapping[str, Dataplane] = DATAPLANES) -> tuple[Dataplane, ...]:
    """Dataplanes that any of these names uses; each compiles only the load balancers of its own providers."""
    return tuple(
        _for_its_own(dataplane, names)
        for dataplane in known.values()
        if any(dataplane.name in names[name].dataplanes for name in names)
    )


def _for_its_own(dataplane: Dataplane, names: ProviderNames) -> Dataplane:
    """Restrict a dataplane to its providers; unchanged if all names use it, which saves looking up the provider."""
    own = frozenset(name for name in names if dataplane.name in names[name].dataplanes)
    if own == frozenset(names):
        return dataplane

    def compile_own(view: Snapshot, owner: Owner) -> Steps[Rows]:
        return (yield from dataplane.compile_in_steps(view, owner)) if narrowed.concerns(view, owner) else NO_ROWS

    narrowed = replace(dataplane, providers=own, compile_in_steps=compile_own)
    return narrowed


def checked_by(dataplanes: Sequence[Dataplane]) -> Callable[[Snapshot, Owner], Steps[None]]:
    """Return a check that raises Unsupported for an owner that one of these dataplanes cannot compile.

    A dataplane on nodes compiles the whole deployment as if it were one node.
    """

    def check(snapshot: Snapshot, owner: Owner) -> Steps[None]:
        for dataplane in dataplanes:
            if dataplane.concerns(snapshot, owner):
                yield from dataplane.compile_in_steps(snapshot, owner)

    return check


def with_advice(
    check: Callable[[Snapshot, Owner], Steps[None]], names: ProviderNames
) -> Callable[[Snapshot, Owner], Steps[None]]:
    """Wrap a check, so that its error advises the operator how to get the feature."""

    def advise(snapshot: Snapshot, owner: Owner) -> Steps[None]:
        try:
            yield from check(snapshot, owner)
        except Unsupported as refused:
            known = isinstance(refused.feature, Feature) and refused.provider in names
            remedy = names[refused.provider].remedy if known else ""
            raise Unsupported(refused.feature, refused.provider, remedy) from None

    return advise


DEFAULT_NAMES = "fairlead=fairlead,ovn=ovn"
DEFAULT_NAME = "fairlead"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""Length limit of Octavia; characters that need no quotes in a path or a configuration."""


def parse_names(text: str, default: str) -> ProviderNames:
    """Parse NAME=IMPLEMENTATION,... Raises ValueError."""
    found: dict[str, str] = {}
    for part in (each.strip() for each in text.split(",") if each.strip()):
        name, equals, implementation = (word.strip() for word in part.partition("="))
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(
                f"'{part}' is not NAME=IMPLEMENTATION; a name has letters, digits, dots, _ and -, 64 at most"
            )
        if implementation not in IMPLEMENTATIONS:
            raise ValueError(
                f"'{part}': unknown implementation '{implementation}'; known: {', '.join(IMPLEMENTATIONS)}"
            )
        if name in found:
            raise ValueError(f"duplicate name '{name}'")
        found[name] = implementation
    if default not in found:
        raise ValueError(f"the default '{default}' is not one of the names {', '.join(found)}")
    return ProviderNames(implementations=found, default=default)


DEFAULT = without_proxies(parse_names(DEFAULT_NAMES, DEFAULT_NAME))
"""Provider names of a deployment without agents."""
