"""Trust store: certificates of clients, and enrolment of an unknown client with a one-time token."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from fairlead.api.http.acceptor import connection_key
from fairlead.api.http.authentication import Failures
from fairlead.api.http.front_end import ApiError, JsonObject, Services, identity, rate_limited
from fairlead.api.http.openapi import FLAG, TEXT, TEXTS, Operation, read_body
from fairlead.api.lxd.bodies import flag, struct
from fairlead.api.lxd.envelope import (
    EMPTY,
    LIST,
    PREFIX,
    check_match,
    created,
    etag,
    operation_created,
    sync,
    sync_schema,
)
from fairlead.api.lxd.errors import forbidden
from fairlead.api.lxd.events import lifecycle_of_server
from fairlead.api.lxd.filters import LIST_QUERY, listed
from fairlead.api.lxd.operations import OPERATION
from fairlead.api.lxd.tokens import MAX_TOKEN_LENGTH, digest, new_secret, operation, read_secret, url
from fairlead.api.lxd.x509 import MAX_CERTIFICATE_LENGTH, MAX_NAME_LENGTH, decode_certificate, read_certificate
from fairlead.changes.identity import MAX_PROJECT_ID_LENGTH
from fairlead.changes.refusal import Refused
from fairlead.changes.trust import (
    NoSuchToken,
    add_certificate,
    change_certificate,
    delete_certificate,
    find_certificate,
    find_token_by_digest,
    issue_token,
    redeem_token,
    visible_certificates,
)
from fairlead.model.documents.trust import Certificate, TrustToken
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.schema import Field, Schema, Values, list_of, object_schema, text

MAX_BODY_BYTES = 2**16
"""Maximum bytes of a body, which unauthenticated clients can send."""
MAX_PROJECTS = 100
"""Maximum projects of a certificate."""
CLIENT = "client"
_PUT = {
    "name": Field(text(MAX_NAME_LENGTH)),
    "type": Field(text()),
    "restricted": Field(flag()),
    "projects": Field(list_of(text(MAX_PROJECT_ID_LENGTH), MAX_PROJECTS)),
    "certificate": Field(text(MAX_CERTIFICATE_LENGTH)),
    "description": Field(text(1000)),
}
PUT = struct(_PUT)
POST = struct(
    {
        **_PUT,
        "token": Field(flag()),
        "trust_token": Field(text(MAX_TOKEN_LENGTH)),
        "password": Field(text(MAX_TOKEN_LENGTH)),
    }
)
_SHOWN: Mapping[str, Schema] = {
    **dict.fromkeys(("name", "type", "certificate", "description", "fingerprint"), TEXT),
    "restricted": FLAG,
    "projects": TEXTS,
}
SHOWN = object_schema(_SHOWN, _SHOWN)


def routes(services: Services) -> list[Operation]:
    views = _CertificateHandlers(services)
    each, done = "/certificates/{fingerprint}", {200: EMPTY}
    begun_or_made = {201: EMPTY, 202: {"type": "object", "properties": {"metadata": OPERATION}}}
    return [
        Operation("GET", "/certificates", views.list, gives={200: sync_schema(LIST)}, query=LIST_QUERY),
        Operation(
            "POST",
            "/certificates",
            views.create,
            takes=POST,
            gives=begun_or_made,
            admits=lambda _: None,
            largest=MAX_BODY_BYTES,
        ),
        Operation("GET", each, views.show, gives={200: sync_schema(SHOWN)}),
        Operation("PUT", each, views.replace, takes=PUT, gives=done, fails=[412]),
        Operation("PATCH", each, views.merge, takes=PUT, gives=done, fails=[412]),
        Operation("DELETE", each, views.delete, gives=done),
    ]


@dataclass(frozen=True, slots=True)
class _CertificateHandlers:
    _services: Services
    _failures: Failures = field(default_factory=Failures)

    async def list(self, request: Request) -> Response:
        """List the certificates that the caller may see; a restricted client only sees its own."""
        found = visible_certificates(self._services.model.snapshot, identity(request))
        return await listed(request, ((_url(each), partial(_show, each)) for each in found))

    async def create(self, request: Request) -> Response:
        """Add a certificate, or issue a token, as administrator. With a token, an untrusted client adds the
        certificate of its TLS connection."""
        values, caller = await read_body(request), identity(request)
        issues, given = values.get("token", False), values.get("certificate", "")
        if issues and given:
            raise ApiError(400, "Can't use certificate if token is requested")
        if issues and values.get("type") != CLIENT:
            raise ApiError(400, "Tokens can only be issued for client certificates")
        if caller.roles and not given and not issues:
            raise ApiError(400, "Client is already trusted")
        if not caller.is_admin:
            return await self._join(request, values)
        if issues:
            return await self._issue(request, values)
        if values.get("type") != CLIENT:
            raise ApiError(400, "Invalid certificate type")
        found = read_certificate(decode_certificate(given), values.get("name", ""), _address(request))
        certificate = replace(found, **_granted(values))
        now = self._services.now()
        await self._services.write(lambda snapshot: add_certificate(snapshot, caller, certificate, now))
        return self._added(request, certificate)

    async def show(self, request: Request) -> Response:
        """Show a certificate by a prefix of its fingerprint."""
        certificate = self._find(self._services.model.snapshot, request)
        return sync(_show(certificate), tag=_tag(certificate))

    async def replace(self, request: Request) -> Response:
        """Replace the attributes of a certificate; omitted ones are reset."""
        return await self._change(request, {"name": "", "restricted": False, "projects": (), "description": ""})

    async def merge(self, request: Request) -> Response:
        """Update the attributes of a certificate; omitted ones are unchanged."""
        return await self._change(request, {})

    async def delete(self, request: Request) -> Response:
        caller, prefix = identity(request), request.path_params["fingerprint"]
        certificate = self._find(self._services.model.snapshot, request)
        await self._services.write(lambda snapshot: delete_certificate(snapshot, caller, prefix))
        lifecycle_of_server(request, "certificate-deleted", _url(certificate))
        return sync()

    async def _join(self, request: Request, values: Values) -> Response:
        """Add the caller's own certificate for a token. Raises ApiError 403 for an invalid token, 429 for an address
        with too many failures."""
        text = values.get("trust_token") or values.get("password") or ""
        if values.get("token") or not text:
            raise forbidden()
        address = connection_key(_address(request))
        wait = self._failures.wait(address)
        if wait > 0:
            raise rate_limited("Too many tokens of this address were wrong", wait)
        secret = read_secret(text)
        if secret is None:
            self._failures.add(address)
            raise forbidden()
        now, known = self._services.now(), digest(secret)
        try:
            find_token_by_digest(self._services.model.snapshot, known, now)  # invalid tokens never reach the store
            certificate = read_certificate(_client_certificate(request), values.get("name", ""), _address(request))
            await self._services.write(lambda snapshot: redeem_token(snapshot, known, certificate, now))
        except Refused as refused:
            if isinstance(refused.why, NoSuchToken):
                self._failures.add(address)
                raise ApiError(403, "No matching certificate add operation found") from None
            raise
        return self._added(request, certificate)

    async def _issue(self, request: Request, values: Values) -> Response:
        reachable = self._services.client_endpoint()
        if reachable is None:
            raise ApiError(400, "Can't issue token when server isn't listening on network")
        secret, now = new_secret(), self._services.now()
        token = TrustToken(
            id=self._services.new_id(),
            digest=digest(secret),
            created_at=now,
            expires_at=now + timedelta(seconds=reachable.token_seconds),
            name=values.get("name", ""),
            **_granted(values),
        )
        caller = identity(request)
        await self._services.write(lambda snapshot: issue_token(snapshot, caller, token, now))
        lifecycle_of_server(request, "certificate-token-created", url(token))
        return operation_created(url(token), operation(token, reachable, secret))

    async def _change(self, request: Request, defaults: Mapping[str, Any]) -> Response:
        caller = identity(request)
        self._find(self._services.model.snapshot, request)
        values = await read_body(request)
        if values.get("type", CLIENT) not in ("", CLIENT):
            raise ApiError(400, "The certificate type cannot be changed")

        def decide(snapshot: Snapshot) -> Changes:
            old = self._find(snapshot, request)
            check_match(request, _tag(old))
            given = values.get("certificate")
            if given and read_certificate(decode_certificate(given), "").fingerprint != old.fingerprint:
                raise ApiError(400, "The certificate itself cannot be changed: add the new one, and remove this one")
            said = {name: values[name] for name in ("name", "description") if name in values} | _granted(values, old)
            return change_certificate(snapshot, caller, replace(old, **{**defaults, **said}))

        await self._services.write(decide)
        changed = self._find(self._services.model.snapshot, request)
        lifecycle_of_server(request, "certificate-updated", _url(changed))
        return sync()

    def _find(self, snapshot: Snapshot, request: Request) -> Certificate:
        return find_certificate(snapshot, identity(request), request.path_params["fingerprint"])

    def _added(self, request: Request, certificate: Certificate) -> Response:
        lifecycle_of_server(request, "certificate-created", _url(certificate))
        return created(_url(certificate))


def _granted(values: Values, old: Certificate | None = None) -> dict[str, Any]:
    """Return the permissions in a body; for an existing certificate only those that are present."""
    found: dict[str, Any] = {}
    if old is None:
        found = {"restricted": False, "projects": (), "description": values.get("description", "")}
    if "restricted" in values:
        found["restricted"] = values["restricted"]
    if "projects" in values:
        found["projects"] = tuple(sorted(set(values["projects"])))
    return found


def _client_certificate(request: Request) -> bytes:
    """Return the client's TLS certificate as DER. Raises ApiError 400."""
    if request.url.scheme != "https":
        raise ApiError(400, "Can't use TLS data on non-TLS link")
    certificate: bytes | None = request.scope.get("extensions", {}).get("fairlead.certificate", {}).get("der")
    if certificate is None:
        raise ApiError(400, "No client certificate provided")
    return certificate


def _address(request: Request) -> str:
    return request.client.host if request.client else ""


def _url(certificate: Certificate) -> str:
    return f"{PREFIX}/certificates/{certificate.fingerprint}"


def _tag(certificate: Certificate) -> str:
    return etag([_show(certificate)])


def _show(certificate: Certificate) -> JsonObject:
    return {
        "name": certificate.name,
        "type": CLIENT,
        "restricted": certificate.restricted,
        "projects": certificate.projects,
        "certificate": certificate.pem,
        "description": certificate.description,
        "fingerprint": certificate.fingerprint,
    }
