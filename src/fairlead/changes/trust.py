"""Certificates of clients, and the tokens that clients use to add one.

An administrator adds a certificate, or issues a single-use token. A restricted client sees and deletes its own
certificate (`Identity.user` is its fingerprint), and changes none.

All rules here raise Refused.
"""

import hmac
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from fairlead.changes.identity import Identity, check_administers
from fairlead.changes.ids import check_new
from fairlead.changes.projects import NoSuchProject, is_project
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import put_if_changed
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.trust import MAX_CERTIFICATES, MAX_TOKENS, Certificate, TrustToken
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchCertificate(Refusal):
    """No certificate that the caller may see has a fingerprint with this prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AmbiguousCertificate(Refusal):
    """Several certificates have a fingerprint with this prefix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateExists(Refusal):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateNotValid(Refusal):
    """The certificate has expired, or is not valid yet."""

    expired: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateNotChangeable(Refusal):
    """A restricted client may not change certificates."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyCertificates(Refusal):
    most: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchToken(Refusal):
    """The token was never issued, is used, or has expired."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyTokens(Refusal):
    most: int


def identity_of(snapshot: Snapshot, fingerprint: str, now: datetime, roles: frozenset[str]) -> Identity | None:
    """Return the identity of the certificate's holder; None for an unknown or invalid certificate.
    `roles` are those of an administrator."""
    certificate = snapshot.certificates.get(fingerprint)
    if certificate is None or not certificate.not_before <= now <= certificate.not_after:
        return None
    if not certificate.restricted:
        return Identity(user=fingerprint, project_id="default", roles=roles)
    own = certificate.projects
    return Identity(
        user=fingerprint,
        project_id=own[0] if own else "",
        roles=frozenset({"member", "reader"}),
        projects=frozenset(own),
    )


def visible_certificates(snapshot: Snapshot, asker: Identity) -> Iterable[Certificate]:
    """Yield the certificates that the caller may see, sorted by fingerprint."""
    found = (snapshot.certificates[each] for each in sorted(snapshot.certificates))
    return (each for each in found if asker.is_admin or each.fingerprint == asker.user)


def find_certificate(snapshot: Snapshot, asker: Identity, prefix: str) -> Certificate:
    """Return the certificate with this fingerprint prefix."""
    wanted = prefix.lower()
    found = [each for each in visible_certificates(snapshot, asker) if each.fingerprint.startswith(wanted)]
    if not found or not wanted:
        raise Refused(NoSuchCertificate())
    if len(found) > 1:
        raise Refused(AmbiguousCertificate())
    return found[0]


def add_certificate(snapshot: Snapshot, asker: Identity, certificate: Certificate, now: datetime) -> Changes:
    check_administers(asker.is_admin)
    return _add(snapshot, certificate, now)


def change_certificate(snapshot: Snapshot, asker: Identity, certificate: Certificate) -> Changes:
    """Change the name, description and restriction of a certificate."""
    if not asker.is_admin:
        raise Refused(CertificateNotChangeable())
    find_certificate(snapshot, asker, certificate.fingerprint)
    _check_projects(snapshot, certificate.projects)
    return put_if_changed(snapshot, certificate)


def delete_certificate(snapshot: Snapshot, asker: Identity, prefix: str) -> Changes:
    return Changes(deletes=(owner_of(find_certificate(snapshot, asker, prefix)),))


def valid_tokens(snapshot: Snapshot, now: datetime) -> list[TrustToken]:
    """Return the tokens that are still valid, sorted by id."""
    tokens = (snapshot.trust_tokens[each] for each in sorted(snapshot.trust_tokens))
    return [each for each in tokens if now < each.expires_at]


def issue_token(snapshot: Snapshot, asker: Identity, token: TrustToken, now: datetime) -> Changes:
    """Issue a token, and delete expired ones."""
    check_administers(asker.is_admin)
    check_new(snapshot.trust_tokens, token.id)
    _check_projects(snapshot, token.projects)
    valid = valid_tokens(snapshot, now)
    if len(valid) >= MAX_TOKENS:
        raise Refused(TooManyTokens(most=MAX_TOKENS))
    over = set(snapshot.trust_tokens) - {each.id for each in valid}
    deletes = tuple(Owner(Kind.TRUST_TOKEN, each) for each in sorted(over))
    return Changes(puts=(token,), deletes=deletes, requires_unchanged_model=True)


def find_token(snapshot: Snapshot, asker: Identity, identity: str, now: datetime) -> TrustToken:
    check_administers(asker.is_admin)
    found = next((each for each in valid_tokens(snapshot, now) if each.id == identity), None)
    if found is None:
        raise Refused(NoSuchToken())
    return found


def revoke_token(snapshot: Snapshot, asker: Identity, identity: str, now: datetime) -> Changes:
    return Changes(deletes=(owner_of(find_token(snapshot, asker, identity, now)),))


def find_token_by_digest(snapshot: Snapshot, digest: str, now: datetime) -> TrustToken:
    """Return the valid token with this hash of its secret."""
    matching = [each for each in valid_tokens(snapshot, now) if hmac.compare_digest(each.digest, digest)]
    if not matching:
        raise Refused(NoSuchToken())
    return matching[0]


def redeem_token(snapshot: Snapshot, digest: str, certificate: Certificate, now: datetime) -> Changes:
    """Add the certificate with the token's permissions and delete the token; no other permission is needed. The
    certificate's own name is used if the token has none."""
    token = find_token_by_digest(snapshot, digest, now)
    granted = replace(
        certificate,
        name=token.name or certificate.name,
        restricted=token.restricted,
        projects=token.projects,
        description=token.description,
    )
    return replace(_add(snapshot, granted, now), deletes=(owner_of(token),))


def _add(snapshot: Snapshot, certificate: Certificate, now: datetime) -> Changes:
    if not certificate.not_before <= now <= certificate.not_after:
        raise Refused(CertificateNotValid(expired=now > certificate.not_after))
    if certificate.fingerprint in snapshot.certificates:
        raise Refused(CertificateExists())
    if len(snapshot.certificates) >= MAX_CERTIFICATES:
        raise Refused(TooManyCertificates(most=MAX_CERTIFICATES))
    _check_projects(snapshot, certificate.projects)
    return Changes(puts=(certificate,), requires_unchanged_model=True)


def _check_projects(snapshot: Snapshot, names: Iterable[str]) -> None:
    for name in names:
        if not is_project(snapshot, name):
            raise Refused(NoSuchProject(name=name))
