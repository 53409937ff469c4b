"""What all changes of a resource have in common."""

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from fairlead.model.kinds import owner_of
from fairlead.model.network import Resource
from fairlead.model.snapshot import Aggregate, Snapshot
from fairlead.model.writing import Changes

R = TypeVar("R", bound=Resource)


def revised(old: R, new: R, now: datetime) -> R:
    """The new one, revised now; or the very same old one if nothing differs, for then there is nothing to write."""
    return old if new == old else replace(new, updated_at=now)


def rewrite(snapshot: Snapshot, document: Aggregate) -> Changes:
    """Nothing, if the document is as it was."""
    return Changes() if snapshot.find(owner_of(document)) == document else Changes(puts=(document,))
