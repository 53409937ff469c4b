"""Features of OVN follow from its schema, and compilation follows schema changes."""

import json
from pathlib import Path

import pytest

from fairlead.compilers.ovn import compile_owner
from fairlead.dataplane.ovn import SOURCE_IPV6, LoadBalancer
from fairlead.drivers.ovn.northbound.marks import read_abilities
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.case import parse_model
from harness.ovsdb_server import SCHEMA

WEB = Owner(Kind.LOAD_BALANCER, "web")
MODEL = """
network net1 10.0.0.0/24 fd00::/64
web vip=10.0.0.10,fd00::10 on=net1 tcp:80{SOURCE_IP}=a/10.0.0.11:80,b/[fd00::12]:80
"""


def schema(*fields: str) -> object:
    column = {"type": {"key": {"type": "string", "enum": ["set", list(fields)]}, "min": 0, "max": "unlimited"}}
    return {"tables": {"Load_Balancer": {"columns": {"selection_fields": column}}}}


@pytest.mark.parametrize(
    ("found", "abilities"),
    [
        (schema("eth_src", "ip_src"), set()),
        (schema("eth_src", "ip_src", "ipv6_src"), {SOURCE_IPV6}),
        ({"tables": {}}, set()),
        ({}, set()),
    ],
)
def test_ovn_features_are_read_from_the_schema(found: object, abilities: set[str]):
    assert read_abilities(found) == abilities


@pytest.mark.skipif(not SCHEMA.exists(), reason="needs OVN's schema")
def test_installed_ovn_schema_is_readable():
    can = "ipv6_src" in SCHEMA.read_text()
    assert read_abilities(json.loads(SCHEMA.read_text())) == ({SOURCE_IPV6} if can else set())


def fields_of(model: Model) -> set[tuple[str, ...]]:
    rows = compile_owner(model.snapshot, WEB).values()
    return {row.selection_fields for row in rows if isinstance(row, LoadBalancer)}


async def test_load_balancers_are_recompiled_when_ovn_features_change(tmp_path: Path):
    store = await SqliteStore.open(tmp_path / "s.db")
    model, told = await Model.load(store, compile_owner), list[tuple[Owner, ...]]()
    documents, _ = parse_model(MODEL.strip(), {})
    await model.write(lambda _: Changes(puts=tuple(documents.values())))
    model.subscribe(told.append)
    for abilities, ipv6 in ((frozenset({SOURCE_IPV6}), "ipv6_src"), (frozenset[str](), "eth_src")):
        model.set_abilities(abilities)
        model.set_abilities(abilities)
        assert fields_of(model) == {("ip_src",), (ipv6,)}
    assert told == [(WEB,), (WEB,)]
    await store.close()
