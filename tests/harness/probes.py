"""What probes say, taken in at once; the model does it in steps."""

from collections.abc import Mapping

from fairlead.model.health import Endpoint, Health
from fairlead.model.owner import Owner
from fairlead.model.probes import changed_health, derive_health, learn
from fairlead.model.snapshot import Snapshot


def observe(snapshot: Snapshot, news: Mapping[Endpoint, Health | None]) -> tuple[Snapshot, tuple[Owner, ...]]:
    """The snapshot that knows the news, and the owners in which somebody went down or came back."""
    learned, concerned = learn(snapshot, news)
    after = derive_health(learned, *concerned)
    return after, changed_health(snapshot, after, concerned)
