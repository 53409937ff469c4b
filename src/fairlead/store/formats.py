"""The format of documents, which each of them carries: `"format": 1`.

A format is a shape of every sort of document. A release reads all older ones: pure functions, one a step, make what is
read what it would be now, and it is stored so only when it is written next. It writes each document in the oldest
format that loses nothing of it (`down`), so a server of the release before goes on with all that uses nothing new. What
is newer than the newest here it leaves alone (`NewerDocument`).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import msgspec

from fairlead.model.owner import Kind
from fairlead.store.interface import StoreUnavailable

Json: TypeAlias = Mapping[str, Any]
NAME = "format"


class NewerDocument(StoreUnavailable):
    """A newer version of Fairlead wrote it: this one may neither read it nor guess. The message names the owner."""

    def __init__(self, key: str, why: str) -> None:
        super().__init__(f"{key}: a newer version of Fairlead wrote it: {why}")
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """From one format to the next. Sorts of documents that are not named are the same in both."""

    up: Mapping[Kind, Callable[[Json], Json]] = field(default_factory=dict)
    down: Mapping[Kind, Callable[[Json], Json | None]] | None = field(default_factory=dict)
    """Back again; None for a document of which something would be lost. No map at all: nothing is written so any
    more."""


def _action(policy: Json) -> Json:
    """Of a policy from when each had the attributes of every action."""
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
    """One from when each had one port."""
    ports = {} if "ports" in listener else {"ports": [[listener["port"], listener["port"]]]}
    return {**listener, **ports, "l7policies": [_action(each) for each in listener.get("l7policies", ())]}


def _numbered(balancer: Json) -> Json:
    return {**balancer, "listeners": [_listener(each) for each in balancer.get("listeners", ())]}


STEPS: Sequence[Step] = (Step(up={Kind.LOAD_BALANCER: _numbered}, down=None),)
"""The first is from 0: documents without a number, as several versions wrote them."""


def current() -> int:
    """The newest that this version knows."""
    return len(STEPS)


def upgraded(key: str, kind: Kind, document: Any) -> Any:
    """As this version would have written it. Raises NewerDocument; what the steps raise for what is no document."""
    number = document.get(NAME, 0) if isinstance(document, dict) else 0
    if type(number) is not int or number < 0:
        raise ValueError(f"its format is no number: {number!r}"[:100])
    if number > current():
        raise NewerDocument(key, f"its format is {number}, and this version knows those up to {current()}")
    for step in STEPS[number:]:
        if (up := step.up.get(kind)) is not None:
            document = up(document)
    return document


def written(kind: Kind, text: bytes) -> bytes:
    """With its number, in the oldest format that loses nothing."""
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
