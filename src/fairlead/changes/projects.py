"""Explicitly created projects. Other projects exist implicitly while they have a network.

All rules here raise Refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fairlead.changes.identity import DEFAULT_PROJECT, MAX_PROJECT_ID_LENGTH, Identity, check_administers
from fairlead.changes.refusal import Refusal, Refused
from fairlead.changes.resources import put_if_changed
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.quota import QuotaResource
from fairlead.model.documents.trust import MAX_PROJECTS, Project
from fairlead.model.registry.changeset import Changes
from fairlead.model.snapshot import ANY_PROJECT, Aggregate, Snapshot

RESERVED_CHARACTERS = "/\\'\"*&?#%,:"
"""Characters with a meaning in URLs or in lists of names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoSuchProject(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectExists(Refusal):
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BadProjectName(Refusal):
    """The name is empty, too long, or contains `characters`."""

    name: str
    empty: bool = False
    too_long: bool = False
    characters: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectInUse(Refusal):
    """The project has resources."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DefaultProjectImmutable(Refusal):
    """The default project cannot be created or deleted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyProjects(Refusal):
    most: int


def is_project(snapshot: Snapshot, name: str) -> bool:
    made = name == DEFAULT_PROJECT or name in snapshot.projects
    return made or (name != ANY_PROJECT and name in snapshot.project_networks)


def all_projects(snapshot: Snapshot) -> list[str]:
    """Return the sorted names of all projects."""
    return sorted({DEFAULT_PROJECT, *snapshot.projects, *snapshot.project_networks} - {ANY_PROJECT})


def find_project(snapshot: Snapshot, asker: Identity, name: str) -> Project:
    """Return a project that the caller may see; an implicit project has default attributes."""
    if not is_project(snapshot, name) or not (asker.may_see(name) or name in asker.projects):
        raise Refused(NoSuchProject(name=name))
    return snapshot.projects.get(name) or Project(name=name)


def create_project(snapshot: Snapshot, asker: Identity, project: Project) -> Changes:
    """Create a project. An implicit project becomes explicit, so it remains without networks."""
    check_administers(asker.is_admin)
    check_name(project.name)
    if project.name == DEFAULT_PROJECT or project.name in snapshot.projects:
        raise Refused(ProjectExists(name=project.name))
    if len(snapshot.projects) >= MAX_PROJECTS:
        raise Refused(TooManyProjects(most=MAX_PROJECTS))
    return Changes(puts=(project,), requires_unchanged_model=True)


def change_project(snapshot: Snapshot, asker: Identity, project: Project) -> Changes:
    check_administers(asker.is_admin)
    if not is_project(snapshot, project.name):
        raise Refused(NoSuchProject(name=project.name))
    return put_if_changed(snapshot, project)


def delete_project(snapshot: Snapshot, asker: Identity, name: str) -> Changes:
    """Delete a project without resources. Certificates and tokens lose their permission for it,
    because the name may be reused."""
    check_administers(asker.is_admin)
    if name == DEFAULT_PROJECT:
        raise Refused(DefaultProjectImmutable())
    if not is_project(snapshot, name):
        raise Refused(NoSuchProject(name=name))
    if any((name, what) in snapshot.usage for what in QuotaResource) or name in snapshot.project_networks:
        raise Refused(ProjectInUse(name=name))
    deletes = (Owner(Kind.PROJECT, name),) if name in snapshot.projects else ()
    return Changes(puts=tuple(_without(snapshot, name)), deletes=deletes, requires_unchanged_model=True)


def _without(snapshot: Snapshot, name: str) -> Iterator[Aggregate]:
    """Yield the certificates and tokens with a permission for the project, without that permission."""
    for grant in (*snapshot.certificates.values(), *snapshot.trust_tokens.values()):
        if name in grant.projects:
            yield replace(grant, projects=tuple(each for each in grant.projects if each != name))


def check_name(name: str) -> None:
    """Check a project's name, which is part of URLs and the `project_id` of its resources. Raises Refused."""
    if not name:
        raise Refused(BadProjectName(name=name, empty=True))
    if len(name) > MAX_PROJECT_ID_LENGTH:
        raise Refused(BadProjectName(name=name, too_long=True))
    wrong = "".join(
        sorted({each for each in name if each in RESERVED_CHARACTERS or not each.isprintable() or each.isspace()})
    )
    if wrong or name in (".", ".."):
        raise Refused(BadProjectName(name=name, characters=wrong or "."))
