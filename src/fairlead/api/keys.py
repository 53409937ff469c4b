"""Keys and certificates: checked before a change that references them is written, and delivered to the nodes that need
them.

The server does not store keys. It remembers only the names of unreadable ones, for the log and `/metrics`, and HMACs of
valid ones under a key of this process, so that each is decrypted once.

A key store may be slow or unavailable, so no key is read while the write lock is held. A change with unchecked
references releases the lock, the keys are read, and the change is decided again.
"""

import asyncio
import hashlib
import hmac
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime

from fairlead.changes.refusal import Refused
from fairlead.changes.secrets import SecretUnavailable, new_secrets, new_trusts, newly_referenced_secrets
from fairlead.compilers.unsupported import Unsupported
from fairlead.keystores.decryption import Decrypter
from fairlead.keystores.interface import Content, KeyStore, KeyStoreUnresponsive, Requester, Unreadable
from fairlead.keystores.material import lockout_of, needs_decryption, normalize, valid_lists, weakness_of
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.queries.secrets import Role, Secret, Trust, needed_secrets, needed_trusts
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.fair_semaphore import FairSemaphore, WaitQueueFull

LOG = logging.getLogger(__name__)
KEY_STORE_TIMEOUT = 5.0
"""Timeout in seconds for all keys of a request, and for each key that a node requests."""
OPENING = 100
"""Maximum queued key files of one project that wait for decryption."""
MAX_CACHED = 10_000
"""Maximum remembered valid contents."""
NO_STORE = "set keys.directory or keys.barbican in the configuration"
CALLER_CREDENTIALS: ContextVar[Requester] = ContextVar("ASKER", default=Requester())  # noqa: B039 - it is frozen
"""Credentials of the current request for the key store."""


def digest_of(pem: str) -> str:
    return hashlib.sha256(pem.encode()).hexdigest()


class SecretsNotChecked(Exception):
    """The change references keys that have not been checked; `wanted` has (project, secret) pairs."""

    def __init__(self, wanted: Iterable[tuple[str, Secret | Trust]]) -> None:
        super().__init__()
        self.secrets = tuple(wanted)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lists:
    """CRLs in use at a time."""

    pem: str
    now: datetime
    state: tuple[bytes, tuple[bool, ...]]
    """HMAC of the content, and which of the CRLs are valid now (`valid_lists`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Verdict:
    """Whether a proxy with an authority and CRLs rejects every certificate, and what this was derived from."""

    lists: tuple[bytes, tuple[bool, ...]]
    """`_Lists.state`."""
    authority: bytes
    """HMAC of the content."""
    why: str
    """The reason; empty if a certificate may be accepted."""


class Keys:
    def __init__(self, store: KeyStore | None = None, patience: float = KEY_STORE_TIMEOUT) -> None:
        """`store` is None in a deployment without a key store."""
        self._store = store
        self._timeout = patience
        self._opener = Decrypter()
        self._opening = FairSemaphore(at_once=1, of_one=1, waiting=OPENING)
        self._unreadable: dict[str, dict[Secret, str]] = {}
        """Load balancer -> unreadable secrets -> reason."""
        self._outdated: dict[str, dict[Secret, str]] = {}
        """Load balancer -> its secrets that a new load balancer could not use now -> reason."""
        self._verdicts: dict[str, dict[Trust, _Verdict]] = {}
        """Load balancer -> its authorities with CRLs -> the last verdict."""
        self._valid_digests = OrderedDict[bytes, str]()
        """HMAC of role and content -> SHA-256 of the PEM."""
        self._key = secrets.token_bytes(32)

    def trial(self) -> "SecretCheck":
        """Return a new trial for one request."""
        return SecretCheck(self, self._store is not None, self._timeout)

    async def close(self) -> None:
        await self._opener.close()

    async def check_secret(self, project_id: str, secret: Secret, end: float) -> None:
        """Check that the caller may use the secret and that it can be served. Raises Unreadable."""
        content = await self._content(project_id, secret, end, CALLER_CREDENTIALS.get())
        pem = await self._pem(project_id, secret, content, end)
        if why := weakness_of(secret.role, pem, datetime.now(UTC)):
            raise Unreadable(why)

    async def check_trust(self, project_id: str, trust: Trust, end: float, asker: Requester | None) -> None:
        """Check that a proxy would accept any certificate with this authority and CRL. A reference that cannot be
        read has an error of its own, unless it was in use before. Raises Unreadable."""
        try:
            authorities, lists = [
                normalize(each.role, (await self._content(project_id, each, end, asker)).material)
                for each in (trust.authority, trust.revocations)
            ]
        except KeyStoreUnresponsive:
            raise
        except Unreadable:
            return
        if why := lockout_of(authorities, lists, datetime.now(UTC)):
            raise Unreadable(why)

    async def deliver(self, balancer: LoadBalancer, secret: Secret, has: str = "") -> str | None:
        """Return the PEM for a chassis; None if `has` is its SHA-256. Raises Unreadable."""
        balancer_id, end = balancer.id, asyncio.get_running_loop().time() + self._timeout
        try:
            found = await self._read_for_delivery(balancer, secret, has, end)
        except Unreadable as error:
            of_balancer = self._unreadable.setdefault(balancer_id, {})
            if of_balancer.get(secret) != str(error):
                LOG.warning("load balancer %s: %r (%s): %s", balancer_id, secret.reference, secret.role, error)
            of_balancer[secret] = str(error)
            raise
        if self._unreadable.get(balancer_id, {}).pop(secret, None) is not None:
            LOG.info("load balancer %s: %r (%s) is readable again", balancer_id, secret.reference, secret.role)
        return found

    async def _read_for_delivery(self, balancer: LoadBalancer, secret: Secret, has: str, end: float) -> str | None:
        project_id = balancer.project_id
        content = await self._content(project_id, secret, end, None)
        digest = self._digest(secret, content)
        if secret.role is Role.REVOCATIONS:  # they expire while they are in use
            await self._check_lists(balancer, secret, content, end)
        if has and self._valid_digests.get(digest) == has:
            return None
        pem = await self._pem(project_id, secret, content, end)
        if secret.role is not Role.REVOCATIONS:
            self._note_outdated(balancer.id, secret, weakness_of(secret.role, pem, datetime.now(UTC)))
        self._valid_digests[digest] = found = digest_of(pem)
        if len(self._valid_digests) > MAX_CACHED:
            self._valid_digests.popitem(last=False)
        return None if found == has else pem

    async def _check_lists(self, balancer: LoadBalancer, secret: Secret, content: Content, end: float) -> None:
        """Record CRLs in use that make a proxy reject every certificate. Raises Unreadable."""
        now, pem = datetime.now(UTC), normalize(secret.role, content.material)
        why = weakness_of(secret.role, pem, now)
        if not why:
            lists = _Lists(pem=pem, now=now, state=(self._digest(secret, content), valid_lists(pem, now)))
            for trust in needed_trusts(balancer):
                if trust.revocations == secret:
                    why = why or await self._lockout(balancer, trust, lists, end)
        self._note_outdated(balancer.id, secret, why)

    async def _lockout(self, balancer: LoadBalancer, trust: Trust, lists: _Lists, end: float) -> str:
        """Return why a proxy with this authority and its CRLs in use rejects every certificate; empty if it may accept
        one. Signatures are verified only if the authority, the CRLs or their validity have changed. An authority that
        cannot be read has an error of its own, and proxies keep the former one, so the verdict on the same CRLs stays.

        Raises Silent: a key store that does not answer decides nothing.
        """
        known = self._verdicts.get(balancer.id, {}).get(trust)
        try:
            content = await self._content(balancer.project_id, trust.authority, end, None)
            digest = self._digest(trust.authority, content)
            if known is not None and (known.lists, known.authority) == (lists.state, digest):
                return known.why
            why = lockout_of(normalize(trust.authority.role, content.material), lists.pem, lists.now)
        except KeyStoreUnresponsive:
            raise
        except Unreadable:
            return known.why if known is not None and known.lists == lists.state else ""
        before, needed = self._verdicts.get(balancer.id, {}), frozenset(needed_trusts(balancer))
        self._verdicts[balancer.id] = {each: it for each, it in before.items() if each in needed}
        self._verdicts[balancer.id][trust] = _Verdict(lists=lists.state, authority=digest, why=why)
        return why

    def _note_outdated(self, balancer_id: str, secret: Secret, why: str) -> None:
        """Log once a secret in use that would be rejected for a new load balancer."""
        known = self._outdated.setdefault(balancer_id, {}) if why else self._outdated.get(balancer_id, {})
        if not why:
            known.pop(secret, None)
        elif known.get(secret) != why:
            LOG.warning(
                "load balancer %s: %r: %s; it stays in use, but new load balancers cannot use it",
                balancer_id,
                secret.reference,
                why,
            )
            known[secret] = why

    def _digest(self, secret: Secret, content: Content) -> bytes:
        phrase = b"" if content.phrase is None else hashlib.sha256(content.phrase).digest()
        return hmac.digest(self._key, b"\0".join((secret.role.encode(), phrase, content.material)), "sha256")

    async def _content(self, project_id: str, secret: Secret, end: float, asker: Requester | None) -> Content:
        if self._store is None:
            raise Unreadable("this server has no key store: set keys.directory or keys.barbican in the configuration")
        try:
            async with asyncio.timeout_at(end):
                return await self._store.read(project_id, secret.reference, asker)
        except TimeoutError:
            raise KeyStoreUnresponsive("the key store does not respond") from None

    async def _pem(self, project_id: str, secret: Secret, content: Content, end: float) -> str:
        material = content.material
        if needs_decryption(secret.role, content):
            try:
                async with asyncio.timeout_at(end), self._opening.turn(project_id):
                    material = await self._opener.decrypt(content)
            except (TimeoutError, WaitQueueFull):
                raise KeyStoreUnresponsive("timed out while other keys were decrypted") from None
        return normalize(secret.role, material)

    def unreadable_count(self, snapshot: Snapshot) -> int:
        """Count the unreadable secrets that load balancers still need."""
        return _count_needed(self._unreadable, snapshot)

    def outdated_count(self, snapshot: Snapshot) -> int:
        """Count the secrets in use that a new load balancer could not use now."""
        self._verdicts = {each: known for each, known in self._verdicts.items() if each in snapshot.load_balancers}
        return _count_needed(self._outdated, snapshot)

    def forget_deleted(self, snapshot: Snapshot, owners: Iterable[Owner]) -> None:
        """Forget secrets of load balancers that are not in the snapshot."""
        for owner in owners:
            if owner.kind is Kind.LOAD_BALANCER and owner.id not in snapshot.load_balancers:
                self._unreadable.pop(owner.id, None)
                self._outdated.pop(owner.id, None)
                self._verdicts.pop(owner.id, None)


def _count_needed(remembered: dict[str, dict[Secret, str]], snapshot: Snapshot) -> int:
    """Count the remembered secrets that are still needed, and forget the others."""
    for balancer_id, known in list(remembered.items()):
        balancer = snapshot.load_balancers.get(balancer_id)
        needed = frozenset(needed_secrets(balancer)) if balancer is not None else frozenset()
        remembered[balancer_id] = left = {each: why for each, why in known.items() if each in needed}
        if not left:
            del remembered[balancer_id]
    return sum(map(len, remembered.values()))


class SecretCheck:
    """Results of checking the keys that one request references."""

    def __init__(self, keys: Keys, has_store: bool, patience: float) -> None:
        self._keys = keys
        self._has_store = has_store
        self._left = patience
        """Seconds left for further checks."""
        self._reasons = dict[tuple[str, Secret | Trust], str]()
        """(Project, secret) -> reason of failure; empty if valid."""

    def check(self, snapshot: Snapshot, changes: Changes) -> None:
        """Check all keys that the changes reference for the first time; without a key store, those that a proxy needs.
        Raises NotTried, Refused and Unsupported."""
        needed = dict[tuple[str, Secret | Trust], None]()
        for balancer, secret in new_secrets(snapshot, changes):
            if not self._has_store:
                raise Unsupported("keys and certificates", balancer.provider, NO_STORE)
            needed[balancer.project_id, secret] = None
        for balancer, trust in new_trusts(snapshot, changes):
            needed[balancer.project_id, trust] = None
        if self._has_store:
            named = newly_referenced_secrets(snapshot, changes)
            needed.update({(balancer.project_id, secret): None for balancer, secret in named})
        if missing := [each for each in needed if each not in self._reasons]:
            raise SecretsNotChecked(missing)
        wrong = dict[str, str]()
        for project_id, each in needed:
            if why := self._reasons[project_id, each]:
                wrong.setdefault((each if isinstance(each, Secret) else each.revocations).reference, why)
        if wrong:
            raise Refused(SecretUnavailable(references=tuple(wrong), why=tuple(wrong.values())))

    async def read(self, wanted: Iterable[tuple[str, Secret | Trust]]) -> None:
        """Read and check secrets, and store the results for `check`. A secret that is not read in time counts as
        failed."""
        clock = asyncio.get_running_loop().time
        began, silent = clock(), ""
        for project_id, each in wanted:
            why = silent
            try:
                if silent:
                    pass
                elif isinstance(each, Trust):
                    await self._keys.check_trust(project_id, each, began + self._left, CALLER_CREDENTIALS.get())
                else:
                    await self._keys.check_secret(project_id, each, began + self._left)
            except Unreadable as error:
                why = str(error)
                silent = why if isinstance(error, KeyStoreUnresponsive) else ""
            self._reasons[project_id, each] = why
        self._left = max(self._left - (clock() - began), 0.0)
