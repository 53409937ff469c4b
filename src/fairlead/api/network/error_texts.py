"""Error texts of rejections: status code, Neutron's exception class, and text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NeutronErrorText:
    """Error of a rejection; `text` is a format string with the rejection as `why`."""

    status: int
    kind: str
    text: str


def invalid_input_text(text: str) -> NeutronErrorText:
    return NeutronErrorText(400, "InvalidInput", f"Invalid input for operation: {text}.")


def bad_resource_text(resource: str, text: str) -> NeutronErrorText:
    return NeutronErrorText(400, "BadRequest", f"Bad {resource} request: {text}.")


def in_use_text(reason: str) -> NeutronErrorText:
    text = f"Port {{why.port_id}} cannot be deleted directly via the port API: {reason}."
    return NeutronErrorText(409, "ServicePortInUse", text)
