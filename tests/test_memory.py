"""Memory of a server: a deleted load balancer leaves nothing behind."""

import gc
from dataclasses import replace
from pathlib import Path

import pytest
from immutables import Map

from fairlead.agent_protocol.slice_lines import SliceBuilder
from fairlead.api.agents.document_cache import DocumentCache
from fairlead.api.agents.push_channel import PushChannel
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import CHASSIS
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.front_ends.agent_channel import AgentEnd
from harness.language import parse_model
from harness.waiting import eventually

TEXT = """\
network net1 10.1.0.0/24
port vm net1 10.1.0.11
web vip=10.1.0.10 on=net1 tcp:80=a/10.1.0.11:8080
"""
DOCUMENTS = parse_model(TEXT, {})[0]
WEB = next(each for each in DOCUMENTS.values() if isinstance(each, LoadBalancer))
CYCLES, STORED_CYCLES = 2_000, 50


def named(number: int) -> LoadBalancer:
    return replace(WEB, id=f"fleeting{number}")


def in_memory() -> list[str]:
    """Return the load balancers of `named` that are still referenced."""
    gc.collect()
    return [each.id for each in gc.get_objects() if isinstance(each, LoadBalancer) and each.id.startswith("fleeting")]


@pytest.mark.thorough
def test_cached_texts_are_dropped_with_their_documents():
    others = Changes(puts=tuple(each for each in DOCUMENTS.values() if each is not WEB))
    snapshot = apply_changes(Snapshot(), others, 1)
    texts = DocumentCache(lambda: snapshot)
    for number in range(CYCLES):
        web, owner = named(number), Owner(Kind.LOAD_BALANCER, f"fleeting{number}")
        snapshot = apply_changes(snapshot, Changes(puts=(web,)), snapshot.revision + 1)
        assert texts.text(snapshot, owner) is texts.text(snapshot, owner)
        snapshot = apply_changes(snapshot, Changes(deletes=(owner,)), snapshot.revision + 1)
        texts.invalidate([owner])
    del web
    assert (0, 0, []) == (len(texts), texts._cached, in_memory())


def test_list_sent_in_pieces_caches_no_text_of_a_deleted_document():
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(DOCUMENTS.values())), 1)
    texts, old = DocumentCache(lambda: snapshot), snapshot
    reach = frozenset({"net1"})
    pieces = texts.documents_at(old, reach)
    owner = Owner(Kind.LOAD_BALANCER, WEB.id)
    snapshot = apply_changes(snapshot, Changes(deletes=(owner,)), 2)
    texts.invalidate([owner])
    assert b'"web"' in b"".join(pieces)
    assert {Kind.NETWORK, Kind.PORT} == {each.kind for each in texts._texts}
    assert texts._shared_of is None


def test_cached_proxy_texts_are_dropped_with_their_host():
    hosts = parse_model("host one 1 10.20.0.21 10.1.0.0/24\n", {})[0]
    (host,) = hosts.values()
    snapshot = Snapshot(agents=Map({"one": None}))
    texts = DocumentCache(lambda: snapshot)
    for number in range(10):
        one = replace(host, name=f"host{number}")
        owner = Owner(Kind.HOST, one.name)
        snapshot = replace(apply_changes(snapshot, Changes(puts=(one,)), 1), agents=Map({one.name: None}))
        assert b"".join(texts.host_proxies(snapshot, [one.name]))
        snapshot = apply_changes(snapshot, Changes(deletes=(owner,)), 2)
        texts.invalidate([owner])
    assert {} == texts._proxies_lines


@pytest.mark.parametrize("follows", [True, False])
async def test_server_keeps_no_memory_of_deleted_load_balancers_for_agents(tmp_path: Path, follows: bool):
    store = await SqliteStore.open(tmp_path / "store.db")
    model = await Model.load(store, check=lambda snapshot, owner: None)
    channel = PushChannel(model, "epoch", frame=bytes)
    await model.write(lambda _: Changes(puts=tuple(each for each in DOCUMENTS.values() if each is not WEB)))
    one = Chassis(name="one", host="one.example", ports=Map({"vm": True}))
    run_to_completion(model.observe(CHASSIS, {"one": one}))
    agent = AgentEnd(channel, SliceBuilder("one"))
    for number in range(STORED_CYCLES):
        agent.slice.cursor = ""  # it receives everything
        agent.listen()
        web, owner = named(number), Owner(Kind.LOAD_BALANCER, f"fleeting{number}")
        await model.write(lambda _, web=web: Changes(puts=(web,)))
        if number % 10 == 0:
            agent.slice.cursor = ""
            agent.listen()
        await eventually(lambda: not channel.writing)
        if not follows:
            channel.remove("one")
        await model.write(lambda _, owner=owner: Changes(deletes=(owner,)))
    await eventually(lambda: not channel.writing)
    del web, agent  # their own documents would be counted
    assert ([], 0) == (in_memory(), sum(each.kind is Kind.LOAD_BALANCER for each in channel._texts._texts))
    await store.close()
