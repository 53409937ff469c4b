"""The server: the doors, the store and the reconciler of OVN in one process, and the order in which they start and end.

Everything is derived again at the start: the model is loaded, the dataplane is read, what differs is applied. So it may
be killed at any instant. While OVN is away the doors stay open: what is asked for is stored and applied later.
"""

import asyncio
import contextlib
import errno
import gc
import logging
import resource
import signal
import socket
import ssl
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from ipaddress import ip_address, ip_network
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from fairlead.api.acceptor import Acceptor, ClientConnections
from fairlead.api.app import make_app
from fairlead.api.auth import Authenticate, BadPasswordFile, HttpBasic, anybody, read_password_file
from fairlead.api.callers import names_of
from fairlead.api.door import Services
from fairlead.api.loop_lag import LoopLag
from fairlead.api.metrics import Dataplane
from fairlead.api.wire import HEAD_PATIENCE, BoundedHttp
from fairlead.compilers.providers import Names, compile_owner, parse_names
from fairlead.compilers.unsupported import Unsupported
from fairlead.config import BadConfiguration, Configuration, OvnOptions, ServerOptions, check_secrets, split_listen
from fairlead.drivers.interface import DriverError
from fairlead.drivers.ovn import OvnDriver, OvnSettings
from fairlead.drivers.ovn_southbound import SouthboundReader, SouthboundSettings
from fairlead.drivers.ovsdb import Tls
from fairlead.drivers.ovsdb_remotes import parse_remotes
from fairlead.logs import reopen
from fairlead.model.facts import ports_on
from fairlead.model.owner import Owner
from fairlead.model.parting import forget_removed
from fairlead.model.plugged import waits_for_a_node
from fairlead.model.quota import Limits, ProbeLimits
from fairlead.model.snapshot import Snapshot
from fairlead.model.status import Applied
from fairlead.reconciler.loop import MassDelete, Reconciler
from fairlead.reconciler.succession import Succession
from fairlead.store.interface import StoreError
from fairlead.store.model import Model
from fairlead.store.sqlite import SqliteStore

LOG = logging.getLogger(__name__)
OVN_PATIENCE = 5.0
"""Seconds that the start waits for OVN before the doors open without it."""
SOUTHBOUND_PATIENCE = 2.0
"""Seconds that the first look at everything waits for what probes say, and for which ports are plugged in: without it
the dead would serve for a moment, and every port would be DOWN."""
RESYNC_INTERVAL = 3600.0
FORGET_INTERVAL = 10.0
"""Seconds, between two looks at who was removed long enough ago."""
FILES_BESIDE = 100
"""That are open beside connections of callers: the store, OVN's databases, the log."""
LOCK_PATIENCE = 0.5
"""Seconds that a look at everything waits for the lock: one look is enough for a connection and its lock."""
STORE_PAUSE = 1.0
"""Seconds until a store that could not be read is tried again: nothing else says that it can be read now."""


async def serve(configuration: Configuration) -> None:
    """Until SIGINT or SIGTERM. Raises StoreUnavailable, BadPasswordFile, BadConfiguration, OSError."""
    check_secrets(configuration)
    authenticate = _authentication(configuration)
    gc.disable()  # until the model is loaded: each new document would be looked through again and again
    store = await SqliteStore.open(Path(configuration.store.path))
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        empty = Snapshot(gateway_chassis=configuration.ovn.gateways, parting_seconds=configuration.ovn.parting)
        model = await Model.load(store, compile_owner, empty)
        LOG.info("loaded %d documents at revision %d", len(model.snapshot.generations), model.snapshot.revision)
        providers = parse_names(configuration.providers.names, configuration.providers.default)
        refuse_strangers(model.snapshot, providers)
        kernel = Kernel(model, configuration.ovn)
        await stack.enter_async_context(kernel)
        services = Services(
            model=model,
            applied=kernel.applied,
            now=lambda: datetime.now(UTC),
            new_id=lambda: str(uuid.uuid4()),
            mtu=configuration.network.mtu,
            external_mtu=configuration.network.external_mtu,
            resync_owner=kernel.reconciler.read_again,
            providers=providers,
            limits=Limits(**asdict(configuration.quota)),
            probes=ProbeLimits(**asdict(configuration.probes)),
            news=kernel.reconciler.news,
            locate=kernel.southbound.locate,
            ports_on=kernel.ports_on,
        )
        stack.enter_context(_frozen())
        loop_lag = LoopLag()
        beating = asyncio.create_task(_watched(loop_lag.beat), name="loop lag")
        stack.callback(beating.cancel)
        app = make_app(
            *(services, kernel.reconciler, authenticate, kernel.dataplane),
            names=_names(configuration.server),
            loop_lag=loop_lag,
        )
        await _listen(app, configuration, authenticate)


def refuse_strangers(snapshot: Snapshot, providers: Names) -> None:
    """Raises BadConfiguration for load balancers whose provider's name is gone: what it meant is not known any more.

    Nothing has been written then: their rows stay as they are, and connections go on.
    """
    unknown = Counter(each.provider for each in snapshot.load_balancers.values() if each.provider not in providers)
    if unknown:
        found = ", ".join(f"'{name}' ({count})" for name, count in sorted(unknown.items()))
        raise BadConfiguration(f"providers.names: load balancers are stored with other names: {found}; name these too")


class Kernel:
    """The reconciler of OVN with its driver and the tasks that keep it going; an asynchronous context."""

    def __init__(self, model: Model, options: OvnOptions) -> None:
        self._model = model
        self._tasks: list[asyncio.Task[None]] = []
        self._resync_wanted = asyncio.Event()
        self._synced = asyncio.Event()
        self.driver = OvnDriver(
            _ovn_settings(options),
            on_foreign_change=lambda owner, what: self.reconciler.note_foreign_change(owner, what),  # noqa: PLW0108 - made after
            on_abilities=model.equip,
            on_connected=self._resync_wanted.set,
            on_ready=self._resync_wanted.set,
        )
        self.southbound = SouthboundReader(_southbound_settings(options), model.observe)
        self.reconciler = Reconciler(
            driver=self.driver,
            compile_owner=compile_owner,
            snapshot=lambda: model.snapshot,
            clock=time.monotonic,
            deleted=model.deleted,
        )
        self._probe_interval = float(options.chassis_probe_interval)
        self.succession = Succession(self.driver, self.reconciler, time.monotonic, self._knows_all)

    async def __aenter__(self) -> "Kernel":
        self._model.subscribe(self.reconciler.mark)
        self.southbound.start()
        self.driver.start()
        for work in (
            self.reconciler.run,
            self._model.follow,
            self._resync_when_wanted,
            self.succession.run,
            self._ask_chassis,
            self._forget,
        ):
            self._tasks.append(asyncio.create_task(_watched(work), name=work.__qualname__))
        try:
            async with asyncio.timeout(OVN_PATIENCE):
                await self._synced.wait()
        except TimeoutError:
            LOG.warning("OVN cannot be written yet; serving without it: what is asked for is applied when it is there")
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.driver.close()
        await self.southbound.close()

    def applied(self, owner: Owner) -> Applied:
        """What is known of an owner; while OVN is away nothing new can be on its way."""
        known = self.reconciler.applied(owner)
        if known.generation == 0 and known.error is None and not self.driver.connected:
            return Applied(error="OVN is not reachable")
        return known

    def ports_on(self, chassis: str) -> frozenset[str] | None:
        """Those that the chassis has; None for no such one. Raises Unreachable while OVN cannot be asked."""
        self.southbound.check_connected()
        return ports_on(self._model.snapshot, chassis)

    def dataplane(self) -> Dataplane:
        return Dataplane(
            connected=self.driver.connected,
            writes=self.driver.has_lock,
            southbound=self.southbound.connected,
            unheard=self.southbound.silence if self._model.snapshot.watched else 0.0,
            probing=self.southbound.figures(),
            foreign=self.driver.foreign_changes,
            takeovers=self.succession.takeovers,
        )

    async def _ask_chassis(self) -> None:
        """Whether they live, while somebody wants to know: the one server that writes asks, unless others do."""
        while self._probe_interval:
            await asyncio.sleep(self._probe_interval)
            asked = time.monotonic() - self.southbound.counted_at < self._probe_interval / 2
            if self._model.snapshot.watched and self.driver.ready and self.southbound.connected and not asked:
                try:
                    await self.driver.count_up()
                except DriverError as error:
                    LOG.info("the chassis cannot be asked whether they live: %s", error)
        await asyncio.Event().wait()  # a task of the server never ends

    async def _knows_all(self) -> bool:
        """What is stored, and what probes say where anybody asks for probes."""
        try:
            await self._model.catch_up()
        except StoreError:
            return False
        return self.southbound.connected or not self._model.snapshot.watched

    async def _hear_of_nodes(self) -> None:
        """What probes say, and which ports are plugged in.

        Only at the start: later, what was heard last holds while nothing can be heard.
        """
        if self._model.snapshot.watched or waits_for_a_node(self._model.snapshot):
            with contextlib.suppress(TimeoutError):
                await self.southbound.wait_connected(SOUTHBOUND_PATIENCE)

    async def _forget(self) -> None:
        """Let go of removed members whose time is over."""
        while True:
            await asyncio.sleep(FORGET_INTERVAL)
            snapshot, now = self._model.snapshot, datetime.now(UTC)
            late = [each for each in snapshot.parting if snapshot.load_balancers[each].parted[0].until <= now]
            for balancer_id in late:
                try:
                    await self._model.write(partial(forget_removed, balancer_id=balancer_id, now=now))
                except (StoreError, Unsupported) as error:
                    LOG.warning("members of %s that were removed are not forgotten yet: %s", balancer_id, error)

    async def _resync_when_wanted(self) -> None:
        """At the start, when OVN comes back, and hourly."""
        await self._hear_of_nodes()
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RESYNC_INTERVAL):
                    await self._resync_wanted.wait()
            with contextlib.suppress(TimeoutError):
                await self.driver.wait_ready(LOCK_PATIENCE)
            self._resync_wanted.clear()
            try:
                await self._model.catch_up()  # the lock may come before what its last holder has stored
                changed = await self.reconciler.resync()
            except MassDelete as brake:
                LOG.error("%s: they are left; is this the right store? `fairlead resync --force` deletes them", brake)
                self.reconciler.retry_now()
                self._synced.set()
            except DriverError as error:
                LOG.warning("no resync: %s; there will be one when OVN is back", error)
            except StoreError as error:
                LOG.warning("no resync: %s; trying again", error)
                await asyncio.sleep(STORE_PAUSE)
                self._resync_wanted.set()
            else:
                LOG.info("resync: %d owners differ", changed)
                self.reconciler.retry_now()
                self._synced.set()


@contextlib.contextmanager
def _frozen() -> Iterator[None]:
    """What lives is looked through for garbage once, and never again: with ten thousand load balancers every client
    would wait for half a second. Frozen objects are freed when nothing refers to them, like all others."""

    def freeze(phase: str, information: dict[str, int]) -> None:
        if phase == "stop" and information["generation"] == 2:
            gc.freeze()

    gc.freeze()
    gc.callbacks.append(freeze)
    gc.enable()
    try:
        yield
    finally:
        gc.callbacks.remove(freeze)


async def _watched(work: Callable[[], Awaitable[None]]) -> None:
    """A task of the server never ends by itself: if one does, that is a mistake which must be seen and outlived."""
    while True:
        try:
            await work()
        except Exception:  # the outermost level of a main task
            LOG.exception("%s failed; starting it again", work)
            await asyncio.sleep(1)


def _ovn_settings(options: OvnOptions) -> OvnSettings:
    return OvnSettings(remotes=parse_remotes(options.northbound), tls=_tls(options), mark=options.mark)


def _southbound_settings(options: OvnOptions) -> SouthboundSettings:
    patience = float(options.chassis_timeout) if options.chassis_probe_interval else 0.0
    return SouthboundSettings(remotes=parse_remotes(options.southbound), tls=_tls(options), patience=patience)


def _tls(options: OvnOptions) -> Tls | None:
    if not options.private_key:
        return None
    return Tls(private_key=options.private_key, certificate=options.certificate, ca=options.ca)


def _authentication(configuration: Configuration) -> Authenticate:
    if configuration.server.authentication == "none":
        return anybody
    return HttpBasic(read_password_file(Path(configuration.server.password_file)))


def _names(options: ServerOptions) -> frozenset[str] | None:
    """What Host may be. No browser opens a unix socket, and who has a password is known by it."""
    if options.authentication != "none" or options.listen.startswith("unix:"):
        return None
    return names_of(options.listen, options.more_hosts, tls=bool(options.tls_certificate))


class _Server(uvicorn.Server):
    """Ends by returning: uvicorn would send itself the signal again, and nothing after it would be closed."""

    def __init__(
        self,
        settings: uvicorn.Config,
        listener: socket.socket,
        configuration: Configuration,
        authenticate: Authenticate,
    ) -> None:
        super().__init__(settings)
        self._listener = listener
        self._configuration = configuration
        self._options = configuration.server
        self._authenticate = authenticate
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
        proxies = self._options.trusted_proxies
        networks = [ip_network(proxy) for proxy in proxies if proxy != "unix"]

        def is_proxy(peer: str) -> bool:
            if peer.startswith("uid "):
                return "unix" in proxies
            return bool(networks) and any(ip_address(peer.partition("%")[0]) in network for network in networks)

        most = min(self._options.connections, _files_for(self._options.connections))
        acceptor = Acceptor(
            self._listener,
            lambda: BoundedHttp(self.config, self.server_state, {}),
            ClientConnections(most=most, most_of_one=self._options.connections_per_address),
            tls=lambda: self._tls,
            is_proxy=is_proxy,
        )
        acceptor.start()
        self.servers = [acceptor]  # type: ignore[list-item]
        self.started = True


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


async def _listen(app: ASGIApp, configuration: Configuration, authenticate: Authenticate) -> None:
    options = configuration.server
    listener = _open_socket(options.listen)
    trusted = options.trusted_proxies
    settings = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        http=BoundedHttp,
        ws="none",
        timeout_graceful_shutdown=5,
        timeout_keep_alive=int(HEAD_PATIENCE),
        proxy_headers=bool(trusted),
        # without an address there is one kind of caller only: whoever may open the socket
        forwarded_allow_ips="*" if "unix" in trusted and options.listen.startswith("unix:") else list(trusted),
    )
    with listener, contextlib.ExitStack() as stack:
        if options.listen.startswith("unix:"):
            stack.callback(Path(options.listen.removeprefix("unix:")).unlink, missing_ok=True)
        LOG.info("serving on %s", options.listen)
        await _Server(settings, listener, configuration, authenticate).serve(sockets=[listener])


def _open_socket(listen: str) -> socket.socket:
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
