"""Calls to the members of an etcd: each has a deadline, and what one member does not answer is asked of the next.

A call ends in an answer, in `Refused` (etcd said no: it was not done), or in `Unreached` (nobody knows, unless it is
`NotSent`).
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

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # gRPC's C core writes to standard error, past the log
if importlib.util.find_spec("grpc") is None or importlib.util.find_spec("google.protobuf") is None:
    raise StoreUnavailable("a store in etcd needs gRPC, which is not installed: pip install 'fairlead[etcd]'")

import grpc
import grpc.aio

from fairlead.store import etcd_pb2 as pb

DEADLINE = 2.0
"""Seconds for one call to one member: an election takes one, and a member that stands still is left after it."""
PATIENCE = 8.0
"""Seconds in all, over all members."""
PAUSE = 0.1
"""Seconds between two rounds over the members."""
LONGEST_CALL = 2 * DEADLINE
"""Seconds: of one that has to log in first."""
LARGEST_ANSWER = 64 * 2**20
OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.max_send_message_length", LARGEST_ANSWER),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", int(DEADLINE * 1000)),  # until an attempt is given up, whatever gRPC calls it
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
)
AGAIN = frozenset(
    (
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.UNKNOWN,  # "context deadline exceeded", of a read without quorum
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,  # the connection was reset
        grpc.StatusCode.ABORTED,
    )
)
OLD_TOKENS = ("invalid auth token", "revision of auth store is old")
LONGEST_REASON = 300
"""Characters."""


class Unreached(Exception):
    """No answer: what was asked may have been done."""


class NotSent(Unreached):
    """What was asked was not done, nor will it be."""


class Refused(Exception):
    """Etcd's own refusal: what was asked was not done."""

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


class Way:
    """To all members, with certificates and a password as they were read once."""

    def __init__(self, location: Location, access: Access) -> None:
        """Raises OSError and ValueError for files that nobody can come in with."""
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
    """None without TLS. Raises OSError."""
    if not access.ca:
        return None
    read = tuple(map(read_file, (access.ca, access.key, access.certificate)))
    try:  # gRPC itself would say nothing, and reach nobody
        context = ssl.create_default_context(cafile=access.ca)
        if access.certificate:
            context.load_cert_chain(access.certificate, access.key, password="")
    except ssl.SSLError as error:
        names = ", ".join(filter(None, (access.ca, access.certificate, access.key)))
        raise OSError(f"{names}: these are not certificates and their key: {error.reason or error}") from None
    return grpc.ssl_channel_credentials(*read)


class Members:
    def __init__(self, location: Location, access: Access) -> None:
        """Raises OSError and ValueError, as `Way` does."""
        self._location, self._access = location, access
        self._names = location.members
        self._user = access.user
        self._current = 0
        self._way = Way(location, access)
        self._streams = set[Any]()
        self._left: dict[Way, asyncio.Task[None]] = {}
        """On which calls are under way, and what closes them."""

    async def close(self) -> None:
        left = dict(self._left)
        for task in left.values():
            task.cancel()
        await asyncio.gather(*left.values(), return_exceptions=True)
        for way in (self._way, *left):
            await way.close()

    async def renew(self) -> None:
        """Go by what the files have now. Calls under way end as they began, and streams begin anew. Raises OSError,
        ValueError and Refused: nothing has changed then."""
        way = Way(self._location, self._access)
        try:
            if self._user:
                await self._log_in(way)
        except Unreached:  # it is not known to be wrong
            pass
        except BaseException:
            await way.close()
            raise
        before, self._way = self._way, way
        self._left[before] = asyncio.create_task(self._leave(before), name="calls that were under way")
        for stream in tuple(self._streams):
            stream.cancel()

    async def ask(self, method: Method, request: Any) -> Any:
        """What may be asked twice. Raises Refused, and StoreUnavailable when no member answers."""
        until = _now() + PATIENCE
        while True:
            for _ in self._names:
                try:
                    return await self.ask_once(method, request)
                except Unreached as error:
                    reason = str(error)
                if _now() >= until:
                    raise StoreUnavailable(f"no member of the etcd answers, or it has no quorum: {reason}")
            await asyncio.sleep(PAUSE)

    async def ask_once(self, method: Method, request: Any) -> Any:
        """Of one member; if it does not answer, the next call goes to the next one. Raises Refused, Unreached."""
        way = await self._let_in()
        try:
            return await self._call(way, method, request)
        except Refused as refused:
            if not self._user or not refused.old_token:
                raise
        way.token = ""
        return await self._call(await self._let_in(), method, request)

    async def watch(self, create: Any, patience: float | None = DEADLINE) -> AsyncGenerator[Any, None]:
        """Messages of a watch at one member, each within `patience` seconds. Raises Refused, Unreached."""
        way = await self._let_in()
        asked = self._current
        open_stream = way.channels[asked].stream_stream(
            WATCH,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        call = open_stream(metadata=(("hasleader", "true"), *way.metadata))
        self._streams.add(call)
        try:
            async with asyncio.timeout(DEADLINE):
                await call.write(pb.WatchRequest(create=create))
            while True:
                async with asyncio.timeout(patience):
                    message = await call.read()
                if message is grpc.aio.EOF:
                    raise self._unreached(asked, "the watch has ended")
                yield message
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise self._told(asked, error) from None
        except TimeoutError:
            raise self._unreached(asked, "no answer in time") from None
        except asyncio.CancelledError:
            if _is_told_to_end():
                raise
            raise Unreached(f"{self._names[asked]}: the stream was left for a newer way") from None
        finally:
            self._streams.discard(call)
            call.cancel()

    async def _leave(self, way: Way) -> None:
        await asyncio.sleep(LONGEST_CALL + PAUSE)
        await way.close()
        del self._left[way]

    async def _let_in(self) -> Way:
        """Raises Refused, NotSent."""
        way = self._way
        if self._user and not way.token:
            try:
                await self._log_in(way)
            except Unreached as error:
                raise NotSent(str(error)) from None
        return way

    async def _log_in(self, way: Way) -> None:
        request = pb.AuthenticateRequest(name=self._user, password=way.password)
        way.token = (await self._call(way, AUTHENTICATE, request)).token

    async def _call(self, way: Way, method: Method, request: Any) -> Any:
        asked = self._current
        call = way.channels[asked].unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        try:
            return await call(request, timeout=DEADLINE, metadata=way.metadata)
        except grpc.aio.AioRpcError as error:
            raise self._told(asked, error) from None

    def _told(self, asked: int, error: Any) -> Refused | Unreached:
        if not isinstance(error, grpc.aio.AioRpcError):
            return self._unreached(asked, "the connection has ended")
        reason = (error.details() or error.code().name)[:LONGEST_REASON]
        if error.code() in AGAIN or "too many requests" in reason:
            return self._unreached(asked, reason)
        return Refused(error.code(), reason)

    def _unreached(self, asked: int, reason: str) -> Unreached:
        """Others may have gone on to the next member already."""
        if self._current == asked:
            self._current = (asked + 1) % len(self._names)
        return Unreached(f"{self._names[asked]}: {reason}")


def _is_told_to_end() -> bool:
    """And not a call of it that was cancelled."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0


def _now() -> float:
    return asyncio.get_running_loop().time()
