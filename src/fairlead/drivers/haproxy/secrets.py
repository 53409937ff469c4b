"""Keys and certificates of one network's process: files on a tmpfs that only its user can read.

The agent fetches the secrets that the rows name from a server, and removes the others. If a secret cannot be fetched,
the existing file is kept: a listener that is served continues, and a listener that was never served waits.
"""

import contextlib
import hashlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from fairlead.dataplane.haproxy import Backend, Certificate, Frontend, HAProxyRow
from fairlead.dataplane.haproxy_commands import Command
from fairlead.drivers.haproxy.file_ownership import FileOwnership
from fairlead.drivers.haproxy.network import ours
from fairlead.drivers.haproxy.runtime import CommandFailed
from fairlead.drivers.haproxy.state import StoredState
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Owner
from fairlead.model.queries.secrets import FOLDER, Secret, SecretRequest, SecretResponse

LOG = logging.getLogger(__name__)
MOUNTS = Path("/proc/self/mountinfo")
IN_MEMORY = frozenset({"tmpfs", "ramfs"})


Fetch: TypeAlias = Callable[[Sequence[SecretRequest]], Awaitable[Sequence[SecretResponse]]]
"""Fetches secrets from a server. Raises DriverError if no server responds."""


async def fetch_nothing(wanted: Sequence[SecretRequest]) -> Sequence[SecretResponse]:
    return [SecretResponse(error="no source of keys is configured on this node")] * len(wanted)


@dataclass(slots=True)
class SecretFiles:
    fetch: Fetch
    rights: FileOwnership
    _rejected: dict[tuple[Path, Secret], str] = field(default_factory=dict)

    async def fetch_missing(self, kept: StoredState, *, again: bool) -> Mapping[Secret, str]:
        """Fetch the secrets without a file, and with `again` also those that have changed; return the PEM of each.
        Raises DriverError."""
        wanted = [
            SecretRequest(balancer_id=owner.id, secret=secret, digest=_digest(kept.folder / secret.path))
            for secret, owner in _named(kept).items()
            if again or not (kept.folder / secret.path).exists()
        ]
        if not wanted:
            return {}
        if not is_in_memory(kept.folder):
            raise DriverError(
                f"{kept.folder} is not on a tmpfs, so keys are not written there: set agent.proxy_directory to a tmpfs"
            )
        answers = dict(zip((each.secret for each in wanted), await self.fetch(wanted), strict=True))
        for secret, found in answers.items():
            self._log_rejected(kept, secret, found)
        return {secret: found.pem for secret, found in answers.items() if found.pem}

    def _log_rejected(self, kept: StoredState, secret: Secret, found: SecretResponse) -> None:
        """Log a rejected secret once for each reason."""
        key = kept.folder, secret
        if found.error and self._rejected.get(key) != found.error:
            LOG.warning("proxy of %s: secret %r (%s): %s", kept.folder.name, secret.reference, secret.role, found.error)
        if found.error:
            self._rejected[key] = found.error
        else:
            self._rejected.pop(key, None)

    def reason(self, kept: StoredState, secret: Secret) -> str:
        return self._rejected.get((kept.folder, secret), "no response from any server")

    def write(self, kept: StoredState, texts: Mapping[Secret, str], before: dict[Secret, str]) -> None:
        """Write the secrets that rows still name. `before` receives the previous contents, for `restore`. Raises
        OSError."""
        named = _named(kept)
        for secret, text in texts.items():
            if secret in named:
                path = kept.folder / secret.path
                before[secret] = path.read_text() if path.exists() else ""
                self.rights.write_secret(path, text)

    def restore(self, kept: StoredState, before: Mapping[Secret, str]) -> None:
        """Restore the previous contents. Raises OSError."""
        for secret, text in before.items():
            if text:
                self.rights.write_secret(kept.folder / secret.path, text)
            else:
                (kept.folder / secret.path).unlink(missing_ok=True)

    def owners_of(self, kept: StoredState, secret: Secret) -> list[Owner]:
        """Return the owners with rows that name the secret."""
        return [owner for owner, rows in kept.owners.items() if secret in secrets_of(ours(rows).values())]

    def missing(self, kept: StoredState) -> frozenset[Secret]:
        return frozenset(secret for secret in _named(kept) if not (kept.folder / secret.path).exists())

    def prune(self, kept: StoredState) -> None:
        """Remove the files that no row names."""
        named = {kept.folder / secret.path for secret in _named(kept)}
        with contextlib.suppress(OSError):
            for path in (kept.folder / FOLDER).iterdir():
                if path not in named:
                    path.unlink()
        for folder, secret in list(self._rejected):
            if folder == kept.folder and folder / secret.path not in named:
                del self._rejected[folder, secret]


def _named(kept: StoredState) -> Mapping[Secret, Owner]:
    """Map each secret that rows name to one of the owners that name it."""
    return {secret: owner for owner, rows in kept.owners.items() for secret in secrets_of(ours(rows).values())}


def secrets_of(rows: Iterable[HAProxyRow]) -> Iterator[Secret]:
    for row in rows:
        if isinstance(row, Frontend | Backend):
            yield from row.secrets
        if isinstance(row, Certificate):
            yield row.secret


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return ""


def with_payload(kept: StoredState, command: Command) -> tuple[str, str, bool]:
    """Return a command's text, its secret as payload, and whether it may fail. Raises CommandFailed."""
    try:
        payload = (kept.folder / command.secret.path).read_text() if command.secret is not None else ""
    except OSError as error:
        raise CommandFailed(f"{command.text}: {error.strerror}") from None
    return command.text, payload, command.may_fail


def is_in_memory(folder: Path) -> bool:
    """Whether the folder is on a file system in memory (proc(5), mountinfo). A later mount covers earlier ones."""
    found, longest = "", -1
    real = folder.resolve()
    for line in MOUNTS.read_text().splitlines():
        fields, _, more = line.partition(" - ")
        point = Path(fields.split()[4].encode().decode("unicode_escape"))
        if real.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = more.split()[0], len(point.parts)
    return found in IN_MEMORY
