"""Callers of several projects at the whole application."""

import httpx

from fairlead.api.http.authentication import ROLES, LoginAttempt
from fairlead.changes.identity import Identity

NETWORK, BALANCER = "/network/v2.0", "/load-balancer/v2.0/lbaas"


async def by_name(attempt: LoginAttempt) -> Identity | None:
    """Identity of a request: a user's project has the user's name. A request without a name is the administrator's."""
    if attempt.authorization is None:
        return Identity(user="admin", project_id="city", roles=ROLES)
    who = attempt.authorization
    return Identity(user=who, project_id=who, roles=frozenset({"member", "reader"}))


def message(answer: httpx.Response) -> str:
    body = answer.json()
    return str(body["NeutronError"]["message"] if "NeutronError" in body else body["faultstring"])
