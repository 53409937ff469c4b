"""What all doors share: who calls, what a door may use, how a body is read and how an error leaves.

A door never catches: it raises, and its application turns the exception into the door's own format in one place.
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

from fairlead.api.enrolment import Enrolment
from fairlead.api.keys import Keys, NotTried, Trial
from fairlead.api.node_counts import NodeCounts
from fairlead.api.nodes import Nodes
from fairlead.changes.balancers import OnItsWay
from fairlead.changes.identity import Identity
from fairlead.changes.probe_limits import check_probes
from fairlead.changes.proxy_limits import check_proxy_servers
from fairlead.changes.quotas import within_quota
from fairlead.changes.refusal import Refused
from fairlead.changes.restrictions import within_restrictions
from fairlead.compilers import providers
from fairlead.compilers.providers import Names
from fairlead.model.affected import affected
from fairlead.model.domain import Places
from fairlead.model.kinds import owner_of
from fairlead.model.owner import WITHOUT_DOCUMENTS, Owner
from fairlead.model.proxy_backends import MAX_PROXY_SERVERS
from fairlead.model.quota import NO_LIMITS, PROBE_LIMITS, Limits, ProbeLimits
from fairlead.model.snapshot import Snapshot
from fairlead.model.statistics import CountingPlace
from fairlead.model.status import Applied
from fairlead.model.writing import Changes
from fairlead.resting import Rests
from fairlead.store.codec import encode
from fairlead.store.fair_semaphore import FairSemaphore
from fairlead.store.looks import NotKnown
from fairlead.store.model import ASKING_PROJECT, Change, Model, decided

LARGEST_BODY = 4 * 2**20
"""Bytes. A load balancer with every listener, pool and member that a switch can hold fits in well."""
LARGEST_DOCUMENT = 5 * 2**18
"""Bytes that a network with its subnets, or a load balancer with all that it holds, may take in the store. It is
written whole at each change; etcd takes 1.5 MiB at once by default. The most listeners, pools and members that are
allowed take 0.7 MiB with common names."""
DEEPEST_BODY = 20
"""Levels of objects and lists. A load balancer with all that it holds has eight."""
MOST_VALUES = 100_000
"""Of a body, whatever is in them: brackets and commas, those in texts too. The largest load balancer with all tags has
fewer; and what has many more takes longer to read than others should wait (0.9 s for 4 MiB of empty lists)."""
LONG_BODY = 2**15
"""Bytes: what has more may take long to read, whatever it is."""
LONGEST_QUERY = 2**15
"""Bytes: some 800 ids to filter by."""
NO_ANSWER = "the dataplane has not answered yet"
LONGEST_MESSAGE = 2000
"""Characters: a message names what was wrong, and does not send it back whole."""
JsonObject = dict[str, Any]
_READER = ThreadPoolExecutor(max_workers=1, thread_name_prefix="body")
_READING = FairSemaphore(at_once=1, of_one=1, waiting=1000)
"""Projects take turns with the reader. A line has no more requests than a project may have on their way at once
(`callers.AT_ONCE`)."""
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reachable:
    """Where clients with certificates of their own can connect, and how they know that it is this server."""

    addresses: tuple[str, ...]
    """HOST:PORT."""
    fingerprint: str
    """SHA-256 of the server's certificate, in hex."""
    certificate: str
    """PEM."""
    token_seconds: int
    """For which a token is good that lets somebody bring a certificate."""


async def nowhere(_: str) -> Places:
    return Places()


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What is behind the doors: values and functions, so that a test can hand in its own."""

    model: Model
    applied: Callable[[Owner], Applied]
    now: Callable[[], datetime]
    new_id: Callable[[], str]
    mtu: int
    """Of a new network, in bytes."""
    external_mtu: int
    """Of a new external network: its wire's."""
    resync_owner: Callable[[Owner], None]
    news: Callable[[Owner, int], Awaitable[None]]
    """Returns when this generation of the owner has an outcome, or when any attempt has ended."""
    outcome: Callable[[Owner, int], Applied | None] = lambda _, generation: Applied(generation=generation)
    """What became of this generation; None while an attempt is due. Without a dataplane it is always applied."""
    follow: Callable[[Callable[[Owner], None]], None] = lambda _: None
    """Has this called whenever another thing is known of what of an owner has been applied."""
    providers: Names = providers.DEFAULT
    """What tenants may choose."""
    limits: Limits = NO_LIMITS
    """Of projects that have no quota of their own."""
    probes: ProbeLimits = PROBE_LIMITS
    """Of every project."""
    proxy_servers: int = MAX_PROXY_SERVERS
    """At most, in one HAProxy."""
    node_counts: NodeCounts = field(default_factory=NodeCounts)
    """What the nodes have counted."""
    keys: Keys = field(default_factory=Keys)
    """And certificates, which load balancers name."""
    nodes: Nodes = field(init=False)
    """The channel of agents, and what they tell."""
    locate: Callable[[CountingPlace], str | None] = lambda _: None
    """The id of the network, router or port that this place of a node is. Raises DriverError."""
    ports_on: Callable[[str], frozenset[str] | None] = lambda _: None
    """The ports that a node has; None for one that is not there. Raises DriverError."""
    check_told: Callable[[], None] = lambda: None
    """Raises DriverError while it is not known yet what nodes have."""
    served_by_others: Callable[[str], Awaitable[Places]] = nowhere
    """Where another provider of the same service has a load balancer, by its id. Raises DriverError."""
    reachable: Callable[[], Reachable | None] = lambda: None
    """None where no client with a certificate can connect."""
    enrolment: Callable[[], Enrolment | None] = lambda: None
    """None where no agent comes with a certificate."""
    socket_chassis: tuple[str, ...] = ()
    """Those for which whoever may open the agents' socket speaks."""
    patience: float = 2.0
    """Seconds for which a request waits for what is on its way to the dataplane: before its own change, and after it in
    a front end that answers once the change is applied."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", Nodes.of(self.model))
        self.model.watch(lambda news: self.keys.forget_deleted(news.after, news.documents))

    async def knows_newest(self) -> bool:
        """Once it has asked whether others have stored something: it may be they who know who calls here."""
        try:
            await self.model.refresh()
        except NotKnown:
            return False
        return True

    async def write(self, change: Change) -> Snapshot:
        """The snapshot that `record` gives."""
        return (await self.record(change)).snapshot

    async def record(self, change: Change) -> "Written":
        """`Model.write`, if no document gets too large, no project has too much, and nobody is probed too much.
        Raises ApiError 400 too, and Refused.

        A change that may not be made yet (`OnItsWay`) is decided again when there is news, and once more in the end;
        one that names keys is decided again when these have been tried.
        """
        loop, newest = asyncio.get_running_loop(), list[tuple[Snapshot, Changes]]()
        deadline = loop.time() + self.patience
        trial = self.keys.trial()

        async def decide(snapshot: Snapshot) -> Changes:
            changes = await self._decide(change, snapshot, trial)
            newest[:] = [(snapshot, changes)]
            return changes

        while True:
            try:
                snapshot = await self.model.write(decide)
            except NotTried as error:
                await trial.read(error.wanted)
            except Refused as refused:
                if not isinstance(refused.why, OnItsWay) or loop.time() >= deadline:
                    raise
                await self._news_until(deadline, refused.why.owner, refused.why.generation)
            else:
                ((before, changes),) = newest
                return Written(before=before, changes=changes, snapshot=snapshot)

    async def arrive(self, written: "Written") -> None:
        """Returns once the dataplane has what was written. Raises NotApplied if it has not when an attempt has failed,
        or when `patience` is over; attempts go on then."""
        loop, generation = asyncio.get_running_loop(), written.snapshot.revision
        deadline = loop.time() + self.patience
        for owner in written.owners():
            while (outcome := self.outcome(owner, generation)) is None and loop.time() < deadline:
                await self._news_until(deadline, owner, generation)
            if outcome is None or outcome.error is not None:
                raise NotApplied(owner, outcome.error if outcome and outcome.error else NO_ANSWER)

    async def _news_until(self, deadline: float, owner: Owner, generation: int) -> None:
        """Waits until an attempt to apply the owner has ended, or until the deadline."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await self.news(owner, generation)

    async def try_out(self, change: Change) -> None:
        """Raises what `write` would for this change; nothing is written."""
        trial = self.keys.trial()
        while True:
            try:
                return await self.model.try_out(lambda snapshot: self._decide(change, snapshot, trial))
            except NotTried as error:
                await trial.read(error.wanted)

    async def _decide(self, change: Change, snapshot: Snapshot, trial: Trial) -> Changes:
        changes = await decided(change(snapshot))
        await asyncio.sleep(0)  # a large change takes as long to be measured as to be decided
        changes = within_restrictions(snapshot, within_quota(self.limits, snapshot, _bounded(changes)))
        trial.check(snapshot, changes)
        changes = check_probes(self.probes, snapshot, changes)
        return check_proxy_servers(self.proxy_servers, snapshot, changes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A stored change."""

    before: Snapshot
    """On which it was decided."""
    changes: Changes
    snapshot: Snapshot
    """The first one that has it."""

    def owners(self) -> tuple[Owner, ...]:
        """The owners whose rows follow: the written documents, and what their VIPs share. Other documents that depend
        on them are left out: they may be another tenant's."""
        written = frozenset(self.changes.owners)
        concerned = affected(self.before, self.snapshot, self.changes.owners) if written else ()
        return tuple(each for each in concerned if each in written or each.kind in WITHOUT_DOCUMENTS)


class NotApplied(Exception):
    """The change is committed to the store, but not applied to the dataplane yet."""

    def __init__(self, owner: Owner, why: str) -> None:
        super().__init__(f"{owner}: {why}")
        self.owner = owner
        self.why = why


class ApiError(Exception):
    """What a caller is told. `kind` is the error's name where the door's format has one."""

    def __init__(self, status: int, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message if len(message) <= LONGEST_MESSAGE else f"{message[:LONGEST_MESSAGE]}..."
        self.kind = kind


def _bounded(changes: Changes) -> Changes:
    for aggregate in changes.puts:
        size = len(encode(aggregate))
        if size > LARGEST_DOCUMENT:
            text = (
                f"{owner_of(aggregate)} would take {size} bytes with all that it holds, and at most {LARGEST_DOCUMENT}"
                " can be stored; give it fewer parts, or shorter names, descriptions and tags."
            )
            raise ApiError(400, text, "DocumentTooLarge")
    return changes


def too_large(largest: int = LARGEST_BODY) -> ApiError:
    return ApiError(413, f"The request body is larger than {largest} bytes.", "RequestTooLarge")


async def read_json(
    request: Request,
    takes: Callable[[object], _T],
    largest: int = LARGEST_BODY,
    meanwhile: AbstractAsyncContextManager[None] | None = None,
) -> _T:
    """The body, which is JSON, as `takes` reads it. Raises what `takes` raises, and ApiError: 400 when it is not JSON
    or too deep, 413 when it is larger than allowed. `meanwhile` is entered while its bytes come.

    A large one is read beside the event loop, one at a time, and each project has its turn. The interpreter lets the
    loop go on meanwhile (Python library reference, sys.setswitchinterval).
    """
    async with meanwhile or contextlib.nullcontext():
        body = await _read_bytes(request, largest)
    if len(body) <= LONG_BODY:
        return takes(_decode(body))
    async with _READING.turn(ASKING_PROJECT.get()):
        return await asyncio.get_running_loop().run_in_executor(_READER, lambda: takes(_decode(body)))


async def _read_bytes(request: Request, largest: int) -> bytes:
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > largest:
                raise too_large(largest)
    except ClientDisconnect:
        raise ApiError(400, "The connection ended before the body did.", "MalformedRequestBody") from None
    return bytes(body)


def _decode(body: bytes) -> object:
    too_deep = ApiError(400, f"The request body has more than {DEEPEST_BODY} levels.", "MalformedRequestBody")
    if sum(map(body.count, b"[{,")) > MOST_VALUES:
        raise ApiError(400, f"The request body has more than {MOST_VALUES} values.", "MalformedRequestBody")
    try:
        decoded: object = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"The request body is not valid JSON: {error}", "MalformedRequestBody") from None
    except RecursionError:
        raise too_deep from None
    if _is_deeper(decoded, DEEPEST_BODY):
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
    """JSON that may be tens of megabytes, of pieces that it has many times: it is never in one place."""

    async def all_in_turn() -> AsyncIterator[bytes]:
        rests = Rests()
        for piece in pieces:
            yield piece
            await rests.rest()

    length = {"content-length": str(sum(map(len, pieces)))}
    return StreamingResponse(all_in_turn(), headers=length, media_type="application/json")


def identity(request: HTTPConnection) -> Identity:
    caller: Identity = request.scope["identity"]
    return caller


def base_url(request: Request) -> str:
    """The door's own root as the client wrote it, without a slash at the end."""
    url = request.url
    return f"{url.scheme}://{url.netloc}{request.scope.get('door_path', '')}"
