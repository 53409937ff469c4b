"""Dataplane: a target that holds rows compiled from the model.

The value describes it completely for the reconciler, the API front ends and the test harness. Its compiler creates the
value, its driver reads and writes the rows, and neither depends on another dataplane.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from fairlead.dataplane.rows import Key, KeyedRow, Row, Rows
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.loadbalancer import Transport
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion

Compile: TypeAlias = Callable[[Snapshot, Owner], Rows]
CompileInSteps: TypeAlias = Callable[[Snapshot, Owner], Steps[Rows]]


class DataplaneScope(Enum):
    """Place where rows are applied."""

    CENTRAL = "central"
    """Applied once for the whole deployment, by a server."""
    NODE = "node"
    """Applied on each chassis, with rows compiled from the chassis's slice of the model
    (`model/registry/slices.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Flow of packets from one address and port to another."""

    client: tuple[IPAddress, int]
    destination: tuple[IPAddress, int]
    transport: Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowTarget:
    """Destination of a flow according to the model."""

    balancer_id: str
    listener_id: str
    slot: int
    member: tuple[IPAddress, int] | None
    """Address and port of the member, or of the proxy that selects one. None: rejected, no member is available."""
    is_proxy: bool = False
    """Whether a proxy selects the member."""
    chassis: str = ""
    """Chassis that routes the member's address, or that runs the proxy."""
    previous_owner: str = ""
    """Previous owner of the slot, a chassis: existing flows continue there."""
    is_admitted: bool = True
    """Whether the listener's allowed CIDRs include the client. Other clients get no answer."""
    unresponsive: tuple[str, ...] = ()
    """Chassis that the flow passes, or may pass, with unresponsive agents and perhaps outdated rows. Sorted."""


Explain: TypeAlias = Callable[[Snapshot, Flow], Steps[FlowTarget | None]]
Views: TypeAlias = Callable[[Snapshot], Iterable[tuple[str, Snapshot]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataplane:
    """Description of a dataplane. The text form of a row is its `str()`."""

    name: str
    """One lower-case word, used by providers, metrics, the operator API and headings of test cases."""
    title: str
    """Name for messages."""
    scope: DataplaneScope
    kinds: frozenset[Kind]
    """Kinds of owners that may have rows here."""
    providers: frozenset[str] | None = None
    """Providers of the load balancers that have rows here; None for all."""
    compile_in_steps: CompileInSteps
    """Compile all rows of one owner of a view; none for a deleted owner. Raises Unsupported.

    A view is a snapshot, or one chassis's slice of it.
    """
    references: Callable[[Any], Iterable[Key]]
    """Keys of the rows that have to exist as long as a row does."""
    separates_projects: bool = False
    """Whether rows never refer to rows of another project, so projects can be applied in any order and take turns."""
    explain: Explain | None = None
    """Find the destination of a flow in the whole model; None for a flow to no load balancer.

    The field is None for a dataplane that needs an actual packet (a trace) to answer.
    """
    views: Views | None = None
    """Yield each chassis that has rows, and the view they are compiled from, derived from the whole model.

    The field is None for a dataplane with views that only the chassis can derive.
    """

    def compile(self, view: Snapshot, owner: Owner) -> Rows:
        """Compile without yielding."""
        return run_to_completion(self.compile_in_steps(view, owner))

    def concerns(self, view: Snapshot, owner: Owner) -> bool:
        """Whether an owner should have rows here. True for a deleted load balancer, because its provider is unknown."""
        balancer = view.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None
        own = balancer is None or self.providers is None or balancer.provider in self.providers
        return own and owner.kind in self.kinds


def row_by_row(rows_of: Callable[[Snapshot, Owner], Iterable[KeyedRow]]) -> CompileInSteps:
    """Adapt a row generator to `compile_in_steps`, with a step per row, for owners with up to a thousand rows."""

    def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
        rows: dict[Key, Row] = {}
        for row in rows_of(view, owner):
            rows[row.key] = row
            yield
        return rows

    return compile_in_steps


def in_one_step(compile_owner: Compile) -> CompileInSteps:
    """Adapt a plain compile function to `compile_in_steps`, for a dataplane with small owners."""

    def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
        yield from ()
        return compile_owner(view, owner)

    return compile_in_steps
