"""Providers: what does the work, and the names by which tenants choose it.

Names are an operator's: several may lead to one implementation, because clients switch features by the name. A load
balancer is stored with its name, and what that name means is looked up.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from fairlead.compilers import ovn
from fairlead.compilers.ovn_members import check_change
from fairlead.dataplane.rows import Rows
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot

Compile: TypeAlias = Callable[[Snapshot, Owner], Rows]
Check: TypeAlias = Callable[[Snapshot, LoadBalancer], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    description: str
    compile: Compile
    check: Check = lambda _, __: None
    """What a change may not ask for, although it may come to be so later. Raises Unsupported. The snapshot is the one
    before the change."""
    flavor_capabilities: Mapping[str, str] = field(default_factory=dict)
    availability_zone_capabilities: Mapping[str, str] = field(default_factory=dict)
    """The keys that a profile may have, and what each means: only what has an effect."""


VIP_NETWORKS = "valid_vip_networks"
"""Octavia's own key of an availability zone, which its API reads whoever the provider is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """What tenants may choose, in the order in which it is listed: name -> implementation. `default` is one of them."""

    implementations: Mapping[str, str]
    default: str

    def __contains__(self, name: str) -> bool:
        return name in self.implementations

    def __getitem__(self, name: str) -> Provider:
        return IMPLEMENTATIONS[self.implementations[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self.implementations)

    def are_one(self, name: str, other: str) -> bool:
        """Whether both lead to the same implementation."""
        return self.implementations[name] == self.implementations[other]


IMPLEMENTATIONS: Mapping[str, Provider] = {
    ovn.PROVIDER: Provider(
        description="Decides in Open vSwitch on the node where the connection starts by rows of the OVN Northbound"
        " database.",
        compile=ovn.compile_owner,
        check=check_change,
        availability_zone_capabilities={VIP_NETWORKS: "List of the ids of networks on which VIPs may be."},
    ),
}
compile_owner: Compile = ovn.compile_owner
"""All implementations write to one dataplane so far, whatever names they have."""
DEFAULT_NAMES = "fairlead=ovn,ovn=ovn"
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


DEFAULT = parse_names(DEFAULT_NAMES, DEFAULT_NAME)
