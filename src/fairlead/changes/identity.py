"""Identity of a caller and its permissions, the same for every API front end."""

from dataclasses import dataclass

from fairlead.changes.refusal import Refusal, Refused

DEFAULT_PROJECT = "default"
"""Project of callers that specify none, in front ends where callers may specify one."""
MAX_PROJECT_ID_LENGTH = 36
"""Maximum length of a project's id, in characters (octavia, db/models.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Authenticated caller. `roles` are Keystone's (admin, member, reader); a front end may add others."""

    user: str
    project_id: str
    roles: frozenset[str]
    chassis: frozenset[str] = frozenset()
    """Chassis that the caller's agents may act for."""
    projects: frozenset[str] = frozenset()
    """Projects that the caller may select instead of `project_id`, in front ends with a selection."""
    system: bool = False
    """Whether the scope is the system and not a project: a reader then sees the resources of all projects.
    `project_id` is empty."""

    @property
    def is_admin(self) -> bool:
        return "admin" in self.roles

    @property
    def may_change_quotas(self) -> bool:
        """Whether the caller may change quotas."""
        return self.is_admin

    def may_see(self, project_id: str) -> bool:
        if self.system:
            return self.is_admin or "reader" in self.roles
        return self.is_admin or (project_id == self.project_id and bool(self.roles & {"member", "reader"}))

    def may_change(self, project_id: str) -> bool:
        return self.is_admin or (not self.system and project_id == self.project_id and "member" in self.roles)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotAnAdministrator(Refusal):
    """The operation is reserved for administrators, and for callers that the front end's policy permits."""


def check_administers(allowed: bool) -> None:
    """Raise Refused unless `allowed`."""
    if not allowed:
        raise Refused(NotAnAdministrator())
