"""Format versions of documents; each document carries its number: `"format": 1`.

A format defines the shape of every kind of document. A release reads all older formats: pure functions, one per step,
upgrade a document when it is read. The upgraded form is stored only with the next write of the document. Documents are
written in the oldest format that loses nothing (`down`), so that servers of the previous release keep working during an
upgrade. Newer documents are left unchanged (`NewerDocument`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from fairlead.model.documents.owner import Kind
from fairlead.store.interface import StoreUnavailable

Json: TypeAlias = Mapping[str, Any]
NAME = "format"


class NewerDocument(StoreUnavailable):
    """A newer version of Fairlead wrote the document; this version cannot interpret it. The message names the owner."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: written by a newer version of Fairlead: {why}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatStep:
    """Step from one format to the next. Kinds that are not listed are equal in both."""

    up: Mapping[Kind, Callable[[Json], Json]] = field(default_factory=dict)
    down: Mapping[Kind, Callable[[Json], Json | None]] | None = field(default_factory=dict)
    """Downgrade functions, which return None for a document that would lose something. None: a step without undo."""


def _action(policy: Json) -> Json:
    """Upgrade the action of an L7 policy, which formerly had the attributes of every action."""
    kind = policy["action"]
    if not isinstance(kind, str):
        return policy
    code = policy["redirect_http_code"]
    action = {
        "REJECT": {},
        "REDIRECT_TO_POOL": {"pool_id": policy["redirect_pool_id"]},
        "REDIRECT_TO_URL": {"url": policy["redirect_url"], "code": code},
        "REDIRECT_PREFIX": {"prefix": policy["redirect_prefix"], "code": code},
    }[kind]
    return {**policy, "action": {"type": kind, **action}}


def _listener(listener: Json) -> Json:
    """Upgrade a listener, which formerly had exactly one port."""
    ports = {} if "ports" in listener else {"ports": [[listener["port"], listener["port"]]]}
    return {**listener, **ports, "l7policies": [_action(each) for each in listener.get("l7policies", ())]}


def _numbered(balancer: Json) -> Json:
    return {**balancer, "listeners": [_listener(each) for each in balancer.get("listeners", ())]}


STEPS: Sequence[FormatStep] = (FormatStep(up={Kind.LOAD_BALANCER: _numbered}, down=None),)
"""The first step upgrades from format 0, documents without a number."""


def current() -> int:
    """Newest format that this version knows."""
    return len(STEPS)


def upgraded(key: str, kind: Kind, document: Any) -> Any:
    """Upgrade a document to the current format. Raises NewerDocument, and any error of a step for invalid ones."""
    number = document.get(NAME, 0) if isinstance(document, dict) else 0
    if type(number) is not int or number < 0:
        raise ValueError(f"format is not a number: {number!r}"[:100])
    if number > current():
        raise NewerDocument(key, f"format {number}, but this version reads formats up to {current()}")
    for step in STEPS[number:]:
        if (up := step.up.get(kind)) is not None:
            document = up(document)
    return document


def with_format(kind: Kind, text: bytes) -> bytes:
    """Add the format number to a document, in the oldest format that loses nothing."""
    number, document = current(), None
    for step in reversed(STEPS):
        if step.down is None:
            break
        if (down := step.down.get(kind)) is not None:
            lower = down(msgspec.json.decode(text) if document is None else document)
            if lower is None:
                break
            document = lower
        number -= 1
    rest = text if document is None else msgspec.json.encode(document)
    return b'{"%s":%d,' % (NAME.encode(), number) + rest[1:]
