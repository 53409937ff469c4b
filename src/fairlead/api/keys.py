"""Keys and certificates: tried before a change is written that names them, and lent to the nodes that need them.

They pass through, and are kept nowhere. What can no longer be read is remembered by name, for the log and `/metrics`.
"""

import asyncio
import logging

from fairlead.changes.refusal import Refused
from fairlead.changes.secrets import NotRetrieved, new_secrets
from fairlead.compilers.unsupported import Unsupported
from fairlead.keystores.interface import KeyStore, Silent, Unreadable
from fairlead.keystores.material import checked
from fairlead.model.loadbalancer import LoadBalancer
from fairlead.model.secrets import Secret, needed_secrets
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes

LOG = logging.getLogger(__name__)
PATIENCE = 5.0
"""Seconds for all that a change asks for: it waits with its turn to write, and others wait behind it. And for one
reference that a node asks for."""
NO_STORE = "a key-store gives them: keys.directory in the configuration"


class Keys:
    def __init__(self, store: KeyStore | None = None, patience: float = PATIENCE) -> None:
        """None where the deployment has no key-store."""
        self._store = store
        self._patience = patience
        self._unreadable: dict[tuple[str, Secret], str] = {}
        """Load balancer and secret -> why."""

    async def check(self, snapshot: Snapshot, changes: Changes) -> None:
        """Raises Refused and Unsupported."""
        wrong = dict[str, str]()
        end = asyncio.get_running_loop().time() + self._patience
        for balancer, secret in new_secrets(snapshot, changes):
            if self._store is None:
                raise Unsupported("keys and certificates", balancer.provider, NO_STORE)
            try:
                await self._read(balancer.project_id, secret, end)
            except Unreadable as error:
                wrong[secret.reference] = str(error)
                if isinstance(error, Silent):
                    break
        if wrong:
            raise Refused(NotRetrieved(references=tuple(wrong), why=tuple(wrong.values())))

    async def lend(self, balancer: LoadBalancer, secret: Secret) -> str:
        """PEM, for a chassis that needs it. Raises Unreadable."""
        balancer_id = balancer.id
        try:
            found = await self._read(balancer.project_id, secret, asyncio.get_running_loop().time() + self._patience)
        except Unreadable as error:
            if self._unreadable.get((balancer_id, secret)) != str(error):
                LOG.warning("load balancer %s: %r (%s): %s", balancer_id, secret.reference, secret.role, error)
            self._unreadable[balancer_id, secret] = str(error)
            raise
        if self._unreadable.pop((balancer_id, secret), None) is not None:
            LOG.info("load balancer %s: %r (%s) can be read again", balancer_id, secret.reference, secret.role)
        return found

    async def _read(self, project_id: str, secret: Secret, end: float) -> str:
        if self._store is None:
            raise Unreadable("this server has no key-store")
        try:
            async with asyncio.timeout_at(end):
                content = await self._store.read(project_id, secret.reference)
        except TimeoutError:
            raise Silent("the key-store does not answer") from None
        return checked(secret.role, content)

    def unreadable(self, snapshot: Snapshot) -> int:
        """How many there are of those that load balancers still need."""
        for balancer_id, secret in list(self._unreadable):
            balancer = snapshot.load_balancers.get(balancer_id)
            if balancer is None or secret not in needed_secrets(balancer):
                del self._unreadable[balancer_id, secret]
        return len(self._unreadable)
