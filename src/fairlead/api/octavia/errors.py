"""Octavia's errors: its words, its codes, and the one body (WSME's) that all its clients read.

Octavia itself answers some errors in a second form (pecan's); clients look for `faultstring` first, so this door always
gives that one.
"""

from starlette.responses import Response

from fairlead.api.door import ApiError, json_response
from fairlead.api.fields import NULL, BadField, MissingField, Schema, UnknownField, object_schema
from fairlead.changes import addresses
from fairlead.changes.refusal import Refusal

FAULT: Schema = object_schema(
    {"faultcode": {"enum": ["Client", "Server"]}, "faultstring": {"type": "string"}, "debuginfo": NULL},
    ["faultcode", "faultstring", "debuginfo"],
)


def fault(status: int, message: str) -> Response:
    code = "Server" if status >= 500 else "Client"
    return json_response({"faultcode": code, "faultstring": message, "debuginfo": None}, status)


def not_found(resource: str, identity: str) -> ApiError:
    return ApiError(404, f"{resource} {identity} not found.")


def bad_request(detail: str) -> ApiError:
    return ApiError(400, f"Validation failure: {detail}")


def missing_subresource(resource: str, identity: str) -> ApiError:
    """Something that the request refers to is not there: 400, though it says not found."""
    return ApiError(400, f"{resource} {identity} not found.")


def invalid_option(value: object, option: str) -> ApiError:
    return ApiError(400, f"{_shown(value)} is not a valid option for {option}")


def no_children(protocol: str) -> ApiError:
    return ApiError(400, f"Protocol {protocol} listeners cannot have child objects.")


def forbidden() -> ApiError:
    return ApiError(403, "Policy does not allow this request to be performed.")


def disallowed(rule: str) -> ApiError:
    """What Neutron says where Octavia asks it for something that the caller may not have."""
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


def say(why: Refusal) -> ApiError:
    """A refusal of the rules in Octavia's words."""
    match why:
        case addresses.AddressOutsideSubnet():
            return bad_request(f"VIP address {why.address} is not a valid IP for subnet {why.subnet_id} ({why.cidr}).")
        case addresses.AddressTaken():
            return ApiError(409, f"The VIP IP address is already in use: {why.address}")
        case addresses.NoFreeAddress():
            return ApiError(409, f"No more IP addresses available on subnet {why.subnet_id}.")
        case addresses.NoSubnetOnNetwork():
            which = "" if why.address is None else " for VIP address specified"
            return bad_request(f"Supplied network does not contain a subnet{which}.")
    raise TypeError(f"there are no words for {why}")


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
