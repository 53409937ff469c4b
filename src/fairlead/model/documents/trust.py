"""Certificates that authenticate clients, their permissions, and the tokens that add a certificate.

Explicitly created projects are here too; other projects exist implicitly, by their resources.
"""

from dataclasses import dataclass
from datetime import datetime

from fairlead.model.documents.addresses import IPNetwork

MAX_GRANTED_PREFIXES, MAX_RESTRICTION_NAMES = 64, 64
"""Maximum prefixes of one project, and names in one of its restrictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedPrefix:
    uplink: str
    """Name of the uplink network."""
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkLimit:
    uplink: str
    """Name of the uplink network."""
    version: int
    most: int
    """Maximum addresses of the project's routers and VIPs on the uplink."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """Networks that a project may use. Names are sorted; None allows all."""

    uplinks: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None
    """Networks that clients of LXD's API may use."""
    most_networks: int | None = None
    uplink_addresses: tuple[UplinkLimit, ...] = ()


NO_RESTRICTIONS = Restrictions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Project, identified by its name, which never changes and is the `project_id` of its resources."""

    name: str
    description: str = ""
    config: tuple[tuple[str, str], ...] = ()
    """Sorted keys and values, as given in the request."""
    prefixes: tuple[GrantedPrefix, ...] = ()
    """Prefixes of uplink routes that the project's networks may use and expose without NAT. Only an administrator
    grants them, because a tenant could otherwise take all routes of an uplink."""
    restrictions: Restrictions = NO_RESTRICTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """Permissions of a certificate's holder."""

    name: str
    """Name of the client; not unique."""
    restricted: bool = False
    """Whether access is restricted to `projects`. An unrestricted client is an administrator."""
    projects: tuple[str, ...] = ()
    """Names of allowed projects, sorted."""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Grant):
    """Client certificate, usually self-signed. A client that proves possession of the key is its holder."""

    fingerprint: str
    """SHA-256 of the DER form, in lower-case hex."""
    pem: str
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustToken(Grant):
    """Single-use token: a client with the secret can add one certificate."""

    id: str
    digest: str
    """SHA-256 of the secret, in hex. The secret has 256 random bits, so no slower hash is needed; it is not stored."""
    created_at: datetime
    expires_at: datetime


MAX_PROJECTS = 1000
"""Maximum explicitly created projects."""
MAX_CERTIFICATES = 1000
MAX_TOKENS = 100
"""Maximum tokens that have not expired. A lookup scans all of them."""
