"""Which networks need ports of ours in Neutron: told by Fairlead, made so in Neutron.

Fairlead says of each load balancer where it needs some, of one sort: those from which members are probed, or those of
proxies. What is other than the last time is looked at as a whole: what all load balancers need on that network, and
what is there. At the start that is every network that anybody needs, and every one that has such a port. So whoever was
killed meanwhile, what is missing is made and what is left is taken away.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from oslo_log import log

from fairlead.client import ServerError
from fairlead.octavia_plugin.adoption import NotAnswered

LOG = log.getLogger(__name__)
AT_ONCE = 20
"""Networks that are looked at before load balancers are looked at again."""
PAUSE = 15.0
"""Seconds until a network is looked at again for which Neutron, or Fairlead, did not do what it was asked."""
_Wanted = TypeVar("_Wanted")
_Taken_contra = TypeVar("_Taken_contra", contravariant=True)


def _say_nothing(network_id: str, reason: str) -> None:
    """For who has no use for it."""


class Ports(Protocol[_Taken_contra]):
    """All raise NotAnswered."""

    def networks(self) -> Iterable[str]:
        """On which there are such ports."""

    def settle(self, network_id: str, wanted: _Taken_contra) -> None:
        """They become so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sort(Generic[_Wanted]):
    """Of ports."""

    title: str
    told: str
    """Under which name Fairlead says with a load balancer on which networks it needs some."""
    wanted: Callable[[str], _Wanted]
    """What is needed on a network. Raises ServerError."""
    ports: Ports[_Wanted]
    refused: Callable[[str, str], None] = _say_nothing
    """Hears for which network Neutron did not do it, and why; and, with an empty text, that it did. Raises
    ServerError."""


class Provision(Generic[_Wanted]):
    def __init__(self, sort: Sort[_Wanted], clock: Callable[[], float] = time.monotonic) -> None:
        self._sort, self._clock = sort, clock
        self._needs: dict[str, Mapping[str, object]] = {}
        """Load balancer -> network -> what it needs there, as it was told last."""
        self._named = OrderedDict[str, None]()
        """Networks to be looked at."""
        self._later: dict[str, float] = {}
        """When one is looked at again."""
        self._refused = set[str]()
        """Networks of which it was told that Neutron refused."""
        self._finds = self._clock()
        """When it is looked at, once, where there are ports; endless when that has been done."""

    def see(self, balancer_id: str, told: Mapping[str, Any] | None) -> None:
        """How it stands in Fairlead; None when it is gone. An older server says nothing of networks."""
        said = told.get(self._sort.told, ()) if told is not None else ()
        needs = {each["id"]: {**each, "is_ready": True} for each in said}
        before = self._needs.pop(balancer_id, {})
        if needs:
            self._needs[balancer_id] = needs
        self._name(each for each in {*before, *needs} if before.get(each) != needs.get(each))
        self._name(each["id"] for each in said if not each["is_ready"] and each["id"] not in self._later)

    def name_left(self) -> None:
        """The networks that have a port are looked at soon, whether anybody needs it or not."""
        self._finds = self._clock()

    def step(self) -> int:
        """Look at those that are named, at most so many; answers how many are left."""
        now = self._clock()
        if self._finds <= now:
            self._find(now)
        due = [each for each, when in self._later.items() if when <= now]
        for each in due:
            del self._later[each]
        self._name(due)
        for _ in range(min(AT_ONCE, len(self._named))):
            network_id, _ = self._named.popitem(last=False)
            try:
                self._settle(network_id)
            except (ServerError, NotAnswered) as error:
                LOG.warning("%s on network %s: %s; trying again", self._sort.title, network_id, error)
                self._later[network_id] = now + PAUSE
        return len(self._named)

    def _settle(self, network_id: str) -> None:
        wanted = self._sort.wanted(network_id)
        try:
            self._sort.ports.settle(network_id, wanted)
        except NotAnswered as error:
            self._refused.add(network_id)
            self._sort.refused(network_id, str(error))
            raise
        if network_id in self._refused:
            self._sort.refused(network_id, "")
            self._refused.discard(network_id)

    def _find(self, now: float) -> None:
        self._finds = inf
        try:
            self._name(self._sort.ports.networks())
        except NotAnswered as error:
            LOG.warning("%s: %s; trying again", self._sort.title, error)
            self._finds = now + PAUSE

    def _name(self, networks: Iterable[str]) -> None:
        self._named.update(dict.fromkeys(networks))
