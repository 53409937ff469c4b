"""Trust tokens: their encoding for clients, and their form as operations.

LXD stores a token as an operation with its secret. Here only a hash of the secret is stored, so a reader of the store
or of the token list cannot use a token.
"""

import base64
import binascii
import hashlib
import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from fairlead.api.http.front_end import ClientEndpoint, JsonObject
from fairlead.api.lxd.envelope import PREFIX
from fairlead.model.documents.trust import TrustToken

MAX_TOKEN_LENGTH = 8192
"""Maximum characters of a token, which may list many server addresses."""
MAX_SECRET_LENGTH = 128
RUNNING = 103
"""LXD's status code of a running operation (shared/api/status_code.go)."""


def new_secret() -> str:
    return secrets.token_hex(32)


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def read_secret(text: str) -> str | None:
    """Return the secret of a token: base64 of a JSON object (CertificateAddToken). None if the text is invalid."""
    try:
        decoded: object = msgspec.json.decode(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        return None
    secret = decoded.get("secret") if isinstance(decoded, dict) else None
    return secret if isinstance(secret, str) and 0 < len(secret) <= MAX_SECRET_LENGTH else None


def write_token(token: TrustToken, secret: str, reachable: ClientEndpoint) -> str:
    """Encode a token for a client."""
    body = {
        "client_name": token.name,
        "fingerprint": reachable.fingerprint,
        "addresses": reachable.addresses,
        "secret": secret,
        "expires_at": token.expires_at,
    }
    return base64.b64encode(msgspec.json.encode(body)).decode()


def url(token: TrustToken) -> str:
    return f"{PREFIX}/operations/{token.id}"


def operation(token: TrustToken, reachable: ClientEndpoint | None, secret: str = "") -> JsonObject:
    """Encode a token as an operation. Only the response of its creation has the secret."""
    metadata: Mapping[str, Any] = {
        "addresses": reachable.addresses if reachable else [],
        "expiresAt": _time(token.expires_at),
        "fingerprint": reachable.fingerprint if reachable else "",
        "request": {
            "name": token.name,
            "type": "client",
            "restricted": token.restricted,
            "projects": token.projects,
            "certificate": "",
            "description": token.description,
            "token": True,
        },
        "secret": secret,
    }
    return {
        "id": token.id,
        "class": "token",
        "description": "Executing operation",
        "created_at": _time(token.created_at),
        "updated_at": _time(token.created_at),
        "status": "Running",
        "status_code": RUNNING,
        "resources": {},
        "metadata": metadata,
        "may_cancel": True,
        "err": "",
        "location": "none",
    }


def _time(when: datetime) -> str:
    return when.isoformat().replace("+00:00", "Z")
