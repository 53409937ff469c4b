"""Reasons why members and replicas are down, with the prober's error message if there is one."""

from collections import defaultdict
from collections.abc import Container, Iterator

from fairlead.model.documents.health import Endpoint, Health
from fairlead.model.documents.loadbalancer import LoadBalancer
from fairlead.model.documents.member_ports import probed_ports
from fairlead.model.queries.probes import Monitored, find_endpoint, monitored_pools, probed_members, why_down
from fairlead.model.queries.replica_probes import replica_endpoints
from fairlead.model.snapshot import Snapshot

MAX_LISTED_PORTS = 3
"""Maximum ports of one member that are listed with their errors."""
_PROBE_STATES = frozenset({Health.ERROR, Health.PARTLY})
"""States caused by probes; other states are their own reason."""


def explain_down(snapshot: Snapshot, probing: Monitored) -> dict[str, str]:
    """Map the id of each member or replica that is down at any of its ports to the reason."""
    why = why_down(snapshot, probing)
    errors = defaultdict[str, dict[int, str]](dict)
    for identity, endpoint in _endpoints(
        snapshot, probing, {key for key, health in why.items() if health in _PROBE_STATES}
    ):
        sighting = snapshot.sightings.get(endpoint)
        if sighting is not None and sighting.health is Health.ERROR and sighting.error:
            errors[identity][endpoint.port] = sighting.error
    return {identity: _format_reason(health, errors.get(identity, {})) for identity, health in why.items()}


def _format_reason(health: Health, errors: dict[int, str]) -> str:
    if not errors:
        return health.explanation
    if health is Health.ERROR and len(set(errors.values())) == 1:
        return next(iter(errors.values()))
    left = len(errors) - MAX_LISTED_PORTS
    named = "; ".join(f"port {number}: {error}" for number, error in list(errors.items())[:MAX_LISTED_PORTS])
    return f"{health.explanation}: {named}{f' and {left} more' if left > 0 else ''}"


def _endpoints(snapshot: Snapshot, probing: Monitored, ids: Container[str]) -> Iterator[tuple[str, Endpoint]]:
    """Yield the endpoints of these members or replicas."""
    if not isinstance(probing, LoadBalancer):
        yield from ((each.port_id, each) for each in replica_endpoints(snapshot, probing) if each.port_id in ids)
        return
    for pool, monitor, listeners in monitored_pools(probing):
        for member in probed_members(pool):
            for number in probed_ports(listeners, member) if member.id in ids else ():
                found = find_endpoint(snapshot, probing, monitor, member, number)
                if isinstance(found, Endpoint):
                    yield member.id, found
