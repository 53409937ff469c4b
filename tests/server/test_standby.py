"""A server process that reads documents of a newer release: it logs it, becomes a standby, and resumes when they are
gone."""

import json
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest

from fairlead.store.sqlite import SqliteStore
from harness import goldens
from harness.lab.servers import LBS, NETWORKS, FairleadProcess, serving
from harness.waiting import DEADLINE, wait_until

pytestmark = pytest.mark.slow

KEY = "network/net9"
NOWHERE = SimpleNamespace(northbound="unix:/nonexistent/ovnnb.sock")


def newer() -> bytes:
    return json.dumps(
        {**json.loads((goldens.folder(1) / "network.json").read_text()), "id": "net9", "format": 2}
    ).encode()


async def change(folder: Path, puts: dict[str, bytes], deletes: tuple[str, ...] = ()) -> int:
    """Write as another server does; return the store's revision."""
    store = await SqliteStore.open(folder / "fairlead.db")
    try:
        return await store.transact(guards={}, puts=puts, deletes=deletes)
    finally:
        await store.close()


async def head(folder: Path) -> int:
    store = await SqliteStore.open(folder / "fairlead.db")
    try:
        return await store.head()
    finally:
        await store.close()


def is_standby(server: FairleadProcess) -> bool:
    """Return whether the server is in standby; between the two modes no socket listens for a moment."""
    try:
        answer = server.client.get("/readyz")
    except httpx.TransportError:
        return False
    return answer.status_code == 503 and "is on standby, because a newer version" in answer.text


def takes_over(server: FairleadProcess) -> bool:
    try:
        return server.client.get("/").status_code == 200
    except httpx.TransportError:
        return False


async def test_server_is_standby_while_a_newer_document_exists(tmp_path: Path):
    with serving(NOWHERE, tmp_path) as server:
        server.create(NETWORKS, "network", name="before")
        written = await change(tmp_path, {KEY: newer()})
        wait_until(lambda: is_standby(server))
        assert server.client.get("/healthz").status_code == 200
        for answer in (
            server.client.get(NETWORKS),
            server.client.post(NETWORKS, json={"network": {"name": "meanwhile"}}),
        ):
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
            assert "on standby" in answer.json()["NeutronError"]["message"]
        assert "on standby" in server.client.get(LBS).json()["faultstring"]
        assert await head(tmp_path) == written
        assert server.log.read_text().count("on standby, without writing: network/net9: ") == 1

        await change(tmp_path, {}, (KEY,))
        wait_until(lambda: takes_over(server))
        assert [each["name"] for each in server.client.get(NETWORKS).json()["networks"]] == ["before"]
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0


async def test_server_started_on_newer_documents_is_standby_and_stops(tmp_path: Path):
    await change(tmp_path, {KEY: newer()})
    with serving(NOWHERE, tmp_path) as server:
        assert is_standby(server)
        server.process.terminate()
        assert server.process.wait(DEADLINE) == 0
