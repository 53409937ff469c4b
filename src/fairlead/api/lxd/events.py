"""What happens, told to whoever listens: LXD's lifecycle events, each a text frame of a websocket.

A listener is told of the projects that they may see at that moment. Who takes what they are told too slowly is dropped:
nobody waits for them, and nothing is kept for long.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.websockets import WebSocket, WebSocketDisconnect

from fairlead.api.acceptor import UNIX
from fairlead.api.auth import ROLES
from fairlead.api.door import ApiError, JsonObject, Services
from fairlead.api.lxd.caller import caller_of, check_trusted, in_project, named_project, requestor, sees, services_of
from fairlead.api.lxd.envelope import fault
from fairlead.api.lxd.filters import PROJECT_QUERY
from fairlead.api.openapi import TEXT, Operation
from fairlead.changes.identity import DEFAULT_PROJECT, Identity
from fairlead.changes.trust import identity_of

LONGEST_QUEUE = 256
"""Events that wait for one listener; who is later than that is dropped."""
MOST_LISTENERS, MOST_OF_ONE = 512, 32
"""At once, of all callers and of one."""
MOST_OF_PROJECT, KEPT = 64, 128
"""At once, of all who are restricted to a project, which may have any number of certificates; and of all places those
that only administrators get."""
TYPES = frozenset({"lifecycle", "logging", "operation", "network-acl"})
"""That clients ask for. Here things happen when they are answered, so there are `lifecycle` events only."""


@dataclass(frozen=True, slots=True)
class Told:
    """One event, for all who listen."""

    event: JsonObject
    text: str
    whose: str | None
    """The project that may see it; None for what is only for administrators."""


@dataclass(eq=False, slots=True, kw_only=True)
class Listener:
    who: str
    """The user whose it is."""
    project: str | None
    """None for all that they may see."""
    restricted: bool = False
    projects: frozenset[str] = frozenset()
    """Those of which they may hear so, and for which they count, if they are restricted."""
    types: frozenset[str] = TYPES
    queue: "asyncio.Queue[Told]" = field(default_factory=lambda: asyncio.Queue(LONGEST_QUEUE))
    dropped: asyncio.Event = field(default_factory=asyncio.Event)


class Events:
    """Of one server. What another server on the same store does is told by that one."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()
        self._of_one = Counter[str]()
        self._of_project = Counter[str]()

    def publish(self, event: JsonObject, whose: str | None) -> None:
        """`whose` is the project that may see it; None for what is only for administrators."""
        told = Told(event, msgspec.json.encode(event).decode(), whose)
        for listener in self._listeners:
            if event["type"] in listener.types and listener.project in (None, event["project"]):
                try:
                    listener.queue.put_nowait(told)
                except asyncio.QueueFull:
                    listener.dropped.set()

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[Listener]:
        """Raises ApiError 429."""
        if self._is_full(listener):
            raise ApiError(429, "Too many clients listen to events already")
        self._listeners.add(listener)
        self._of_one[listener.who] += 1
        self._of_project.update(listener.projects)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            self._of_one -= Counter({listener.who: 1})
            self._of_project -= Counter(listener.projects)

    def _is_full(self, listener: Listener) -> bool:
        return (
            len(self._listeners) >= MOST_LISTENERS - (KEPT if listener.restricted else 0)
            or self._of_one[listener.who] >= MOST_OF_ONE
            or any(self._of_project[each] >= MOST_OF_PROJECT for each in listener.projects)
        )


async def tell(websocket: WebSocket) -> None:
    """`GET /1.0/events`, of who asks for a websocket."""
    try:
        listener = _read(websocket)
        events: Events = websocket.app.state.events
        with events.listening(listener):
            await websocket.accept()
            await _first_of(_send(websocket, listener), _until_gone(websocket), listener.dropped.wait())
    except ApiError as error:
        await websocket.send_denial_response(fault(error))


def _read(websocket: WebSocket) -> Listener:
    """What the query asks for. Raises ApiError."""
    caller: Identity = websocket.scope["identity"]
    check_trusted(caller)
    query = websocket.query_params
    types = frozenset(filter(None, query.get("type", "").split(","))) or TYPES
    for unknown in sorted(types - TYPES):
        raise ApiError(400, f'"{unknown[:50]}" isn\'t a supported event type')
    if query.get("all-projects", "").lower() in ("true", "1"):
        if query.get("project"):
            raise ApiError(400, "Cannot specify a project when requesting all projects")
        return _listener(caller, None, types)
    return _listener(caller, caller_of(websocket).project_id, types)


def _listener(caller: Identity, project: str | None, types: frozenset[str]) -> Listener:
    projects = caller.projects if project is None else frozenset({project})
    restricted = not caller.is_admin
    return Listener(
        who=caller.user,
        project=project,
        types=types,
        restricted=restricted,
        projects=projects if restricted else frozenset(),
    )


async def _send(websocket: WebSocket, listener: Listener) -> None:
    """For ever, or until the caller is not trusted any more."""
    caller: Identity = websocket.scope["identity"]
    services = services_of(websocket)
    while True:
        told = await listener.queue.get()
        now = _known_still(services, websocket, caller)
        if now is None:
            return
        if now.is_admin or (told.whose is not None and sees(now, told.whose)):
            await websocket.send_text(told.text)


def _known_still(services: Services, websocket: WebSocket, caller: Identity) -> Identity | None:
    """Who the caller is by now: a certificate may have been taken away, or restricted, since they came."""
    if websocket.client and websocket.client.host.startswith(UNIX):
        return caller
    return identity_of(services.model.snapshot, caller.user, services.now(), ROLES)


async def _until_gone(websocket: WebSocket) -> None:
    """What the client says is not heard (`websocket.BoundedWebSocket`)."""
    with suppress(WebSocketDisconnect):
        while True:
            await websocket.receive_text()


async def _first_of(*works: Any) -> None:
    """Until one of them has ended; then none goes on."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lifecycle(request: Request, action: str, path: str) -> None:
    """Tell that the request has done this (`network-load-balancer-created`) to what is at this path of the API, in the
    project of the request. To be called after the write."""
    project = named_project(request)
    _publish(request, action, in_project(path, project), project)


def lifecycle_of_project(request: Request, action: str, path: str, project: str) -> None:
    """The same, of a project itself."""
    _publish(request, action, path, project)


def lifecycle_of_server(request: Request, action: str, path: str) -> None:
    """The same, of what is no project's: administrators hear of it."""
    _publish(request, action, path, None)


def _publish(request: Request, action: str, source: str, whose: str | None) -> None:
    events: Events = request.app.state.events
    event = {
        "type": "lifecycle",
        "timestamp": services_of(request).now().isoformat(),
        "metadata": {"action": action, "source": source, "requestor": requestor(request)},
        "location": "none",
        "project": whose or DEFAULT_PROJECT,
    }
    events.publish(event, whose)


def routes(_: Services) -> list[Operation]:
    async def show(_: Request) -> Response:
        """Events, by a websocket: without one there is nothing to see."""
        raise ApiError(400, "websocket: the client is not using the websocket protocol")

    query = {**PROJECT_QUERY, "type": TEXT, "all-projects": TEXT}
    return [Operation("GET", "/events", show, gives={}, query=query)]
