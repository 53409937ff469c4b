"""Enrolled nodes: the certificates that authenticate their agents, and the tokens that enrol new nodes."""

from dataclasses import dataclass
from datetime import datetime

MAX_CHASSIS_NAME_LENGTH = 64
"""Maximum length of a chassis name, in characters, as of a certificate's common name (RFC 5280, ub-common-name)."""
MAX_NODES = 10_000
MAX_NODE_TOKENS = 1_000
"""Maximum tokens that have not expired."""
MAX_CERTIFICATES_PER_NODE = 2
"""Maximum valid certificates of a node: the old and the new one during renewal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    fingerprint: str
    """SHA-256 of the DER form, in lower-case hex."""
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Enrolled node. A client with one of its certificates acts for the chassis of this name only."""

    name: str
    """Name of the chassis in OVN."""
    enrolled_at: datetime
    certificates: tuple[IssuedCertificate, ...]
    """Valid certificates, newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToken:
    """Single-use token: its secret enrols the node once."""

    chassis: str
    digest: str
    """SHA-256 of the secret, in hex. The secret has 256 random bits and is not stored."""
    created_at: datetime
    expires_at: datetime
