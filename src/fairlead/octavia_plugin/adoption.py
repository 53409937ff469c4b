"""Taking over a load balancer of Octavia's stock provider, step by step.

1. Octavia's row is locked. Fairlead is given the load balancer, prepared: it refuses what it cannot do, and to leave
   clients whom the stock provider serves; what it takes has no rows yet. Then Octavia commits that it is ours.
2. The VIP's port becomes one that Octavia deletes.
3. Fairlead takes it: the stock provider's rows go in the transaction that brings its own.
4. The agent tells Octavia that it is ACTIVE, as after every change.

Whoever is killed before the commit has changed nothing in Octavia; a load balancer that is prepared and not in Octavia
is taken back in time, and has no rows that could go. Whoever is killed after it has said in Octavia what is to be: the
agent takes what is prepared, and running this again does whatever is left. At each moment the rows of one of both are
in force.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from fairlead.client import ServerError
from fairlead.octavia_plugin.bodies import Body
from fairlead.octavia_plugin.door import Door

STOCK = "ovn"
"""The provider from which load balancers are taken over (ovn-octavia-provider), as Octavia calls it."""
PATIENCE = 60.0
"""Seconds until the agent must have told Octavia."""
BEAT = 0.2
REFUSED = frozenset({400, 404, 409, 413, 501})
"""Statuses by which Fairlead says that it cannot be had. Others say nothing of the load balancer."""


class Outcome(StrEnum):
    ADOPTED = "adopted"
    ALREADY = "already ours"
    POSSIBLE = "possible"
    """Of a dry run."""
    REFUSED = "refused"
    """It cannot be taken over, and nothing was changed."""
    UNFINISHED = "unfinished"
    """It is ours, and something is left to do: the agent does it, or running this again."""
    FAILED = "failed"
    """Somebody did not answer before anything was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    load_balancer: str
    outcome: Outcome
    reason: str = ""
    """A word for programs: of Octavia's side, or the status that Fairlead answered."""
    message: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.load_balancer}: {self.outcome}{f': {self.message}' if self.message else ''}"


class NotHandedOver(Exception):
    """Octavia's database does not let it be, and nothing was changed; the message says why."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """A word of it, for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One load balancer in Octavia."""

    id: str
    provider: str
    provisioning: str
    vip_port_id: str


class Octavia(Protocol):
    """All raise NotHandedOver and NotAnswered."""

    def find(self, name: str) -> Standing: ...

    def look(self, balancer_id: str) -> Body: ...

    def handing_over(self, balancer_id: str, *, port_was_made: bool) -> AbstractContextManager[Body]: ...


class Ports(Protocol):
    """All raise NotHandedOver and NotAnswered."""

    def was_made(self, port_id: str) -> bool: ...

    def give(self, port_id: str, balancer_id: str) -> None: ...


class NotAnswered(Exception):
    """Neutron or Octavia's database did not do what it was asked; the message is its own. It may be asked again."""

    def __init__(self, who: str, message: str) -> None:
        super().__init__(message)
        self.who = who
        """A word of it, for programs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    door: Door
    octavia: Octavia
    ports: Ports
    leaves: tuple[str, ...] = ()
    """Networks and routers on which the stock provider has one, and Fairlead need not."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def try_out(self, name: str) -> Report:
        """Whether it can be taken over. Nothing is written anywhere."""
        return self._report(name, self._try_out)

    def adopt(self, name: str) -> Report:
        return self._report(name, self._adopt)

    def _report(self, name: str, do: Callable[[Standing], Report]) -> Report:
        try:
            standing = self.octavia.find(name)
            name = standing.id
            return do(standing)
        except NotHandedOver as error:
            return Report(load_balancer=name, outcome=Outcome.REFUSED, reason=error.reason, message=str(error))
        except NotAnswered as error:
            return Report(load_balancer=name, outcome=Outcome.FAILED, reason=error.who, message=str(error))
        except ServerError as error:
            is_refusal = error.status in REFUSED
            outcome = Outcome.REFUSED if is_refusal else Outcome.FAILED
            words = f"Fairlead cannot have it: {_option(error)}" if is_refusal else str(error)
            return Report(load_balancer=name, outcome=outcome, reason=str(error.status or "unreached"), message=words)

    def _try_out(self, standing: Standing) -> Report:
        if standing.provider != STOCK and self.door.statuses(standing.id) is not None:
            return Report(load_balancer=standing.id, outcome=Outcome.ALREADY)
        body = self.octavia.look(standing.id)
        self.ports.was_made(standing.vip_port_id)
        if self.door.statuses(standing.id) is None:  # else it was prepared, and so it can be
            self.door.post("/trials", "loadbalancer", self._wish(standing, body))
        return Report(load_balancer=standing.id, outcome=Outcome.POSSIBLE)

    def _adopt(self, standing: Standing) -> Report:
        was_made = self.ports.was_made(standing.vip_port_id)
        told = self.door.statuses(standing.id)
        is_new = standing.provider == STOCK or told is None
        if is_new:
            with self.octavia.handing_over(standing.id, port_was_made=was_made) as body:
                self._forget_prepared(standing.id)
                self.door.post("/loadbalancers", "loadbalancer", self._wish(standing, body))
        try:
            self.finish(standing.id)
        except (ServerError, NotHandedOver, NotAnswered) as error:  # it is ours from now on, and that is to be said
            return self._unfinished(standing.id, f"{error}; run this again")
        return self._wait(standing.id, Outcome.ADOPTED if is_new or was_made else Outcome.ALREADY)

    def finish(self, balancer_id: str) -> None:
        """What is left to do after Octavia's commit; what has been done is not done again. The port first: as long as
        it is not Octavia's, whoever looks sees that something is left.

        Raises ServerError, NotHandedOver and NotAnswered.
        """
        port_id = self.octavia.find(balancer_id).vip_port_id
        if self.ports.was_made(port_id):
            self.ports.give(port_id, balancer_id)
        self.door.take_over(balancer_id)

    def _forget_prepared(self, balancer_id: str) -> None:
        """Of an attempt that was killed before Octavia's commit: what was prepared then may be another thing now."""
        told = self.door.statuses(balancer_id)
        if told is not None and told["takeover"] == "prepared":
            self.door.delete(f"/loadbalancers/{balancer_id}?cascade=true")

    def _wait(self, balancer_id: str, outcome: Outcome) -> Report:
        deadline = self.clock() + PATIENCE
        while (now := self.octavia.find(balancer_id)).provisioning.startswith("PENDING"):
            if self.clock() > deadline:
                return self._unfinished(balancer_id, "Octavia has not been told yet: is its driver-agent running?")
            self.sleep(BEAT)
        if now.provisioning != "ACTIVE":
            return self._unfinished(balancer_id, f"it is {now.provisioning}: see the log of Fairlead's server")
        return Report(load_balancer=balancer_id, outcome=outcome)

    def _unfinished(self, balancer_id: str, why: str) -> Report:
        return Report(load_balancer=balancer_id, outcome=Outcome.UNFINISHED, message=why)

    def _wish(self, standing: Standing, body: Body) -> dict[str, Any]:
        """What Octavia has said to be ours is not asked about once more."""
        return {**body, "takeover": True, **({"leaves": self.leaves} if standing.provider == STOCK else {})}


def _option(error: ServerError) -> str:
    """Of a 501 the sentence is an option's name."""
    return f"the provider has no {error}" if error.status == 501 else str(error)
