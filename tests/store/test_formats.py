"""Store formats: every released format stays readable, each change has a new number, and newer formats are left
alone."""

import json
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from fairlead.model.documents.network import Network
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import KINDS, owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.store import formats
from fairlead.store.codec import BadDocument, decode, encode
from fairlead.store.formats import FormatStep, NewerDocument, with_format
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness import goldens
from harness.next_format import NEWER
from harness.shapes import sample_document

SEALED = {
    0: "ecd04981b16a6218e5d6c66231ccea3f649e94eaa4f5d6b71c53805a1fbb590f",
    1: "e329d1d899f11ded57c18beb84037bf69cf6165238de64f010d9fffe3281d47f",
}
"""Hashes of the files of each format: released files never change."""
FILES = [path for path in sorted(goldens.FOLDER.glob("format-*/*.json")) if path.name != goldens.SHAPES_FILE]
CHANGED = (
    "the shape of documents has changed, and servers of releases before would lose what they do not know: add a Step to"
    " formats.STEPS, write the documents of the new format (python -m harness.goldens, in tests), and name its digest"
    " in SEALED. If the newest format is in no release yet, take its folder away and write it anew instead"
)


def test_golden_documents_of_released_formats_are_never_edited():
    assert {number: goldens.digest(number) for number in range(formats.current() + 1)} == SEALED


def test_shape_change_requires_a_new_format():
    assert goldens.shapes() == (goldens.folder(formats.current()) / goldens.SHAPES_FILE).read_text(), CHANGED


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_documents_of_any_format_are_read_and_written_in_the_newest(path: Path):
    found = decode(Owner(Kind(path.stem), "x"), path.read_bytes())
    text = encode(found)
    assert decode(owner_of(found), text) == found
    assert msgspec.json.decode(text)[formats.NAME] == formats.current()


@pytest.mark.parametrize("kind", KINDS)
def test_current_format_round_trips_every_field(kind: Kind):
    golden = (goldens.folder(formats.current()) / f"{kind.value}.json").read_bytes()
    assert decode(Owner(kind, "x"), golden) == sample_document(kind)
    assert encode(sample_document(kind)) == golden


NET = Owner(Kind.NETWORK, "net1")


def some_network(name: str) -> Network:
    made = sample_document(Kind.NETWORK)
    assert isinstance(made, Network)
    return replace(made, name=name)


def network(**more: object) -> bytes:
    golden = json.loads((goldens.folder(1) / "network.json").read_text())
    return json.dumps({**golden, "id": "net1", **more}).encode()


def test_newer_document_is_rejected_by_name():
    with pytest.raises(NewerDocument, match=r"^network/net1: written by a newer version .*: format 2, .* up to 1$"):
        decode(NET, network(format=2))


@pytest.mark.parametrize("number", [-1, True, "1", None, 1.0, [1]])
def test_invalid_format_number_is_a_bad_document(number: object):
    with pytest.raises(BadDocument, match=r"^network/net1: "):
        decode(NET, network(format=number))


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Add the format of a later release."""
    monkeypatch.setattr(formats, "STEPS", NEWER)


@pytest.mark.usefixtures("newer")
def test_next_release_writes_the_current_format_while_lossless():
    def number(name: str) -> object:
        return msgspec.json.decode(encode(some_network(name)))[formats.NAME]

    assert (number("plain"), number("new-feature")) == (1, 2)
    assert msgspec.json.decode(encode(sample_document(Kind.QUOTA)))[formats.NAME] == 1


def test_downgrade_steps_apply_while_lossless(monkeypatch: pytest.MonkeyPatch):
    def without(name: str) -> FormatStep:
        def down(document: formats.Json) -> formats.Json | None:
            rest = {key: value for key, value in document.items() if key != name}
            return None if document[name] else rest

        return FormatStep(up={Kind.NETWORK: lambda found: {**found, name: 0}}, down={Kind.NETWORK: down})

    monkeypatch.setattr(formats, "STEPS", (*formats.STEPS, without("a"), without("b")))
    said = [
        with_format(Kind.NETWORK, msgspec.json.encode({"id": "x", "a": a, "b": b})) for a, b in ((0, 0), (1, 0), (0, 1))
    ]
    assert said == [b'{"format":1,"id":"x"}', b'{"format":2,"id":"x","a":1}', b'{"format":3,"id":"x","a":0,"b":1}']


async def store_with(path: Path, **documents: bytes) -> SqliteStore:
    store = await SqliteStore.open(path)
    await store.transact(guards={}, puts={key.replace("__", "/"): each for key, each in documents.items()}, deletes=())
    return store


@pytest.mark.parametrize("key", ["network/net1", "sort-of-tomorrow/x"])
async def test_model_that_meets_a_newer_document_stops_writing(tmp_path: Path, key: str):
    store = await store_with(tmp_path / "db", network__net0=network(id="net0"))
    model = await Model.load(store, lambda *_: None)
    await store.transact(guards={}, puts={key: network(format=2)}, deletes=())
    with pytest.raises(NewerDocument):
        await model.catch_up()
    assert model.newer_format_seen.is_set()
    head = await store.head()
    with pytest.raises(NewerDocument, match=key):
        await model.write(lambda _: Changes(puts=(some_network("net2"),)))
    assert await store.head() == head
    with pytest.raises(NewerDocument, match=key):
        await Model.load(store, lambda *_: None)
    await store.transact(guards={}, puts={}, deletes=(key,))
    assert set((await Model.load(store, lambda *_: None)).snapshot.networks) == {"net0"}
    await store.close()


async def test_full_read_also_detects_a_newer_document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fairlead.store.sqlite.MAX_FEED_TRANSACTIONS", 1)
    store = await store_with(tmp_path / "db", network__net0=network(id="net0"))
    model = Model(store, lambda *_: None, Snapshot())
    for key in ("sort-of-tomorrow/x", "network/net2", "network/net3"):
        await store.transact(guards={}, puts={key: network(id=key[8:])}, deletes=())
    with pytest.raises(NewerDocument, match="sort-of-tomorrow/x"):
        await model.catch_up()
    await store.close()
