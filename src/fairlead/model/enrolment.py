"""Nodes that are known: whose agents may come in by which certificates, and the tokens that let a node become one."""

from dataclasses import dataclass
from datetime import datetime

LONGEST_CHASSIS = 64
"""Characters of the name of a chassis that is enrolled: as many as a certificate's common name may have (RFC 5280,
ub-common-name)."""
MOST_NODES = 10_000
MOST_NODE_TOKENS = 1_000
"""That have not expired."""
MOST_ISSUED = 2
"""Certificates of a node: while one takes the place of another both are good."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    fingerprint: str
    """SHA-256 of its DER form, in hex of small letters."""
    not_after: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Whoever shows one of its certificates speaks for the chassis of this name, and for no other."""

    name: str
    """Of the chassis, in OVN."""
    enrolled_at: datetime
    certificates: tuple[IssuedCertificate, ...]
    """The newest last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeToken:
    """Whoever knows the secret may enrol the node, once."""

    chassis: str
    digest: str
    """SHA-256 of the secret, in hex: the secret has 256 random bits. It is not kept."""
    created_at: datetime
    expires_at: datetime
