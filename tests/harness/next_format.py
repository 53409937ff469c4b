"""Document formats of a hypothetical next release: the current ones and one more.

The previous format cannot express a network named `new-...`; all other documents are written as before.
"""

from collections.abc import Sequence

from fairlead.model.documents.owner import Kind
from fairlead.store import formats
from fairlead.store.formats import FormatStep, Json


def _down(network: Json) -> Json | None:
    return None if network["name"].startswith("new-") else network


NEWER: Sequence[FormatStep] = (*formats.STEPS, FormatStep(down={Kind.NETWORK: _down}))
