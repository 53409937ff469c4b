"""How refusals are worded: Neutron's code, its class of error, and its sentence."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    """`text` is a format that names what it takes from the refusal, `why`."""

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
