"""Networks that need ports of the plug-in in Neutron: requested by Fairlead, created and deleted in Neutron.

Fairlead reports with each load balancer the networks that need ports of one kind: for probes, or for proxies. A network
with a changed request is settled as a whole: the needs of all load balancers against the existing ports. The start
settles every network that is needed or has such a port. So after any interruption missing ports are created, and
unneeded ones deleted.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from oslo_log import log

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import ServiceFailed

LOG = log.getLogger(__name__)
MAX_NETWORKS_PER_STEP = 20
"""Networks settled between two rounds of load balancers."""
RETRY_INTERVAL = 15.0
"""Seconds before a network is retried after an error of Neutron or Fairlead."""
_Wanted = TypeVar("_Wanted")
_Taken_contra = TypeVar("_Taken_contra", contravariant=True)


def _say_nothing(network_id: str, reason: str) -> None:
    """Do nothing."""


class NetworkPorts(Protocol[_Taken_contra]):
    """All methods raise NotAnswered."""

    def networks(self) -> Iterable[str]:
        """Return the networks with such ports."""

    def settle(self, network_id: str, wanted: _Taken_contra) -> None:
        """Create and delete ports of a network as wanted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortType(Generic[_Wanted]):
    """Kind of ports."""

    title: str
    status_key: str
    """Key in Fairlead's statuses for the networks where a load balancer needs such ports."""
    wanted: Callable[[str], _Wanted]
    """Returns the ports needed on a network. Raises ServerError."""
    ports: NetworkPorts[_Wanted]
    on_failure: Callable[[str, str], None] = _say_nothing
    """Receives the network and the reason of Neutron's failure; an empty reason after a success. Raises ServerError."""


class PortProvisioner(Generic[_Wanted]):
    def __init__(self, sort: PortType[_Wanted], clock: Callable[[], float] = time.monotonic) -> None:
        self._sort, self._clock = sort, clock
        self._needs: dict[str, Mapping[str, object]] = {}
        """Load balancer -> network -> its need there, as last reported."""
        self._queue = OrderedDict[str, None]()
        """Queue of networks to settle."""
        self._due_at: dict[str, float] = {}
        """Network -> time of its next attempt."""
        self._refused = set[str]()
        """Networks with a reported failure of Neutron."""
        self._next_search = self._clock()
        """Time of the next search for networks with ports; infinite after a successful one."""

    def record_statuses(self, balancer_id: str, told: Mapping[str, Any] | None) -> None:
        """Record a load balancer's statuses in Fairlead; None after its deletion. Older servers report no networks."""
        said = told.get(self._sort.status_key, ()) if told is not None else ()
        needs = {each["id"]: {**each, "is_ready": True} for each in said}
        before = self._needs.pop(balancer_id, {})
        if needs:
            self._needs[balancer_id] = needs
        self._enqueue(each for each in {*before, *needs} if before.get(each) != needs.get(each))
        self._enqueue(each["id"] for each in said if not each["is_ready"] and each["id"] not in self._due_at)

    def search_leftovers(self) -> None:
        """Request a search for networks that have ports, needed or not."""
        self._next_search = self._clock()

    def step(self) -> int:
        """Settle queued networks, up to a limit, and return how many remain."""
        now = self._clock()
        if self._next_search <= now:
            self._find(now)
        due = [each for each, when in self._due_at.items() if when <= now]
        for each in due:
            del self._due_at[each]
        self._enqueue(due)
        for _ in range(min(MAX_NETWORKS_PER_STEP, len(self._queue))):
            network_id, _ = self._queue.popitem(last=False)
            try:
                self._settle(network_id)
            except (ServerError, ServiceFailed) as error:
                LOG.warning("%s on network %s: %s; retrying", self._sort.title, network_id, error)
                self._due_at[network_id] = now + RETRY_INTERVAL
        return len(self._queue)

    def _settle(self, network_id: str) -> None:
        wanted = self._sort.wanted(network_id)
        try:
            self._sort.ports.settle(network_id, wanted)
        except ServiceFailed as error:
            self._refused.add(network_id)
            self._sort.on_failure(network_id, str(error))
            raise
        if network_id in self._refused:
            self._sort.on_failure(network_id, "")
            self._refused.discard(network_id)

    def _find(self, now: float) -> None:
        self._next_search = inf
        try:
            self._enqueue(self._sort.ports.networks())
        except ServiceFailed as error:
            LOG.warning("%s: %s; retrying", self._sort.title, error)
            self._next_search = now + RETRY_INTERVAL

    def _enqueue(self, networks: Iterable[str]) -> None:
        self._queue.update(dict.fromkeys(networks))
