"""Changes between serving and standby in one process: notifications to the supervisor, and the exit."""

import asyncio
import gc
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from weakref import ref

import httpx
import pytest

from fairlead.config.options import Configuration, ProviderOptions, ServerOptions, StoreOptions
from fairlead.server import process, standby
from fairlead.server.process import serve
from fairlead.store.formats import NewerDocument
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness import goldens
from harness.waiting import DEADLINE, eventually_equal

pytestmark = pytest.mark.slow

KEY = "network/net9"
NEWER = NewerDocument(KEY, "format 2")


@dataclass
class Turns:
    """A server in this process, without a central dataplane."""

    folder: Path
    hears: socket.socket
    models: "list[ref[Model]]" = field(default_factory=list)
    """Models of all serving phases."""
    words: list[str] = field(default_factory=list)
    """Notifications to the supervisor, except watchdog ones."""

    @property
    def configuration(self) -> Configuration:
        return Configuration(
            server=ServerOptions(listen=f"unix:{self.folder}/api.sock"),
            store=StoreOptions(path=str(self.folder / "fairlead.db")),
            providers=ProviderOptions(names=("native=native",), default="native"),
        )

    @property
    def model(self) -> Model:
        """Model of the current serving phase."""
        (model,) = filter(None, (each() for each in self.models))
        return model

    def heard(self) -> list[str]:
        while True:
            try:
                self.words += [each for each in self.hears.recv(4096).decode().splitlines() if each != "WATCHDOG=1"]
            except BlockingIOError:
                return self.words

    async def change(self, puts: dict[str, bytes], deletes: tuple[str, ...] = ()) -> None:
        """Write as another server does."""
        store = await SqliteStore.open(self.folder / "fairlead.db")
        try:
            await store.transact(guards={}, puts=puts, deletes=deletes)
        finally:
            await store.close()

    async def answers(self) -> int:
        """Status of `/readyz`; 0 while no socket listens."""
        transport = httpx.AsyncHTTPTransport(uds=f"{self.folder}/api.sock")
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as client:
            try:
                return (await client.get("/readyz")).status_code
            except httpx.TransportError:
                return 0


@pytest.fixture
def turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    monkeypatch.setattr(standby, "POLL_INTERVAL", 0.05)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as hears:
        hears.bind(f"{tmp_path}/notify")
        monkeypatch.setenv("NOTIFY_SOCKET", f"{tmp_path}/notify")
        found = Turns(tmp_path, hears)

        def make(*given: object) -> Model:
            model = Model(*given)  # type: ignore[arg-type]
            found.models.append(ref(model))
            return model

        monkeypatch.setattr(process, "Model", make)
        yield found
        gc.freeze()  # as tests/conftest.py does


@asynccontextmanager
async def serving(turns: Turns) -> AsyncIterator[None]:
    """Run a server that serves at the start of the block and has stopped after it."""
    work = asyncio.create_task(serve(turns.configuration))
    await eventually_equal(turns.answers, 200)
    yield
    async with asyncio.timeout(DEADLINE):
        await work


def end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def newer() -> bytes:
    network = json.loads((goldens.folder(1) / "network.json").read_text())
    return json.dumps({**network, "id": "net9", "format": 2}).encode()


async def stop_and_resume(turns: Turns) -> None:
    await turns.change({KEY: newer()})
    await eventually_equal(turns.answers, 503)
    await turns.change({}, (KEY,))
    await eventually_equal(turns.answers, 200)


async def test_stopping_is_notified_only_at_the_end_of_the_process(turns: Turns):
    """STOPPING=1 is sent only at the end of the process, because systemd kills a process that continues after it."""

    async with serving(turns):
        await stop_and_resume(turns)
        assert set(turns.heard()) == {"READY=1"}
        end()
    assert turns.heard() == ["READY=1"] * 3 + ["STOPPING=1"]


def upgrade_format(model: Model) -> None:
    """Act as if the feed had brought documents of a newer release."""
    model.newer_document = NEWER
    model.newer_format_seen.set()


@pytest.mark.parametrize("order", [(upgrade_format, end), (end, upgrade_format)], ids=["then the end", "after the end"])
async def test_stop_takes_precedence_over_a_switch_to_standby(turns: Turns, order: tuple[Callable[..., None], ...]):
    async with serving(turns):
        for each in order:
            each(turns.model) if each is upgrade_format else each()
        await asyncio.sleep(0)
    assert turns.heard() == ["READY=1", "STOPPING=1"]


async def test_stop_during_standby_takes_precedence_over_resuming(turns: Turns, monkeypatch: pytest.MonkeyPatch):
    """A standby that is stopped exits, even if the newer document disappears at the same moment."""

    gone = asyncio.Event()

    async def is_readable(*_: object) -> bool:
        if gone.is_set():
            end()
        return gone.is_set()

    monkeypatch.setattr(standby, "_is_readable", is_readable)

    async with serving(turns):
        upgrade_format(turns.model)
        await eventually_equal(turns.answers, 503)
        gone.set()
    assert turns.heard() == ["READY=1", "READY=1", "STOPPING=1"]


async def test_finished_phase_frees_its_model(turns: Turns, caplog: pytest.LogCaptureFixture):
    """A finished phase frees its model, because two models may exceed the memory of a machine sized for one."""
    caplog.set_level(logging.CRITICAL, "fairlead")  # pytest keeps records, whose errors refer to frames

    def models() -> int:
        gc.collect()
        return sum(each() is not None for each in turns.models)

    async with serving(turns):
        await stop_and_resume(turns)
        await eventually_equal(models, 1)
        await stop_and_resume(turns)
        await eventually_equal(models, 1)
        end()
