"""Which networks need a port from which members are probed: told by Fairlead, made so in Neutron.

Fairlead says of each load balancer where it needs one. What is other than the last time is looked at as a whole: what
all load balancers need on that network, and what is there. At the start that is every network that anybody needs, and
every one that has such a port. So whoever was killed meanwhile, what is missing is made and what is left is taken away.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any, Protocol

from oslo_log import log

from fairlead.client import ServerError
from fairlead.octavia_plugin.adoption import NotAnswered

LOG = log.getLogger(__name__)
AT_ONCE = 20
"""Networks that are looked at before load balancers are looked at again."""
PAUSE = 15.0
"""Seconds until a network is looked at again for which Neutron, or Fairlead, did not do what it was asked."""


class Door(Protocol):
    def probed_on(self, network_id: str) -> Sequence[str] | None:
        """IPv4 subnets (CIDRs) in which an address is needed; None where no port is. Raises ServerError."""


class Ports(Protocol):
    """All raise NotAnswered."""

    def networks(self) -> Iterable[str]:
        """On which there are such ports."""

    def settle(self, network_id: str, cidrs: Sequence[str] | None) -> None:
        """One port, with an address of each of these; none for None."""


class Probing:
    def __init__(self, door: Door, ports: Ports, clock: Callable[[], float] = time.monotonic) -> None:
        self._door, self._ports, self._clock = door, ports, clock
        self._needs: dict[str, Mapping[str, tuple[str, ...]]] = {}
        """Load balancer -> network -> subnets, as they were told last."""
        self._named = OrderedDict[str, None]()
        """Networks to be looked at."""
        self._later: dict[str, float] = {}
        """When one is looked at again."""
        self._finds = self._clock()
        """When it is looked at, once, where there are ports; endless when that has been done."""

    def see(self, balancer_id: str, told: Mapping[str, Any] | None) -> None:
        """How it stands in Fairlead; None when it is gone. An older server says nothing of networks."""
        said = told.get("probed_networks", ()) if told is not None else ()
        needs = {each["id"]: tuple(each["cidrs"]) for each in said}
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
                self._ports.settle(network_id, self._door.probed_on(network_id))
            except (ServerError, NotAnswered) as error:
                LOG.warning("the port for probes on network %s: %s; trying again", network_id, error)
                self._later[network_id] = now + PAUSE
        return len(self._named)

    def _find(self, now: float) -> None:
        self._finds = inf
        try:
            self._name(self._ports.networks())
        except NotAnswered as error:
            LOG.warning("the ports for probes: %s; trying again", error)
            self._finds = now + PAUSE

    def _name(self, networks: Iterable[str]) -> None:
        self._named.update(dict.fromkeys(networks))
