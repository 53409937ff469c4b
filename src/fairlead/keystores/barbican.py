"""OpenStack Barbican (Key Manager API v1). A reference is the URL of a secret or of a `certificate` container.

Barbican does not return a secret's project, and Fairlead's service user may read secrets of many tenants. So everything
that a reference names is first read with the requester's token, and that content is used: a requester never gets more
than Barbican would return to them. Fairlead's user needs access too, for reads without the requester; if it has none,
it is added to the ACL of readers with the requester's token, as Octavia does (octavia, barbican_acl.py).

Only the kind and the id of a reference are used, so a tenant cannot redirect requests to another server.
"""

import logging
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import msgspec

from fairlead.http.client import HttpEndpoint, HttpResponse, NoAnswer, send_request
from fairlead.keystores.interface import (
    MAX_CONTENT_BYTES,
    Content,
    KeyStore,
    KeyStoreUnresponsive,
    Requester,
    Unreadable,
)
from fairlead.runtime.logging import RateLimit

LOG = logging.getLogger(__name__)
LOG.addFilter(RateLimit(10))
_ID = r"[0-9A-Fa-f]{8}(?:-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
REFERENCE = re.compile(rf"https?://[!-~]+?/v1/(?P<kind>secrets|containers)/(?P<id>{_ID})/?")
TOKEN = re.compile(r"[\x21-\x7e]{1,4096}")
_CERTIFICATE = ("certificate", "intermediates", "private_key")
"""Secrets of a container, in the order in which they are concatenated as PEM."""
_PHRASE = "private_key_passphrase"
MAX_READERS = 1000
"""Maximum users in a secret's ACL that Fairlead rewrites."""
NOT_FOUND_MESSAGE = "Barbican has no such secret or container that the caller may read"
IDENTITY_REQUIRED_MESSAGE = "a reference to Barbican requires a Keystone token, which grants the access"
NO_URL = "the reference must be the URL of a secret or certificate container in Barbican"
UNRESPONSIVE_MESSAGE = "the key store does not respond"


class Token(Protocol):
    @property
    def text(self) -> str: ...
    @property
    def user_id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Theirs:
    """Token of the requester."""

    text: str
    user_id: str = ""


GetOwnToken: TypeAlias = Callable[[Token | None], Awaitable[Token]]
"""Returns Fairlead's own token, different from the given one. Raises Silent."""
ProjectTurn: TypeAlias = Callable[[str], AbstractAsyncContextManager[None]]
"""Context that waits for a project's turn to send requests."""


class Barbican:
    """Key store in Barbican (`interface.py`)."""

    def __init__(self, place: HttpEndpoint, own: GetOwnToken, turn: ProjectTurn) -> None:
        self._place = place
        self._own = own
        self._turn = turn

    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        """Read and return the content of a reference. Raises Unreadable."""
        path = _path(reference)
        theirs = None
        if asker is not None and not asker.is_service:
            if not TOKEN.fullmatch(asker.token):
                raise Unreadable(IDENTITY_REQUIRED_MESSAGE)
            theirs = _Theirs(asker.token)
        async with self._turn(project_id):
            if theirs is None:
                return await _ReferenceReader(self._place, self._own, await self._own(None)).content(path)
            reading = _ReferenceReader(self._place, None, theirs)
            found = await reading.content(path)
            await self._grant_read(path, reading)
            return found

    async def _grant_read(self, path: str, theirs: "_ReferenceReader") -> None:
        """Make everything that the requester has read readable by Fairlead's user. Raises Unreadable."""
        ours = _ReferenceReader(self._place, self._own, await self._own(None))
        try:
            await ours.content(path)
        except KeyStoreUnresponsive:
            raise
        except Unreadable:
            for each in theirs.read:
                await theirs.grant_read(each, ours.user_id)
            await ours.content(path)


class _ReferenceReader:
    """Reads the content of one reference with one token."""

    def __init__(self, place: HttpEndpoint, own: GetOwnToken | None, token: Token) -> None:
        self._place, self._own, self._token = place, own, token
        self.read = list[str]()
        """Paths of the secrets and containers read."""

    @property
    def user_id(self) -> str:
        return self._token.user_id

    async def content(self, path: str) -> Content:
        """Read a secret or container. Raises Unreadable."""
        self.read = []
        if path.startswith("/v1/secrets/"):
            return Content(material=_bounded([await self._payload(path)]))
        parts = _parts((await self._get(path, "application/json")).body)
        self.read.append(path)
        found = [await self._payload(parts[name]) for name in _CERTIFICATE if name in parts]
        phrase = await self._payload(parts[_PHRASE]) if _PHRASE in parts else None
        return Content(material=_bounded(found), phrase=phrase)

    async def _payload(self, path: str) -> bytes:
        found = await self._get(f"{path}/payload", "application/octet-stream")
        self.read.append(path)
        return found.body

    async def grant_read(self, path: str, user_id: str) -> None:
        """Add a user to the ACL of readers. Raises Unreadable."""
        said = _readers((await self._get(f"{path}/acl", "application/json")).body)
        read = said.setdefault("read", {})
        users = read.setdefault("users", [])
        if user_id in users:
            return
        if len(users) >= MAX_READERS:
            raise Unreadable(f"its ACL has {MAX_READERS} users already, so Fairlead's user cannot be added")
        users.append(user_id)
        try:
            await self._ask(f"PUT {path}/acl", {}, msgspec.json.encode(said))
        except KeyStoreUnresponsive:
            raise
        except Unreadable:
            raise Unreadable(
                f"Fairlead's user may not read it: `openstack acl user add --user {user_id}`, also for its secrets"
            ) from None

    async def _get(self, path: str, accepted: str) -> HttpResponse:
        return await self._ask(f"GET {path}", {"Accept": accepted})

    async def _ask(self, question: str, headers: Mapping[str, str], body: bytes = b"") -> HttpResponse:
        """Send a request; after a 401, once more with a new own token. Raises Unreadable."""
        answer = await self._send(question, headers, body)
        if answer.status == 401 and self._own is not None:
            self._token = await self._own(self._token)
            answer = await self._send(question, headers, body)
        match answer.status:
            case 200:
                return answer
            case 401 | 403 | 404 | 410:
                raise Unreadable(NOT_FOUND_MESSAGE)
            case status if status == 429 or status >= 500:
                LOG.warning("Barbican at %s returned status %d", self._place.url, status)
                raise KeyStoreUnresponsive(UNRESPONSIVE_MESSAGE)
        raise Unreadable(f"Barbican returned status {answer.status}")

    async def _send(self, question: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        try:
            return await send_request(self._place, question, {"X-Auth-Token": self._token.text, **headers}, body)
        except NoAnswer as error:
            LOG.warning("Barbican at %s: %s", self._place.url, error)
            raise KeyStoreUnresponsive(UNRESPONSIVE_MESSAGE) from None


class CombinedKeyStore:
    """Selects one of two key stores: a URL is a reference in Barbican, other references are in the directory."""

    def __init__(self, directory: KeyStore, barbican: KeyStore) -> None:
        self._directory, self._barbican = directory, barbican

    async def read(self, project_id: str, reference: str, asker: Requester | None) -> Content:
        """Read a reference from its key store. Raises Unreadable."""
        store = self._barbican if "://" in reference else self._directory
        return await store.read(project_id, reference, asker)


class _Secret(msgspec.Struct):
    name: str | None
    secret_ref: str


class _Container(msgspec.Struct):
    type: str
    secret_refs: Sequence[_Secret] = ()


def _path(reference: str) -> str:
    """Path of a reference on the configured Barbican server. Raises Unreadable."""
    named = REFERENCE.fullmatch(reference)
    if named is None:
        raise Unreadable(NO_URL)
    return f"/v1/{named['kind']}/{named['id'].lower()}"


def _parts(body: bytes) -> dict[str, str]:
    """Return secret name -> path of a certificate container. Raises Unreadable."""
    try:
        container = msgspec.json.decode(body, type=_Container)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unreadable("the response of Barbican for the container is invalid") from None
    if container.type != "certificate":
        raise Unreadable("the container must be of type certificate")
    known = {*_CERTIFICATE, _PHRASE}
    found = {each.name: _path(each.secret_ref) for each in container.secret_refs if each.name in known and each.name}
    if not all(path.startswith("/v1/secrets/") for path in found.values()):
        raise Unreadable(NO_URL)
    return found


def _readers(body: bytes) -> dict[str, dict[str, Any]]:
    """Return the ACLs of a secret in the form of a PUT request, without read-only attributes. Raises Unreadable."""
    try:
        said = msgspec.json.decode(body, type=dict[str, dict[str, Any]])
        return {
            operation: {
                "users": [str(each) for each in rights.get("users", ())],
                "project-access": bool(rights.get("project-access", True)),
            }
            for operation, rights in said.items()
        }
    except (msgspec.DecodeError, UnicodeDecodeError, TypeError):
        raise Unreadable("the response of Barbican for its ACL is invalid") from None


def _bounded(parts: Sequence[bytes]) -> bytes:
    """Concatenate the parts. Raises Unreadable if they are too large."""
    whole = b"\n".join(parts) if len(parts) > 1 else b"".join(parts)
    if len(whole) > MAX_CONTENT_BYTES:
        raise Unreadable(f"it is larger than {MAX_CONTENT_BYTES} bytes")
    return whole
