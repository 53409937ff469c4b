"""Authentication on LXD's own listening sockets: local users, and holders of trusted certificates.

A process that can open the Unix socket is an administrator, as in LXD; owner, group and mode of the socket control
that. Every client may connect by HTTPS, and is untrusted unless its certificate is in the trust store. The certificate
is looked up for each request, so its removal takes effect immediately.
"""

import hashlib
from dataclasses import replace
from urllib.parse import parse_qs

from fairlead.api.http.acceptor import UNIX
from fairlead.api.http.authentication import ROLES, Authenticate, LoginAttempt
from fairlead.api.http.front_end import Services
from fairlead.changes.identity import DEFAULT_PROJECT, MAX_PROJECT_ID_LENGTH, Identity
from fairlead.changes.trust import identity_of


def make_lxd_authentication(services: Services) -> Authenticate:
    async def authenticate(attempt: LoginAttempt) -> Identity | None:
        who = identify_caller(services, attempt)
        if attempt.certificate is not None and not who.roles and await services.refresh():
            who = identify_caller(services, attempt)
        return who

    return authenticate


def identify_caller(services: Services, attempt: LoginAttempt) -> Identity:
    """Return the caller's identity, in the project of the URL if the caller may use it."""
    who = _authenticate(services, attempt)
    asked = parse_qs(attempt.query).get("project", [""])[-1]
    may = who.is_admin or asked in who.projects
    return replace(who, project_id=asked) if may and 0 < len(asked) <= MAX_PROJECT_ID_LENGTH else who


def _authenticate(services: Services, attempt: LoginAttempt) -> Identity:
    if attempt.address.startswith(UNIX):
        return Identity(user=attempt.address, project_id=DEFAULT_PROJECT, roles=ROLES)
    if attempt.certificate is None:
        return Identity(user="nobody", project_id="", roles=frozenset())
    fingerprint = hashlib.sha256(attempt.certificate).hexdigest()
    stranger = Identity(user=f"certificate {fingerprint}", project_id="", roles=frozenset())
    return identity_of(services.model.snapshot, fingerprint, services.now(), ROLES) or stranger
