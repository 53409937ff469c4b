"""Agent in octavia-driver-agent that reconciles Octavia's load balancers with Fairlead's.

It keeps no essential state: each check reads a load balancer from Octavia and from Fairlead, and reports the
difference. Checks are triggered by Fairlead's change notifications, by rows with a PENDING status in Octavia, and, at
the start and periodically, for all load balancers. So after any interruption the next check repairs the state. After an
unexpected error octavia-driver-agent restarts it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from octavia_lib.api.drivers.exceptions import UpdateStatisticsError, UpdateStatusError
from oslo_log import log

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import ServiceFailed, TakeoverForbidden
from fairlead.octavia_plugin.api_client import PluginApi
from fairlead.octavia_plugin.comparison_cache import ComparisonCache, Differing, StatePair, digest_of
from fairlead.octavia_plugin.differences import (
    PENDING,
    CheckContext,
    OctaviaState,
    StateDifference,
    compare_states,
    is_prepared,
)
from fairlead.octavia_plugin.findings import Finding, FindingType, OnFinding, sentence, statuses_of, values_of
from fairlead.octavia_plugin.provision import PortProvisioner

LOG = log.getLogger(__name__)
SETTLE_SECONDS = 60.0
"""Seconds after which a request that was written in Fairlead must have been committed in Octavia."""
PENDING_SETTLE_SECONDS = 5.0
"""Same for a load balancer that is PENDING: it has been committed, and Octavia locks it. But another server than the
driver's may answer, and receive the change slightly later."""
RECHECK_INTERVAL = 5.0
"""Seconds before an uncertain load balancer is checked again."""
REJECTED_STATUSES = (400, 404, 413, 501)
"""HTTP statuses of permanent rejections (413: too large, or over quota). A conflict (409) may disappear."""
RECONNECT_INTERVAL = 1.0
"""Seconds before any request is sent again after no server has answered."""
MAX_CHECKS_PER_STEP = 100
"""Load balancers checked between two queries for PENDING ones."""
STATISTICS_BATCH = 50
"""Load balancers in one request for statistics."""


def log_finding(found: Finding) -> None:
    """Log a finding, except statuses, which differ routinely."""
    if found.what not in (FindingType.STATUS, FindingType.OLD_UNKNOWN):
        LOG.warning("%s", sentence(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """Settings of an agent."""

    settle_seconds: float = SETTLE_SECONDS
    """Seconds before a difference counts."""
    on_finding: OnFinding = log_finding
    is_dry: bool = False
    """Dry run: nothing is changed, and each load balancer is checked once."""
    deletes_old: bool = False
    """Whether objects that Octavia does not have are deleted, even if old."""
    provisions: Sequence[PortProvisioner[Any]] = ()
    """Create and delete Neutron ports for probes and for proxies; empty to leave ports alone."""


class BalancerDatabase(Protocol):
    def pending(self) -> Sequence[str]: ...

    def ids(self) -> Sequence[str]: ...

    def look(self, balancer_id: str) -> OctaviaState | None: ...


class Library(Protocol):
    """octavia-lib's DriverLibrary."""

    def update_loadbalancer_status(self, status: Mapping[str, Any]) -> None: ...

    def update_listener_statistics(self, statistics: Mapping[str, Any]) -> None: ...


class OctaviaAgent:
    def __init__(
        self,
        door: PluginApi,
        octavia: BalancerDatabase,
        library: Library,
        clock: Callable[[], float] = time.monotonic,
        *,
        conduct: AgentSettings = AgentSettings(),
        finish: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._finish, self._provisions = finish, conduct.provisions
        self._api, self._octavia, self._library, self._clock = door, octavia, library, clock
        self._settings = conduct
        self._queue = OrderedDict[str, None]()
        """Queue of load balancers to check."""
        self._uncertain_since: dict[str, float] = {}
        """Load balancer -> time since which it has been uncertain."""
        self._due_at: dict[str, float] = {}
        """Load balancer -> time of its next check."""
        self._unavailable_until = 0.0
        self._compared = ComparisonCache()
        self._counted: dict[str, Mapping[str, Any]] = {}
        """Listener -> its statistics as last reported to Octavia."""

    def enqueue(self, ids: Iterable[str]) -> None:
        """Queue load balancers for a check."""
        self._queue.update(dict.fromkeys(ids))

    def enqueue_all(self) -> None:
        """Queue everything in Octavia or Fairlead, and remaining ports in Neutron. Raises ServerError."""
        self._compared.clear_rejections()
        self.enqueue(self._octavia.ids())
        self.enqueue(self._api.ids())
        for each in self._provisions:
            each.search_leftovers()

    def step(self) -> int:
        """Check queued load balancers, up to a limit, and return how many remain due.

        A check that fails because of Fairlead, Octavia or Neutron is repeated later.
        """
        now = self._clock()
        if now < self._unavailable_until:
            return 0
        self.enqueue(each for each in self._octavia.pending() if each not in self._due_at)
        due = [each for each, when in self._due_at.items() if when <= now]
        for each in due:
            del self._due_at[each]
        self.enqueue(due)
        for _ in range(min(MAX_CHECKS_PER_STEP, len(self._queue))):
            balancer_id, _ = self._queue.popitem(last=False)
            try:
                self._check(balancer_id)
            except (ServerError, UpdateStatusError, TakeoverForbidden, ServiceFailed) as error:
                LOG.warning("load balancer %s: %s; retrying", balancer_id, _words(error))
                self._due_at[balancer_id] = now + RECHECK_INTERVAL
                if isinstance(error, ServerError) and error.status is None:  # no server answers any request
                    self._unavailable_until = now + RECONNECT_INTERVAL
                    return 0
        return len(self._queue) + sum([each.step() for each in self._provisions])

    def count(self) -> None:
        """Report listener statistics that have changed since the last report."""
        ids, counted = self._octavia.ids(), dict[str, Mapping[str, Any]]()
        try:
            for first in range(0, len(ids), STATISTICS_BATCH):
                counted.update(self._count(ids[first : first + STATISTICS_BATCH]))
            self._counted = counted  # also drops deleted listeners
        except (ServerError, UpdateStatisticsError) as error:
            LOG.warning("statistics: %s; retrying", _words(error))

    def seconds_until_due(self) -> float | None:
        """Seconds until the next check is due; None if none is queued."""
        now = self._clock()
        away = max(0.0, self._unavailable_until - now)
        if self._queue:
            return away
        return max(away, min(self._due_at.values()) - now) if self._due_at else None

    def _check(self, balancer_id: str) -> None:
        """Check a load balancer. Octavia is read first, because its commit follows the write in Fairlead."""
        known = self._octavia.look(balancer_id)
        told = self._api.statuses(balancer_id)
        for each in self._provisions:
            each.record_statuses(balancer_id, told)
        if known is not None and told is not None and is_prepared(told):
            self._take_over(balancer_id)
            return
        doubt, now = self._settle_seconds(known), self._clock()
        is_sure = now - self._uncertain_since.get(balancer_id, now) >= doubt
        refused = self._compared.rejected_creates.get(balancer_id)
        look = CheckContext(
            now=datetime.now(UTC),
            is_sure=is_sure,
            may_create=known is not None and refused != digest_of(known.whole),
            deletes_old=self._settings.deletes_old,
        )
        found = compare_states(balancer_id, known, told, look)
        self._update_octavia(balancer_id, known, found)
        self._delete(balancer_id, found)
        if known is None:
            self._compared.forget(balancer_id)
        elif told is None:
            self._recreate(balancer_id, known, found, is_sure=is_sure)
        elif found.is_settled or found.missing or (self._settings.is_dry and found.unknown_to_octavia):
            is_new = known.balancer.provisioning == "PENDING_CREATE"
            self._compare(balancer_id, known, told["revision"], 0.0 if is_new else doubt)
        self._schedule_recheck(balancer_id, found)

    def _settle_seconds(self, known: OctaviaState | None) -> float:
        """Seconds before a difference of this load balancer counts."""
        is_pending = known is not None and known.balancer.provisioning in PENDING
        return (
            min(PENDING_SETTLE_SECONDS, self._settings.settle_seconds) if is_pending else self._settings.settle_seconds
        )

    def _schedule_recheck(self, balancer_id: str, found: StateDifference) -> None:
        """Schedule a repeated check while the load balancer is uncertain."""
        if not found.is_uncertain:
            self._uncertain_since.pop(balancer_id, None)
            return
        self._uncertain_since.setdefault(balancer_id, self._clock())
        if self._settings.is_dry and (found.unknown_to_octavia or balancer_id in self._compared.rejected_creates):
            return  # all findings have been reported
        self._recheck_in(balancer_id, 0 if found.unknown_to_octavia else RECHECK_INTERVAL)

    def _update_octavia(self, balancer_id: str, known: OctaviaState | None, found: StateDifference) -> None:
        if known is None or not found.updates:
            return
        for one in statuses_of(balancer_id, found.updates, known):
            self._settings.on_finding(one)
        if not self._settings.is_dry:
            self._library.update_loadbalancer_status(found.updates)

    def _delete(self, balancer_id: str, found: StateDifference) -> None:
        for path in found.old:
            self._settings.on_finding(Finding(what=FindingType.OLD_UNKNOWN, balancer=balancer_id, id=path))
        for path in found.unknown_to_octavia:
            self._settings.on_finding(Finding(what=FindingType.UNKNOWN, balancer=balancer_id, id=path))
            if not self._settings.is_dry:
                self._api.delete(path)

    def _recreate(self, balancer_id: str, known: OctaviaState, found: StateDifference, *, is_sure: bool) -> None:
        """Create a load balancer again that Fairlead has lost. If Fairlead rejects it, the next check reports ERROR.

        One in PENDING_UPDATE may have been prepared for a takeover, so it is created with one; otherwise the stock
        provider's rows would remain. If it was not, the takeover finds no rows to delete.
        """
        if not found.missing or not is_sure:
            return
        self._settings.on_finding(Finding(what=FindingType.MISSING, balancer=balancer_id, id=balancer_id))
        found.is_uncertain = not self._settings.is_dry
        if not self._settings.is_dry:
            with self._noting_refusal(balancer_id, known):
                wish = {"takeover": True} if known.balancer.provisioning == "PENDING_UPDATE" else {}
                self._api.post("/loadbalancers", "loadbalancer", {**known.whole, **wish})
            self._recheck_in(balancer_id, 0)

    def _compare(self, balancer_id: str, known: OctaviaState, revision: int, doubt: float) -> None:
        """Compare attributes and parts.

        A load balancer in PENDING_CREATE is compared without waiting: Octavia has committed all of it, and accepts no
        change. But Octavia passes no L7 policies created with it to providers (octavia,
        ListenersController._graph_create), and without them requests would pass that a policy rejects.
        """
        state, compared = StatePair(digest_of(known.whole), revision), self._compared
        if state in (compared.same.get(balancer_id), compared.rejected.get(balancer_id)):
            return
        before = compared.differing.get(balancer_id)
        if before is None or before.state != state:
            told = self._api.compare(known.whole)
            compared.differing.pop(balancer_id, None)
            if not told.differences and told.revision == revision:
                compared.same[balancer_id] = state
                return
            before = Differing(StatePair(state.digest, told.revision), self._clock(), told.differences)
            compared.differing[balancer_id] = before
        if self._clock() - before.since < doubt:
            self._recheck_in(balancer_id, RECHECK_INTERVAL)
        else:
            self._repair(balancer_id, known, before)

    def _repair(self, balancer_id: str, known: OctaviaState, differing: Differing) -> None:
        """Update Fairlead. Neither side has changed since the difference was found, so no request is in flight."""
        for one in values_of(balancer_id, differing.differences):
            self._settings.on_finding(one)
        if self._settings.is_dry:
            self._compared.rejected[balancer_id] = differing.state
            self._compared.rejected_creates[balancer_id] = differing.state.digest
            return
        with self._noting_refusal(balancer_id, known, differing.state):
            self._api.replace(known.whole, differing.state.revision)
        del self._compared.differing[balancer_id]
        self._recheck_in(balancer_id, 0)

    @contextmanager
    def _noting_refusal(self, balancer_id: str, known: OctaviaState, state: StatePair | None = None) -> Iterator[None]:
        """Record a rejection, so that the request is repeated only after a change on either side."""
        try:
            yield
        except ServerError as error:
            if error.status not in REJECTED_STATUSES:
                raise
            self._compared.rejected_creates[balancer_id] = digest_of(known.whole)
            if state is not None:
                self._compared.rejected[balancer_id] = state
            words = _words(error)
            self._settings.on_finding(
                Finding(what=FindingType.REFUSED, balancer=balancer_id, id=balancer_id, fairlead=words)
            )

    def _recheck_in(self, balancer_id: str, seconds: float) -> None:
        when = self._clock() + seconds
        self._due_at[balancer_id] = min(when, self._due_at.get(balancer_id, when))

    def _take_over(self, balancer_id: str) -> None:
        """Finish a takeover that Octavia has committed; the command may have been interrupted."""
        if not self._settings.is_dry:
            self._finish(balancer_id)
            self._recheck_in(balancer_id, 0)

    def _count(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Report changed statistics and return those of all listeners of these load balancers."""
        counted = {each["id"]: each for each in self._api.statistics(ids)}
        told = [each for listener, each in counted.items() if self._counted.get(listener) != each]
        if told:
            self._library.update_listener_statistics({"listeners": told})
            self._counted.update((each["id"], each) for each in told)
        return counted


def _words(error: Exception) -> str:
    """Message of an exception; octavia-lib's have `fault_string`."""
    return str(getattr(error, "fault_string", None) or error)
