"""The process of octavia-driver-agent that tells Octavia how its load balancers stand.

It remembers nothing that matters: each look reads a load balancer in Octavia and in Fairlead and tells the difference.
What is looked at is named by Fairlead's news, by Octavia's rows that are PENDING, and, at the start and now and then,
by everything there is. So whoever was killed meanwhile, the next look ends in the truth. On an error that nobody
expects octavia-driver-agent starts it again.
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

from fairlead.client import ServerError
from fairlead.octavia_plugin.adoption import NotAnswered, NotHandedOver
from fairlead.octavia_plugin.compared import Compared, Differing, State, digest_of
from fairlead.octavia_plugin.differences import PENDING, Difference, Known, Look, difference, is_prepared
from fairlead.octavia_plugin.door import Door
from fairlead.octavia_plugin.findings import Finding, Hear, What, sentence, statuses_of, values_of
from fairlead.octavia_plugin.provision import Provision

LOG = log.getLogger(__name__)
DOUBT = 60.0
"""Seconds after which no request can be between its write in Fairlead and its commit in Octavia."""
DOUBT_PENDING = 5.0
"""The same of a load balancer that is PENDING: that has been committed, and nobody else changes it meanwhile. But the
server that is asked may be another one than the driver asked, and hear of it a moment later."""
PAUSE = 5.0
"""Seconds until something doubtful is looked at again."""
REFUSALS = (400, 404, 413, 501)
"""Fairlead has understood it, and cannot have it (413: it is too large, or the project's quota is met). What is on its
way, or was changed meanwhile (409), it can later."""
AWAY = 1.0
"""Seconds until Fairlead is asked again, of anybody, when no server has answered."""
AT_ONCE = 100
"""Load balancers that are looked at before it is asked again what is PENDING."""
COUNTED_AT_ONCE = 50
"""Load balancers of whose statistics one question is."""


def log_finding(found: Finding) -> None:
    """Statuses differ all the time: that is what they are told for."""
    if found.what not in (What.STATUS, What.OLD_STRANGER):
        LOG.warning("%s", sentence(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How somebody wants it done."""

    doubt: float = DOUBT
    """Seconds."""
    hear: Hear = log_finding
    is_dry: bool = False
    """Nothing is done about what is found, and it is looked at once."""
    deletes_old: bool = False
    """What Octavia does not know is deleted, however old it is."""
    provisions: Sequence[Provision[Any]] = ()
    """See to the ports in Neutron from which members are probed, and those of proxies; none for who leaves them
    alone."""


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
        """To be looked at, in the order in which they were named."""
        self._doubted: dict[str, float] = {}
        """Since when there is a doubt about a load balancer."""
        self._later: dict[str, float] = {}
        """When it is looked at again."""
        self._away_until = 0.0
        self._compared = Compared()
        self._counted: dict[str, Mapping[str, Any]] = {}
        """What Octavia was told last of a listener's statistics."""

    def name(self, ids: Iterable[str]) -> None:
        """These are looked at soon."""
        self._named.update(dict.fromkeys(ids))

    def name_all(self) -> None:
        """Whatever Octavia or Fairlead has, and what is left in Neutron. Raises ServerError."""
        self._compared.try_again()
        self.name(self._octavia.ids())
        self.name(self._door.ids())
        for each in self._provisions:
            each.name_left()

    def step(self) -> int:
        """Look at those that are named, at most so many; answers how many are left that can be looked at now. One that
        Fairlead, Octavia or Neutron cannot be asked about is looked at again."""
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
                if isinstance(error, ServerError) and error.status is None:  # so it is with all of them
                    self._away_until = now + AWAY
                    return 0
        return len(self._named) + sum([each.step() for each in self._provisions])

    def count(self) -> None:
        """Tell what listeners have counted, of those of which there is another thing to tell than the last time."""
        ids, counted = self._octavia.ids(), dict[str, Mapping[str, Any]]()
        try:
            for first in range(0, len(ids), COUNTED_AT_ONCE):
                counted.update(self._count(ids[first : first + COUNTED_AT_ONCE]))
            self._counted = counted  # and nothing of listeners that are gone
        except (ServerError, UpdateStatisticsError) as error:
            LOG.warning("statistics: %s; trying again", _words(error))

    def waits(self) -> float | None:
        """Seconds until one of them is looked at; None when nobody is to be."""
        now = self._clock()
        away = max(0.0, self._away_until - now)
        if self._named:
            return away
        return max(away, min(self._later.values()) - now) if self._later else None

    def _look(self, balancer_id: str) -> None:
        """In this order: what Octavia has committed was in Fairlead before."""
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
        """Seconds."""
        is_pending = known is not None and known.balancer.provisioning in PENDING
        return min(DOUBT_PENDING, self._conduct.doubt) if is_pending else self._conduct.doubt

    def _doubt(self, balancer_id: str, found: Difference) -> None:
        """Whether it is looked at again, and when."""
        if not found.is_doubtful:
            self._doubted.pop(balancer_id, None)
            return
        self._doubted.setdefault(balancer_id, self._clock())
        if self._conduct.is_dry and (found.strangers or balancer_id in self._compared.not_made):
            return  # all has been said
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
        """A load balancer that Fairlead has lost. If it does not take it, Octavia shows an ERROR at the next look.

        One that is being changed may have been prepared to be taken over from another provider, whose rows would stay
        if it were not taken again; of one that was not, nothing is to go."""
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
        """Values, and which parts there are. Of a load balancer that is being created there is no doubt: Octavia has
        committed all of it, and takes no change of it; but it tells its providers of no L7 policy that comes with it
        (octavia, ListenersController._graph_create), and clients are led past what a policy would reject."""
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
        """Neither side has changed since it was found: no request that changes a value can be on its way any more."""
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
        """What Fairlead does not take is not given to it again before one of both has changed."""
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
        """Octavia says that it is ours: whoever was about to take it may have been killed."""
        if not self._conduct.is_dry:
            self._finish(balancer_id)
            self._again(balancer_id, 0)

    def _count(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """What was told of each listener of these load balancers."""
        counted = {each["id"]: each for each in self._door.statistics(ids)}
        told = [each for listener, each in counted.items() if self._counted.get(listener) != each]
        if told:
            self._library.update_listener_statistics({"listeners": told})
            self._counted.update((each["id"], each) for each in told)
        return counted


def _words(error: Exception) -> str:
    """octavia-lib's exceptions have their own."""
    return str(getattr(error, "fault_string", None) or error)
