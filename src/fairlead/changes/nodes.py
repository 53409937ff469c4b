"""Enrolment of nodes: tokens are issued and used once, and certificates are renewed.

All rules here raise Refused.
"""

import hmac
import re
from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.enrolment import (
    MAX_CERTIFICATES_PER_NODE,
    MAX_CHASSIS_NAME_LENGTH,
    MAX_NODE_TOKENS,
    MAX_NODES,
    IssuedCertificate,
    Node,
    NodeToken,
)
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot

CHASSIS_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{MAX_CHASSIS_NAME_LENGTH - 1}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BadChassisName(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchNode(Refusal):
    """The node is not enrolled, and has no token."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchNodeToken(Refusal):
    """The token was never issued, is used, or has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyNodes(Refusal):
    most: int


def chassis_of(snapshot: Snapshot, fingerprint: str, now: datetime) -> str | None:
    """Return the chassis that the holder of this certificate acts for; None for an unknown or expired certificate."""
    name = snapshot.node_certificates.get(fingerprint)
    node = snapshot.nodes.get(name or "")
    good = node is not None and any(
        each.fingerprint == fingerprint and now <= each.not_after for each in node.certificates
    )
    return name if good else None


def issue_node_token(snapshot: Snapshot, token: NodeToken, now: datetime) -> Changes:
    """Issue a token. It replaces the chassis's previous token; expired tokens are deleted."""
    if not CHASSIS_NAME.fullmatch(token.chassis):
        raise Refused(BadChassisName(name=token.chassis))
    over = [each for each in snapshot.node_tokens.values() if each.expires_at <= now and each.chassis != token.chassis]
    if len(snapshot.node_tokens) - len(over) >= MAX_NODE_TOKENS:
        raise Refused(TooManyNodes(most=MAX_NODE_TOKENS))
    return Changes(puts=(token,), deletes=tuple(Owner(Kind.NODE_TOKEN, each.chassis) for each in over))


def find_node_token(snapshot: Snapshot, digest: str, now: datetime) -> NodeToken:
    """Return the valid token with this hash of its secret."""
    for each in snapshot.node_tokens.values():
        if hmac.compare_digest(each.digest, digest) and now < each.expires_at:
            return each
    raise Refused(NoSuchNodeToken())


def enrol_node(snapshot: Snapshot, digest: str, certificate: IssuedCertificate, now: datetime) -> Changes:
    """Enrol a node with this certificate only, and delete the token.
    A node that is enrolled again loses its previous certificates."""
    token = find_node_token(snapshot, digest, now)
    if token.chassis not in snapshot.nodes and len(snapshot.nodes) >= MAX_NODES:
        raise Refused(TooManyNodes(most=MAX_NODES))
    node = Node(name=token.chassis, enrolled_at=now, certificates=(certificate,))
    return Changes(puts=(node,), deletes=(Owner(Kind.NODE_TOKEN, token.chassis),))


def renew_node(snapshot: Snapshot, name: str, certificate: IssuedCertificate, now: datetime) -> Changes:
    """Add a certificate to a known node; the previous one is valid until the next renewal."""
    node = snapshot.nodes.get(name)
    if node is None:
        raise Refused(NoSuchNode(name=name))
    good = [each for each in node.certificates if now <= each.not_after]
    return Changes(puts=(replace(node, certificates=(*good, certificate)[-MAX_CERTIFICATES_PER_NODE:]),))


def revoke_node(snapshot: Snapshot, name: str) -> Changes:
    """Revoke a node, with its certificates and its pending token."""
    owners = (Owner(Kind.NODE, name), Owner(Kind.NODE_TOKEN, name))
    deletes = tuple(owner for owner in owners if snapshot.find(owner) is not None)
    if not deletes:
        raise Refused(NoSuchNode(name=name))
    return Changes(deletes=deletes)
