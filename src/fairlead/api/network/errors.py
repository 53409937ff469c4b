"""Errors of the Neutron API: its exception classes, status codes and texts, which clients print unchanged.

Names and texts are those of neutron-lib (exceptions/__init__.py, l3.py, extraroute.py) and neutron (ipam/exceptions.py,
extensions/tagging.py). Full stops follow Neutron, which is inconsistent; the same holds for `refusals.py`, which has
the errors of the rules.
"""

from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, json_response
from fairlead.schema import Schema, object_schema

_NAMES = {"floatingip": "Floating IP", "local_ip": "Local IP"}
"""Names of resources in texts, where they differ from the singular."""
_TEXT: Schema = {"type": "string"}
_ERROR = object_schema({"type": _TEXT, "message": _TEXT, "detail": _TEXT}, ["type", "message", "detail"])
FAULT: Schema = object_schema({"NeutronError": _ERROR}, ["NeutronError"])


def fault(status: int, kind: str, message: str) -> Response:
    return json_response({"NeutronError": {"type": kind, "message": message, "detail": ""}}, status)


def bad_request(message: str) -> ApiError:
    return ApiError(400, message, "HTTPBadRequest")


def bad_resource(resource: str, message: str) -> ApiError:
    return ApiError(400, f"Bad {resource} request: {message}.", "BadRequest")


def bad_attribute(name: str, reason: str) -> ApiError:
    return bad_request(f"Invalid input for {name}. Reason: {reason.rstrip('.')}.")


def invalid_input(message: str) -> ApiError:
    return ApiError(400, f"Invalid input for operation: {message}.", "InvalidInput")


def forbidden(rule: str) -> ApiError:
    return ApiError(403, f"{rule} is disallowed by policy", "PolicyNotAuthorized")


def not_found(resource: str, identity: str) -> ApiError:
    """Return 404; `resource` is Neutron's singular."""
    name = _NAMES.get(resource, resource.capitalize())
    stop = "" if resource in ("router", "floatingip") else "."
    return ApiError(404, f"{name} {identity} could not be found{stop}", f"{name.replace(' ', '')}NotFound")


def tag_not_found(tag: str) -> ApiError:
    return ApiError(404, f"Tag {tag} could not be found.", "TagNotFound")


def revision_mismatch(expected: int, current: int) -> ApiError:
    return ApiError(
        412, f"Constrained to {expected}, but current revision is {current}", "RevisionNumberConstraintFailed"
    )


def segments_and_provider() -> ApiError:
    return ApiError(400, "Segments and provider values cannot both be set.", "SegmentsSetInConjunctionWithProviders")
