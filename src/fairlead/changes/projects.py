"""Projects as things of their own. One that nobody made is there while it has a network.

Raises Refused, as all of these do.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fairlead.changes.identity import DEFAULT_PROJECT, LONGEST_PROJECT, Identity, check_administers
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import rewrite
from fairlead.model.owner import Kind, Owner
from fairlead.model.quota import Counted
from fairlead.model.snapshot import EVERYBODY, Aggregate, Snapshot
from fairlead.model.trust import MOST_PROJECTS, Project
from fairlead.model.writing import Changes

RESERVED = "/\\'\"*&?#%,:"
"""What has a meaning in a URL, or between names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchProject(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectIsThere(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadProjectName(Refusal):
    """`why` is what makes it none: empty, too long, or with these characters."""

    name: str
    empty: bool = False
    too_long: bool = False
    characters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectInUse(Refusal):
    """Something is the project's still."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultProjectStays(Refusal):
    """It is there always."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyProjects(Refusal):
    most: int


def is_project(snapshot: Snapshot, name: str) -> bool:
    made = name == DEFAULT_PROJECT or name in snapshot.projects
    return made or (name != EVERYBODY and name in snapshot.project_networks)


def all_projects(snapshot: Snapshot) -> list[str]:
    """Their names, in order."""
    return sorted({DEFAULT_PROJECT, *snapshot.projects, *snapshot.project_networks} - {EVERYBODY})


def find_project(snapshot: Snapshot, asker: Identity, name: str) -> Project:
    """One that nobody made has nothing to say of itself. A project of others is not there for who may not see it."""
    if not is_project(snapshot, name) or not (asker.may_see(name) or name in asker.projects):
        raise Refused(NoSuchProject(name=name))
    return snapshot.projects.get(name) or Project(name=name)


def create_project(snapshot: Snapshot, asker: Identity, project: Project) -> Changes:
    """Of one that is there because it has networks, too: from then on it stays without them."""
    check_administers(asker.is_admin)
    check_name(project.name)
    if project.name == DEFAULT_PROJECT or project.name in snapshot.projects:
        raise Refused(ProjectIsThere(name=project.name))
    if len(snapshot.projects) >= MOST_PROJECTS:
        raise Refused(TooManyProjects(most=MOST_PROJECTS))
    return Changes(puts=(project,), rests_on_absence=True)


def change_project(snapshot: Snapshot, asker: Identity, project: Project) -> Changes:
    check_administers(asker.is_admin)
    if not is_project(snapshot, project.name):
        raise Refused(NoSuchProject(name=project.name))
    return rewrite(snapshot, project)


def delete_project(snapshot: Snapshot, asker: Identity, name: str) -> Changes:
    """One that has nothing. Whoever was restricted to it is no more: it may be another's name one day."""
    check_administers(asker.is_admin)
    if name == DEFAULT_PROJECT:
        raise Refused(DefaultProjectStays())
    if not is_project(snapshot, name):
        raise Refused(NoSuchProject(name=name))
    if any((name, what) in snapshot.usage for what in Counted) or name in snapshot.project_networks:
        raise Refused(ProjectInUse(name=name))
    deletes = (Owner(Kind.PROJECT, name),) if name in snapshot.projects else ()
    return Changes(puts=tuple(_without(snapshot, name)), deletes=deletes, rests_on_absence=True)


def _without(snapshot: Snapshot, name: str) -> Iterator[Aggregate]:
    """The certificates and tokens that were restricted to the project, as they are without."""
    for grant in (*snapshot.certificates.values(), *snapshot.trust_tokens.values()):
        if name in grant.projects:
            yield replace(grant, projects=tuple(each for each in grant.projects if each != name))


def check_name(name: str) -> None:
    """It stands in URLs, and is the `project_id` of what the project has. Raises Refused."""
    if not name:
        raise Refused(BadProjectName(name=name, empty=True))
    if len(name) > LONGEST_PROJECT:
        raise Refused(BadProjectName(name=name, too_long=True))
    wrong = "".join(sorted({each for each in name if each in RESERVED or not each.isprintable() or each.isspace()}))
    if wrong or name in (".", ".."):
        raise Refused(BadProjectName(name=name, characters=wrong or "."))
