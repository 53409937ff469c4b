"""A load balancer that another provider of the same service has: it is prepared, and then it is taken.

Prepared it is a whole load balancer with all that it claims, and whatever cannot be had is refused then; only it has no
rows, and what the other provider wrote serves. The service says meanwhile whose it is. Taken, its rows come in one step
with the end of the other's. So whoever is killed in between leaves something that serves.
"""

from dataclasses import replace

from fairlead.changes.asker import Asker
from fairlead.changes.balancers import find_to_change
from fairlead.changes.finding import NoSuch
from fairlead.changes.refusal import Refused
from fairlead.model.loadbalancer import Takeover
from fairlead.model.quota import Counted
from fairlead.model.snapshot import Snapshot
from fairlead.model.writing import Changes


def take_over(snapshot: Snapshot, asker: Asker, balancer_id: str) -> Changes:
    """No change of one that has been taken, or was nobody's. Raises Refused, if no service has such a one."""
    balancer = find_to_change(snapshot, balancer_id, asker)
    if balancer.kept is None:
        raise Refused(NoSuch(what=Counted.LOAD_BALANCER, id=balancer_id))
    if balancer.kept.takeover is not Takeover.PREPARED:
        return Changes()
    taken = replace(balancer.kept, takeover=Takeover.TAKEN)
    return Changes(puts=(replace(balancer, kept=taken, updated_at=asker.now),))
