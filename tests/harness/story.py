"""A story: a text file of states, each a model and the rows that every dataplane must hold for it.

    -- STATE model --              what is asked for, and observed
    -- STATE ovn --                the rows of a central dataplane
    -- STATE toy @chassis1 --      the rows of one of nodes, on this chassis

A dataplane that has no rows in the whole story has no section, and what it is not said to have it does not have.
A model is said in the language of `harness/language.py`.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from immutables import Map

from fairlead.compilers.providers import DEFAULT, dataplanes_of
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.interface import Dataplane, Place
from fairlead.model.abilities import Feature
from fairlead.model.chassis import Chassis
from fairlead.model.health import HealthKey
from fairlead.model.owner import creation_order
from fairlead.model.probes import derive_health
from fairlead.model.slices import slice_of
from fairlead.model.snapshot import Snapshot, with_health
from fairlead.model.status import Where
from fairlead.model.writing import Changes, apply_changes, owners_with_rows
from harness.language import Documents, parse_chassis, parse_model, parse_plugged

HEADER = re.compile(r"^-- (\S+) (\w+)(?: @(\S+))? --$")
EMPTY = Snapshot(gateway_chassis=("gw1", "gw2"))
"""The model of every story before its first state."""


PRODUCT = dataplanes_of(DEFAULT)
"""The dataplanes of the stories, unless a test hands in others."""
MODEL = Where("model")


@dataclass(frozen=True, kw_only=True)
class State:
    name: str
    model: str
    expected: Mapping[Where, str]
    """The lines of each dataplane that has any, and of each chassis."""
    documents: Documents
    down: dict[str, frozenset[HealthKey]]
    plugged: Mapping[str, str] = field(default_factory=dict)
    """Port -> chassis."""
    chassis: frozenset[str] = frozenset()
    """All that there are."""

    def snapshot(self) -> Snapshot:
        """As if the state were the first."""
        snapshot = apply_changes(EMPTY, Changes(puts=tuple(self.documents.values())), 1)
        return tell_health(self.told(snapshot), self.down)

    def told(self, snapshot: Snapshot) -> Snapshot:
        """The snapshot that knows where ports are plugged in, and no more."""
        ports = {name: Map({port: True for port, at in self.plugged.items() if at == name}) for name in self.chassis}
        chassis = {name: Chassis(name=name, host=name, ports=ports[name]) for name in self.chassis}
        return replace(snapshot, plugged=Map(self.plugged), chassis=Map(chassis))


@dataclass(frozen=True, kw_only=True)
class Story:
    path: Path
    comment: str
    states: tuple[State, ...]
    dataplanes: tuple[Dataplane, ...] = PRODUCT

    @property
    def places(self) -> tuple[Where, ...]:
        return places_of(self.dataplanes, self.states)


def places_of(dataplanes: tuple[Dataplane, ...], states: tuple[State, ...]) -> tuple[Where, ...]:
    """Where rows are applied: each central dataplane, and each of nodes on every chassis that the states name."""
    chassis = sorted({name for state in states for name in state.chassis})
    return tuple(
        Where(dataplane.name, name)
        for dataplane in dataplanes
        for name in (chassis if dataplane.place is Place.NODE else [""])
    )


def view_of(snapshot: Snapshot, where: Where) -> Snapshot:
    """What is compiled there."""
    return slice_of(snapshot, where.chassis) if where.chassis else snapshot


def tell_health(snapshot: Snapshot, down: Mapping[str, frozenset[HealthKey]]) -> Snapshot:
    """The snapshot in which the monitors say this, and no more."""
    for balancer in {*snapshot.down, *down, *snapshot.load_balancers}:
        derived = derive_health(snapshot, balancer).down.get(balancer, frozenset())
        snapshot = with_health(snapshot, balancer, derived | down.get(balancer, frozenset()))
    return snapshot


def read_story(path: Path, dataplanes: tuple[Dataplane, ...] = PRODUCT) -> Story:
    comment, sections = _sections(path.read_text())
    states: list[State] = []
    for name, texts in sections.items():
        model = texts.pop(MODEL)
        documents, down = parse_model(model, states[-1].documents if states else {})
        plugged, chassis = parse_plugged(model), parse_chassis(model)
        known = {"documents": documents, "down": down, "plugged": plugged, "chassis": chassis}
        state = State(name=name, model=model, expected=texts, **known)
        states.append(state)
    return Story(path=path, comment=comment, states=tuple(states), dataplanes=dataplanes)


def write_story(story: Story) -> None:
    """Rewrite the goldens: to be read as a diff before they are believed."""
    texts = {state.name: render_state(state, story.dataplanes, story.places) for state in story.states}
    told = [where for where in story.places if any(text[where] for text in texts.values())]
    parts = [story.comment]
    for state in story.states:
        parts.append(f"-- {state.name} model --\n{state.model}")
        for where in told:
            place = f" @{where.chassis}" if where.chassis else ""
            parts.append(f"-- {state.name} {where.dataplane}{place} --\n{texts[state.name][where]}")
    story.path.write_text("\n".join(part.rstrip() + "\n" for part in parts))


def render_state(state: State, dataplanes: tuple[Dataplane, ...], places: tuple[Where, ...]) -> dict[Where, str]:
    by_name, snapshot = {each.name: each for each in dataplanes}, state.snapshot()
    return {where: render_rows(view_of(snapshot, where), by_name[where.dataplane]) for where in places}


def render_rows(view: Snapshot, dataplane: Dataplane = PRODUCT[0]) -> str:
    """Every owner's rows as text, and the refusals of those that do not compile, as Octavia's clients read them."""
    lines: list[str] = []
    for owner in sorted(owners_with_rows(view), key=creation_order):
        if owner.kind not in dataplane.kinds:
            continue
        try:
            rows = dataplane.compile(view, owner)
        except Unsupported as refusal:
            lines.append(f"refused {owner}: {refusal.provider} does not support {tell_feature(refusal.asked)}")
        else:
            lines.extend(str(rows[key]) for key in sorted(rows))
    return "\n".join(lines)


WORDS = {
    "listener.protocol": "protocol",
    "listener.connection_limit": "connection_limit",
    "pool.algorithm": "lb_algorithm",
    "pool.health_monitor": "health monitors of type",
}
"""Octavia's: stories tell refusals as its clients read them. The door needs packages that pure tests have not."""


def tell_feature(asked: Feature | str) -> str:
    return asked if isinstance(asked, str) else f"{WORDS[asked.attribute]} {asked.value}".rstrip()


def _sections(text: str) -> tuple[str, dict[str, dict[Where, str]]]:
    """By state, and by dataplane and chassis."""
    comment: list[str] = []
    sections: dict[str, dict[Where, list[str]]] = {}
    into = comment
    for line in text.splitlines():
        if header := HEADER.match(line):
            into = sections.setdefault(header[1], {}).setdefault(Where(header[2], header[3] or ""), [])
        elif line.strip():
            into.append(line)
    joined = {state: {where: "\n".join(lines) for where, lines in each.items()} for state, each in sections.items()}
    return "\n".join(comment), joined
