"""Accept client connections, limit their number per address, and choose the one to drop when a limit is reached.

A connection costs memory and a file descriptor before its client is authenticated. Connections are therefore counted by
address at accept time, including those in the middle of a TLS handshake. When an address reaches its limit, or all
addresses together reach the total, the connection that has kept the server waiting longest is dropped. A client that
sends data keeps its connection, and a new client is admitted immediately, even from an address with many idle
connections. IPv6 clients are counted by /64 prefix, because every host has a whole one; clients on a Unix socket are
counted by uid. A trusted proxy carries many clients, so only the total applies to it.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from ipaddress import IPv6Address, IPv6Network, ip_address

from fairlead.api.http.protocol import BoundedHttp
from fairlead.api.http.rate_limit import RateLimiter
from fairlead.runtime.fair_semaphore import FairSemaphore, WaitQueueFull

SWEEP = 0.5
"""Seconds between two searches for overdue connections."""
MAX_ACCEPTS_PER_TURN = 64
"""Maximum connections accepted in one event-loop turn."""
HANDSHAKE_TIMEOUT = 10.0
"""Timeout of a TLS handshake, in seconds."""
HANDSHAKES, HANDSHAKE_SECONDS = 100, 0.05
"""Handshake rate limit per address: burst size, and seconds until one unit of the burst is available again. Each
handshake costs milliseconds of CPU time. Handshakes above the rate are delayed, not rejected; connection limits still
apply to them."""
MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS, HANDSHAKE_SLOT_SECONDS = 16, 8, 0.1
"""Limits of concurrent handshakes after the ClientHello has arrived: in total, per address, and the seconds after which
a handshake that waits for its client stops counting. All bytes that have arrived are processed in one event-loop turn,
so a thousand agents that reconnect together would hold the loop for half a second. Addresses take turns."""
PAUSE = 0.1
"""Seconds for which no connection is accepted after the process or the machine runs out of file descriptors."""
BACKLOG = 2048
UNIX = "uid "
"""Prefix of the address recorded for a client on a Unix socket; the uid follows."""
LOG = logging.getLogger(__name__)


def connection_key(address: str) -> str:
    """Return the key by which connections of an address are counted: the IPv4 address, or the /64 of an IPv6
    address."""
    try:
        parsed = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        mapped = parsed.ipv4_mapped
        return str(mapped) if mapped else str(IPv6Network((parsed, 64), strict=False))
    return str(parsed)


def _peer(connection: socket.socket, address: object) -> str:
    if connection.family == socket.AF_UNIX:  # unix(7), SO_PEERCRED: pid, uid, gid
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return f"{UNIX}{struct.unpack('3i', credentials)[1]}"
    return str(address[0]) if isinstance(address, tuple) else ""


@dataclass(eq=False, slots=True, kw_only=True)
class ClientConnection:
    """Client connection, from accept to close."""

    address: str
    """Counting key (`connection_key`); empty for a trusted proxy."""
    since: float
    protocol: BoundedHttp | None = None
    handshake: "asyncio.Task[None] | None" = None
    """Task that runs the TLS handshake and any other step before the protocol owns the connection."""

    @property
    def waits_since(self) -> float | None:
        """Time since which the server waits for bytes from the client, or for the client to read; None if it waits for
        neither."""
        if self.protocol is None or self.protocol.transport is None:
            return self.since
        waits = self.protocol.waits_since
        return self.protocol.stuck_since if waits is None else waits

    def drop(self) -> None:
        if self.protocol is not None and self.protocol.transport is not None:
            self.protocol.close()
        elif self.handshake is not None:
            self.handshake.cancel()


@dataclass(kw_only=True)
class ClientConnections:
    """All open connections by address; each inner mapping is in order of arrival."""

    max_total: int
    max_per_address: int
    by_address: dict[str, dict[ClientConnection, None]] = field(default_factory=dict)
    count: int = 0
    dropped: int = 0
    rejected: int = 0

    def admit(self, client: ClientConnection) -> bool:
        """Register the connection and return True if a slot is free or a waiting connection can be dropped to free
        one."""
        own = self.by_address.get(client.address, {})
        if client.address and len(own) >= self.max_per_address and not self._make_room(own):
            self.rejected += 1
            return False
        if self.count >= self.max_total:
            largest = max(self.by_address.values(), key=len)
            if not self._make_room(largest) and not any(map(self._make_room, self.by_address.values())):
                self.rejected += 1
                return False
        self.by_address.setdefault(client.address, {})[client] = None
        self.count += 1
        return True

    def remove(self, client: ClientConnection) -> None:
        own = self.by_address.get(client.address, {})
        if client in own:
            del own[client]
            self.count -= 1
            if not own:
                self.by_address.pop(client.address, None)

    def all(self) -> Iterable[ClientConnection]:
        return [client for own in self.by_address.values() for client in own]

    def _make_room(self, own: dict[ClientConnection, None]) -> bool:
        waiting = [(since, client) for client in own if (since := client.waits_since) is not None]
        if not waiting:
            return False
        longest = min(waiting, key=lambda each: each[0])[1]
        self.dropped += 1
        self.remove(longest)
        longest.drop()
        return True


class Acceptor:
    """Accept connections for uvicorn, which calls `close` and `wait_closed` as on any asyncio server."""

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], BoundedHttp],
        clients: ClientConnections,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        is_proxy: Callable[[str], bool] = lambda _: False,
        certificate_of: Callable[[asyncio.BaseTransport], bytes | None] = lambda _: None,
    ) -> None:
        """`tls` is called for each connection, because the certificate may have been replaced. `certificate_of` returns
        the certificate that the client presented."""
        self.clients = clients
        self._listener = listener
        self._make_protocol = make_protocol
        self._tls = tls
        self._is_proxy = is_proxy
        self._certificate_of = certificate_of
        self._handshakes = RateLimiter(HANDSHAKES, HANDSHAKE_SECONDS)
        self._handshake_slots = FairSemaphore(
            at_once=MAX_HANDSHAKES, of_one=MAX_HANDSHAKES_PER_ADDRESS, waiting=clients.max_total
        )
        self._loop = asyncio.get_running_loop()
        self._sweeping: asyncio.Task[None] | None = None
        self._has_logged_pause = False

    def start(self) -> None:
        self._listener.setblocking(False)
        self._listener.listen(BACKLOG)
        self._loop.add_reader(self._listener.fileno(), self._accept)
        self._sweeping = self._loop.create_task(self._sweep())

    def close(self) -> None:
        if self._listener.fileno() >= 0:
            self._loop.remove_reader(self._listener.fileno())
        if self._sweeping is not None:
            self._sweeping.cancel()

    async def wait_closed(self) -> None:
        for client in self.clients.all():
            client.drop()

    def _accept(self) -> None:
        for _ in range(MAX_ACCEPTS_PER_TURN):
            try:
                connection, address = self._listener.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError as error:  # EMFILE or ENFILE: no file descriptor left in this process or on this machine
                self._pause(error)
                return
            self._has_logged_pause = False
            self._start_handshake(connection, address)

    def _pause(self, error: OSError) -> None:
        if not self._has_logged_pause:
            LOG.error("cannot accept connections: %s", error.strerror)
        self._has_logged_pause = True
        self._loop.remove_reader(self._listener.fileno())
        self._loop.call_later(PAUSE, self._resume)

    def _resume(self) -> None:
        if self._sweeping is not None and not self._sweeping.cancelled() and self._listener.fileno() >= 0:
            self._loop.add_reader(self._listener.fileno(), self._accept)

    def _start_handshake(self, connection: socket.socket, address: object) -> None:
        peer = _peer(connection, address)
        client = ClientConnection(address="" if self._is_proxy(peer) else connection_key(peer), since=self._loop.time())
        if not self.clients.admit(client):
            connection.close()
            return
        connection.setblocking(False)
        client.handshake = self._loop.create_task(self._start_protocol(client, connection, peer))
        client.handshake.add_done_callback(partial(self._forget_dropped, client, connection))

    def _forget_dropped(
        self, client: ClientConnection, connection: socket.socket, handshake: asyncio.Task[None]
    ) -> None:
        """Clean up after a handshake that was cancelled before its first step, when its own `except` clauses never
        run."""
        if handshake.cancelled():
            self.clients.remove(client)
            connection.close()

    async def _start_protocol(self, client: ClientConnection, connection: socket.socket, peer: str) -> None:
        def make() -> BoundedHttp:
            client.protocol = self._make_protocol()
            client.protocol.on_disconnect = partial(self.clients.remove, client)
            client.protocol.peer = peer
            client.protocol.certificate_of = self._certificate_of
            return client.protocol

        tls = self._tls()
        try:
            if tls is None:
                await self._loop.connect_accepted_socket(make, connection)
            else:
                await self._wait_for_turn(client.address)
                await self._shake_hands(client.address, make, connection, tls)
        except (OSError, TimeoutError, WaitQueueFull):  # failed handshake or closed connection: not worth logging
            self.clients.remove(client)
            connection.close()

    async def _wait_for_turn(self, address: str) -> None:
        """Delay a handshake until the address is below its rate limit."""
        if address:  # a proxy carries many clients
            wait = self._handshakes.wait(address)
            self._handshakes.add(address)
            if wait > 0:
                await asyncio.sleep(wait)

    async def _shake_hands(
        self, address: str, make: Callable[[], BoundedHttp], connection: socket.socket, tls: ssl.SSLContext
    ) -> None:
        """Run the TLS handshake. Raises OSError, TimeoutError, and TooMany if more handshakes of one address wait than
        the total of connections."""
        until = self._loop.time() + HANDSHAKE_TIMEOUT
        async with asyncio.timeout_at(until):
            await self._wait_for_client_hello(connection)
        patience = max(until - self._loop.time(), HANDSHAKE_SLOT_SECONDS)
        async with self._handshake_slots.turn(address, counted=HANDSHAKE_SLOT_SECONDS):
            await self._loop.connect_accepted_socket(make, connection, ssl=tls, ssl_handshake_timeout=patience)

    async def _wait_for_client_hello(self, connection: socket.socket) -> None:
        """Wait for the first bytes of the client, so that silent connections cost nothing and occupy no handshake
        slot."""
        said = asyncio.Event()
        self._loop.add_reader(connection.fileno(), said.set)
        try:
            await said.wait()
        finally:
            self._loop.remove_reader(connection.fileno())

    async def _sweep(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(SWEEP)
                now = self._loop.time()
                for client in self.clients.all():
                    if client.protocol is not None and client.protocol.overdue(now):
                        client.drop()
