"""Where a server listens, and to whom: its socket, who may come in, certificates, and what SIGHUP reads again."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from fairlead.api.acceptor import UNIX, Acceptor, ClientConnections
from fairlead.api.app import Applications
from fairlead.api.auth import Authenticate, BadPasswordFile, HttpBasic, anybody, read_password_file
from fairlead.api.callers import names_of
from fairlead.api.websocket import LARGEST_MESSAGE, PING_SECONDS, PONG_SECONDS, BoundedWebSocket
from fairlead.api.wire import HEAD_PATIENCE, BoundedHttp
from fairlead.config import BadConfiguration, check_secrets, split_listen
from fairlead.logs import reopen
from fairlead.options import Configuration, ServerOptions
from fairlead.server.client_certificates import client_certificate
from fairlead.server.lxd import LxdServer, give_to_group

LOG = logging.getLogger(__name__)
FILES_BESIDE = 100
"""That are open beside connections of callers: the store, databases of dataplanes, the log."""


def read_authentication(configuration: Configuration) -> Authenticate:
    """Raises BadPasswordFile, OSError."""
    if configuration.server.authentication == "none":
        return anybody
    return HttpBasic(read_password_file(Path(configuration.server.password_file)))


def host_names(options: ServerOptions) -> frozenset[str] | None:
    """What Host may be. No browser opens a unix socket, and who has a password is known by it."""
    if options.authentication != "none" or options.listen.startswith("unix:"):
        return None
    return names_of(options.listen, options.more_hosts, tls=bool(options.tls_certificate))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listener:
    """A socket, and what is behind it."""

    socket: socket.socket
    settings: uvicorn.Config
    tls: Callable[[], ssl.SSLContext | None] = lambda: None
    is_proxy: Callable[[str], bool] = lambda _: False


class _Server(uvicorn.Server):
    """Ends by returning: uvicorn would send itself the signal again, and nothing after it would be closed."""

    def __init__(
        self,
        listeners: Sequence[_Listener],
        configuration: Configuration,
        authenticate: Authenticate,
        lxd: LxdServer,
    ) -> None:
        """The first of the listeners is that of all doors."""
        super().__init__(listeners[0].settings)
        self._listeners = [replace(listeners[0], tls=lambda: self._tls), *listeners[1:]]
        self._configuration = configuration
        self._options = configuration.server
        self._authenticate = authenticate
        self._lxd = lxd
        self._tls = _serving_tls(self._options)
        self._reading: asyncio.Task[None] | None = None

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
        self._reading = asyncio.get_running_loop().create_task(self._read_again())

    async def _read_again(self) -> None:
        """Passwords and certificates, and the file of the audit; what cannot be read stays as it was."""
        try:
            reopen()
        except OSError as error:
            LOG.error("SIGHUP: the audit goes on without its file: %s", error)
        try:
            check_secrets(self._configuration)
            tls = _serving_tls(self._options)
            self._lxd.read_again()
            if isinstance(self._authenticate, HttpBasic):
                users = read_password_file(Path(self._options.password_file))
                await self._authenticate.replace(users)
                LOG.info("SIGHUP: %d users; whoever was let in before is checked again", len(users))
        except (BadConfiguration, BadPasswordFile, OSError) as error:
            LOG.error("SIGHUP: %s; what was read before goes on", error)
        else:
            self._tls = tls
            LOG.info("SIGHUP: passwords and certificate are read again")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Our own way in, instead of uvicorn's: it knows how many connections each address has."""
        most = min(self._options.connections, _files_for(self._options.connections))
        clients = ClientConnections(most=most, most_of_one=self._options.connections_per_address)
        self.servers = [self._accept(each, clients) for each in self._listeners]  # type: ignore[misc]
        self.started = True

    def _accept(self, listener: _Listener, clients: ClientConnections) -> Acceptor:
        """Whichever way they come, they are counted together."""
        if not listener.settings.loaded:
            listener.settings.load()
        acceptor = Acceptor(
            listener.socket,
            lambda: BoundedHttp(listener.settings, self.server_state, {}),
            clients,
            tls=listener.tls,
            is_proxy=listener.is_proxy,
            certificate_of=client_certificate,
        )
        acceptor.start()
        return acceptor


def _files_for(connections: int) -> int:
    """How many connections this process may have: it takes as many files as it needs and as it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + FILES_BESIDE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    possible = connections if soft == resource.RLIM_INFINITY else max(soft - FILES_BESIDE, 1)
    if possible < connections:
        LOG.warning(
            "this process may have %d files: of server.connections = %d it takes %d", soft, connections, possible
        )
    return possible


def _serving_tls(options: ServerOptions) -> ssl.SSLContext | None:
    """Raises OSError, of which ssl.SSLError is one, when the files are not a certificate and its key."""
    if not options.tls_certificate:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.tls_certificate, options.tls_key)
    return context


async def listen(apps: Applications, configuration: Configuration, authenticate: Authenticate, lxd: LxdServer) -> None:
    options, trusted = configuration.server, configuration.server.trusted_proxies
    behind_proxies = {
        "proxy_headers": bool(trusted),
        # without an address there is one kind of caller only: whoever may open the socket
        "forwarded_allow_ips": "*" if "unix" in trusted and options.listen.startswith("unix:") else list(trusted),
    }
    with contextlib.ExitStack() as stack:
        main = _Listener(
            socket=_open(options.listen, stack),
            settings=_settings(apps.all, ws="none", **behind_proxies),
            is_proxy=_proxies(trusted),
        )
        listeners = [main, *_lxd_listeners(apps.lxd, lxd, stack)]
        LOG.info("serving on %s", ", ".join(filter(None, (options.listen, lxd.options.socket, lxd.options.listen))))
        server = _Server(listeners, configuration, authenticate, lxd)
        await server.serve(sockets=[each.socket for each in listeners])


def _settings(app: ASGIApp, **more: Any) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedHttp,
        timeout_graceful_shutdown=5,
        timeout_keep_alive=int(HEAD_PATIENCE),
        **more,
    )


def _lxd_listeners(app: ASGIApp, lxd: LxdServer, stack: contextlib.ExitStack) -> Iterator[_Listener]:
    """No proxy is believed here: it could not show its client's certificate."""
    settings = _settings(
        app,
        proxy_headers=False,
        ws=BoundedWebSocket,
        ws_max_size=LARGEST_MESSAGE,
        ws_ping_interval=PING_SECONDS,
        ws_ping_timeout=PONG_SECONDS,
        ws_per_message_deflate=False,
    )
    if lxd.options.socket:
        listener = _open(lxd.options.socket, stack)
        give_to_group(Path(lxd.options.socket.removeprefix("unix:")), lxd.options)
        yield _Listener(socket=listener, settings=settings)
    if lxd.options.listen:
        yield _Listener(socket=_open(lxd.options.listen, stack), settings=settings, tls=lambda: lxd.context)


def _proxies(trusted: Sequence[str]) -> Callable[[str], bool]:
    networks = [ip_network(proxy) for proxy in trusted if proxy != "unix"]

    def is_proxy(peer: str) -> bool:
        if peer.startswith(UNIX):
            return "unix" in trusted
        return bool(networks) and any(ip_address(peer.partition("%")[0]) in network for network in networks)

    return is_proxy


def _open(listen: str, stack: contextlib.ExitStack) -> socket.socket:
    """Closed, and a unix socket taken away, when the stack ends."""
    listener = stack.enter_context(open_socket(listen))
    if listen.startswith("unix:"):
        stack.callback(Path(listen.removeprefix("unix:")).unlink, missing_ok=True)
    return listener


def open_socket(listen: str) -> socket.socket:
    """Bound and not yet listening. A unix socket is for its owner and group. Raises OSError that names the address."""
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
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)  # type: ignore[arg-type]
    except OSError:
        listener.close()
        raise
    return listener


def _remove_dead_socket(path: Path) -> None:
    """What a server that was killed left behind. Raises OSError when a server listens there."""
    if path.is_socket():
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            if probe.connect_ex(str(path)) == 0:
                raise OSError(errno.EADDRINUSE, "another server listens there")
        path.unlink()
