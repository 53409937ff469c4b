"""Helpers shared by all changes of resources."""

from dataclasses import replace
from datetime import datetime
from typing import TypeVar

from fairlead.model.documents.network import Resource
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import owner_of
from fairlead.model.snapshot import Aggregate, Snapshot

R = TypeVar("R", bound=Resource)


def with_update_time(old: R, new: R, now: datetime) -> R:
    """Return the new version with the time of the change, or the identical old object if nothing differs. There is
    nothing to write then."""
    return old if new == old else replace(new, updated_at=now)


def put_if_changed(snapshot: Snapshot, document: Aggregate) -> Changes:
    """Return the change that writes the document; empty if it is unchanged."""
    return Changes() if snapshot.find(owner_of(document)) == document else Changes(puts=(document,))
