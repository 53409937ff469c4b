"""The formats of documents as the next release could have them: one more than today.

A network that is called `new-...` has something that the format before cannot say; all others are written as before.
"""

from collections.abc import Sequence

from fairlead.model.owner import Kind
from fairlead.store import formats
from fairlead.store.formats import Json, Step


def _down(network: Json) -> Json | None:
    return None if network["name"].startswith("new-") else network


NEWER: Sequence[Step] = (*formats.STEPS, Step(down={Kind.NETWORK: _down}))
