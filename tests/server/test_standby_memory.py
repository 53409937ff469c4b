"""A standby server frees its model, whatever was in progress before."""

import asyncio
import contextlib
import gc
import json
import logging
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fairlead.config.options import Configuration, OvnOptions, ServerOptions, StoreOptions
from fairlead.http.server_client import ServerError
from fairlead.node.connection import Connection, Remote
from fairlead.server import process
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore
from harness import goldens
from harness.waiting import DEADLINE, eventually

pytestmark = pytest.mark.slow

KEY = "network/net9"


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    """Disable automatic garbage collection, and logging, because pytest keeps records whose errors refer to frames."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(0)
    logging.disable()
    yield
    logging.disable(logging.NOTSET)
    gc.set_threshold(*before)
    gc.enable()


@pytest.fixture
def living(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Any]:
    """Return the living models of this process."""
    found = weakref.WeakSet[Any]()

    class Watched(Model):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            found.add(self)

    monkeypatch.setattr(process, "Model", Watched)
    return found


async def change(folder: Path, puts: dict[str, bytes], deletes: tuple[str, ...] = ()) -> None:
    """Write as another server does."""
    store = await SqliteStore.open(folder / "fairlead.db")
    try:
        await store.transact(guards={}, puts=puts, deletes=deletes)
    finally:
        await store.close()


def newer() -> bytes:
    document = json.loads((goldens.folder(1) / "network.json").read_text())
    return json.dumps({**document, "id": "net9", "format": 2}).encode()


@contextlib.asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Remote]:
    configuration = Configuration(
        server=ServerOptions(listen=f"unix:{folder}/socket"),
        store=StoreOptions(path=str(folder / "fairlead.db")),
        ovn=OvnOptions(northbound="unix:/nonexistent/nb", southbound="unix:/nonexistent/sb", import_networks=False),
    )
    running = asyncio.create_task(process.serve(configuration))
    try:
        yield Remote(url=f"unix:{folder}/socket")
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def said(remote: Remote) -> str:
    """Return the text of `/readyz`; raises TransportError between the two modes, while no socket listens."""
    transport = httpx.AsyncHTTPTransport(uds=remote.url.removeprefix("unix:"))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:9876") as client:
        return (await client.get("/readyz")).text


async def answers(remote: Remote, words: str) -> None:
    await eventually(
        lambda: said(remote), words, is_enough=lambda text: words in str(text), retry=(httpx.TransportError,)
    )


async def hang(remote: Remote, asked: asyncio.Event) -> None:
    """Run a long poll until the server stops serving."""
    connection = Connection(remote, DEADLINE)
    with contextlib.suppress(ServerError):
        cursor = (await connection.request("GET", "/plugin/news"))["cursor"]
        asked.set()
        await connection.request("GET", f"/plugin/news?since={cursor}&wait=20")
    connection.close()


async def upgrade_while_active(folder: Path, living: weakref.WeakSet[Any]) -> None:
    async with serving(folder) as remote:
        await answers(remote, "ready")
        kept = [Connection(remote, DEADLINE) for _ in range(3)]
        for each in kept:
            await each.request("GET", "/network/v2.0/networks")
        asked = asyncio.Event()
        hanging = asyncio.create_task(hang(remote, asked))
        await asked.wait()
        assert len(living) == 1
        await change(folder, {KEY: newer()})
        await answers(remote, "on standby")
        assert len(living) == 0
        for each in kept:
            each.close()
        await hanging
        await change(folder, {}, (KEY,))
        await eventually(lambda: len(living) == 1)
        await answers(remote, "ready")


async def meet_at_the_start(folder: Path, living: weakref.WeakSet[Any]) -> None:
    await change(folder, {KEY: newer()})
    async with serving(folder) as remote:
        await answers(remote, "on standby")
        assert len(living) == 0


@pytest.mark.parametrize("meet", [pytest.param(upgrade_while_active, marks=pytest.mark.extended), meet_at_the_start])
async def test_standby_server_frees_its_model(
    tmp_path: Path, living: weakref.WeakSet[Any], collected_by_hand: None, meet: Callable[..., Any]
):
    await meet(tmp_path, living)
