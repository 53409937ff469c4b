"""Incus's error texts of rejections by the rules of projects and trust."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.http.front_end import ApiError
from fairlead.changes import projects, trust
from fairlead.changes.refusal import Refusal

_CHARACTERS = {"/": "slashes", " ": "spaces", "'": "quotes", '"': "quotes"}


def _name(why: projects.BadProjectName) -> ApiError:
    if why.empty:
        return ApiError(400, "No name provided")
    if why.too_long:
        return ApiError(400, "Project name is too long")
    found = next((_CHARACTERS[each] for each in why.characters if each in _CHARACTERS), None)
    return ApiError(400, f"Project names may not contain {found}" if found else f'Invalid project name "{why.name}"')


def _there(why: projects.ProjectExists) -> ApiError:
    return ApiError(409, f'Failed creating project "{why.name}": This "projects" entry already exists')


def _not_valid(why: trust.CertificateNotValid) -> ApiError:
    return ApiError(400, "The provided certificate " + ("is expired" if why.expired else "isn't valid yet"))


ERROR_TEXTS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {
    projects.NoSuchProject: lambda _: ApiError(404, "Project not found"),
    projects.ProjectExists: _there,
    projects.BadProjectName: _name,
    projects.ProjectInUse: lambda _: ApiError(400, "Only empty projects can be removed"),
    projects.DefaultProjectImmutable: lambda _: ApiError(403, "The 'default' project cannot be deleted"),
    projects.TooManyProjects: lambda why: ApiError(409, f"There are {why.most} projects already"),
    trust.NoSuchCertificate: lambda _: ApiError(404, "Certificate not found"),
    trust.AmbiguousCertificate: lambda _: ApiError(400, "More than one certificate matches"),
    trust.CertificateExists: lambda _: ApiError(409, "Certificate already in trust store"),
    trust.CertificateNotValid: _not_valid,
    trust.CertificateNotChangeable: lambda _: ApiError(403, "Only the certificate can be changed"),
    trust.TooManyCertificates: lambda why: ApiError(409, f"There are {why.most} certificates already"),
    trust.NoSuchToken: lambda _: ApiError(404, "Operation not found"),
    trust.TooManyTokens: lambda why: ApiError(409, f"There are {why.most} tokens already; revoke some"),
}
