"""Lifecycle events of LXD, sent as text frames over WebSocket.

Each event is sent only if its listener may see the project at that moment. A listener that reads too slowly is dropped,
so that no other listener waits and queues stay short.
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

from fairlead.api.http.acceptor import UNIX
from fairlead.api.http.authentication import ROLES
from fairlead.api.http.front_end import ApiError, JsonObject, Services, rate_limited
from fairlead.api.http.openapi import TEXT, Operation
from fairlead.api.lxd.caller import caller_of, check_trusted, in_project, named_project, requestor, sees, services_of
from fairlead.api.lxd.envelope import fault
from fairlead.api.lxd.filters import PROJECT_QUERY
from fairlead.changes.identity import DEFAULT_PROJECT, Identity
from fairlead.changes.trust import identity_of

MAX_QUEUED_EVENTS = 256
"""Maximum queued events of a listener; above it the listener is dropped."""
MAX_LISTENERS, MAX_LISTENERS_PER_USER = 512, 32
"""Maximum concurrent listeners: in total, and of one user."""
MAX_LISTENERS_PER_PROJECT, RESERVED_FOR_ADMINISTRATORS = 64, 128
"""Maximum concurrent listeners of all clients restricted to one project, which may have any number of certificates;
and slots of the total reserved for administrators."""
RETRY_SECONDS = 5.0
"""Retry-After in seconds for a client rejected at these limits. A slot becomes free when another client disconnects."""
TYPES = frozenset({"lifecycle", "logging", "operation", "network-acl"})
"""Event types that clients may request. Only `lifecycle` events occur, because requests complete before their
response."""


@dataclass(frozen=True, slots=True)
class LifecycleEvent:
    """Event with its serialised form, shared by all listeners."""

    event: JsonObject
    text: str
    project: str | None
    """Project that may see the event; None for administrators only."""


@dataclass(eq=False, slots=True, kw_only=True)
class EventListener:
    user: str
    """User of the listener."""
    project: str | None
    """Project filter; None for all visible projects."""
    restricted: bool = False
    projects: frozenset[str] = frozenset()
    """Projects of a restricted listener; it counts towards the limit of each."""
    types: frozenset[str] = TYPES
    queue: "asyncio.Queue[LifecycleEvent]" = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED_EVENTS))
    dropped: asyncio.Event = field(default_factory=asyncio.Event)


class EventBus:
    """Event bus of one server. Events of another server on the same store are sent by that server only."""

    def __init__(self) -> None:
        self._listeners: set[EventListener] = set()
        self._of_one = Counter[str]()
        self._of_project = Counter[str]()

    def publish(self, event: JsonObject, whose: str | None) -> None:
        """Queue an event for all matching listeners. `whose` is the project that may see it; None for administrators
        only."""
        told = LifecycleEvent(event, msgspec.json.encode(event).decode(), whose)
        for listener in self._listeners:
            if event["type"] in listener.types and listener.project in (None, event["project"]):
                try:
                    listener.queue.put_nowait(told)
                except asyncio.QueueFull:
                    listener.dropped.set()

    @contextmanager
    def register(self, listener: EventListener) -> Iterator[EventListener]:
        """Register a listener. Raises ApiError 429."""
        if self._is_full(listener):
            raise rate_limited("Too many clients listen to events already", RETRY_SECONDS)
        self._listeners.add(listener)
        self._of_one[listener.user] += 1
        self._of_project.update(listener.projects)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)
            self._of_one -= Counter({listener.user: 1})
            self._of_project -= Counter(listener.projects)

    def _is_full(self, listener: EventListener) -> bool:
        return (
            len(self._listeners) >= MAX_LISTENERS - (RESERVED_FOR_ADMINISTRATORS if listener.restricted else 0)
            or self._of_one[listener.user] >= MAX_LISTENERS_PER_USER
            or any(self._of_project[each] >= MAX_LISTENERS_PER_PROJECT for each in listener.projects)
        )


async def serve_events(websocket: WebSocket) -> None:
    """Serve `GET /1.0/events` over WebSocket."""
    try:
        listener = _read(websocket)
        events: EventBus = websocket.app.state.events
        with events.register(listener):
            await websocket.accept()
            await _first_of(_send(websocket, listener), _until_disconnected(websocket), listener.dropped.wait())
    except ApiError as error:
        response = fault(error)
        if error.retry_after is not None:
            response.headers["retry-after"] = str(error.retry_after)
        await websocket.send_denial_response(response)


def _read(websocket: WebSocket) -> EventListener:
    """Read the query. Raises ApiError."""
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


def _listener(caller: Identity, project: str | None, types: frozenset[str]) -> EventListener:
    projects = caller.projects if project is None else frozenset({project})
    restricted = not caller.is_admin
    return EventListener(
        user=caller.user,
        project=project,
        types=types,
        restricted=restricted,
        projects=projects if restricted else frozenset(),
    )


async def _send(websocket: WebSocket, listener: EventListener) -> None:
    """Send events until the caller is no longer trusted."""
    caller: Identity = websocket.scope["identity"]
    services = services_of(websocket)
    while True:
        told = await listener.queue.get()
        now = _current_identity(services, websocket, caller)
        if now is None:
            return
        if now.is_admin or (told.project is not None and sees(now, told.project)):
            await websocket.send_text(told.text)


def _current_identity(services: Services, websocket: WebSocket, caller: Identity) -> Identity | None:
    """Return the caller's current identity; a certificate may have been removed or restricted since the connection
    began."""
    if websocket.client and websocket.client.host.startswith(UNIX):
        return caller
    return identity_of(services.model.snapshot, caller.user, services.now(), ROLES)


async def _until_disconnected(websocket: WebSocket) -> None:
    """Wait for the end of the connection, ignoring messages (`websocket.BoundedWebSocket`)."""
    with suppress(WebSocketDisconnect):
        while True:
            await websocket.receive_text()


async def _first_of(*works: Any) -> None:
    """Wait until one of the coroutines has ended, and cancel the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def lifecycle(request: Request, action: str, path: str) -> None:
    """Publish an event (for instance `network-load-balancer-created`) about the object at an API path, in the project
    of the request. Call it after the write."""
    project = named_project(request)
    _publish(request, action, in_project(path, project), project)


def lifecycle_of_project(request: Request, action: str, path: str, project: str) -> None:
    """Publish an event about a project."""
    _publish(request, action, path, project)


def lifecycle_of_server(request: Request, action: str, path: str) -> None:
    """Publish an event about an object without a project, for administrators only."""
    _publish(request, action, path, None)


def _publish(request: Request, action: str, source: str, whose: str | None) -> None:
    events: EventBus = request.app.state.events
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
        """Stream events over a websocket. Other requests are rejected."""
        raise ApiError(400, "websocket: the client is not using the websocket protocol")

    query = {**PROJECT_QUERY, "type": TEXT, "all-projects": TEXT}
    return [Operation("GET", "/events", show, gives={}, query=query)]
