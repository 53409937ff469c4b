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
from fairlead.octavia_plugin.adoption import NotAnswered, NotHandedOver
from fairlead.octavia_plugin.api_client import Door
from fairlead.octavia_plugin.comparison_cache import Compared, Differing, State, digest_of
from fairlead.octavia_plugin.differences import PENDING, Difference, Known, Look, difference, is_prepared
from fairlead.octavia_plugin.findings import Finding, Hear, What, sentence, statuses_of, values_of
from fairlead.octavia_plugin.provision import Provision

LOG = log.getLogger(__name__)
DOUBT = 60.0
"""Seconds after which a request that was written in Fairlead must have been committed in Octavia."""
DOUBT_PENDING = 5.0
"""Same for a load balancer that is PENDING: it has been committed, and Octavia locks it. But another server than the
driver's may answer, and receive the change slightly later."""
PAUSE = 5.0
"""Seconds before an uncertain load balancer is checked again."""
REFUSALS = (400, 404, 413, 501)
"""HTTP statuses of permanent rejections (413: too large, or over quota). A conflict (409) may disappear."""
AWAY = 1.0
"""Seconds before any request is sent again after no server has answered."""
AT_ONCE = 100
"""Load balancers checked between two queries for PENDING ones."""
COUNTED_AT_ONCE = 50
"""Load balancers in one request for statistics."""


def log_finding(found: Finding) -> None:
    """Log a finding, except statuses, which differ routinely."""
    if found.what not in (What.STATUS, What.OLD_STRANGER):
        LOG.warning("%s", sentence(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """Settings of an agent."""

    doubt: float = DOUBT
    """Seconds before a difference counts."""
    hear: Hear = log_finding
    is_dry: bool = False
    """Dry run: nothing is changed, and each load balancer is checked once."""
    deletes_old: bool = False
    """Whether objects that Octavia does not have are deleted, even if old."""
    provisions: Sequence[Provision[Any]] = ()
    """Create and delete Neutron ports for probes and for proxies; empty to leave ports alone."""


class Octavia(Protocol):
    def pending(self) -> Sequence[str]: ...

    def ids(self) -> Sequence[str]: ...

    def look(self, balancer_id: str) -> Known | None: ...


class Library(Protocol):
    """octavia-lib's DriverLibrary."""

    def update_loadbalancer_status(self, status: Mapping[str, Any]) -> None: ...

    def update_listener_statistics(self, statistics: Mapping[str, Any]) -> None: ...


class Agent:
    def __init__(
        self,
        door: Door,
        octavia: Octavia,
        library: Library,
        clock: Callable[[], float] = time.monotonic,
        *,
        conduct: Conduct = Conduct(),
        finish: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._finish, self._provisions = finish, conduct.provisions
        self._door, self._octavia, self._library, self._clock = door, octavia, library, clock
        self._conduct = conduct
        self._named = OrderedDict[str, None]()
        """Queue of load balancers to check."""
        self._doubted: dict[str, float] = {}
        """Load balancer -> time since which it has been uncertain."""
        self._later: dict[str, float] = {}
        """Load balancer -> time of its next check."""
        self._away_until = 0.0
        self._compared = Compared()
        self._counted: dict[str, Mapping[str, Any]] = {}
        """Listener -> its statistics as last reported to Octavia."""

    def name(self, ids: Iterable[str]) -> None:
        """Queue load balancers for a check."""
        self._named.update(dict.fromkeys(ids))

    def name_all(self) -> None:
        """Queue everything in Octavia or Fairlead, and remaining ports in Neutron. Raises ServerError."""
        self._compared.try_again()
        self.name(self._octavia.ids())
        self.name(self._door.ids())
        for each in self._provisions:
            each.name_left()

    def step(self) -> int:
        """Check queued load balancers, up to a limit, and return how many remain due.

        A check that fails because of Fairlead, Octavia or Neutron is repeated later.
        """
        now = self._clock()
        if now < self._away_until:
            return 0
        self.name(each for each in self._octavia.pending() if each not in self._later)
        due = [each for each, when in self._later.items() if when <= now]
        for each in due:
            del self._later[each]
        self.name(due)
        for _ in range(min(AT_ONCE, len(self._named))):
            balancer_id, _ = self._named.popitem(last=False)
            try:
                self._look(balancer_id)
            except (ServerError, UpdateStatusError, NotHandedOver, NotAnswered) as error:
                LOG.warning("load balancer %s: %s; trying again", balancer_id, _words(error))
                self._later[balancer_id] = now + PAUSE
                if isinstance(error, ServerError) and error.status is None:  # no server answers any request
                    self._away_until = now + AWAY
                    return 0
        return len(self._named) + sum([each.step() for each in self._provisions])

    def count(self) -> None:
        """Report listener statistics that have changed since the last report."""
        ids, counted = self._octavia.ids(), dict[str, Mapping[str, Any]]()
        try:
            for first in range(0, len(ids), COUNTED_AT_ONCE):
                counted.update(self._count(ids[first : first + COUNTED_AT_ONCE]))
            self._counted = counted  # also drops deleted listeners
        except (ServerError, UpdateStatisticsError) as error:
            LOG.warning("statistics: %s; trying again", _words(error))

    def waits(self) -> float | None:
        """Seconds until the next check is due; None if none is queued."""
        now = self._clock()
        away = max(0.0, self._away_until - now)
        if self._named:
            return away
        return max(away, min(self._later.values()) - now) if self._later else None

    def _look(self, balancer_id: str) -> None:
        """Check a load balancer. Octavia is read first, because its commit follows the write in Fairlead."""
        known = self._octavia.look(balancer_id)
        told = self._door.statuses(balancer_id)
        for each in self._provisions:
            each.see(balancer_id, told)
        if known is not None and told is not None and is_prepared(told):
            self._take_over(balancer_id)
            return
        doubt, now = self._doubt_about(known), self._clock()
        is_sure = now - self._doubted.get(balancer_id, now) >= doubt
        refused = self._compared.not_made.get(balancer_id)
        look = Look(
            now=datetime.now(UTC),
            is_sure=is_sure,
            may_give=known is not None and refused != digest_of(known.whole),
            deletes_old=self._conduct.deletes_old,
        )
        found = difference(balancer_id, known, told, look)
        self._tell(balancer_id, known, found)
        self._delete(balancer_id, found)
        if known is None:
            self._compared.forget(balancer_id)
        elif told is None:
            self._make_again(balancer_id, known, found, is_sure=is_sure)
        elif found.is_settled or found.lost or (self._conduct.is_dry and found.strangers):
            is_new = known.balancer.provisioning == "PENDING_CREATE"
            self._compare(balancer_id, known, told["revision"], 0.0 if is_new else doubt)
        self._doubt(balancer_id, found)

    def _doubt_about(self, known: Known | None) -> float:
        """Seconds before a difference of this load balancer counts."""
        is_pending = known is not None and known.balancer.provisioning in PENDING
        return min(DOUBT_PENDING, self._conduct.doubt) if is_pending else self._conduct.doubt

    def _doubt(self, balancer_id: str, found: Difference) -> None:
        """Schedule a repeated check while the load balancer is uncertain."""
        if not found.is_doubtful:
            self._doubted.pop(balancer_id, None)
            return
        self._doubted.setdefault(balancer_id, self._clock())
        if self._conduct.is_dry and (found.strangers or balancer_id in self._compared.not_made):
            return  # all findings have been reported
        self._again(balancer_id, 0 if found.strangers else PAUSE)

    def _tell(self, balancer_id: str, known: Known | None, found: Difference) -> None:
        if known is None or not found.updates:
            return
        for one in statuses_of(balancer_id, found.updates, known):
            self._conduct.hear(one)
        if not self._conduct.is_dry:
            self._library.update_loadbalancer_status(found.updates)

    def _delete(self, balancer_id: str, found: Difference) -> None:
        for path in found.old:
            self._conduct.hear(Finding(what=What.OLD_STRANGER, balancer=balancer_id, id=path))
        for path in found.strangers:
            self._conduct.hear(Finding(what=What.STRANGER, balancer=balancer_id, id=path))
            if not self._conduct.is_dry:
                self._door.delete(path)

    def _make_again(self, balancer_id: str, known: Known, found: Difference, *, is_sure: bool) -> None:
        """Create a load balancer again that Fairlead has lost. If Fairlead rejects it, the next check reports ERROR.

        One in PENDING_UPDATE may have been prepared for a takeover, so it is created with one; otherwise the stock
        provider's rows would remain. If it was not, the takeover finds no rows to delete.
        """
        if not found.lost or not is_sure:
            return
        self._conduct.hear(Finding(what=What.MISSING, balancer=balancer_id, id=balancer_id))
        found.is_doubtful = not self._conduct.is_dry
        if not self._conduct.is_dry:
            with self._noting_refusal(balancer_id, known):
                wish = {"takeover": True} if known.balancer.provisioning == "PENDING_UPDATE" else {}
                self._door.post("/loadbalancers", "loadbalancer", {**known.whole, **wish})
            self._again(balancer_id, 0)

    def _compare(self, balancer_id: str, known: Known, revision: int, doubt: float) -> None:
        """Compare attributes and parts.

        A load balancer in PENDING_CREATE is compared without waiting: Octavia has committed all of it, and accepts no
        change. But Octavia passes no L7 policies created with it to providers (octavia,
        ListenersController._graph_create), and without them requests would pass that a policy rejects.
        """
        state, compared = State(digest_of(known.whole), revision), self._compared
        if state in (compared.same.get(balancer_id), compared.refused.get(balancer_id)):
            return
        before = compared.differing.get(balancer_id)
        if before is None or before.state != state:
            told = self._door.compare(known.whole)
            compared.differing.pop(balancer_id, None)
            if not told.differences and told.revision == revision:
                compared.same[balancer_id] = state
                return
            before = Differing(State(state.digest, told.revision), self._clock(), told.differences)
            compared.differing[balancer_id] = before
        if self._clock() - before.since < doubt:
            self._again(balancer_id, PAUSE)
        else:
            self._put_right(balancer_id, known, before)

    def _put_right(self, balancer_id: str, known: Known, differing: Differing) -> None:
        """Update Fairlead. Neither side has changed since the difference was found, so no request is in flight."""
        for one in values_of(balancer_id, differing.differences):
            self._conduct.hear(one)
        if self._conduct.is_dry:
            self._compared.refused[balancer_id] = differing.state
            self._compared.not_made[balancer_id] = differing.state.digest
            return
        with self._noting_refusal(balancer_id, known, differing.state):
            self._door.say_again(known.whole, differing.state.revision)
        del self._compared.differing[balancer_id]
        self._again(balancer_id, 0)

    @contextmanager
    def _noting_refusal(self, balancer_id: str, known: Known, state: State | None = None) -> Iterator[None]:
        """Record a rejection, so that the request is repeated only after a change on either side."""
        try:
            yield
        except ServerError as error:
            if error.status not in REFUSALS:
                raise
            self._compared.not_made[balancer_id] = digest_of(known.whole)
            if state is not None:
                self._compared.refused[balancer_id] = state
            words = _words(error)
            self._conduct.hear(Finding(what=What.REFUSED, balancer=balancer_id, id=balancer_id, fairlead=words))

    def _again(self, balancer_id: str, seconds: float) -> None:
        when = self._clock() + seconds
        self._later[balancer_id] = min(when, self._later.get(balancer_id, when))

    def _take_over(self, balancer_id: str) -> None:
        """Finish a takeover that Octavia has committed; the command may have been interrupted."""
        if not self._conduct.is_dry:
            self._finish(balancer_id)
            self._again(balancer_id, 0)

    def _count(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Report changed statistics and return those of all listeners of these load balancers."""
        counted = {each["id"]: each for each in self._door.statistics(ids)}
        told = [each for listener, each in counted.items() if self._counted.get(listener) != each]
        if told:
            self._library.update_listener_statistics({"listeners": told})
            self._counted.update((each["id"], each) for each in told)
        return counted


def _words(error: Exception) -> str:
    """Message of an exception; octavia-lib's have `fault_string`."""
    return str(getattr(error, "fault_string", None) or error)
