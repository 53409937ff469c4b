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
from fairlead.config.errors import BadConfiguration
from fairlead.config.options import Configuration, OvnOptions
from fairlead.model.documents.proxy_place import ProxyPlace
from fairlead.model.documents.quota import UNLIMITED
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.server.central import CentralDataplane
from fairlead.server.listening import open_socket
from fairlead.server.ovn import MISSING_NETWORKS, MISSING_PORTS, MISSING_PROBES, OvnControl
from fairlead.server.process import MAX_LOGGED, check_provider_names, log_large_proxies
from fairlead.store.interface import StoreUnavailable
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness.balancer import some_balancer
from harness.case import parse_model
from harness.waiting import eventually, run_ready_tasks


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0", "localhost:0"])
def test_tcp_address_with_port_is_opened(listen: str):
    with open_socket(listen) as listener:
        listener.listen()
        assert listener.getsockname()[1] > 0


def test_unix_socket_has_mode_0660_and_a_stale_one_is_replaced(tmp_path: Path):
    path = tmp_path / "api.sock"
    open_socket(f"unix:{path}").close()
    with open_socket(f"unix:{path}") as listener:
        listener.listen()
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        with pytest.raises(OSError, match=r"cannot listen on unix:.*another server listens on this socket"):
            open_socket(f"unix:{path}")


def test_an_address_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        listen = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen on {listen}: Address already in use"):
            open_socket(listen)


def test_provider_name_in_use_cannot_be_removed():
    """A provider name in use cannot be removed, because the meaning of its load balancers' rows would be unknown."""
    whole = some_balancer("0", "p")
    balancers = [replace(whole, id=str(number), provider=name) for number, name in enumerate(("gold", "ovn", "gold"))]
    snapshot = Snapshot(load_balancers=Map({each.id: each for each in balancers}))
    check_provider_names(snapshot, parse_names("ovn=ovn,gold=ovn", "ovn"))
    with pytest.raises(
        BadConfiguration,
        match=r"stored load balancers have provider names that are not configured: 'gold' \(2\); add these",
    ):
        check_provider_names(snapshot, parse_names("ovn=ovn", "ovn"))


def test_load_balancers_with_proxies_need_agents_as_probers():
    whole = some_balancer("0", "p")
    led = replace(
        whole, provider="fairlead", listeners=tuple(replace(each, proxy_port=2000) for each in whole.listeners)
    )
    snapshot = Snapshot(load_balancers=Map({led.id: led}))
    names = parse_names("fairlead=fairlead", "fairlead")
    check_provider_names(snapshot, names)
    with pytest.raises(BadConfiguration, match=r"1 load balancers need proxies, which agents run: set health\.prober"):
        check_provider_names(snapshot, without_proxies(names))


@pytest.mark.parametrize(
    ("documents", "what"),
    [
        (("network net1 10.0.0.0/24",), ""),
        (("network net1 10.0.0.0/24", "web vip=10.0.0.10 on=net1 tcp:80=-"), ""),
        (("network net1 10.0.0.0/24", "port vm1 net1 10.0.0.11"), MISSING_PORTS),
        (
            ("network net1 10.0.0.0/24", "web vip=10.0.0.10 on=net1 tcp:80{monitor=TCP}=a/10.0.0.11:80"),
            MISSING_PROBES,
        ),
    ],
    ids=["nobody", "the port of a VIP", "a port that waits for a node", "a monitor"],
)
async def test_missing_ovn_observations_are_reported_only_when_needed(
    tmp_path: Path, documents: tuple[str, ...], what: str
):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, compile_owner)
    found, _ = parse_model("\n".join(documents), {})
    await model.write(lambda _: Changes(puts=tuple(found.values())))
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock"))
    now = OvnControl(OVN, model, options).condition()
    assert (now.facts_missing_seconds > 0, now.missing_facts) == (bool(what), what)
    await store.close()


@pytest.mark.parametrize(("follow", "what"), [(True, MISSING_NETWORKS), (False, "")])
async def test_missing_imported_networks_are_reported_for_a_load_balancer(tmp_path: Path, follow: bool, what: str):
    store = await SqliteStore.open(tmp_path / "s.db")
    model = await Model.load(store, lambda snapshot, owner: None)
    whole = some_balancer("0", "p")
    balancer = replace(whole, pools=(), listeners=())
    await model.write(lambda _: Changes(puts=(balancer,)))
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock", import_networks=follow))
    now = OvnControl(OVN, model, options).condition()
    assert (now.facts_missing_seconds > 0, now.missing_facts, now.imports_networks) == (bool(what), what, False)
    await store.close()


class UnreadableModel(Model):
    """Model whose store is unreadable at the first attempt."""

    reads = 0

    async def catch_up(self) -> None:
        self.reads += 1
        if self.reads == 1:
            raise StoreUnavailable("the disk says no")
        await super().catch_up()


async def test_resync_is_repeated_after_the_store_was_unavailable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A resync that found no store is repeated soon, because a new leader needs the latest state, not an hour later."""
    monkeypatch.setattr("fairlead.server.central.STORE_RETRY_INTERVAL", 0.01)

    store = await SqliteStore.open(tmp_path / "s.db")
    model = UnreadableModel(store, compile_owner)
    options = Configuration(ovn=OvnOptions(northbound=f"unix:{tmp_path}/nothing.sock"))
    async with OvnControl(OVN, model, options) as control:
        control.central.request_resync()
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
async def test_resync_is_repeated_after_an_internal_error(tmp_path: Path):
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
        central.request_resync()
        await eventually(lambda: model.reads >= 2)
    await store.close()
    assert first_hears == 1


def test_proxies_above_the_server_limit_are_logged_at_startup(caplog: pytest.LogCaptureFixture) -> None:
    """Proxies above the limit are logged at the start, the largest first, and the rest as a number."""
    servers = {ProxyPlace(f"net{number}", "demo"): 10 + number for number in range(MAX_LOGGED + 5)}
    snapshot = Snapshot(proxy_servers=Map(servers))
    log_large_proxies(snapshot, 12)
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == MAX_LOGGED + 1
    assert said[0].startswith(f"the HAProxies of project demo at net{MAX_LOGGED + 4} have {MAX_LOGGED + 14} servers")
    assert said[-1] == "2 more groups of HAProxies exceed providers.max_proxy_servers"
    caplog.clear()
    for most in (100, UNLIMITED):
        log_large_proxies(snapshot, most)
    assert caplog.records == []


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:0"])
async def test_accepted_connections_have_tcp_nodelay(listen: str):
    """Connections have TCP_NODELAY (tcp(7)): the last of several segments does not wait for the client's ACK."""
    with open_socket(listen) as listener:
        settings = uvicorn.Config(_no_application, lifespan="off", log_config=None, ws="none")
        settings.load()
        state = uvicorn.Server(settings).server_state
        place = Acceptor(
            listener, lambda: BoundedHttp(settings, state, {}), ClientConnections(max_total=5, max_per_address=5)
        )
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


async def test_client_dropped_before_its_handshake_is_not_counted() -> None:
    """A client dropped before its handshake no longer counts against the connection limit."""
    with open_socket("127.0.0.1:0") as listener, socket.socket() as client:
        settings = uvicorn.Config(_no_application, lifespan="off", log_config=None, ws="none")
        settings.load()
        state = uvicorn.Server(settings).server_state
        place = Acceptor(
            listener, lambda: BoundedHttp(settings, state, {}), ClientConnections(max_total=5, max_per_address=5)
        )
        listener.setblocking(False)
        listener.listen()
        client.connect(listener.getsockname())
        place._accept()
        (dropped,) = place.clients.all()
        dropped.drop()
        await run_ready_tasks()
        assert place.clients.count == 0
        assert client.recv(1) == b""
