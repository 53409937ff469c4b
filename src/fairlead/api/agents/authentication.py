"""Authentication of agents: by a client certificate of this deployment, or by the Unix socket of the machine.

A node exchanges a token for a certificate once; its private key never leaves it. The certificate is looked up for each
request, so a revocation takes effect immediately, and also closes the node's open stream.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from starlette.requests import Request
from starlette.responses import Response

from fairlead.agent_protocol.enrolment import REMEDY, BadRequest, Enrolment, Signed, digest, write_token
from fairlead.api.http.acceptor import UNIX, connection_key
from fairlead.api.http.authentication import Authenticate, ClientCertificateNotValid, LoginAttempt, common_name
from fairlead.api.http.front_end import ApiError, Services, identity, json_response, rate_limited
from fairlead.api.http.openapi import TEXT, Operation, ReadConsistency, read_body
from fairlead.api.http.rate_limit import RateLimiter
from fairlead.changes.identity import Identity
from fairlead.changes.nodes import (
    BadChassisName,
    NoSuchNode,
    NoSuchNodeToken,
    TooManyNodes,
    chassis_of,
    enrol_node,
    find_node_token,
    issue_node_token,
    renew_node,
)
from fairlead.changes.refusal import Refused
from fairlead.model.documents.enrolment import MAX_NODES, IssuedCertificate, NodeToken
from fairlead.schema import object_schema

LOG = logging.getLogger(__name__)
TOKEN_BURST, TOKEN_RECOVERY_SECONDS = 5, 2.0
"""Rate limit of wrong tokens per address: burst size, and seconds until one unit is available again."""
PUBLIC = ("authority", "enrol")
"""Paths on the agents' listening sockets that need no authentication."""
MAX_SECRET_LENGTH = 128
MAX_REQUEST_LENGTH = 8192
"""Maximum characters of a certificate request."""


def make_agent_authentication(services: Services, of_socket: Collection[str]) -> Authenticate:
    """Make the authentication of the agents' listening sockets. `of_socket` are the chassis represented by any process
    that can open the Unix socket."""

    expired = _ExpiredCertificates()

    async def authenticate(attempt: LoginAttempt) -> Identity | None:
        if attempt.address.startswith(UNIX):
            return _agent_of(attempt.address, *of_socket)
        chassis = None
        if attempt.certificate is not None:
            expired.check(attempt.certificate, services.now())
            fingerprint = hashlib.sha256(attempt.certificate).hexdigest()
            chassis = chassis_of(services.model.snapshot, fingerprint, services.now())
            if chassis is None and await services.refresh():
                chassis = chassis_of(services.model.snapshot, fingerprint, services.now())
        return None if chassis is None else _agent_of(f"chassis {chassis}", chassis)

    return authenticate


class _ExpiredCertificates:
    """Rejection of expired agent certificates; each is logged once."""

    def __init__(self) -> None:
        self._logged = dict[str, datetime]()
        """Chassis -> end of validity of the logged certificate."""

    def check(self, certificate: bytes, now: datetime) -> None:
        """Check the validity period of a certificate of this deployment. Raises NotValidNow."""
        shown, chassis = x509.load_der_x509_certificate(certificate), common_name(certificate)
        begin, end = shown.not_valid_before_utc, shown.not_valid_after_utc
        if begin <= now < end:
            self._logged.pop(chassis, None)
            return
        if now < begin:
            raise ClientCertificateNotValid(
                f"the certificate of chassis {chassis} is not valid before {begin:%Y-%m-%d %H:%M} UTC: check the clock"
                " of this server"
            )
        words = f"the certificate of chassis {chassis} expired on {end:%Y-%m-%d %H:%M} UTC: {REMEDY.format(chassis)}"
        if self._logged.get(chassis) != end:
            if len(self._logged) >= MAX_NODES:
                self._logged.clear()
            self._logged[chassis] = end
            LOG.warning("%s", words)
        raise ClientCertificateNotValid(words)


def _agent_of(user: str, *chassis: str) -> Identity:
    return Identity(user=user, project_id="", roles=frozenset({"service"}), chassis=frozenset(chassis))


async def issue(services: Services, enrolment: Enrolment, chassis: str) -> tuple[str, datetime]:
    """Issue a token for a chassis; return its text and its expiry. Raises ApiError."""
    secret, now = secrets.token_urlsafe(32), services.now()
    until = now + timedelta(seconds=enrolment.token_seconds)
    token = NodeToken(chassis=chassis, digest=digest(secret), created_at=now, expires_at=until)
    await services.write(lambda snapshot: issue_node_token(snapshot, token, now))
    return write_token(chassis, secret, enrolment), until


def routes(services: Services, takes: Callable[[str], Any]) -> list[Operation]:
    """`takes` makes the parser of a body, given the name of its text attribute beside the certificate request."""
    pace = RateLimiter(TOKEN_BURST, TOKEN_RECOVERY_SECONDS)

    async def authority(_: Request) -> Response:
        """Show the CA certificate of the servers. Enrolment tokens contain its fingerprint."""
        return json_response({"certificate": _enrolment(services).authority.pem})

    async def enrol(request: Request) -> Response:
        """Issue a certificate for the key of the request, in exchange for a token, which can be used once."""
        address = connection_key(request.client.host if request.client else "")
        if (wait := pace.wait(address)) > 0:
            raise rate_limited(f"address {address} sent too many invalid tokens", wait)
        asked, now, enrolment = await read_body(request), services.now(), _enrolment(services)
        secret = digest(asked["token"])
        await services.model.refresh()  # another server may have issued it
        try:
            chassis = find_node_token(services.model.snapshot, secret, now).chassis
            signed = _sign(enrolment, asked["request"], chassis, now)
            certificate = IssuedCertificate(fingerprint=signed.fingerprint, not_after=signed.not_after)
            await services.write(lambda snapshot: enrol_node(snapshot, secret, certificate, now))
        except Refused:
            pace.add(address)
            raise
        services.nodes.channel.remove(chassis)
        return json_response({"certificate": signed.pem, "chassis": chassis})

    async def renew(request: Request) -> Response:
        """Renew the certificate of an enrolled node, which authenticates with the present one."""
        chassis, now = request.path_params["chassis"], services.now()
        if identity(request).user != f"chassis {chassis}":
            raise ApiError(403, "to renew a certificate, authenticate with the present certificate of the chassis")
        signed = _sign(_enrolment(services), (await read_body(request))["request"], chassis, now)
        certificate = IssuedCertificate(fingerprint=signed.fingerprint, not_after=signed.not_after)
        await services.write(lambda snapshot: renew_node(snapshot, chassis, certificate, now))
        return json_response({"certificate": signed.pem, "chassis": chassis})

    signed = object_schema({"certificate": TEXT, "chassis": TEXT}, ["certificate", "chassis"])
    shown = object_schema({"certificate": TEXT}, ["certificate"])
    everybody: Callable[[Identity], None] = lambda _: None  # noqa: E731 - a value
    return [
        Operation("GET", "/authority", authority, gives={200: shown}, admits=everybody),
        Operation("POST", "/enrol", enrol, takes=takes("token"), gives={200: signed}, admits=everybody),
        Operation(
            *("POST", "/chassis/{chassis}/certificate", renew),
            takes=takes(""),
            gives={200: signed},
            newest=ReadConsistency.REQUIRED,
        ),
    ]


def _enrolment(services: Services) -> Enrolment:
    found = services.enrolment()
    if found is None:
        raise ApiError(404, "agents cannot authenticate with certificates: set nodes.listen in the configuration")
    return found


def _sign(enrolment: Enrolment, request: str, chassis: str, now: datetime) -> Signed:
    try:
        return enrolment.authority.sign(request, chassis, now)
    except BadRequest as error:
        raise ApiError(400, str(error)) from None


def refusal_of(_: Request, refused: Refused) -> ApiError:
    match refused.why:
        case BadChassisName(name=name):
            return ApiError(
                400, f"chassis '{name[:100]}' cannot be enrolled: a name has at most 64 letters, digits, dots, - and _"
            )
        case NoSuchNode(name=name):
            return ApiError(404, f"chassis {name[:100]} is not enrolled")
        case NoSuchNodeToken():
            return ApiError(403, "the token is invalid: unknown, already used, or expired")
        case TooManyNodes(most=most):
            return ApiError(409, f"{most} nodes are enrolled, which is the maximum")
        case why:
            return ApiError(409, str(why))
