"""Listeners and start of the server."""

import asyncio
import socket
import stat
from dataclasses import replace
from pathlib import Path

import pytest
import uvicorn
from immutables import Map
from starlette.types import Receive, Scope, Send

from fairlead.api.http.acceptor import Acceptor, ClientConnections
from fairlead.api.http.protocol import BoundedHttp
from fairlead.compilers.ovn import OVN, compile_owner
from fairlead.compilers.providers import parse_names, without_proxies
from fairlead.config.load import BadConfiguration
from fairlead.config.options import Configuration, OvnOptions
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.quota import UNLIMITED
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.server.central import CentralDataplane
from fairlead.server.listening import open_socket
from fairlead.server.ovn import NETWORKS_UNHEARD, PORTS_UNHEARD, PROBES_UNHEARD, OvnControl
from fairlead.server.process import MAX_LOGGED, log_large_proxies, refuse_strangers
from fairlead.store.interface import StoreUnavailable
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.balancer import some_balancer
from harness.story import parse_model
from harness.waiting import eventually, turns


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_an_address_with_a_port(listen: str):
    with open_socket(listen) as listener:
        listener.listen()
        assert listener.getsockname()[1] > 0


def test_a_unix_socket_is_for_owner_and_group_and_a_dead_one_is_replaced(tmp_path: Path):
    path = tmp_path / "api.sock"
    open_socket(f"unix:{path}").close()
    with open_socket(f"unix:{path}") as listener:
        listener.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(OSError, match=r"cannot listen on unix:.*another server listens there"):
            open_socket(f"unix:{path}")


def test_an_address_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {listen}: Address already in use"):
            open_socket(listen)


def test_a_name_of_a_provider_that_load_balancers_have_may_not_go():
    """A provider name in use cannot be removed, because the meaning of its load balancers' rows would be unknown."""
    whole = some_balancer("0", "p")
    balancers = [replace(whole, id=str(number), provider=name) for number, name in enumerate(("gold", "ovn", "gold"))]
    snapshot = Snapshot(load_balancers=Map({each.id: each for each in balancers}))
    refuse_strangers(snapshot, parse_names("ovn=ovn,gold=ovn", "ovn"))
    with pytest.raises(BadConfiguration, match=r"load balancers are stored with other names: 'gold' \(2\); name these"):
        refuse_strangers(snapshot, parse_names("ovn=ovn", "ovn"))


def test_what_leads_to_proxies_needs_agents_that_run_them():
    whole = some_balancer("0", "p")
    led = replace(
        whole, provider="fairlead", listeners=tuple(replace(each, proxy_port=2000) for each in whole.listeners)
    )
    snapshot = Snapshot(load_balancers=Map({led.id: led}))
    names = parse_names("fairlead=fairlead", "fairlead")
    refuse_strangers(snapshot, names)
    with pytest.raises(BadConfiguration, match=r"1 load balancers need proxies, which agents run: set health\.prober"):
        refuse_strangers(snapshot, without_proxies(names))


@pytest.mark.parametrize(
    ("documents", "what"),
    [
        (("network net1 10.0.0.0/24",), ""),
        (("network net1 10.0.0.0/24", "web vip=10.0.0.10 on=net1 tcp:80=-"), ""),
        (("network net1 10.0.0.0/24", "port vm1 net1 10.0.0.11"), PORTS_UNHEARD),
        (
            ("network net1 10.0.0.0/24", "web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80"),
            PROBES_UNHEARD,
        ),
    ],
    ids=["nobody", "the port of a VIP", "a port that waits for a node", "a monitor"],
)
async def test_silence_counts_while_somebody_waits_for_what_is_observed(
    tmp_path: Path, documents: tuple[str, ...], what: str
):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, compile_owner)
    found, _ = parse_model("\n".join(documents), {})
    await model.write(lambda _: Changes(puts=tuple(found.values())))
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock"))
    now = OvnControl(OVN, model, options).condition()
    assert (now.unheard > 0, now.unheard_of) == (bool(what), what)
    await store.close()


@pytest.mark.parametrize(("follow", "what"), [(True, NETWORKS_UNHEARD), (False, "")])
async def test_silence_counts_while_a_load_balancer_is_on_a_network_of_others(tmp_path: Path, follow: bool, what: str):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    whole = some_balancer("0", "p")
    balancer = replace(whole, pools=(), listeners=())
    await model.write(lambda _: Changes(puts=(balancer,)))
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock", import_networks=follow))
    now = OvnControl(OVN, model, options).condition()
    assert (now.unheard > 0, now.unheard_of, now.follows) == (bool(what), what, False)
    await store.close()


class UnreadableModel(Model):
    """Model whose store is unreadable at the first attempt."""

    reads = 0

    async def catch_up(self) -> None:
        self.reads += 1
        if self.reads == 1:
            raise StoreUnavailable("the disk says no")
        await super().catch_up()


async def test_a_look_at_everything_that_found_no_store_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A resync that found no store is repeated soon, because a new leader needs the latest state, not an hour later."""
    monkeypatch.setattr("fairlead.server.central.STORE_PAUSE", 0.01)

    store = await SqliteStore.open(tmp_path / "s.db")
    model = UnreadableModel(store, compile_owner)
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock"))
    async with OvnControl(OVN, model, options) as control:
        control.central.look_again()
        await eventually(lambda: model.reads >= 2)
    await store.close()


class BrokenModel(Model):
    """Model with an internal error at the first attempt."""

    reads = 0

    async def catch_up(self) -> None:
        self.reads += 1
        if self.reads == 1:
            raise ZeroDivisionError
        await super().catch_up()


@pytest.mark.thorough
async def test_a_look_at_everything_that_failed_by_a_mistake_is_made_again(tmp_path: Path):
    """A resync that failed by an internal error is repeated after the task's restart delay, without waiting for facts
    again."""
    first_hears = 0

    async def first_hear() -> None:
        nonlocal first_hears
        first_hears += 1

    store = await SqliteStore.open(tmp_path / "s.db")
    model = BrokenModel(store, compile_owner)
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock"))
    driver = OvnControl(OVN, model, options).driver
    central = CentralDataplane(OVN, model, driver, first_hear=first_hear)
    async with central:
        central.look_again()
        await eventually(lambda: model.reads >= 2)
    await store.close()
    assert first_hears == 1


def test_proxies_above_the_limit_are_named_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    """Proxies above the limit are logged at the start, the largest first, and the rest as a number."""
    servers = {ProxyPlace(f"net{number}", "demo"): 10 + number for number in range(MAX_LOGGED + 5)}
    snapshot = Snapshot(proxy_servers=Map(servers))
    log_large_proxies(snapshot, 12)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == MAX_LOGGED + 1
    assert said[0].startswith(f"the HAProxies of project demo at net{MAX_LOGGED + 4} have {MAX_LOGGED + 14} servers")
    assert said[-1] == "2 more places have HAProxies with more servers than that"
    caplog.clear()
    for most in (100, UNLIMITED):
        log_large_proxies(snapshot, most)
    assert caplog.records == []


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
async def test_answers_are_sent_without_a_delay_on_asyncios_own_loop_too(listen: str):
    """Connections have TCP_NODELAY (tcp(7)): the last of several segments does not wait for the client's ACK."""
    with open_socket(listen) as listener:
        settings = uvicorn.Config(_no_application, lifespan="off", log_config=None, ws="none")
        settings.load()
        state = uvicorn.Server(settings).server_state
        place = Acceptor(listener, lambda: BoundedHttp(settings, state, {}), ClientConnections(most=5, most_of_one=5))
        place.start()
        host, port = listener.getsockname()[:2]
        _, writer = await asyncio.open_connection(host, port)
        await eventually(lambda: any(each.protocol is not None for each in place.clients.all()))
        (client,) = place.clients.all()
        assert client.protocol is not None
        own = client.protocol.transport.get_extra_info("socket")
        assert own.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        writer.close()
        await writer.wait_closed()
        await eventually(lambda: place.clients.count == 0)
        place.close()
        await place.wait_closed()


async def _no_application(scope: Scope, receive: Receive, send: Send) -> None:
    """Application for connections on which no request is sent."""


async def test_a_client_that_is_dropped_before_its_handshake_begins_is_forgotten() -> None:
    """A client dropped before its handshake no longer counts against the connection limit."""
    with open_socket("127.0.0.1:0") as listener, socket.socket() as client:
        settings = uvicorn.Config(_no_application, lifespan="off", log_config=None, ws="none")
        settings.load()
        state = uvicorn.Server(settings).server_state
        place = Acceptor(listener, lambda: BoundedHttp(settings, state, {}), ClientConnections(most=5, most_of_one=5))
        listener.setblocking(False)
        listener.listen()
        client.connect(listener.getsockname())
        place._accept()
        (dropped,) = place.clients.all()
        dropped.drop()
        await turns()
        assert place.clients.count == 0
        assert client.recv(1) == b""
