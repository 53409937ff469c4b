"""Calls to the members of an etcd cluster, each with a deadline and failover to the next member.

A call ends in an answer, in `Refused` (an etcd error: not executed), or in `EtcdUnreachable` (unknown whether executed;
its subclass `NotSent`: not executed).
"""

import asyncio
import importlib.util
import os
import ssl
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from fairlead.store.etcd_access import Access, Location, read_file
from fairlead.store.interface import StoreUnavailable

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C core writes to standard error, bypassing the log
if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("google.protobuf") is None:
    raise StoreUnavailable("gRPC is not installed, which a store in etcd requires: pip install 'fairlead[etcd]'")

import grpc
import grpc.aio

from fairlead.store import etcd_pb2 as pb

CALL_TIMEOUT = 2.0
"""Seconds for one call to one member: longer than an election takes. A hung member is skipped after it."""
TOTAL_TIMEOUT = 8.0
"""Seconds for all attempts over all members."""
RETRY_INTERVAL = 0.1
"""Seconds between two rounds over the members."""
MAX_CALL_SECONDS = 2 * CALL_TIMEOUT
"""Maximum seconds of a call that has to authenticate first."""
MAX_RESPONSE_BYTES = 64 * 2**20
OPTIONS = (
    ("grpc.max_receive_message_length", MAX_RESPONSE_BYTES),
    ("grpc.max_send_message_length", MAX_RESPONSE_BYTES),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(CALL_TIMEOUT * 1000)),  # timeout of an attempt to connect
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
RETRYABLE_CODES = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNKNOWN,  # "context deadline exceeded": a read without quorum
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,  # the connection was reset
        grpc.StatusCode.ABORTED,
    )
)
OLD_TOKENS = ("invalid auth token", "revision of auth store is old")
MAX_REASON_LENGTH = 300
"""Characters."""


class EtcdUnreachable(Exception):
    """No answer from the member; the request may have been executed."""


class NotSent(EtcdUnreachable):
    """The request was not sent, so it is not executed."""


class EtcdError(Exception):
    """Error reported by etcd: the request was not executed."""

    def __init__(self, code: Any, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.compacted = code is grpc.StatusCode.OUT_OF_RANGE and "compacted" in reason
        self.too_large_an_answer = code is grpc.StatusCode.RESOURCE_EXHAUSTED and "eceived message larger" in reason
        self.too_large = (
            "request is too large" in reason or "too many operations" in reason or "trying to send message" in reason
        ) or self.too_large_an_answer
        self.no_space = "database space exceeded" in reason
        self.old_token = any(each in reason for each in OLD_TOKENS)


@dataclass(frozen=True, slots=True)
class Method:
    path: str
    answer: Any


RANGE = Method("/etcdserverpb.KV/Range", pb.RangeResponse)
TXN = Method("/etcdserverpb.KV/Txn", pb.TxnResponse)
AUTHENTICATE = Method("/etcdserverpb.Auth/Authenticate", pb.AuthenticateResponse)
WATCH = "/etcdserverpb.Watch/Watch"


class EtcdConnections:
    """Connections to all members, with one set of certificates and password."""

    def __init__(self, location: Location, access: Access) -> None:
        """Raises OSError and ValueError for unusable credential files."""
        self.password = (read_file(access.password_file) or b"").decode().rstrip("\r\n")
        self.token = ""
        tls = _read_tls(access)
        self.channels = [
            grpc.aio.secure_channel(each, tls, OPTIONS) if tls else grpc.aio.insecure_channel(each, OPTIONS)
            for each in location.members
        ]

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self.token),) if self.token else ()

    async def close(self) -> None:
        for channel in self.channels:
            await channel.close()


def _read_tls(access: Access) -> Any:
    """Build TLS credentials from the files; None without TLS. Raises OSError."""
    if not access.ca:
        return None
    read = tuple(map(read_file, (access.ca, access.key, access.certificate)))
    try:  # gRPC would report no error for bad files, and only fail to connect
        context = ssl.create_default_context(cafile=access.ca)
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key, password="")
    except ssl.SSLError as error:
        names = ", ".join(filter(None, (access.ca, access.certificate, access.key)))
        raise OSError(
            f"{names}: expected CA certificates, or a certificate and its private key: {error.reason or error}"
        ) from None
    return grpc.ssl_channel_credentials(*read)


class EtcdMembers:
    def __init__(self, location: Location, access: Access) -> None:
        """Raises OSError and ValueError, as `Way` does."""
        self._location, self._access = location, access
        self._names = location.members
        self._user = access.user
        self._current = 0
        self._connections = EtcdConnections(location, access)
        self._streams = set[Any]()
        self._retired: dict[EtcdConnections, asyncio.Task[None]] = {}
        """Replaced connections with calls in progress, and the tasks that close them."""

    async def close(self) -> None:
        left = dict(self._retired)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        for way in (self._connections, *left):
            await way.close()

    async def renew(self) -> None:
        """Reconnect with the present contents of the credential files.

        Calls in progress finish on the previous connections, streams restart. Raises OSError, ValueError and Refused,
        and then keeps the previous connections.
        """
        way = EtcdConnections(self._location, self._access)
        try:
            if self._user:
                await self._authenticate(way)
        except EtcdUnreachable:  # unreachable, so the credentials are not known to be wrong
            pass
        except BaseException:
            await way.close()
            raise
        before, self._connections = self._connections, way
        self._retired[before] = asyncio.create_task(self._leave(before), name="close retired connections")
        for stream in tuple(self._streams):
            stream.cancel()

    async def call(self, method: Method, request: Any) -> Any:
        """Send an idempotent request. Raises Refused, and StoreUnavailable if no member answers."""
        until = _now() + TOTAL_TIMEOUT
        while True:
            for _ in self._names:
                try:
                    return await self.call_once(method, request)
                except EtcdUnreachable as error:
                    reason = str(error)
                if _now() >= until:
                    raise StoreUnavailable(f"no etcd member responds, or etcd has no quorum: {reason}")
            await asyncio.sleep(RETRY_INTERVAL)

    async def call_once(self, method: Method, request: Any) -> Any:
        """Send a request to one member; a failure makes the next call use the next one. Raises Refused and
        Unreached."""
        way = await self._ensure_authenticated()
        try:
            return await self._call(way, method, request)
        except EtcdError as refused:
            if not self._user or not refused.old_token:
                raise
        way.token = ""
        return await self._call(await self._ensure_authenticated(), method, request)

    async def watch(self, create: Any, patience: float | None = CALL_TIMEOUT) -> AsyncGenerator[Any, None]:
        """Yield messages of a watch at one member, each within `patience` seconds. Raises Refused and Unreached."""
        way = await self._ensure_authenticated()
        asked = self._current
        open_stream = way.channels[asked].stream_stream(
            WATCH,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        call = open_stream(metadata=(("hasleader", "true"), *way.metadata))
        self._streams.add(call)
        try:
            async with asyncio.timeout(CALL_TIMEOUT):
                await call.write(pb.WatchRequest(create=create))
            while True:
                async with asyncio.timeout(patience):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    raise self._switch_member(asked, "the watch ended")
                yield message
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._to_exception(asked, error) from None
        except TimeoutError:
            raise self._switch_member(asked, "connection timed out") from None
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise EtcdUnreachable(
                f"{self._names[asked]}: the stream was closed, because credentials were renewed"
            ) from None
        finally:
            self._streams.discard(call)
            call.cancel()

    async def _leave(self, way: EtcdConnections) -> None:
        await asyncio.sleep(MAX_CALL_SECONDS + RETRY_INTERVAL)
        await way.close()
        del self._retired[way]

    async def _ensure_authenticated(self) -> EtcdConnections:
        """Authenticate if needed. Raises Refused and NotSent."""
        way = self._connections
        if self._user and not way.token:
            try:
                await self._authenticate(way)
            except EtcdUnreachable as error:
                raise NotSent(str(error)) from None
        return way

    async def _authenticate(self, way: EtcdConnections) -> None:
        request = pb.AuthenticateRequest(name=self._user, password=way.password)
        way.token = (await self._call(way, AUTHENTICATE, request)).token

    async def _call(self, way: EtcdConnections, method: Method, request: Any) -> Any:
        asked = self._current
        call = way.channels[asked].unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        try:
            return await call(request, timeout=CALL_TIMEOUT, metadata=way.metadata)
        except grpc.aio.AioRpcError as error:
            raise self._to_exception(asked, error) from None

    def _to_exception(self, asked: int, error: Any) -> EtcdError | EtcdUnreachable:
        if not isinstance(error, grpc.aio.AioRpcError):
            return self._switch_member(asked, "the connection was closed")
        reason = (error.details() or error.code().name)[:MAX_REASON_LENGTH]
        if error.code() in RETRYABLE_CODES or "too many requests" in reason:
            return self._switch_member(asked, reason)
        return EtcdError(error.code(), reason)

    def _switch_member(self, asked: int, reason: str) -> EtcdUnreachable:
        """Move on to the next member, unless a concurrent call has done so."""
        if self._current == asked:
            self._current = (asked + 1) % len(self._names)
        return EtcdUnreachable(f"{self._names[asked]}: {reason}")


def _is_cancelled() -> bool:
    """Whether this task was cancelled, and not only its gRPC call."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _now() -> float:
    return asyncio.get_running_loop().time()
