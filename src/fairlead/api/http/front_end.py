"""Shared base of all API front ends: services, bodies, JSON responses and errors.

A front end does not catch exceptions. It raises them, and its application formats them in one place.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response, StreamingResponse

from fairlead.agent_protocol.enrolment import Enrolment
from fairlead.api.agents.nodes import NodeRegistry
from fairlead.api.agents.traffic_counters import NodeCounts
from fairlead.api.http.rate_limit import retry_after
from fairlead.api.keys import Keys, SecretCheck, SecretsNotChecked
from fairlead.changes.balancers import PartPending
from fairlead.changes.identity import Identity
from fairlead.changes.probe_limits import check_probes
from fairlead.changes.proxy_limits import check_proxy_servers
from fairlead.changes.quotas import within_quota
from fairlead.changes.refusal import Refused
from fairlead.changes.restrictions import within_restrictions
from fairlead.compilers import providers
from fairlead.compilers.providers import ProviderNames
from fairlead.model.documents.owner import WITHOUT_DOCUMENTS, Owner
from fairlead.model.documents.quota import NO_LIMITS, PROBE_LIMITS, Limits, ProbeLimits
from fairlead.model.documents.status import AppliedState
from fairlead.model.queries.domain import AttachedObjects
from fairlead.model.queries.proxy_backends import MAX_PROXY_SERVERS
from fairlead.model.queries.statistics import CountingPlace
from fairlead.model.registry.affected import find_affected_owners
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.cooperative import Yielder
from fairlead.runtime.fair_semaphore import FairSemaphore
from fairlead.store.codec import encode
from fairlead.store.model import REQUEST_PROJECT, Change, Model, resolve_changes
from fairlead.store.read_barrier import StoreStale

MAX_BODY_BYTES = 4 * 2**20
"""Maximum bytes of a body. The largest load balancer that the limits allow fits."""
MAX_DOCUMENT_BYTES = 5 * 2**18
"""Maximum bytes of a stored document: a network with its subnets, or a whole load balancer. A document is written whole
at each change, and etcd accepts 1.5 MiB per request by default. The maximum of listeners, pools and members takes 0.7
MiB with names of usual length."""
MAX_BODY_DEPTH = 20
"""Maximum nesting of objects and lists. A whole load balancer has eight levels."""
MAX_BODY_VALUES = 100_000
"""Maximum values of a body, estimated by counting brackets and commas, also inside strings. The largest load balancer
with all tags has fewer. Decoding much more would delay other requests (0.9 s for 4 MiB of empty lists)."""
THREADED_BODY_BYTES = 2**15
"""Bytes above which a body is decoded in a thread."""
MAX_QUERY_BYTES = 2**15
"""Maximum bytes of a query string: about 800 ids in filters."""
NO_ANSWER = "the dataplane has not responded yet"
MAX_MESSAGE_LENGTH = 2000
"""Maximum characters of an error message."""
JsonObject = dict[str, Any]
_READER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="body")
_READING = FairSemaphore(at_once=1, of_one=1, waiting=1000)
"""Queue of the decoding thread, fair by project. It is never longer than a project's concurrent requests
(`callers.AT_ONCE`)."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEndpoint:
    """Endpoint for clients with their own certificates, and the server certificate they can pin."""

    addresses: tuple[str, ...]
    """HOST:PORT of each address."""
    fingerprint: str
    """SHA-256 of the server's certificate, in hex."""
    certificate: str
    """Server certificate in PEM."""
    token_seconds: int
    """Lifetime of a trust token, in seconds."""


async def no_placements(_: str) -> AttachedObjects:
    return AttachedObjects()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """Dependencies of the API front ends: values and functions, which tests can replace."""

    model: Model
    applied: Callable[[Owner], AppliedState]
    now: Callable[[], datetime]
    new_id: Callable[[], str]
    mtu: int
    """MTU of a new network, in bytes."""
    external_mtu: int
    """MTU of a new external network, in bytes."""
    resync_owner: Callable[[Owner], None]
    wait_for_outcome: Callable[[Owner, int], Awaitable[None]]
    """Wait until this generation of the owner has an outcome, or until any attempt has ended."""
    outcome: Callable[[Owner, int], AppliedState | None] = lambda _, generation: AppliedState(generation=generation)
    """Return the outcome of this generation; None while an attempt is pending. Without a dataplane it is always
    applied."""
    on_applied_change: Callable[[Callable[[Owner], None]], None] = lambda _: None
    """Register a callback for changes of an owner's applied state."""
    providers: ProviderNames = providers.DEFAULT
    """Providers offered to tenants."""
    limits: Limits = NO_LIMITS
    """Default quotas of projects."""
    probes: ProbeLimits = PROBE_LIMITS
    """Limits of health probes per project."""
    proxy_servers: int = MAX_PROXY_SERVERS
    """Maximum servers in one HAProxy process."""
    node_counts: NodeCounts = field(default_factory=NodeCounts)
    """Counters reported by nodes."""
    keys: Keys = field(default_factory=Keys)
    """Keys and certificates referenced by load balancers."""
    nodes: NodeRegistry = field(init=False)
    """Push channel to agents, and their reports."""
    resolve_counting_place: Callable[[CountingPlace], str | None] = lambda _: None
    """Return the id of the network, router or port of a node's counter. Raises DriverError."""
    ports_of_chassis: Callable[[str], frozenset[str] | None] = lambda _: None
    """Return the ports on a node; None for an unknown node. Raises DriverError."""
    check_synced: Callable[[], None] = lambda: None
    """Raise DriverError until the ports of nodes are read from OVN."""
    placements_at_other_provider: Callable[[str], Awaitable[AttachedObjects]] = no_placements
    """Find a load balancer that another provider of the same service owns, by id. Raises DriverError."""
    client_endpoint: Callable[[], ClientEndpoint | None] = lambda: None
    """Endpoint for clients with certificates; None if there is none."""
    enrolment: Callable[[], Enrolment | None] = lambda: None
    """Enrolment of agents; None if agents have no certificates."""
    socket_chassis: tuple[str, ...] = ()
    """Chassis represented by any process that can open the agents' socket."""
    apply_timeout: float = 2.0
    """Maximum seconds for which a request waits for the dataplane: before its own change, and after it in a front end
    that answers once the change is applied."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", NodeRegistry.of(self.model))
        self.model.watch(lambda news: self.keys.forget_deleted(news.after, news.documents))

    async def refresh(self) -> bool:
        """Read the store's revision and return whether the snapshot is current; another server may have stored the
        object that the caller names."""
        try:
            await self.model.refresh()
        except StoreStale:
            return False
        return True

    async def write(self, change: Change) -> Snapshot:
        """Write the change and return the new snapshot."""
        return (await self.record(change)).snapshot

    async def record(self, change: Change) -> "StoredChange":
        """Write a change after checking document sizes, quotas, restrictions, keys and probe limits. Raises what
        `Model.write` raises, ApiError 400, and Refused.

        A change that depends on a pending apply (`PartPending`) is decided again at each outcome and a last time at the
        deadline. A change that references keys is decided again after these have been read.
        """
        loop, newest = asyncio.get_running_loop(), list[tuple[Snapshot, Changes]]()
        deadline = loop.time() + self.apply_timeout
        trial = self.keys.trial()

        async def decide(snapshot: Snapshot) -> Changes:
            changes = await self._decide(change, snapshot, trial)
            newest[:] = [(snapshot, changes)]
            return changes

        while True:
            try:
                snapshot = await self.model.write(decide)
            except SecretsNotChecked as error:
                await trial.read(error.secrets)
            except Refused as refused:
                if not isinstance(refused.why, PartPending) or loop.time() >= deadline:
                    raise
                await self._wait_for_outcome_until(deadline, refused.why.owner, refused.why.generation)
            else:
                ((before, changes),) = newest
                return StoredChange(before=before, changes=changes, snapshot=snapshot)

    async def wait_applied(self, written: "StoredChange") -> None:
        """Wait until the dataplane has applied a written change. Raises NotApplied after a failed attempt or after
        `patience` seconds; attempts continue then."""
        loop, generation = asyncio.get_running_loop(), written.snapshot.revision
        deadline = loop.time() + self.apply_timeout
        for owner in written.owners():
            while (outcome := self.outcome(owner, generation)) is None and loop.time() < deadline:
                await self._wait_for_outcome_until(deadline, owner, generation)
            if outcome is None or outcome.error is not None:
                raise NotApplied(owner, outcome.error if outcome and outcome.error else NO_ANSWER)

    async def _wait_for_outcome_until(self, deadline: float, owner: Owner, generation: int) -> None:
        """Wait until an attempt to apply the owner has ended, or until the deadline."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.wait_for_outcome(owner, generation)

    async def dry_run(self, change: Change) -> None:
        """Raise what `write` would raise for this change, without writing."""
        trial = self.keys.trial()
        while True:
            try:
                return await self.model.dry_run(lambda snapshot: self._decide(change, snapshot, trial))
            except SecretsNotChecked as error:
                await trial.read(error.secrets)

    async def _decide(self, change: Change, snapshot: Snapshot, trial: SecretCheck) -> Changes:
        changes = await resolve_changes(change(snapshot))
        await asyncio.sleep(0)  # measuring a large change takes as long as deciding it
        changes = within_restrictions(snapshot, within_quota(self.limits, snapshot, _bounded(changes)))
        trial.check(snapshot, changes)
        changes = check_probes(self.probes, snapshot, changes)
        return check_proxy_servers(self.proxy_servers, snapshot, changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredChange:
    """Stored change."""

    before: Snapshot
    """Snapshot that the change was decided on."""
    changes: Changes
    snapshot: Snapshot
    """First snapshot that contains the change."""

    def owners(self) -> tuple[Owner, ...]:
        """Return the owners whose rows must be applied: the written documents, and the shared rows of their VIPs. Other
        affected documents are omitted, because they may belong to another tenant."""
        written = frozenset(self.changes.owners)
        concerned = find_affected_owners(self.before, self.snapshot, self.changes.owners) if written else ()
        return tuple(each for each in concerned if each in written or each.kind in WITHOUT_DOCUMENTS)


class NotApplied(Exception):
    """The change is committed to the store, but not applied to the dataplane yet."""

    def __init__(self, owner: Owner, why: str) -> None:
        super().__init__(f"{owner}: {why}")
        self.owner = owner
        self.reason = why


class ApiError(Exception):
    """Error for the caller. `kind` is the error type in formats that have one."""

    def __init__(self, status: int, message: str, kind: str = "", *, retry_after: int | None = None) -> None:
        """`retry_after` is the value of that header, in seconds."""
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= MAX_MESSAGE_LENGTH else f"{message[:MAX_MESSAGE_LENGTH]}..."
        self.kind = kind
        self.retry_after = retry_after


def rate_limited(what: str, seconds: float, kind: str = "") -> ApiError:
    """The answer to a caller that is paced. `seconds` is the time until the next request is served."""
    wait = retry_after(seconds)
    return ApiError(429, f"{what}; try again in {wait} s", kind, retry_after=wait)


def _bounded(changes: Changes) -> Changes:
    for aggregate in changes.puts:
        size = len(encode(aggregate))
        if size > MAX_DOCUMENT_BYTES:
            text = (
                f"{owner_of(aggregate)} would have {size} bytes, but a document has at most {MAX_DOCUMENT_BYTES}:"
                " use fewer parts, or shorter names, descriptions and tags."
            )
            raise ApiError(400, text, "DocumentTooLarge")
    return changes


def too_large(largest: int = MAX_BODY_BYTES) -> ApiError:
    return ApiError(413, f"The request body is larger than {largest} bytes.", "RequestTooLarge")


async def read_json(
    request: Request,
    takes: Callable[[object], _T],
    largest: int = MAX_BODY_BYTES,
    meanwhile: AbstractAsyncContextManager[None] | None = None,
) -> _T:
    """Read a JSON body and return the result of `takes`. Raises what `takes` raises, and ApiError: 400 for invalid JSON
    or deep nesting, 413 above `largest` bytes. `meanwhile` is entered while the bytes arrive.

    A large body is decoded in a thread, one at a time, fair by project. The interpreter switches between this thread
    and the event loop (Python library reference, sys.setswitchinterval).
    """
    async with meanwhile or contextlib.nullcontext():
        body = await _read_bytes(request, largest)
    if len(body) <= THREADED_BODY_BYTES:
        return takes(_decode(body))
    async with _READING.turn(REQUEST_PROJECT.get()):
        return await asyncio.get_running_loop().run_in_executor(_READER, lambda: takes(_decode(body)))


async def _read_bytes(request: Request, largest: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                raise too_large(largest)
    except ClientDisconnect:
        raise ApiError(400, "The connection was closed before the end of the body.", "MalformedRequestBody") from None
    return bytes(body)


def _decode(body: bytes) -> object:
    too_deep = ApiError(400, f"The request body has more than {MAX_BODY_DEPTH} levels.", "MalformedRequestBody")
    if sum(map(body.count, b"[{,")) > MAX_BODY_VALUES:
        raise ApiError(400, f"The request body has more than {MAX_BODY_VALUES} values.", "MalformedRequestBody")
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}", "MalformedRequestBody") from None
    except RecursionError:
        raise too_deep from None
    if _is_deeper(decoded, MAX_BODY_DEPTH):
        raise too_deep
    return decoded


def _is_deeper(value: object, levels: int) -> bool:
    level = [value]
    for _ in range(levels):
        inner = (each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list))
        level = [item for items in inner for item in items if isinstance(item, dict | list)]
        if not level:
            return False
    return True


def json_response(body: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(body), status_code=status, media_type="application/json")


def pieces_response(pieces: Sequence[bytes]) -> Response:
    """Stream a JSON response of tens of megabytes from pieces that repeat, without joining them."""

    async def all_in_turn() -> AsyncIterator[bytes]:
        rests = Yielder()
        for piece in pieces:
            yield piece
            await rests.yield_if_due()

    length = {"content-length": str(sum(map(len, pieces)))}
    return StreamingResponse(all_in_turn(), headers=length, media_type="application/json")


def identity(request: HTTPConnection) -> Identity:
    caller: Identity = request.scope["identity"]
    return caller


def base_url(request: Request) -> str:
    """Return the root URL of the front end as the client wrote it, without a trailing slash."""
    url = request.url
    return f"{url.scheme}://{url.netloc}{request.scope.get('door_path', '')}"
