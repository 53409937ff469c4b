"""Errors of the Octavia API: its texts, its status codes and WSME's body format.

Octavia itself formats some errors differently (pecan's format). Clients look for `faultstring` first, so this front end
always uses the WSME format.
"""

from collections.abc import Mapping

from starlette.responses import Response

from fairlead.api.http.front_end import ApiError, json_response
from fairlead.model.documents.quota import QuotaResource
from fairlead.schema import NULL, BadField, MissingField, Schema, UnknownField, object_schema

FAULT: Schema = object_schema(
    {"faultcode": {"enum": ["Client", "Server"]}, "faultstring": {"type": "string"}, "debuginfo": NULL},
    ["faultcode", "faultstring", "debuginfo"],
)

NAMES: Mapping[QuotaResource, str] = {
    QuotaResource.LOAD_BALANCER: "Load Balancer",
    QuotaResource.LISTENER: "Listener",
    QuotaResource.POOL: "Pool",
    QuotaResource.MEMBER: "Member",
    QuotaResource.HEALTH_MONITOR: "Health Monitor",
    QuotaResource.L7POLICY: "L7 Policy",
    QuotaResource.L7RULE: "L7 Rule",
    QuotaResource.PORT: "Port",
}
"""Octavia's resource names (common/data_models.py, `_enqueue`), and the port of a VIP, which Neutron counts."""
COOKIES_OF_DATAGRAMS = "Session persistence of type {} is not supported for UDP/SCTP protocol pools."


def fault(status: int, message: str) -> Response:
    code = "Server" if status >= 500 else "Client"
    return json_response({"faultcode": code, "faultstring": message, "debuginfo": None}, status)


def not_found(resource: str, identity: str) -> ApiError:
    return ApiError(404, f"{resource} {identity} not found.")


def bad_request(detail: str) -> ApiError:
    return ApiError(400, f"Validation failure: {detail}")


def missing_subresource(resource: str, identity: str) -> ApiError:
    """Return 400 for a reference to a missing object, as Octavia does, although the text is "not found"."""
    return ApiError(400, f"{resource} {identity} not found.")


def invalid_option(value: object, option: str) -> ApiError:
    return ApiError(400, f"{_shown(value)} is not a valid option for {option}")


def forbidden() -> ApiError:
    return ApiError(403, "Policy does not allow this request to be performed.")


def missing_project() -> ApiError:
    """Return the error for a caller with system scope that creates an object without a project."""
    return bad_request(
        "Missing project ID in request where one is required. An administrator should check the keystone settings in"
        " the Octavia configuration."
    )


def disallowed(rule: str) -> ApiError:
    """Return Neutron's error for a port attribute that the caller may not set, as Octavia passes it on."""
    return ApiError(403, f"{rule} is disallowed by policy")


def bad_field(error: BadField) -> ApiError:
    return ApiError(
        400, f"Invalid input for field/attribute {error.name}. Value: '{_shown(error.value)}'. {error.reason}"
    )


def missing_field(error: MissingField) -> ApiError:
    return ApiError(400, f"Invalid input for field/attribute {error.name}. Value: 'None'. Mandatory field missing.")


def unknown_field(argument: str, error: UnknownField) -> ApiError:
    what = "attribute" if len(error.names) == 1 else "attributes"
    return ApiError(400, f"Unknown {what} for argument {'.'.join([argument, *error.path])}: {', '.join(error.names)}")


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
