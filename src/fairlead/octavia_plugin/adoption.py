"""Takeover of a load balancer from Octavia's stock provider, step by step.

1. Lock Octavia's row and create the load balancer in Fairlead as prepared, without rows. Fairlead rejects load
balancers that it does not support, or with clients that only the stock provider reaches. Octavia then commits the new
provider.

2. Change the VIP's port to one that Octavia deletes.

3. Let Fairlead take over: one transaction deletes the stock provider's rows and creates Fairlead's.

4. The agent reports ACTIVE to Octavia, as after every change.

An interruption before the commit changes nothing in Octavia; a load balancer that is prepared but not in Octavia is
deleted after a while, and has no rows. After the commit Octavia has the new provider: the agent finishes the takeover,
and a repeated run does any remaining step. At each moment the rows of exactly one provider are in force.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, Protocol

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.api_client import Door
from fairlead.octavia_plugin.bodies import Body

STOCK = "ovn"
"""Octavia's name of the provider that load balancers are taken over from (ovn-octavia-provider)."""
PATIENCE = 60.0
"""Seconds that the agent has to report the status to Octavia."""
BEAT = 0.2
REFUSED = frozenset({400, 404, 409, 413, 501})
"""HTTP statuses for a load balancer that Fairlead does not support. Others are errors of the request."""


class Outcome(StrEnum):
    ADOPTED = "adopted"
    ALREADY = "already ours"
    POSSIBLE = "possible"
    """Result of a dry run."""
    REFUSED = "refused"
    """The load balancer cannot be taken over, and nothing was changed."""
    UNFINISHED = "unfinished"
    """Fairlead has the load balancer, and steps remain: the agent or a repeated run finishes them."""
    FAILED = "failed"
    """Another service failed before anything was changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    load_balancer: str
    outcome: Outcome
    reason: str = ""
    """Machine-readable reason: a keyword for Octavia's side, or Fairlead's HTTP status."""
    message: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.load_balancer}: {self.outcome}{f': {self.message}' if self.message else ''}"


class NotHandedOver(Exception):
    """Octavia's state forbids the takeover, and nothing was changed; the message gives the reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """Machine-readable keyword."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """State of one load balancer in Octavia."""

    id: str
    provider: str
    provisioning: str
    vip_port_id: str


class Octavia(Protocol):
    """Octavia's database. All methods raise NotHandedOver and NotAnswered."""

    def find(self, name: str) -> Standing: ...

    def look(self, balancer_id: str) -> Body: ...

    def handing_over(self, balancer_id: str, *, port_was_made: bool) -> AbstractContextManager[Body]: ...


class Ports(Protocol):
    """VIP ports in Neutron. All methods raise NotHandedOver and NotAnswered."""

    def was_made(self, port_id: str) -> bool: ...

    def give(self, port_id: str, balancer_id: str) -> None: ...


class NotAnswered(Exception):
    """Neutron or Octavia's database failed; the message is its own. The request may be retried."""

    def __init__(self, who: str, message: str) -> None:
        super().__init__(message)
        self.who = who
        """Machine-readable keyword of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    door: Door
    octavia: Octavia
    ports: Ports
    leaves: tuple[str, ...] = ()
    """Networks and routers that the stock provider serves, and Fairlead may leave out."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def try_out(self, name: str) -> Report:
        """Dry run: whether it can be taken over."""
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
        if self.door.statuses(standing.id) is None:  # otherwise it is prepared, and so is possible
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
        except (ServerError, NotHandedOver, NotAnswered) as error:  # the provider has changed, so not FAILED
            return self._unfinished(standing.id, f"{error}; run this again")
        return self._wait(standing.id, Outcome.ADOPTED if is_new or was_made else Outcome.ALREADY)

    def finish(self, balancer_id: str) -> None:
        """Do the remaining steps after Octavia's commit. Idempotent.

        The port comes first: as long as it is not Octavia's, an unfinished takeover is visible. Raises ServerError,
        NotHandedOver and NotAnswered.
        """
        port_id = self.octavia.find(balancer_id).vip_port_id
        if self.ports.was_made(port_id):
            self.ports.give(port_id, balancer_id)
        self.door.take_over(balancer_id)

    def _forget_prepared(self, balancer_id: str) -> None:
        """Delete what an attempt prepared that was interrupted before Octavia's commit, because it may be outdated."""
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
        """Request body. If Octavia's provider is Fairlead already, `leaves` was checked before."""
        return {**body, "takeover": True, **({"leaves": self.leaves} if standing.provider == STOCK else {})}


def _option(error: ServerError) -> str:
    """Format an error; the text of a 501 is only the option's name."""
    return f"the provider has no {error}" if error.status == 501 else str(error)
