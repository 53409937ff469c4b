"""Error texts of rejections: status code, Neutron's exception class, and text."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """Error of a rejection; `text` is a format string with the rejection as `why`."""

    status: int
    kind: str
    text: str


def invalid(text: str) -> Words:
    return Words(400, "InvalidInput", f"Invalid input for operation: {text}.")


def bad(resource: str, text: str) -> Words:
    return Words(400, "BadRequest", f"Bad {resource} request: {text}.")


def serves(reason: str) -> Words:
    text = f"Port {{why.port_id}} cannot be deleted directly via the port API: {reason}."
    return Words(409, "ServicePortInUse", text)
