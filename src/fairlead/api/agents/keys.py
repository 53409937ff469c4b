"""Keys and certificates for the proxies of a node: the agent requests those that its proxy rows reference, and the
server returns each unless the agent already has the current version.

Both ends of the message are defined here. A secret is returned only to the chassis that runs a proxy that needs it, and
only over a private connection.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response

from fairlead.agent_protocol.messages import Message, object_of
from fairlead.api.http.front_end import ApiError, Services, json_response, rate_limited
from fairlead.api.http.openapi import TEXT, read_body
from fairlead.api.http.rate_limit import RateLimiter
from fairlead.keystores.interface import KeyStoreUnresponsive, Unreadable
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.secrets import Role, Secret, SecretRequest, SecretResponse, find_allowed_secrets
from fairlead.schema import Field, Parser, Schema, array_schema, enum_of, list_of, object_schema, or_null, text

MAX_SECRETS = 50
"""Maximum secrets in one request."""
MAX_REFERENCE_LENGTH, MAX_ID_LENGTH, MAX_DIGEST_LENGTH = 255, 64, 64
REQUEST_BURST, SECONDS = 50, 0.1
"""Rate limit of requests per chassis: burst size, and seconds until one unit is available again."""


_REQUESTED = object_of(
    {
        "load_balancer": Field(text(MAX_ID_LENGTH), required=True),
        "role": Field(enum_of(Role), required=True),
        "reference": Field(text(MAX_REFERENCE_LENGTH), required=True),
        "digest": Field(text(MAX_DIGEST_LENGTH), required=True),
    }
)
KEYS_REQUEST: Parser[Mapping[str, object]] = object_of(
    {"secrets": Field(list_of(_REQUESTED, MAX_SECRETS), required=True)}
)
_FOUND = object_schema({"pem": or_null(TEXT), "refused": or_null(TEXT)}, ["pem", "refused"])
KEYS: Schema = object_schema({"secrets": array_schema(_FOUND, MAX_SECRETS)}, ["secrets"])


def render_keys_request(chassis: str, wanted: Iterable[SecretRequest]) -> Message:
    asked = [
        {
            "load_balancer": each.balancer_id,
            "role": each.secret.role.value,
            "reference": each.secret.reference,
            "digest": each.digest,
        }
        for each in wanted
    ]
    return "POST", f"/agent/chassis/{quote(chassis, safe='')}/keys", {"secrets": asked}


def read_keys(answer: Any, number: int) -> list[SecretResponse]:
    """Read an answer that must have `number` secrets. Raises ValueError."""
    try:
        found = [SecretResponse(pem=each["pem"] or "", error=each["refused"] or "") for each in answer["secrets"]]
    except (KeyError, TypeError):
        found = []
    if len(found) != number:
        raise ValueError("the server's response to a request for keys is invalid")
    return found


class KeyDelivery:
    def __init__(self, services: Services, check: Callable[[Request, str], None]) -> None:
        """`check` raises ApiError if the caller does not represent the chassis."""
        self._services = services
        self._check = check
        self._pace = RateLimiter(REQUEST_BURST, SECONDS)

    async def deliver(self, request: Request) -> Response:
        """Return keys and certificates for the proxies of a chassis. `digest` is the SHA-256 of the PEM that the
        agent has, or empty; an unchanged secret is returned with null."""
        chassis = request.path_params["chassis"]
        self._check(request, chassis)
        _check_private(request)
        if (wait := self._pace.wait(chassis)) > 0:
            raise rate_limited(f"chassis {chassis} requests keys too often", wait)
        self._pace.add(chassis)
        asked: Sequence[Mapping[str, Any]] = (await read_body(request))["secrets"]
        snapshot = self._services.model.snapshot
        lent = dict[str, frozenset[Secret]]()
        for balancer_id in {one["load_balancer"] for one in asked}:
            lent[balancer_id] = frozenset(find_allowed_secrets(snapshot, chassis, balancer_id))
            await asyncio.sleep(0)  # up to 200 listeners with 100 references each
        found = list[Mapping[str, str | None]]()
        for each in asked:
            secret = Secret(role=each["role"], reference=each["reference"])
            if secret in lent[each["load_balancer"]]:
                found.append(await self._answer(snapshot.load_balancers[each["load_balancer"]], secret, each["digest"]))
            else:
                found.append({"pem": None, "refused": f"chassis {chassis} runs no proxy that uses this key"})
        answer = json_response({"secrets": found})
        answer.headers["Cache-Control"] = "no-store"
        return answer

    async def _answer(self, balancer: LoadBalancer, secret: Secret, digest: str) -> Mapping[str, str | None]:
        try:
            pem = await self._services.keys.deliver(balancer, secret, digest)
        except KeyStoreUnresponsive as error:
            raise ApiError(503, f"{error}: retry, or use another server") from None
        except Unreadable as error:
            owner = Owner(Kind.LOAD_BALANCER, balancer.id)
            self._services.keys.forget_deleted(self._services.model.snapshot, [owner])  # may be deleted now
            return {"pem": None, "refused": str(error)}
        return {"pem": pem, "refused": None}


def _check_private(request: Request) -> None:
    """Raise ApiError if the connection is neither TLS nor local."""
    if request.url.scheme == "https" or request.client is None or _is_loopback(request.client.host):
        return
    raise ApiError(403, "keys are sent to other machines over TLS only: connect the agent to nodes.listen")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return not host  # Unix socket
