"""Ids that are given: what is new never takes the place of what is there, whoever chose its id."""

from collections.abc import Container
from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class IdTaken(Refusal):
    """An id that was given is already that of something else."""

    id: str


def check_new(taken: Container[str], new_id: str) -> None:
    """`taken` are the ids of all that the new one could take the place of, whoever owns it. Raises Refused."""
    if new_id in taken:
        raise Refused(IdTaken(id=new_id))
