"""Log lines of a reconciler: one for each applied owner, or one for a whole batch."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fairlead.dataplane.rows import Diff
from fairlead.drivers.interface import MissingReference, Unavailable
from fairlead.model.documents.owner import Owner
from fairlead.model.registry.display_names import describe_owner
from fairlead.model.snapshot import Snapshot
from fairlead.reconciler.owner_states import ApplyRecord

MAX_LINES = 20
"""Maximum lines for one transaction; a larger batch gets a single line with counts."""
MAX_CAUSES = 8
"""Maximum request ids kept for one owner and logged in one line, so that a burst of changes stays readable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedOwner:
    """An applied owner and the ids of the requests that caused the apply."""

    work: ApplyRecord
    generation: int
    causes: Sequence[str]


class ApplyLog:
    def __init__(self, snapshot: Callable[[], Snapshot], logger: logging.Logger) -> None:
        self._snapshot, self._logger = snapshot, logger

    def describe_owner(self, owner: Owner) -> str:
        return describe_owner(self._snapshot(), owner)

    def log_applied(self, some: Sequence[AppliedOwner]) -> None:
        """Log the changed owners of one transaction."""
        if len(some) > MAX_LINES:
            self._applied_many(some)
            return
        for each in some:
            work = each.work
            took = round((work.compiling + work.applying) * 1000, 1)
            news = {"owner": str(work.owner), "generation": each.generation, **_counts([work.change])}
            name = self.describe_owner(work.owner)
            words = f"applied {name} generation {each.generation}: {work.change.counts} in {took} ms"
            self._log(words, {**news, "milliseconds": took}, each.causes)

    def _applied_many(self, some: Sequence[AppliedOwner]) -> None:
        took = round(sum(each.work.compiling + each.work.applying for each in some) * 1000, 1)
        counts = _counts([each.work.change for each in some])
        causes = [*dict.fromkeys(cause for each in some for cause in each.causes)][:MAX_CAUSES]
        sums = "+{created} ~{updated} -{deleted}".format(**counts)
        first = self.describe_owner(some[0].work.owner)
        words = f"applied {first} and {len(some) - 1} more together: {sums} in {took} ms"
        self._log(words, {"owners": len(some), **counts, "milliseconds": took}, causes)
        if self._logger.isEnabledFor(logging.DEBUG):
            for each in some:
                self._logger.debug("applied %s generation %d", each.work.owner, each.generation)

    def _log(self, words: str, fields: dict[str, object], causes: Sequence[str]) -> None:
        asked = f"{words} for {', '.join(causes)}" if causes else words
        self._logger.info("%s", asked, extra={"fields": {**fields, "requests": causes}})

    def log_failed(self, owner: Owner, error: Exception, causes: Sequence[str]) -> None:
        level = logging.DEBUG if isinstance(error, Unavailable | MissingReference) else logging.WARNING
        asked = f" for {', '.join(causes)}" if causes else ""
        self._logger.log(
            level,
            *("could not apply %s%s: %s", self.describe_owner(owner), asked, error),
            extra={"fields": {"owner": str(owner), "requests": causes, "error": str(error)}},
        )

    def log_contention(self, owner: Owner, what: str, error: str, fields: dict[str, object]) -> None:
        """Log contention: another writer keeps changing the owner's rows.

        `what` describes the change; "" on a standby, which only watches and logs at DEBUG.
        """
        self._logger.log(
            logging.WARNING if what else logging.DEBUG,
            *("%s: %s: %s", self.describe_owner(owner), error, what),
            extra={"fields": {"owner": str(owner), **fields, "change": what}},
        )

    def log_drift(self, owner: Owner, what: str) -> None:
        level = logging.WARNING if what else logging.DEBUG
        self._logger.log(level, "another program changed rows of %s: %s", self.describe_owner(owner), what)


def _counts(changes: Sequence[Diff]) -> dict[str, int]:
    return {
        "created": sum(len(each.creates) for each in changes),
        "updated": sum(len(each.updates) for each in changes),
        "deleted": sum(len(each.deletes) for each in changes),
    }
