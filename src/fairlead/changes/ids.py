"""Checks of ids that clients choose: a new object must not replace an existing one."""

from collections.abc import Container
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class IdInUse(Refusal):
    """The id is already used by another object."""

    id: str


def check_new(taken: Container[str], new_id: str) -> None:
    """Check that the id is not in use, in any project. Raises Refused."""
    if new_id in taken:
        raise Refused(IdInUse(id=new_id))
