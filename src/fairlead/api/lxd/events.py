"""What happens, told to whoever listens: LXD's lifecycle events."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.requests import Request

from fairlead.api.door import JsonObject
from fairlead.api.lxd.caller import caller_of, in_project, requestor, services_of

LONGEST_QUEUE = 256
"""Events that wait for one listener; who is later than that is dropped."""


@dataclass(eq=False, slots=True, kw_only=True)
class Listener:
    """`projects` are those whose events it is told; None for all."""

    projects: frozenset[str] | None
    types: frozenset[str]
    queue: "asyncio.Queue[JsonObject | None]" = field(default_factory=lambda: asyncio.Queue(LONGEST_QUEUE + 1))
    """None is the end: it was too slow."""
    dropped: bool = False


class Events:
    """Of one server. What another server on the same store does is told by that one."""

    def __init__(self) -> None:
        self._listeners: set[Listener] = set()

    def publish(self, event: JsonObject) -> None:
        for listener in self._listeners:
            if event["type"] not in listener.types or listener.dropped:
                continue
            if listener.projects is not None and event["project"] not in listener.projects:
                continue
            listener.dropped = listener.queue.qsize() >= LONGEST_QUEUE
            listener.queue.put_nowait(None if listener.dropped else event)

    @contextmanager
    def listening(self, listener: Listener) -> Iterator[Listener]:
        self._listeners.add(listener)
        try:
            yield listener
        finally:
            self._listeners.discard(listener)


def lifecycle(request: Request, action: str, path: str) -> None:
    """Tell that the request has done this (`network-load-balancer-created`) to what is at this path of the API, in the
    project of the request. To be called after the write."""
    lifecycle_of(request, action, path, caller_of(request).project_id)


def lifecycle_of(request: Request, action: str, path: str, project: str) -> None:
    """The same, of this project."""
    events: Events = request.app.state.events
    events.publish(
        {
            "type": "lifecycle",
            "timestamp": services_of(request).now().isoformat(),
            "metadata": {"action": action, "source": in_project(path, project), "requestor": requestor(request)},
            "location": "none",
            "project": project,
        }
    )
