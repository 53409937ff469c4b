"""Sockets of a server: listening, limits of connections, certificates, and the files that SIGHUP re-reads."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fairlead.api.app import Applications
from fairlead.api.http.acceptor import UNIX, Acceptor, ClientConnections
from fairlead.api.http.access_control import names_of
from fairlead.api.http.authentication import Authenticate, BadPasswordFile
from fairlead.api.http.protocol import HEAD_TIMEOUT, BoundedHttp
from fairlead.api.http.websocket import MAX_MESSAGE_BYTES, PING_SECONDS, PONG_SECONDS, BoundedWebSocket
from fairlead.config.errors import BadConfiguration
from fairlead.config.load import check_secrets, split_listen
from fairlead.config.option_fields import PathKind
from fairlead.config.option_files import check_file, invalid_now, option_files
from fairlead.config.options import Configuration, ServerOptions
from fairlead.runtime.logging import reopen
from fairlead.runtime.systemd import READY, STOPPING, sd_notify
from fairlead.server.authentication import reload_credentials
from fairlead.server.client_certificates import client_certificate, verified_certificate
from fairlead.server.lxd import LxdServer, give_to_group
from fairlead.server.nodes import NodesServer
from fairlead.store.interface import StoreUnavailable

LOG = logging.getLogger(__name__)
FILES_BESIDE = 100
"""Open files in addition to client connections: the store, dataplane databases, the log."""


def host_names(options: ServerOptions) -> frozenset[str] | None:
    """Return the allowed Host headers; None for any: on Unix sockets, which browsers cannot open, and with
    authentication."""
    if options.authentication != "none" or options.listen.startswith("unix:"):
        return None
    return names_of(options.listen, options.allowed_hosts, tls=bool(options.tls_certificate))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    """Listening socket with its application and TLS context."""

    socket: socket.socket
    settings: uvicorn.Config
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    is_proxy: Callable[[str], bool] = lambda _: False
    of_agents: bool = False
    """Whether connections count as those of agents, which have a limit of their own."""
    certificate_of: Callable[[Any], bytes | None] = client_certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class Secrets:
    """Holders of passwords and certificates, all re-read at SIGHUP."""

    authenticate: Authenticate
    lxd: LxdServer
    nodes: NodesServer
    renew_store: Callable[[], Awaitable[None]]
    """Raises StoreUnavailable, and then keeps the previous credentials."""


class _Server(uvicorn.Server):
    """uvicorn server that returns at its end. uvicorn itself would re-raise the signal before the cleanup."""

    def __init__(self, listeners: Sequence[_Listener], configuration: Configuration, secrets: Secrets) -> None:
        """The first listener serves all API front ends."""
        super().__init__(listeners[0].settings)
        self._listeners = [replace(listeners[0], tls=lambda: self._tls), *listeners[1:]]
        self._configuration = configuration
        self._options = configuration.server
        self._secrets = secrets
        self._tls = _serving_tls(configuration)
        self._reading: asyncio.Task[None] | None = None
        self.stop_requested = False

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for sign in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(sign, self.handle_exit, sign, None)
        loop.add_signal_handler(signal.SIGHUP, self._begin_to_read_again)
        try:
            yield
        finally:
            for sign in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                loop.remove_signal_handler(sign)

    def _begin_to_read_again(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._reload())

    async def _reload(self) -> None:
        """Re-read passwords and certificates and reopen the audit file. An unreadable file leaves the previous
        state."""
        try:
            reopen()
        except OSError as error:
            LOG.error("SIGHUP: the audit log continues without its file: %s", error)
        try:
            check_secrets(self._configuration)
            tls = _serving_tls(self._configuration)
            replace_users = reload_credentials(self._secrets.authenticate, self._configuration)
            self._secrets.lxd.read_again()
            self._secrets.nodes.read_again()
            await self._secrets.renew_store()
            await replace_users()
        except (BadConfiguration, BadPasswordFile, StoreUnavailable, OSError) as error:
            LOG.error("SIGHUP: %s; the previous passwords and certificates stay in use", error)
        else:
            self._tls = tls
            LOG.info("SIGHUP: reloaded passwords and certificates")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start own acceptors instead of uvicorn's, to limit connections per address."""
        own = self._options.max_connections
        agents = self._secrets.nodes.options.max_connections if any(each.of_agents for each in self._listeners) else 0
        possible = _files_for(own + agents)
        of_one = self._options.max_connections_per_address
        clients = ClientConnections(max_total=min(own, possible), max_per_address=of_one)
        of_agents = ClientConnections(max_total=max(min(agents, possible - own), 1), max_per_address=of_one)
        counted = ((each, of_agents if each.of_agents else clients) for each in self._listeners)
        self.servers = [self._accept(*each) for each in counted]  # type: ignore[misc]
        self.started = True
        sd_notify(READY)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop the process. systemd kills the process if it goes on after STOPPING=1, so this is sent only for a
        signal: a server that stops serving for another reason becomes a standby."""
        self.stop_requested = True
        sd_notify(STOPPING)
        super().handle_exit(sig, frame)

    def _accept(self, listener: _Listener, clients: ClientConnections) -> Acceptor:
        """Create an acceptor. All acceptors of a kind share one connection count."""
        if not listener.settings.loaded:
            listener.settings.load()
        acceptor = Acceptor(
            listener.socket,
            lambda: BoundedHttp(listener.settings, self.server_state, {}),
            clients,
            tls=listener.tls,
            is_proxy=listener.is_proxy,
            certificate_of=listener.certificate_of,
        )
        acceptor.start()
        return acceptor


def _files_for(connections: int) -> int:
    """Raise the limit of open files as needed and allowed, and return the number of connections it permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = connections if soft == resource.RLIM_INFINITY else max(soft - FILES_BESIDE, 1)
    if possible < connections:
        LOG.warning(
            "the limit of open files is %d, so server.max_connections = %d is reduced to %d",
            soft,
            connections,
            possible,
        )
    return possible


def _serving_tls(configuration: Configuration) -> ssl.SSLContext | None:
    """Return the TLS context; None without TLS. Logs a warning for a certificate that is not valid now.

    Raises BadConfiguration for files that cannot be served, and OSError.
    """
    options = configuration.server
    if not options.tls_certificate:
        return None
    for file in option_files(configuration, ("server",)):
        if file.kind in (PathKind.CERTIFICATE, PathKind.AUTHORITIES):
            check_file(file)
            if why := invalid_now(file, datetime.now(UTC)):
                LOG.warning("%s: %s: %s", file.option, file.path, why)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_certificate, options.tls_key)
    if options.client_ca:
        context.load_verify_locations(options.client_ca)
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def listen(
    apps: Applications,
    configuration: Configuration,
    secrets: Secrets,
    *,
    until: asyncio.Event | None = None,
) -> bool:
    """Serve until a signal or `until` is set. Returns whether a signal was received, even during the shutdown."""
    options, trusted = configuration.server, configuration.server.trusted_proxies
    lxd, nodes = secrets.lxd, secrets.nodes
    behind_proxies = {
        "proxy_headers": bool(trusted),
        # a Unix socket has no addresses: trust the proxy headers of any process that may open it
        "forwarded_allow_ips": "*" if "unix" in trusted and options.listen.startswith("unix:") else list(trusted),
    }
    with contextlib.ExitStack() as stack:
        main = _Listener(
            socket=_open(options.listen, stack),
            settings=_settings(apps.all, ws="none", **behind_proxies),
            is_proxy=_proxies(trusted),
            certificate_of=verified_certificate,
        )
        listeners = [main, *_lxd_listeners(apps.lxd, lxd, stack), *_agent_listeners(apps.nodes, nodes, stack)]
        own = (lxd.options.socket, lxd.options.listen, nodes.options.socket, nodes.options.listen)
        LOG.info("serving on %s", ", ".join(filter(None, (options.listen, *own))))
        server = _Server(listeners, configuration, secrets)
        ending = asyncio.create_task(_end(server, until or asyncio.Event()))
        try:
            await server.serve(sockets=[each.socket for each in listeners])
        finally:
            ending.cancel()
        return server.stop_requested


async def _end(server: uvicorn.Server, until: asyncio.Event) -> None:
    await until.wait()
    server.should_exit = True


def _settings(app: ASGIApp, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedHttp,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=int(HEAD_TIMEOUT),
        **more,
    )


def _lxd_listeners(app: ASGIApp, lxd: LxdServer, stack: contextlib.ExitStack) -> Iterator[_Listener]:
    """Yield the listeners for LXD clients. Proxy headers are ignored: a proxy cannot present its client's
    certificate."""
    settings = _settings(
        app,
        proxy_headers=False,
        ws=BoundedWebSocket,
        ws_max_size=MAX_MESSAGE_BYTES,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        ws_per_message_deflate=False,
    )
    if lxd.options.socket:
        listener = _open(lxd.options.socket, stack)
        give_to_group(Path(lxd.options.socket.removeprefix("unix:")), lxd.options)
        yield _Listener(socket=listener, settings=settings)
    if lxd.options.listen:
        opened = _open(lxd.options.listen, stack)
        yield _Listener(socket=opened, settings=settings, tls=lambda: lxd.context)


def _agent_listeners(app: ASGIApp, nodes: NodesServer, stack: contextlib.ExitStack) -> Iterator[_Listener]:
    settings = _settings(app, proxy_headers=False, ws="none")
    if nodes.options.socket:
        yield _Listener(socket=_open(nodes.options.socket, stack), settings=settings, of_agents=True)
    if nodes.options.listen:
        listener = _open(nodes.options.listen, stack)
        yield _Listener(socket=listener, settings=settings, tls=lambda: nodes.context, of_agents=True)


def _proxies(trusted: Sequence[str]) -> Callable[[str], bool]:
    networks = [ip_network(proxy) for proxy in trusted if proxy != "unix"]

    def is_proxy(peer: str) -> bool:
        if peer.startswith(UNIX):
            return "unix" in trusted
        return bool(networks) and any(ip_address(peer.partition("%")[0]) in network for network in networks)

    return is_proxy


def _open(listen: str, stack: contextlib.ExitStack) -> socket.socket:
    """Open a socket that is closed, and removed if it is a Unix socket, when the stack ends."""
    listener = stack.enter_context(open_socket(listen))
    if listen.startswith("unix:"):
        stack.callback(Path(listen.removeprefix("unix:")).unlink, missing_ok=True)
    return listener


def open_socket(listen: str) -> socket.socket:
    """Return a bound socket, not yet listening. Unix sockets have mode 0660. Raises OSError that names the address."""
    try:
        if listen.startswith("unix:"):
            path = Path(listen.removeprefix("unix:"))
            _remove_dead_socket(path)
            listener = _bind(socket.AF_UNIX, str(path))
            path.chmod(0o660)
            return listener
        host, port = split_listen(listen)
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return _bind(family, address)
    except OSError as error:
        raise OSError(f"cannot listen on {listen}: {error.strerror or error}") from None


def _bind(family: int, address: object) -> socket.socket:
    # asyncio sets TCP_NODELAY on accepted sockets only if the listener's protocol is TCP
    protocol = socket.IPPROTO_TCP if family in (socket.AF_INET, socket.AF_INET6) else 0
    listener = socket.socket(family, socket.SOCK_STREAM, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)  # type: ignore[arg-type]
    except OSError:
        listener.close()
        raise
    return listener


def _remove_dead_socket(path: Path) -> None:
    """Remove the socket of a killed server. Raises OSError if a server listens on it."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, "another server listens on this socket")
        path.unlink()
