"""A story: a text file of states, each with a model and the rows that every dataplane must have for it.

    -- STATE model --              documents and facts
    -- STATE ovn --                rows of a central dataplane
    -- STATE toy @chassis1 --      rows of a per-node dataplane, on this chassis

A dataplane without rows in the whole story has no section. Rows that are not listed must not exist. The syntax of a
model is that of `harness/language.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from immutables import Map

from fairlead.compilers.providers import DEFAULT, dataplanes_of
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane, DataplaneScope
from fairlead.model.documents.abilities import Feature
from fairlead.model.documents.addresses import IPAddress
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.health import HealthKey
from fairlead.model.documents.observed_proxy import Proxy
from fairlead.model.documents.owner import Kind, Owner, creation_order
from fairlead.model.documents.unmanaged import UnmanagedObject, is_unmanaged
from fairlead.model.queries.probes import derive_health
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows, with_unmanaged
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Snapshot, with_health
from harness.language import (
    Documents,
    parse_agents_probe,
    parse_chassis,
    parse_counts_answers,
    parse_covering,
    parse_model,
    parse_own_addresses,
    parse_plugged,
    parse_proxies,
    parse_zones,
)

HEADER = re.compile(r"^-- (\S+) (\w+)(?: @(\S+))? --$")
EMPTY_SNAPSHOT = Snapshot(gateway_chassis=("gw1", "gw2"), proxied_providers=frozenset({"fairlead"}))
"""The model of every story before its first state."""


PRODUCT_DATAPLANES = dataplanes_of(DEFAULT)
"""The dataplanes of the stories, unless a test passes others."""


class RowPlacement(NamedTuple):
    """Dataplane, and the chassis if the dataplane is per node, to which rows of an owner are applied."""

    dataplane: str
    chassis: str = ""


MODEL = RowPlacement("model")


@dataclass(frozen=True, kw_only=True)
class State:
    name: str
    model: str
    expected: Mapping[RowPlacement, str]
    """Lines of rows, by dataplane and chassis."""
    documents: Documents
    down: dict[str, frozenset[HealthKey]]
    plugged: Mapping[str, str] = field(default_factory=dict)
    """Chassis of each bound port."""
    chassis: frozenset[str] = frozenset()
    """Names of all chassis."""
    zones: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Availability zones of each chassis."""
    agents_probe: bool = False
    proxies: Mapping[str, Proxy] = field(default_factory=dict)
    """Proxies by their port."""
    own_addresses: Mapping[str, frozenset[IPAddress]] = field(default_factory=dict)
    """Own addresses of each plain host."""
    counts_answers: bool = False
    covering: Mapping[str, str] = field(default_factory=dict)
    """Chassis with delegated probing, by network."""

    def snapshot(self) -> Snapshot:
        """The snapshot of this state as if it were the first."""
        documents = self.documents.values()
        snapshot = with_unmanaged(EMPTY_SNAPSHOT, self.foreign)
        snapshot = apply_changes(snapshot, Changes(puts=tuple(each for each in documents if not is_unmanaged(each))), 1)
        return with_down_members(self.with_facts(snapshot), self.down)

    @property
    def foreign(self) -> dict[Owner, UnmanagedObject | None]:
        """Unmanaged documents, which other programs write."""
        return {owner: each for owner, each in self.documents.items() if is_unmanaged(each)}

    def with_facts(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot with the facts about chassis, port bindings, probes and proxies of this state, and no others."""
        ports = {name: Map({port: True for port, at in self.plugged.items() if at == name}) for name in self.chassis}
        chassis = {
            name: Chassis(name=name, host=name, ports=ports[name], zones=self.zones.get(name, frozenset()))
            for name in self.chassis
        }
        known = {"plugged": Map(self.plugged), "chassis": Map(chassis), "agents_probe": self.agents_probe}
        known |= {"counts_answers": self.counts_answers}
        known |= {"covering": Map(self.covering)}
        known |= {"own_addresses": Map(self.own_addresses)}
        return replace(snapshot, **known, proxies=Map(self.proxies))


@dataclass(frozen=True, kw_only=True)
class Case:
    path: Path
    comment: str
    states: tuple[State, ...]
    dataplanes: tuple[Dataplane, ...] = PRODUCT_DATAPLANES

    @property
    def places(self) -> tuple[RowPlacement, ...]:
        return places_of(self.dataplanes, self.states)


def places_of(dataplanes: tuple[Dataplane, ...], states: tuple[State, ...]) -> tuple[RowPlacement, ...]:
    """Each central dataplane, and each per-node dataplane on every chassis of the states."""
    chassis = sorted({name for state in states for name in state.chassis})
    return tuple(
        RowPlacement(dataplane.name, name)
        for dataplane in dataplanes
        for name in (chassis if dataplane.scope is DataplaneScope.NODE else [""])
    )


def view_of(snapshot: Snapshot, where: RowPlacement) -> Snapshot:
    """The snapshot, or the chassis's slice of it, that is compiled there."""
    return slice_of(snapshot, where.chassis) if where.chassis else snapshot


def with_down_members(snapshot: Snapshot, down: Mapping[str, frozenset[HealthKey]]) -> Snapshot:
    """The snapshot with exactly these members down."""
    kinds = (Kind.LOAD_BALANCER, Kind.LOCAL_IP)
    probing = [Owner(kind, each) for kind in kinds for each in snapshot.documents(kind)]
    for identity in {*snapshot.down, *down} - {owner.id for owner in probing}:
        snapshot = with_health(snapshot, identity, frozenset())
    for owner in probing:
        derived = derive_health(snapshot, [owner]).down.get(owner.id, frozenset())
        snapshot = with_health(snapshot, owner.id, derived | down.get(owner.id, frozenset()))
    return snapshot


def read_case(path: Path, dataplanes: tuple[Dataplane, ...] = PRODUCT_DATAPLANES) -> Case:
    comment, sections = _sections(path.read_text())
    states: list[State] = []
    for name, texts in sections.items():
        model = texts.pop(MODEL)
        states.append(read_state(name, model, texts, states[-1].documents if states else {}))
    return Case(path=path, comment=comment, states=tuple(states), dataplanes=dataplanes)


def read_state(name: str, model: str, expected: Mapping[RowPlacement, str], before: Documents) -> State:
    documents, down = parse_model(model, before)
    plugged, chassis = parse_plugged(model), parse_chassis(model)
    known: dict[str, Any] = {"documents": documents, "down": down, "plugged": plugged, "chassis": chassis}
    known |= {"zones": parse_zones(model), "agents_probe": parse_agents_probe(model)}
    known |= {"proxies": parse_proxies(model), "counts_answers": parse_counts_answers(model)}
    known |= {"covering": parse_covering(model), "own_addresses": parse_own_addresses(model)}
    return State(name=name, model=model, expected=expected, **known)


def write_case(story: Case) -> None:
    """Rewrite the goldens. Review them as a diff before they are committed."""
    texts = {state.name: render_state(state, story.dataplanes, story.places) for state in story.states}
    told = [where for where in story.places if any(text[where] for text in texts.values())]
    parts = [story.comment]
    for state in story.states:
        parts.append(f"-- {state.name} model --\n{state.model}")
        for where in told:
            place = f" @{where.chassis}" if where.chassis else ""
            parts.append(f"-- {state.name} {where.dataplane}{place} --\n{texts[state.name][where]}")
    story.path.write_text("\n".join(part.rstrip() + "\n" for part in parts))


def render_state(
    state: State, dataplanes: tuple[Dataplane, ...], places: tuple[RowPlacement, ...]
) -> dict[RowPlacement, str]:
    by_name, snapshot = {each.name: each for each in dataplanes}, state.snapshot()
    return {where: render_rows(view_of(snapshot, where), by_name[where.dataplane]) for where in places}


def render_rows(view: Snapshot, dataplane: Dataplane = PRODUCT_DATAPLANES[0]) -> str:
    """Rows of every owner as text, and the errors of owners that do not compile, as Octavia's clients read them."""
    lines: list[str] = []
    for owner in sorted(owners_with_rows(view), key=creation_order):
        if owner.kind not in dataplane.kinds:
            continue
        try:
            rows = dataplane.compile(view, owner)
        except Unsupported as refusal:
            lines.append(f"refused {owner}: {refusal.provider} does not support {describe_feature(refusal.feature)}")
        else:
            lines.extend(str(rows[key]) for key in sorted(rows))
    return "\n".join(lines)


ATTRIBUTE_WORDS = {
    "listener.protocol": "protocol",
    "listener.connection_limit": "connection_limit",
    "pool.algorithm": "lb_algorithm",
    "pool.health_monitor": "health monitors of type",
}
"""Octavia's names of attributes, as in its errors.

The front end's own table needs packages that pure tests do not have.
"""


def describe_feature(asked: Feature | str) -> str:
    return asked if isinstance(asked, str) else f"{ATTRIBUTE_WORDS[asked.attribute]} {asked.value}".rstrip()


def _sections(text: str) -> tuple[str, dict[str, dict[RowPlacement, str]]]:
    """The leading comment, and the text of each section by state and by dataplane and chassis."""
    comment: list[str] = []
    sections: dict[str, dict[RowPlacement, list[str]]] = {}
    into = comment
    for line in text.splitlines():
        if header := HEADER.match(line):
            into = sections.setdefault(header[1], {}).setdefault(RowPlacement(header[2], header[3] or ""), [])
        elif line.strip():
            into.append(line)
    joined = {state: {where: "\n".join(lines) for where, lines in each.items()} for state, each in sections.items()}
    return "\n".join(comment), joined
