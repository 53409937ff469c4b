"""Octavia's database, read for the load balancers of this provider. Nothing is written here.

octavia-lib gives a driver the objects, but not their statuses, nor which are PENDING, which is needed to resolve every
PENDING status. The agent runs in octavia-driver-agent, which has access to the database. Status updates go through
octavia-lib's socket, and Octavia writes them.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from octavia.db import api, models

from fairlead.octavia_plugin import database_bodies
from fairlead.octavia_plugin.differences import PENDING, OctaviaState, OctaviaStatus

DELETED = "DELETED"
_NAMED_AT_ONCE = 500
"""Maximum ids in one query, because databases limit its parameters."""


class OctaviaDatabase:
    """Queries. All methods raise the exceptions of SQLAlchemy and oslo.db."""

    def __init__(self, provider: str) -> None:
        self._provider = provider

    def pending(self) -> list[str]:
        """Return the load balancers that wait for a status. A load balancer is PENDING whenever a part is."""
        return self._ids(models.LoadBalancer.provisioning_status.in_(PENDING))

    def ids(self) -> list[str]:
        """Return all load balancers that are not deleted."""
        return self._ids(models.LoadBalancer.provisioning_status != DELETED)

    def named(self, name: str) -> list[str]:
        """Return those with this id, or otherwise with this name, that are not deleted."""
        row = models.LoadBalancer
        there = row.provisioning_status != DELETED
        return self._ids(there & (row.id == name)) or self._ids(there & (row.name == name))

    def having(self, ids: Collection[str]) -> set[str]:
        """Return those of these ids that are not deleted, of any provider."""
        found, wanted = set[str](), sorted(ids)
        with _session() as session:
            for first in range(0, len(wanted), _NAMED_AT_ONCE):
                some = models.LoadBalancer.id.in_(wanted[first : first + _NAMED_AT_ONCE])
                there = models.LoadBalancer.provisioning_status != DELETED
                found |= {row.id for row in session.query(models.LoadBalancer.id).filter(some & there)}
        return found

    def look(self, balancer_id: str) -> OctaviaState | None:
        """Read a load balancer; None if it does not exist, is deleted, or has another provider."""
        with _session() as session:
            found = session.query(models.LoadBalancer).filter_by(id=balancer_id, provider=self._provider).first()
            return None if found is None or found.provisioning_status == DELETED else _known(found)

    def _ids(self, condition: Any) -> list[str]:
        with _session() as session:
            query = session.query(models.LoadBalancer.id).filter_by(provider=self._provider).filter(condition)
            return [row.id for row in query.order_by(models.LoadBalancer.updated_at)]


@contextmanager
def _session() -> Iterator[Any]:
    """Open a session, for consistent reads."""
    session = api.get_session()
    try:
        with session.begin():
            yield session
    finally:
        session.close()


def _known(balancer: Any) -> OctaviaState:
    pools, listeners = balancer.pools, balancer.listeners
    monitors = [pool.health_monitor for pool in pools if pool.health_monitor]
    members = [member for pool in pools for member in pool.members]
    policies = [policy for listener in listeners for policy in listener.l7policies]
    return OctaviaState(
        balancer=_standing(balancer),
        whole=database_bodies.load_balancer(balancer),
        parts={
            kind: {each.id: _standing(each) for each in parts}
            for kind, parts in {
                "listeners": listeners,
                "pools": pools,
                "members": members,
                "healthmonitors": monitors,
                "l7policies": policies,
                "l7rules": [rule for policy in policies for rule in policy.l7rules],
            }.items()
        },
    )


def _standing(row: Any) -> OctaviaStatus:
    return OctaviaStatus(row.provisioning_status, row.operating_status)
