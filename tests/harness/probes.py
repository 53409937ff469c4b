"""What probes say, taken in at once; the model does it in steps."""

from collections.abc import Mapping

from fairlead.model.facts import HEALTH, with_facts
from fairlead.model.health import Endpoint, Health
from fairlead.model.owner import Owner
from fairlead.model.snapshot import Snapshot


def observe(snapshot: Snapshot, news: Mapping[Endpoint, Health | None]) -> tuple[Snapshot, tuple[Owner, ...]]:
    """The snapshot that knows the news, and the owners in which somebody went down or came back."""
    learned = with_facts(snapshot, HEALTH, news)
    concerned = tuple(HEALTH.concerns(snapshot, learned, news))
    after = HEALTH.derive(learned, concerned)
    return after, HEALTH.differing(snapshot, after, concerned)
