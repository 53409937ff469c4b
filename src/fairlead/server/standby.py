"""Server that waits because a newer version has written documents: answers 503, writes nothing, and retries.

No model is loaded and no dataplane is connected, so the OVSDB lock is free for a server that can read the store.
"""

import asyncio
import gc
import logging

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from fairlead.api.app import Applications, format_error
from fairlead.api.http.front_end import ApiError
from fairlead.config.options import Configuration
from fairlead.runtime.systemd import run_watchdog
from fairlead.server.authentication import make_authentication
from fairlead.server.listening import Secrets, listen
from fairlead.server.lxd import LxdServer
from fairlead.server.nodes import NodesServer
from fairlead.server.tasks import background_tasks
from fairlead.store.codec import decode_stored
from fairlead.store.formats import NewerDocument
from fairlead.store.interface import Store, StoreError
from fairlead.store.opening import open_store

LOG = logging.getLogger(__name__)
POLL_INTERVAL = 2.0
"""Seconds between checks of the unreadable document."""
STANDBY_MESSAGE = (
    "this server is on standby, because a newer version of Fairlead wrote a document that it cannot read; the request"
    " was not processed. Retry at another server; an operator must upgrade this one."
)
"""Message for clients; the log names the document."""


async def run_standby(configuration: Configuration, newer: NewerDocument) -> bool:
    """Wait until the document is deleted or readable. Returns False after a signal. Raises OSError."""
    LOG.error("on standby, without writing: %s; upgrade this server", newer)
    gc.enable()
    gc.collect()  # frees the previous model; no client is waiting yet
    app = _app()
    readable = asyncio.Event()
    looking = asyncio.create_task(_poll(configuration, newer.key, readable))
    secrets = Secrets(
        authenticate=make_authentication(configuration),
        lxd=LxdServer(configuration),
        nodes=NodesServer(configuration),
        renew_store=_nothing,
    )
    try:
        async with background_tasks(run_watchdog):
            told_to_end = await listen(
                Applications(all=app, lxd=app, nodes=app), configuration, secrets, until=readable
            )
    finally:
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
    return not told_to_end


async def _nothing() -> None:
    """In place of closing the store, which a standby server opens for each check and closes after it."""


async def _poll(configuration: Configuration, key: str, readable: asyncio.Event) -> None:
    """Check the document until it is readable; retries while the store is unavailable."""
    while True:
        await asyncio.sleep(POLL_INTERVAL)
        try:
            store = await open_store(configuration.store.where, configuration.store.access)
            try:
                if await _is_readable(store, key):
                    LOG.info("%s is readable or deleted; restarting", key)
                    readable.set()
                    return
            finally:
                await store.close()
        except StoreError as error:
            LOG.debug("on standby: %s", error)


async def _is_readable(store: Store, key: str) -> bool:
    found = await store.get(key)
    try:
        if found is not None:
            decode_stored(key, found.value)
    except NewerDocument:
        return False
    return True


def _app() -> ASGIApp:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await _answer(Request(scope))(scope, receive, send)
        else:
            await send({"type": "websocket.close", "code": 1013})

    return app


def _answer(request: Request) -> Response:
    path = request.url.path
    if path == "/healthz":
        return PlainTextResponse("well\n")
    if path == "/readyz":
        return PlainTextResponse(f"not ready: {STANDBY_MESSAGE}\n", 503)
    response = format_error(path, ApiError(503, STANDBY_MESSAGE, "ServiceUnavailable"))
    response.headers["retry-after"] = f"{POLL_INTERVAL:.0f}"
    return response
