"""TLS handshakes of many concurrent connections, and the memory that finished connections leave."""

import asyncio
import gc
import weakref
from pathlib import Path

import pytest

from fairlead.api.http import acceptor
from fairlead.api.http.protocol import BoundedHttp
from harness.front_ends.wire import GET, own_tls, serve_connections
from harness.waiting import eventually


@pytest.mark.virtual_clock
async def test_stalled_tls_handshakes_do_not_block_other_handshakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """One handshake at a time: a silent client takes no place, and a stalled one loses its place soon."""
    monkeypatch.setattr(acceptor, "MAX_HANDSHAKES", 1)
    context, client = own_tls(tmp_path)
    silence, hello = (
        b"",
        bytes.fromhex("160301"),
    )  # the beginning of a record with a ClientHello (RFC 8446, section 5.1)

    async with serve_connections(tls=context) as (_, connect):
        for number, said in enumerate((*[silence] * 5, *[hello] * 5)):
            (await connect(f"127.0.0.{number + 2}"))[1].write(said)
        reader, writer = await connect()
        await writer.start_tls(client)
        assert asyncio.get_running_loop().time() < acceptor.HANDSHAKE_TIMEOUT
        writer.write(GET.replace(b"host: x", b"connection: close"))
        assert (await reader.read(-1)).startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("way", ["plain", "tls", "in the middle", "said nothing"])
async def test_closed_connection_leaves_no_reference_cycle(tmp_path: Path, way: str):
    """A closed connection leaves no reference cycle, because frozen objects of a cycle would never be freed."""
    context, client = own_tls(tmp_path) if way == "tls" else (None, None)
    living = weakref.WeakSet[BoundedHttp]()

    gc.disable()
    try:
        async with serve_connections(tls=context) as (place, connect):
            for path in (b"/", b"/", b"/news"):
                reader, writer = await connect()
                if client is not None:
                    await writer.start_tls(client)
                await eventually(lambda: any(each.protocol is not None for each in place.clients.all()))
                living.update(each.protocol for each in place.clients.all() if each.protocol is not None)
                if way == "in the middle":
                    writer.write(GET.replace(b"/ HTTP", path + b" HTTP"))
                    if path == b"/":
                        await reader.readuntil(b"\r\n\r\n")
                elif way != "said nothing":
                    writer.write(GET)
                    await reader.readuntil(b"\r\n\r\n")
                writer.transport.abort()
                await eventually(lambda: place.clients.count == 0)
            assert len(living) <= 3
            await eventually(lambda: not living)
    finally:
        gc.enable()
