"""What the rules of balancers refuse, in LXD's words."""

from collections.abc import Callable, Mapping
from typing import Any

from fairlead.api.door import ApiError
from fairlead.changes.refusal import Refusal

WORDS: Mapping[type[Refusal], Callable[[Any], ApiError]] = {}
