"""Who asks for a change, and what is theirs: the same for every door."""

from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused

DEFAULT_PROJECT = "default"
"""Of who names none, where a door lets callers name one."""
LONGEST_PROJECT = 36
"""Characters of a project's id (octavia, db/models.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who calls. `roles` are Keystone's words: admin, member, reader; a door may know more."""

    user: str
    project_id: str
    roles: frozenset[str]
    chassis: frozenset[str] = frozenset()
    """The nodes for which the caller's agents may speak."""
    projects: frozenset[str] = frozenset()
    """Those that the caller may name instead of `project_id`, where a door lets them choose."""
    system: bool = False
    """They speak for the whole deployment, and for no project: a reader sees what all projects have. `project_id` is
    empty then."""

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles

    @property
    def may_limit(self) -> bool:
        """Whether they say how much projects may have."""
        return self.is_admin

    def may_see(self, project_id: str) -> bool:
        if self.system:
            return self.is_admin or "reader" in self.roles
        return self.is_admin or (project_id == self.project_id and bool(self.roles & {"member", "reader"}))

    def may_change(self, project_id: str) -> bool:
        return self.is_admin or (not self.system and project_id == self.project_id and "member" in self.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAnAdministrator(Refusal):
    """Only those who run the deployment may do this, and those whom a door's policy lets."""


def check_administers(allowed: bool) -> None:
    """Raises Refused."""
    if not allowed:
        raise Refused(NotAnAdministrator())
