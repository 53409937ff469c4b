"""The model accepts a kind of fact of the test's own: its declaration suffices."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from immutables import Map

from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.registry.facts import Fact
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.case import parse_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    serves: frozenset[str]
    """Ids of load balancers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithProxies(Snapshot):
    proxies: Map[str, Proxy] = Map()
    """Proxies by chassis."""


ProxyNews = Mapping[str, Proxy | None]


def concerned(old: Snapshot, new: Snapshot, news: ProxyNews) -> Iterator[Owner]:
    found = {balancer for proxy in news.values() if proxy is not None for balancer in proxy.serves}
    return (Owner(Kind.LOAD_BALANCER, each) for each in sorted(found & set(new.load_balancers)))


PROXIES: Fact[ProxyNews] = Fact(field="proxies", observer="this test", affected_owners=concerned, derive_batch_size=1)
MODEL = "network net1 10.0.0.0/24\nweb vip=10.0.0.10 on=net1 tcp:80=-\napi vip=10.0.0.20 on=net1 tcp:80=-"


async def test_new_kind_of_fact_needs_a_class_a_field_and_a_declaration(tmp_path: Path):
    documents, _ = parse_model(MODEL, {})
    known = apply_changes(WithProxies(), Changes(puts=tuple(documents.values())), 1)
    proxy = Proxy(serves=frozenset({"web", "api", "gone"}))
    store = await SqliteStore.open(tmp_path / "s.db")
    model, told = Model(store, lambda snapshot, owner: None, known), list[tuple[Owner, ...]]()
    model.subscribe(told.append)
    run_to_completion(model.observe(PROXIES, {"node1": proxy, "node2": None}))
    assert isinstance(model.snapshot, WithProxies)
    assert dict(model.snapshot.proxies) == {"node1": proxy}
    assert told == [(Owner(Kind.LOAD_BALANCER, "api"),), (Owner(Kind.LOAD_BALANCER, "web"),)]
    await store.close()
