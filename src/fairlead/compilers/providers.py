"""Providers by the name that a tenant chooses: each is a compiler for every kind of owner."""

from collections.abc import Callable, Mapping
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
    """The keys that a profile may have, and what each means: only what the compiler reads."""


PROVIDERS: Mapping[str, Provider] = {
    ovn.PROVIDER: Provider(
        description="Decides in Open vSwitch on the node where the connection starts by rows of the OVN Northbound"
        " database.",
        compile=ovn.compile_owner,
        check=check_change,
    ),
}
DEFAULT_PROVIDER = ovn.PROVIDER
