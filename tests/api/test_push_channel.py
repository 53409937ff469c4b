"""Agent channel: after any sequence of events, the agent has exactly the slice of the model."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from immutables import Map

from fairlead.agent_protocol.slice_lines import SliceBuilder
from fairlead.api.agents import push_channel
from fairlead.api.agents.document_cache import PIECE
from fairlead.api.agents.push_channel import PushChannel
from fairlead.model.documents.addresses import parse_address
from fairlead.model.documents.chassis import Chassis
from fairlead.model.documents.network import PortUse
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import is_unmanaged
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.facts import CHASSIS, PLUGGED, UNMANAGED
from fairlead.model.registry.kinds import KINDS
from fairlead.model.registry.slices import slice_of
from fairlead.model.snapshot import Aggregate, Snapshot, map_name
from fairlead.runtime.steps import run_to_completion
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.api import write_many
from harness.case import Case, State, parse_model, read_case
from harness.front_ends.agent_channel import AgentEnd
from harness.waiting import eventually
from harness.walk import foreign_documents

CASES = sorted(Path(__file__).parent.parent.glob("cases/*.txt"))
CHASSIS_NAMES = ("one", "two", "three")


@dataclass
class Scene:
    model: Model
    channel: PushChannel
    listeners: dict[str, AgentEnd]

    async def put(self, *documents: object, deletes: tuple[Owner, ...] = ()) -> None:
        await self.model.write(lambda _: Changes(puts=documents, deletes=deletes))

    def observe(self, fact: object, news: object) -> None:
        run_to_completion(self.model.observe(fact, news))

    async def settle(self) -> None:
        run_to_completion(self.channel.recompute_reaches())
        await eventually(lambda: not self.channel.writing)

    async def check(self) -> None:
        await self.settle()
        for name, listener in self.listeners.items():
            same(listener.slice.snapshot, slice_of(self.model.snapshot, name))


def same(told: Snapshot, wanted: Snapshot) -> None:
    for kind in KINDS:
        assert dict(told.documents(kind)) == dict(wanted.documents(kind)), map_name(kind)
    for name in ("generations", "down", "online", "chassis", "covered", "revision", "parting_seconds"):
        assert getattr(told, name) == getattr(wanted, name), name


@asynccontextmanager
async def scene(folder: Path, *names: str) -> AsyncIterator[Scene]:
    store = await SqliteStore.open(folder / "store.db")
    model = await Model.load(store, check=lambda snapshot, owner: None, empty=Snapshot(parting_seconds=60))
    channel = PushChannel(model, "epoch", frame=bytes)
    listeners = {name: AgentEnd(channel, SliceBuilder(name)) for name in names}
    try:
        yield Scene(model, channel, listeners)
    finally:
        await store.close()


def assign_chassis(state: State) -> dict[str, Chassis]:
    """Distribute the machines and gateways of a state over three chassis."""
    found: dict[str, dict[str, bool]] = {name: {} for name in CHASSIS_NAMES}
    for document in state.documents.values():
        use = getattr(document, "use", None)
        if use in (PortUse.MACHINE, PortUse.ROUTER_GATEWAY):
            number = sum(map(ord, document.id + state.name))
            found[CHASSIS_NAMES[number % 3]][document.id] = number % 5 > 0
    return {name: Chassis(name=name, host=f"{name}.example", ports=Map(ports)) for name, ports in found.items()}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
async def test_agent_slice_matches_the_model_after_every_case_state(path: Path, tmp_path: Path):
    await walk(read_case(path), tmp_path)


async def walk(story: Case, tmp_path: Path) -> None:
    async with scene(tmp_path, *CHASSIS_NAMES) as stage:
        for state in (*story.states, *reversed(story.states)):
            chassis = assign_chassis(state)
            stage.listeners["two"].listen()
            stored = [each for each in state.documents.values() if not is_unmanaged(each)]
            gone = [owner for owner in stage.model.snapshot.generations if owner not in state.documents]
            stage.observe(UNMANAGED, {**dict.fromkeys(foreign_documents(stage.model.snapshot)), **state.foreign})
            await stage.put(*stored, deletes=tuple(gone))
            stage.observe(PLUGGED, {port: node.host for node in chassis.values() for port in node.ports})
            stage.listeners["one"].listen()
            stage.observe(CHASSIS, chassis)
            await stage.settle()
            stage.listeners["three"].listen()
            await stage.check()
            stage.listeners["one"].disconnect()
        lists = [listener.listing_count for listener in stage.listeners.values()]
        assert lists == [1, 1, 1]  # reconnected agents received the changes that they missed


MODEL = """\
network net1 10.1.0.0/24
network net2 10.2.0.0/16
port vm net1 10.1.0.11
"""
JOINED = "router r1 net1=10.1.0.1 net2=10.2.0.1\n"


def documents(text: str) -> dict[Owner, Aggregate]:
    return parse_model(text, {})[0]


def ports(number: int) -> str:
    return "".join(f"port p{each} net2 10.2.{each // 200 + 1}.{each % 200 + 2}\n" for each in range(number))


async def test_messages_dropped_from_the_log_are_replaced_by_the_full_slice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Messages that the log has dropped are replaced by the whole slice: one larger than the log, and one of several
    with the same number."""
    monkeypatch.setattr(push_channel, "MAX_LOG_BYTES", 500)

    async with scene(tmp_path, "one", "two") as stage:
        await stage.put(*documents(MODEL).values())
        for name, listener in stage.listeners.items():
            stage.observe(CHASSIS, {name: Chassis(name=name, ports=Map({"vm": True}))})
            listener.listen()
        await stage.check()
        for listener in stage.listeners.values():
            listener.disconnect()
        stage.observe(
            CHASSIS, {name: Chassis(name=name, host="x" * 300, ports=Map({"vm": True})) for name in stage.listeners}
        )
        for listener in stage.listeners.values():
            listener.listen()
        await stage.check()
        for listener in stage.listeners.values():
            listener.disconnect()
        big = Chassis(name="one", host="y" * 600, ports=Map({"vm": True}))
        stage.observe(CHASSIS, {"one": big})
        stage.listeners["one"].listen()
        await stage.check()


@pytest.fixture
def apart() -> dict[Owner, Aggregate]:
    """Return two networks without a router, and 3,000 ports on one of them."""
    return documents(MODEL + ports(3000))


@pytest.mark.max_steps(250_000)
async def test_newly_reachable_network_is_sent_in_short_steps_during_changes(
    tmp_path: Path, apart: dict[Owner, Aggregate]
):
    """The longest step is the test's own: it builds the desired slice in one go."""
    async with scene(tmp_path, "one") as stage:
        await write_many(stage.model, apart.values())
        stage.observe(CHASSIS, {"one": Chassis(name="one", ports=Map({"vm": True}))})
        listener = stage.listeners["one"]
        listener.listen()
        await stage.check()
        router = documents(MODEL + JOINED)
        joined = [each for owner, each in router.items() if owner not in apart]
        for joins in (True, False):
            if joins:
                await stage.put(*joined)
            else:
                await stage.put(deletes=tuple(owner for owner in router if owner not in apart))
            told = list[bytes]()
            listener.watch.write = told.append
            for number, _ in enumerate(stage.channel.recompute_reaches()):
                await asyncio.sleep(0)
                if number < 10:  # some ports go, one comes, one changes: both already sent and pending ones
                    port = stage.model.snapshot.ports[f"p{number * 250 + 1}"]
                    unique = number + 30 * joins
                    mac, address = f"02:00:00:00:00:{unique:02x}", f"10.2.99.{unique}"
                    fixed = (replace(port.fixed_ips[0], address=parse_address(address)),)
                    comes = replace(port, id=f"q{number}{joins}", mac_address=mac, fixed_ips=fixed)
                    goes = {f"p{each * 250 + number * 4 + joins * 2}" for each in range(11)}
                    if number == 9 and joins:  # revert the join while half of the slice is sent
                        for first in range(50, 3000, 500):
                            half = (Owner(Kind.PORT, f"p{each}") for each in range(first, min(first + 500, 3000), 2))
                            await stage.put(deletes=tuple(half))
                    deletes = tuple(Owner(Kind.PORT, each) for each in goes)
                    await stage.put(comes, replace(port, name=f"changed {joins}"), deletes=deletes)
            assert max(map(len, told)) < 2 * PIECE
            for message in told:
                for _ in listener.receive_stepwise(message):
                    await asyncio.sleep(0)
            listener.watch.write = listener.receive_message
            await stage.put(replace(stage.model.snapshot.ports["vm"], name=f"seen {joins}"))
            await stage.check()
            assert (len(listener.slice.snapshot.ports) > 1000) is joins


POOL = "network pool announced 203.0.113.0/24 2001:db8:5::/64\n"
ONE = "host one 1 10.20.0.21 fd00::21 10.1.0.0/24 fd00:1::/64\n"
TWO = "host two 2 10.20.0.22 10.1.1.0/24\n"
SHOP = "shop vip=203.0.113.10,2001:db8:5::10 on=pool tcp:443=a/10.1.0.11:80,b/[fd00:1::11]:80\n"
BOTH = {"host/one", "host/two", "network/pool", "loadbalancer/shop"}
STEPS = {
    "an announced network": (POOL, {}),
    "a host": (POOL + ONE, {"one": {"host/one", "network/pool"}}),
    "a load balancer": (POOL + ONE + SHOP, {"one": {"host/one", "network/pool", "loadbalancer/shop"}}),
    "another host": (POOL + ONE + TWO + SHOP, {"one": BOTH, "two": BOTH}),
    "one drained": (POOL + ONE.rstrip() + " draining\n" + TWO + SHOP, {"one": BOTH, "two": BOTH}),
    "one gone": (POOL + TWO + SHOP, {"two": {"host/two", "network/pool", "loadbalancer/shop"}}),
    "no load balancer": (POOL + TWO, {"two": {"host/two", "network/pool"}}),
    "no network": (TWO, {"two": {"host/two"}}),
    "none": ("", {}),
}


async def test_only_plain_hosts_receive_host_declarations_and_announcements(tmp_path: Path):
    """Hosts receive each other's declarations and announcements, and no chassis of OVN does, however they are declared
    and removed."""

    async with scene(tmp_path, "one", "two", "three") as stage:
        for listener in stage.listeners.values():
            listener.listen()
        for name in [*STEPS, "one drained", "none", "one gone", "none"]:
            text, told = STEPS[name]
            wanted = documents(text)
            gone = [owner for owner in stage.model.snapshot.generations if owner not in wanted]
            await stage.put(*wanted.values(), deletes=tuple(gone))
            await stage.settle()
            for who, listener in stage.listeners.items():
                wanted_there = slice_of(stage.model.snapshot, who).generations
                assert listener.slice.snapshot.generations == wanted_there, (name, who)
                assert set(map(str, wanted_there)) == told.get(who, set()), (name, who)
        assert {listener.listing_count for listener in stage.listeners.values()} == {1}
        assert Owner(Kind.LOAD_BALANCER, "shop") not in stage.listeners["three"].notified_owners


async def test_draining_a_host_updates_load_balancers_with_members_on_the_host(tmp_path: Path):
    async with scene(tmp_path, "two") as stage:
        await stage.put(*documents(POOL + ONE + TWO + SHOP).values())
        listener = stage.listeners["two"]
        listener.listen()
        listener.notified_owners.clear()
        await stage.put(replace(stage.model.snapshot.hosts["one"], draining=True))
        await stage.check()
        assert listener.notified_owners == [Owner(Kind.HOST, "one"), Owner(Kind.LOAD_BALANCER, "shop")]
