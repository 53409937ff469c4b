"""Calls to the members of an etcd: each has a deadline, and what one member does not answer is asked of the next.

A call ends in an answer, in `Refused` (etcd said no: it was not done), or in `Unreached` (nobody knows).
"""

import asyncio
import importlib.util
import os
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
LARGEST_ANSWER = 64 * 2**20
OPTIONS = (
    ("grpc.max_receive_message_length", LARGEST_ANSWER),
    ("grpc.max_send_message_length", LARGEST_ANSWER),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
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


class Members:
    def __init__(self, location: Location, access: Access) -> None:
        """Raises OSError when a file of `access` cannot be read."""
        self._names = location.members
        self._user = access.user
        self._password = (read_file(access.password_file) or b"").decode().rstrip("\r\n")
        self._token = ""
        self._current = 0
        tls = None
        if access.ca:
            ca, key, certificate = map(read_file, (access.ca, access.key, access.certificate))
            tls = grpc.ssl_channel_credentials(ca, key, certificate)
        self._channels = [
            grpc.aio.secure_channel(each, tls, OPTIONS) if tls else grpc.aio.insecure_channel(each, OPTIONS)
            for each in location.members
        ]

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()

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
        if self._user and not self._token:
            await self._log_in()
        try:
            return await self._call(method, request)
        except Refused as refused:
            if not self._user or not refused.old_token:
                raise
        await self._log_in()
        return await self._call(method, request)

    async def watch(self, create: Any, patience: float | None = DEADLINE) -> AsyncGenerator[Any, None]:
        """Messages of a watch at one member, each within `patience` seconds. Raises Refused, Unreached."""
        if self._user and not self._token:
            await self._log_in()
        asked = self._current
        open_stream = self._channels[asked].stream_stream(
            WATCH,
            request_serializer=pb.WatchRequest.SerializeToString,
            response_deserializer=pb.WatchResponse.FromString,
        )
        call = open_stream(metadata=(("hasleader", "true"), *self._metadata()))
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
        finally:
            call.cancel()

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        return (("token", self._token),) if self._token else ()

    async def _log_in(self) -> None:
        self._token = ""
        request = pb.AuthenticateRequest(name=self._user, password=self._password)
        self._token = (await self._call(AUTHENTICATE, request)).token

    async def _call(self, method: Method, request: Any) -> Any:
        asked = self._current
        call = self._channels[asked].unary_unary(
            method.path,
            request_serializer=type(request).SerializeToString,
            response_deserializer=method.answer.FromString,
        )
        try:
            return await call(request, timeout=DEADLINE, metadata=self._metadata())
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


def _now() -> float:
    return asyncio.get_running_loop().time()
