"""Kinds: each is declared once, and the indexes follow from the current documents alone."""

import random
from dataclasses import fields, replace
from pathlib import Path

import pytest
from immutables import Map

from fairlead.model.documents.indexes import SharedKeys, UniqueIndex
from fairlead.model.documents.network import Port
from fairlead.model.documents.owner import WITHOUT_DOCUMENTS, Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes, index_names
from fairlead.model.registry.facts import DERIVED_FIELDS, FACTS
from fairlead.model.registry.kinds import KINDS, claims, has_rows, owner_of
from fairlead.model.snapshot import Aggregate, Snapshot, map_name
from harness.case import read_case
from harness.language import COMMON

STORIES = [read_case(path) for path in sorted((Path(__file__).parent.parent / "cases").glob("*.txt"))]
DOCUMENTS = [document for story in STORIES for state in story.states for document in state.documents.values()]
FACT_FIELDS = {fact.field for fact in FACTS if fact.apply is None} | DERIVED_FIELDS
WRITTEN = {"part_histories", "generations"}
"""Indexes that depend on the time of writes."""
STEPS = 150


def test_every_snapshot_map_holds_documents_an_index_or_a_fact():
    maps = {field.name for field in fields(Snapshot) if isinstance(field.default, Map | SharedKeys)}
    facts = {name for name in FACT_FIELDS if isinstance(getattr(Snapshot(), name), Map)}
    assert maps == {map_name(kind) for kind in KINDS} | index_names() | facts | WRITTEN
    assert KINDS.keys() == set(Kind) - WITHOUT_DOCUMENTS


def test_every_document_is_owned_by_its_declared_kind():
    for kind, declared in KINDS.items():
        assert declared.document.__name__.lower() == kind.name.replace("_", "").lower()
    found = {owner_of(document).kind for document in DOCUMENTS}
    assert found == {kind for kind in KINDS if has_rows(kind)}


def own(document: Aggregate) -> set[object]:
    """Return the keys that the store, or the randomness of ids, makes unique per document."""
    indexes = (index for index in KINDS[owner_of(document).kind].indexes if isinstance(index, UniqueIndex))
    return {(index.name, key) for index in indexes for key in index.extract(document)} | claims(document)


@pytest.mark.parametrize("seed", range(8))
def test_incremental_indexes_equal_the_indexes_of_a_fresh_snapshot(seed: int):
    """Indexes equal those built from nothing, after documents of all cases were added, changed and removed in random
    order."""
    chance = random.Random(seed)
    snapshot, there = Snapshot(), dict[Owner, Aggregate]()
    for revision in range(1, STEPS):
        gone = chance.sample(sorted(there, key=str), min(len(there), chance.randrange(4)))
        for owner in gone:
            del there[owner]
        puts = dict[Owner, Aggregate]()
        for document in chance.sample(DOCUMENTS, chance.randrange(8)):
            owner = owner_of(document)
            others = (other for it, other in there.items() if it != owner)
            if owner not in gone and not own(document) & {each for other in others for each in own(other)}:
                puts[owner] = there[owner] = document
        snapshot = apply_changes(snapshot, Changes(puts=tuple(puts.values()), deletes=tuple(gone)), revision)
    documents = list(there.values())
    chance.shuffle(documents)
    fresh = apply_changes(Snapshot(), Changes(puts=tuple(documents)), 1)
    for name in (*map(map_name, KINDS), *index_names()):
        assert getattr(snapshot, name) == getattr(fresh, name), name
    empty = apply_changes(snapshot, Changes(deletes=tuple(there)), STEPS)
    assert [name for name in (*index_names(), "part_histories", "generations") if getattr(empty, name)] == []


def test_ports_that_swap_macs_in_one_write_are_indexed_correctly():
    first, second = (Port(id=name, network_id="n", mac_address=mac, **COMMON) for name, mac in (("a", "1"), ("b", "2")))
    before = apply_changes(Snapshot(), Changes(puts=(first, second)), 1)
    swapped = (replace(first, mac_address="2"), replace(second, mac_address="1"))
    for puts in (swapped, swapped[::-1]):
        assert dict(apply_changes(before, Changes(puts=puts), 2).macs) == {"1": "b", "2": "a"}
