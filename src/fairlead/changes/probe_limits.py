"""Limits of probes: the minimum delay of a monitor, and the maximum rate of a project and to a port."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from fairlead.changes.monitor_checks import DelayTooShort
from fairlead.changes.refusal import Refusal, Refused
from fairlead.model.documents.loadbalancer import HealthMonitor, LoadBalancer
from fairlead.model.documents.local_ip import LocalIP, ReplicaMonitor
from fairlead.model.documents.quota import MILLION, UNLIMITED, ProbeLimits, probe_rates
from fairlead.model.queries.probes import Monitored, find_monitored, find_probed_port, probes_of_port
from fairlead.model.registry.changeset import Changes
from fairlead.model.registry.kinds import PLACE_PROBE_RATES, owner_of
from fairlead.model.snapshot import Snapshot


@dataclass(frozen=True, slots=True, kw_only=True)
class TooManyProbes(Refusal):
    """The probe rate of a project, or to one port, exceeds its limit."""

    per_second: int
    port_id: str | None = None


def check_probes(allowed: ProbeLimits, snapshot: Snapshot, changes: Changes) -> Changes:
    """Check the delay of new monitors, and the probe rates of projects and ports. Raises Refused.

    Existing monitors may remain as they are when a limit is lowered.
    """
    limited = False
    for new in changes.puts:
        if isinstance(new, LoadBalancer | LocalIP):
            old = find_monitored(snapshot, owner_of(new))
            _check_delays(allowed.min_delay, old, new)
            limited = _check_rates(allowed, snapshot, old, new) or limited
    return replace(changes, requires_unchanged_model=True) if limited else changes


def _check_delays(least: int, old: Monitored | None, new: Monitored) -> None:
    known = _monitors(old)
    for identity, monitor in _monitors(new).items():
        before = known.get(identity)
        is_new = before is None or monitor.interval_seconds != before.interval_seconds
        if is_new and monitor.interval_seconds < least and least > 1:
            raise Refused(DelayTooShort(type=monitor.type, delay=monitor.delay, least=least))


def _monitors(probing: Monitored | None) -> Mapping[str, HealthMonitor | ReplicaMonitor]:
    """Return the monitors by the id of their pool or Local IP."""
    match probing:
        case LoadBalancer(pools=pools):
            return {pool.id: pool.health_monitor for pool in pools if pool.health_monitor}
        case LocalIP(health_monitor=monitor) if monitor is not None:
            return {probing.id: monitor}
        case _:
            return {}


def _check_rates(allowed: ProbeLimits, snapshot: Snapshot, old: Monitored | None, new: Monitored) -> bool:
    """Check the probe rates. Return whether a rate grows, so a limit was checked."""
    before, after = probe_rates(old), probe_rates(new)
    more = sum(after.values()) - sum(before.values())
    grown = [place for place, rate in after.items() if rate > before.get(place, 0)]
    if not grown:
        return False
    total = snapshot.probing.get(new.project_id, 0) + more
    if more > 0 and allowed.max_probes_per_second != UNLIMITED and total > allowed.max_probes_per_second * MILLION:
        raise Refused(TooManyProbes(per_second=allowed.max_probes_per_second))
    if allowed.max_probes_per_second_per_port != UNLIMITED:
        probed = PLACE_PROBE_RATES.change(snapshot.probed, new.id, before, after)
        for port in {port.id: port for place in grown if (port := find_probed_port(snapshot, place))}.values():
            if probes_of_port(snapshot, probed, port) > allowed.max_probes_per_second_per_port * MILLION:
                raise Refused(TooManyProbes(per_second=allowed.max_probes_per_second_per_port, port_id=port.id))
    return True
