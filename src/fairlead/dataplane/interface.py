"""What a dataplane is: something that holds rows which are compiled from the model.

The value says all that the reconciler, doors and the harness of stories have to know of it. Its compiler makes it, its
driver reads and writes its rows, and neither knows another dataplane.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from fairlead.dataplane.rows import Key, KeyedRow, Row, Rows
from fairlead.model.addresses import IPAddress
from fairlead.model.loadbalancer import Transport
from fairlead.model.owner import Kind, Owner
from fairlead.model.snapshot import Snapshot
from fairlead.model.steps import Steps, at_once

Compile: TypeAlias = Callable[[Snapshot, Owner], Rows]
CompileInSteps: TypeAlias = Callable[[Snapshot, Owner], Steps[Rows]]


class Place(Enum):
    """Where rows are applied."""

    CENTRAL = "central"
    """Once for the whole deployment, by a server."""
    NODE = "node"
    """On each chassis, which has its own rows: compiled from its slice of the model (`model/slices.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Packets from an address and port to another one."""

    client: tuple[IPAddress, int]
    to: tuple[IPAddress, int]
    transport: Transport


@dataclass(frozen=True, slots=True, kw_only=True)
class Led:
    """Where a flow goes, as far as the model says."""

    balancer_id: str
    listener_id: str
    slot: int
    member: tuple[IPAddress, int] | None
    """Or the proxy that chooses one. None: it is refused, because nobody serves."""
    is_proxy: bool = False
    """Whether a proxy chooses the member."""
    chassis: str = ""
    """Behind which the member is, or on which the proxy."""
    before: str = ""
    """The chassis that had the slot lately: flows that began there go on to it."""
    is_admitted: bool = True
    """Whether the listener's clients include this one. Who is not one of them gets no answer."""
    unheard: tuple[str, ...] = ()
    """The chassis on its way, or on one that it may take, whose agents are not heard: each goes on by the rows that it
    was told last, which may say something else. Sorted."""


Explain: TypeAlias = Callable[[Snapshot, Flow], Steps[Led | None]]
Views: TypeAlias = Callable[[Snapshot], Iterable[tuple[str, Snapshot]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dataplane:
    """How a row is written as text is its `str()`."""

    name: str
    """One word of small letters, as providers, metrics, the operator's door and headings of stories say it."""
    title: str
    """As sentences say it."""
    place: Place
    kinds: frozenset[Kind]
    """The kinds of owners that may have rows here."""
    providers: frozenset[str] | None = None
    """The names of those whose load balancers have rows here; None when all have."""
    compile_in_steps: CompileInSteps
    """All rows of one owner of a view, none for one that is gone. A view is a snapshot, or one chassis's slice of it.
    Raises Unsupported."""
    references: Callable[[Any], Iterable[Key]]
    """The rows that must exist before one of its rows can, and as long as it does."""
    separates_projects: bool = False
    """Whether no row refers to one of another project, so the order of projects does not matter: they take turns."""
    explain: Explain | None = None
    """Where a flow goes, by the whole model; None for one that is no load balancer's of it. None itself where that
    takes a packet to be known."""
    views: Views | None = None
    """Each chassis that has rows, by its name, and what they are compiled from: as from its slice, and made at once of
    the whole model. None itself where nobody but the chassis can say which those are."""

    def compile(self, view: Snapshot, owner: Owner) -> Rows:
        """The same without a rest."""
        return at_once(self.compile_in_steps(view, owner))

    def concerns(self, view: Snapshot, owner: Owner) -> bool:
        """Whether an owner is one to have rows here. One that is gone is: nobody knows any more whose it was."""
        balancer = view.load_balancers.get(owner.id) if owner.kind is Kind.LOAD_BALANCER else None
        own = balancer is None or self.providers is None or balancer.provider in self.providers
        return own and owner.kind in self.kinds


def row_by_row(rows_of: Callable[[Snapshot, Owner], Iterable[KeyedRow]]) -> CompileInSteps:
    """With a rest after each row, for a dataplane whose owners may have a thousand."""

    def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
        rows: dict[Key, Row] = {}
        for row in rows_of(view, owner):
            rows[row.key] = row
            yield
        return rows

    return compile_in_steps


def in_one_step(compile_owner: Compile) -> CompileInSteps:
    """For a dataplane none of whose owners takes long."""

    def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
        yield from ()
        return compile_owner(view, owner)

    return compile_in_steps
