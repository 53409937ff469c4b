"""LXD front end listening in this process, and a client that presents a given certificate."""

import asyncio
import contextlib
import hashlib
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairlead.api import lxd as door
from fairlead.api.app import make_app
from fairlead.api.http.authentication import authenticate_as_admin
from fairlead.config.options import Configuration, LxdOptions, ServerOptions, StoreOptions
from fairlead.server.listening import Secrets, listen
from fairlead.server.lxd import LxdServer
from fairlead.server.nodes import NodesServer
from harness.api import InProcessServer, dataplanes_with, in_process_server
from harness.front_ends.lxd_keys import make_certificate
from harness.ports import free_port, is_listening
from harness.waiting import eventually


@dataclass
class LxdListener:
    server: InProcessServer
    port: int
    socket: Path
    lxd: LxdServer

    async def connect(
        self, identity: Path | None = None, local_address: str = "127.0.0.1", **more: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if identity is not None:
            context.load_cert_chain(identity)
        for name, value in more.items():
            setattr(context, name, value)
        own = (local_address, 0)
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=context, local_addr=own)

    async def request(
        self, method: str, path: str, body: Any = None, identity: Path | None = None, **more: Any
    ) -> tuple[int, Any]:
        reader, writer = await self.connect(identity, **more)
        return await exchange(reader, writer, method, path, body)

    async def request_on_socket(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        reader, writer = await asyncio.open_unix_connection(self.socket)
        return await exchange(reader, writer, method, path, body)


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, method: str, path: str, body: Any
) -> tuple[int, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    answer = await reader.read()
    writer.close()
    head_of, _, rest = answer.partition(b"\r\n\r\n")
    return int(head_of.split()[1]), json.loads(rest)


@asynccontextmanager
async def served(folder: Path, **options: str) -> AsyncIterator[LxdListener]:
    port = free_port()
    path = folder / "unix.socket"
    configuration = Configuration(
        server=ServerOptions(listen=f"unix:{folder}/main.socket"),
        store=StoreOptions(path=str(folder / "store.db")),
        lxd=LxdOptions(socket=f"unix:{path}", listen=f"127.0.0.1:{port}", **options),
    )
    own = LxdServer(configuration)
    async with in_process_server(door.make_front_end, folder, "/1.0") as place:
        services = replace(place.services, client_endpoint=own.reachable)
        apps = make_app(services, dataplanes_with(place.reconciler), authenticate_as_admin)
        nodes = NodesServer(configuration)
        secrets = Secrets(authenticate=authenticate_as_admin, lxd=own, nodes=nodes, renew_store=place.store.renew)
        listening = asyncio.create_task(listen(apps, configuration, secrets))
        await eventually(lambda: is_listening(port) or listening.done())  # true when the last socket listens
        assert not listening.done(), listening.result()
        yield LxdListener(place, port, path, own)
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening


def identity(folder: Path, name: str = "client") -> tuple[Path, str]:
    """Path of a file with certificate and key, and the certificate's fingerprint."""
    der, key = make_certificate(name)
    path = folder / f"{name}.pem"
    path.write_text(ssl.DER_cert_to_PEM_cert(der) + key.decode())
    return path, hashlib.sha256(der).hexdigest()
