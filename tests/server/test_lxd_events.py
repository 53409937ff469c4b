"""Events over a real websocket: recipients, and isolation from slow listeners."""

import asyncio
import contextlib
import json
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect, unix_connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fairlead.api.http.front_end import ApiError
from fairlead.api.lxd import events
from fairlead.model.documents.trust import Project
from fairlead.model.registry.changeset import Changes
from harness.front_ends.lxd_keys import base64_of, make_certificate
from harness.lxd_server import LxdListener, identity, served
from harness.waiting import eventually


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[LxdListener]:
    async with served(tmp_path) as place:
        yield place


def listen(place: LxdListener, query: str = "") -> Any:
    return unix_connect(str(place.socket), f"ws://host/1.0/events{query}")


def listen_by(place: LxdListener, own: Path | None, query: str = "") -> Any:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if own is not None:
        context.load_cert_chain(own)
    return connect(f"wss://127.0.0.1:{place.port}/1.0/events{query}", ssl=context)


async def heard(websocket: ClientConnection, number: int) -> list[str]:
    found = [json.loads(await websocket.recv()) for _ in range(number)]
    return [f"{each['project']} {each['metadata']['action']} {each['metadata']['source']}" for each in found]


async def refused(connection: Any) -> tuple[int, str]:
    with pytest.raises(InvalidStatus) as caught:
        async with connection:
            pass
    told = json.loads(caught.value.response.body)
    assert told["error_code"] == caught.value.response.status_code
    return told["error_code"], told["error"]


async def test_lifecycle_event_reaches_its_listeners(place: LxdListener):
    async with listen(place, "?type=lifecycle&all-projects=true") as everything, listen(place) as default:
        await place.request_on_socket("POST", "/1.0/projects", {"name": "shop"})
        told = json.loads(await everything.recv())
        assert told["metadata"]["action"] == "project-created"
        assert told["metadata"]["source"] == "/1.0/projects/shop"
        assert told["metadata"]["requestor"]["protocol"] == "unix"
        assert told["location"] == "none"
        await place.request_on_socket("POST", "/1.0/certificates", {"token": True, "type": "client"})
        (line,) = await heard(default, 1)
        assert line.startswith("default certificate-token-created /1.0/operations/")


@pytest.mark.parametrize(
    "field",
    ["content-length: 5", "transfer-encoding: chunked", f"x: {'x' * 9000}", "\r\n".join(["x: y"] * 150)],
    ids=["a body", "chunks", "a long field", "many fields"],
)
async def test_invalid_websocket_upgrade_is_rejected(place: LxdListener, field: str):
    """Invalid websocket upgrades are rejected immediately, because the connection would stay open without limit."""

    reader, writer = await place.connect()
    asked = f"GET /1.0/events HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n{field}\r\n\r\n"
    writer.write(asked.encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 400 Bad Request")
    writer.close()


async def test_restricted_client_receives_own_events_until_trust_is_revoked(place: LxdListener, tmp_path: Path):
    own, fingerprint = identity(tmp_path)

    await place.server.model.write(lambda _: Changes(puts=(Project(name="shop"), Project(name="bank"))))
    body = {"certificate": base64_of(make_certificate("client")[0]), "type": "client", "restricted": True}
    await place.request_on_socket("POST", "/1.0/certificates", {**body, "projects": ["shop"]})
    async with listen_by(place, own, "?all-projects=1") as mine, listen_by(place, own, "?project=shop") as shop:
        await place.request_on_socket("PATCH", "/1.0/projects/bank", {"description": "x"})
        await place.request_on_socket("POST", "/1.0/certificates", {"token": True, "type": "client"})
        await place.request_on_socket("PATCH", "/1.0/projects/shop", {"description": "x"})
        for each in (mine, shop):
            assert await heard(each, 1) == ["shop project-updated /1.0/projects/shop"]
        code, _ = await refused(listen_by(place, own, "?project=bank"))
        assert code == 403
        await place.request_on_socket("DELETE", f"/1.0/certificates/{fingerprint}")
        await place.request_on_socket("PATCH", "/1.0/projects/shop", {"description": "y"})
        for each in (mine, shop):
            with pytest.raises(ConnectionClosed):
                await each.recv()


async def test_unauthorized_or_invalid_event_listener_gets_an_error(place: LxdListener, tmp_path: Path):
    own, _ = identity(tmp_path)

    for who in (None, own):
        assert await refused(listen_by(place, who)) == (403, "not authorized")
    assert await refused(listen(place, "?type=x")) == (400, '"x" isn\'t a supported event type')
    assert await refused(listen(place, "?project=nope")) == (404, "Project not found")
    both = await refused(listen(place, "?project=default&all-projects=true"))
    assert both == (400, "Cannot specify a project when requesting all projects")
    status, told = await place.request_on_socket("GET", "/1.0/events")
    assert (status, told["error"]) == (400, "websocket: the client is not using the websocket protocol")


async def test_event_listeners_of_one_client_are_limited(place: LxdListener, monkeypatch: pytest.MonkeyPatch):
    assert events.MAX_LISTENERS_PER_USER > 2
    monkeypatch.setattr(events, "MAX_LISTENERS_PER_USER", 2)

    async with listen(place), listen(place):
        with pytest.raises(InvalidStatus) as full:
            async with listen(place):
                pass
        assert (full.value.response.status_code, full.value.response.headers["retry-after"]) == (429, "5")

    async def is_let_in() -> bool:
        async with listen(place):
            return True

    await eventually(is_let_in, "the places of those that left", retry=(InvalidStatus,))


def test_restricted_listeners_use_only_the_share_of_their_projects():
    place = events.EventBus()
    with contextlib.ExitStack() as stack:

        def comes(who: str, *projects: str) -> bool:
            listener = events.EventListener(
                user=who, project=None, restricted=bool(projects), projects=frozenset(projects)
            )
            with contextlib.suppress(ApiError):
                stack.enter_context(place.register(listener))
                return True
            return False

        assert all(comes(f"certificate {number}", "shop") for number in range(events.MAX_LISTENERS_PER_PROJECT))
        assert not comes("one more", "shop")
        assert not comes("of both", "bank", "shop")
        rest = events.MAX_LISTENERS - events.RESERVED_FOR_ADMINISTRATORS - events.MAX_LISTENERS_PER_PROJECT
        assert all(comes(f"other {number}", f"project {number}") for number in range(rest))
        assert not comes("one more", "bank")
        assert all(comes(f"operator {number}") for number in range(events.RESERVED_FOR_ADMINISTRATORS))
        assert not comes("one more operator")
    with contextlib.ExitStack() as stack:
        assert comes("of both", "bank", "shop")


async def test_event_listeners_of_a_project_are_counted_over_all_certificates(
    place: LxdListener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(events, "MAX_LISTENERS_PER_PROJECT", 1)
    own, _ = identity(tmp_path)

    await place.server.model.write(lambda _: Changes(puts=(Project(name="shop"), Project(name="bank"))))
    body = {"certificate": base64_of(make_certificate("client")[0]), "type": "client", "restricted": True}
    await place.request_on_socket("POST", "/1.0/certificates", {**body, "projects": ["shop", "bank"]})
    async with listen_by(place, own, "?project=shop"), listen(place, "?project=shop"), listen(place):
        for query in ("?project=shop", "?all-projects=true"):
            assert (await refused(listen_by(place, own, query)))[0] == 429
        async with listen_by(place, own, "?project=bank"):
            pass


async def test_event_client_that_sends_data_is_disconnected(place: LxdListener):
    async with listen(place) as websocket:
        await websocket.send("x")
        with pytest.raises(ConnectionClosed) as caught:
            await websocket.recv()
        assert caught.value.rcvd is not None
        assert caught.value.rcvd.code == 1003


async def open_raw(place: LxdListener) -> socket.socket:
    """Open an event stream that is not read after the upgrade."""
    loop = asyncio.get_running_loop()
    found = socket.socket(socket.AF_UNIX)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    found.setblocking(False)
    await loop.sock_connect(found, str(place.socket))
    head = "GET /1.0/events HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
    head += "sec-websocket-version: 13\r\nsec-websocket-key: MDEyMzQ1Njc4OWFiY2RlZg==\r\n\r\n"
    await loop.sock_sendall(found, head.encode())
    assert b"101" in await loop.sock_recv(found, 4096)
    return found


async def test_event_client_that_reads_nothing_is_disconnected(place: LxdListener, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(events, "MAX_QUEUED_EVENTS", 4)
    # large events, so that few fill the buffers
    monkeypatch.setattr(events, "requestor", lambda _: {"username": "x" * 2**18})

    silent, loop = await open_raw(place), asyncio.get_running_loop()
    async with listen(place) as other:
        for number in range(10):
            await place.request_on_socket("PATCH", "/1.0/projects/default", {"description": str(number)})
            await other.recv()
    found = b"-"
    with contextlib.suppress(ConnectionError):
        while found:  # earlier data, then the end
            found = await loop.sock_recv(silent, 2**20)
    silent.close()


async def flood(to: socket.socket, data: bytes) -> None:
    """Send until the peer closes the connection."""
    while True:
        await asyncio.get_running_loop().sock_sendall(to, data)


async def test_event_client_that_floods_pings_is_disconnected(place: LxdListener):
    silent = await open_raw(place)
    ping = bytes([0x89, 0x80 | 125]) + b"\0\0\0\0" + b"p" * 125
    with pytest.raises(ConnectionError):
        await flood(silent, ping * 100)
    silent.close()
    assert (await place.request_on_socket("GET", "/1.0"))[0] == 200
