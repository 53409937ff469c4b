"""Who may come in by a certificate of their own, with what rights, and the tokens that let somebody bring one.

Projects that were made for themselves are here too: others exist because something is theirs.
"""

from dataclasses import dataclass
from datetime import datetime

from fairlead.model.addresses import IPNetwork

MOST_PREFIXES, MOST_NAMES = 64, 64
"""Of one project: prefixes, and names in one of its restrictions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrantedPrefix:
    uplink: str
    """Its name."""
    cidr: IPNetwork


@dataclass(frozen=True, slots=True, kw_only=True)
class UplinkLimit:
    uplink: str
    """Its name."""
    version: int
    most: int
    """Addresses of the project's routers and VIPs there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Restrictions:
    """What a project may use of networks. Names are in order; None allows every one."""

    uplinks: tuple[str, ...] | None = None
    networks: tuple[str, ...] | None = None
    """Which callers may use by LXD's API."""
    most_networks: int | None = None
    uplink_addresses: tuple[UplinkLimit, ...] = ()


NO_RESTRICTIONS = Restrictions()


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Known by its name, which never changes: it is the `project_id` of all that the project has."""

    name: str
    description: str = ""
    config: tuple[tuple[str, str], ...] = ()
    """Keys with what they say, sorted."""
    prefixes: tuple[GrantedPrefix, ...] = ()
    """Of uplinks' routes that are the project's: its networks may have them, and be seen outside as they are. An
    administrator grants them: a tenant could take all that leads to an uplink."""
    restrictions: Restrictions = NO_RESTRICTIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What the holder of a certificate may do."""

    name: str
    """Of the client; several may have one."""
    restricted: bool = False
    """To `projects`. Who is not restricted is an administrator."""
    projects: tuple[str, ...] = ()
    """Sorted."""
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate(Grant):
    """A client's, self-signed as a rule: who shows that they have its key is its holder."""

    fingerprint: str
    """SHA-256 of its DER form, in hex of small letters."""
    pem: str
    not_before: datetime
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class TrustToken(Grant):
    """Whoever knows the secret may bring a certificate, once."""

    id: str
    digest: str
    """SHA-256 of the secret, in hex: the secret has 256 random bits, so nothing slower is needed. It is not kept."""
    created_at: datetime
    expires_at: datetime


MOST_PROJECTS = 1000
"""That were made for themselves."""
MOST_CERTIFICATES = 1000
MOST_TOKENS = 100
"""That have not expired. All of these are looked through where one is asked for."""
