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
from fairlead.octavia_plugin.api_client import PluginApi
from fairlead.octavia_plugin.bodies import Body

STOCK = "ovn"
"""Octavia's name of the provider that load balancers are taken over from (ovn-octavia-provider)."""
STATUS_TIMEOUT = 60.0
"""Seconds that the agent has to report the status to Octavia."""
POLL_INTERVAL = 0.2
REJECTED_STATUSES = frozenset({400, 404, 409, 413, 501})
"""HTTP statuses for a load balancer that Fairlead does not support. Others are errors of the request."""


class AdoptionOutcome(StrEnum):
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
class AdoptionReport:
    load_balancer: str
    outcome: AdoptionOutcome
    reason: str = ""
    """Machine-readable reason: a keyword for Octavia's side, or Fairlead's HTTP status."""
    message: str = ""

    def as_json(self) -> dict[str, str]:
        return asdict(self)

    def __str__(self) -> str:
        return f"{self.load_balancer}: {self.outcome}{f': {self.message}' if self.message else ''}"


class TakeoverForbidden(Exception):
    """Octavia's state forbids the takeover, and nothing was changed; the message gives the reason."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        """Machine-readable keyword."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BalancerRecord:
    """State of one load balancer in Octavia."""

    id: str
    provider: str
    provisioning: str
    vip_port_id: str


class AdoptionDatabase(Protocol):
    """Octavia's database. Each method may raise NotHandedOver (the provider cannot be changed) or NotAnswered (the
    database did not respond)."""

    def find(self, name: str) -> BalancerRecord: ...

    def look(self, balancer_id: str) -> Body: ...

    def handing_over(self, balancer_id: str, *, port_was_made: bool) -> AbstractContextManager[Body]: ...


class AdoptionPorts(Protocol):
    """VIP ports in Neutron. All methods raise NotHandedOver and NotAnswered."""

    def is_stock_port(self, port_id: str) -> bool: ...

    def hand_to_octavia(self, port_id: str, balancer_id: str) -> None: ...


class ServiceFailed(Exception):
    """Neutron or Octavia's database failed; the message is its own. The request may be retried."""

    def __init__(self, who: str, message: str) -> None:
        super().__init__(message)
        self.service = who
        """Machine-readable keyword of the service."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    api: PluginApi
    octavia: AdoptionDatabase
    ports: AdoptionPorts
    leaves: tuple[str, ...] = ()
    """Networks and routers that the stock provider serves, and Fairlead may leave out."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def dry_run(self, name: str) -> AdoptionReport:
        """Dry run: whether it can be taken over."""
        return self._report(name, self._dry_run)

    def adopt(self, name: str) -> AdoptionReport:
        return self._report(name, self._adopt)

    def _report(self, name: str, do: Callable[[BalancerRecord], AdoptionReport]) -> AdoptionReport:
        try:
            standing = self.octavia.find(name)
            name = standing.id
            return do(standing)
        except TakeoverForbidden as error:
            return AdoptionReport(
                load_balancer=name, outcome=AdoptionOutcome.REFUSED, reason=error.reason, message=str(error)
            )
        except ServiceFailed as error:
            return AdoptionReport(
                load_balancer=name, outcome=AdoptionOutcome.FAILED, reason=error.service, message=str(error)
            )
        except ServerError as error:
            is_refusal = error.status in REJECTED_STATUSES
            outcome = AdoptionOutcome.REFUSED if is_refusal else AdoptionOutcome.FAILED
            words = f"rejected by Fairlead: {_option(error)}" if is_refusal else str(error)
            return AdoptionReport(
                load_balancer=name, outcome=outcome, reason=str(error.status or "unreached"), message=words
            )

    def _dry_run(self, standing: BalancerRecord) -> AdoptionReport:
        if standing.provider != STOCK and self.api.statuses(standing.id) is not None:
            return AdoptionReport(load_balancer=standing.id, outcome=AdoptionOutcome.ALREADY)
        body = self.octavia.look(standing.id)
        self.ports.is_stock_port(standing.vip_port_id)
        if self.api.statuses(standing.id) is None:  # otherwise it is prepared, and so is possible
            self.api.post("/trials", "loadbalancer", self._wish(standing, body))
        return AdoptionReport(load_balancer=standing.id, outcome=AdoptionOutcome.POSSIBLE)

    def _adopt(self, standing: BalancerRecord) -> AdoptionReport:
        was_made = self.ports.is_stock_port(standing.vip_port_id)
        told = self.api.statuses(standing.id)
        is_new = standing.provider == STOCK or told is None
        if is_new:
            with self.octavia.handing_over(standing.id, port_was_made=was_made) as body:
                self._forget_prepared(standing.id)
                self.api.post("/loadbalancers", "loadbalancer", self._wish(standing, body))
        try:
            self.finish(standing.id)
        except (ServerError, TakeoverForbidden, ServiceFailed) as error:  # the provider has changed, so not FAILED
            return self._unfinished(standing.id, f"{error}; run the command again")
        return self._wait(standing.id, AdoptionOutcome.ADOPTED if is_new or was_made else AdoptionOutcome.ALREADY)

    def finish(self, balancer_id: str) -> None:
        """Do the remaining steps after Octavia's commit. Idempotent.

        The port comes first: as long as it is not Octavia's, an unfinished takeover is visible. Raises ServerError,
        NotHandedOver and NotAnswered.
        """
        port_id = self.octavia.find(balancer_id).vip_port_id
        if self.ports.is_stock_port(port_id):
            self.ports.hand_to_octavia(port_id, balancer_id)
        self.api.take_over(balancer_id)

    def _forget_prepared(self, balancer_id: str) -> None:
        """Delete what an attempt prepared that was interrupted before Octavia's commit, because it may be outdated."""
        told = self.api.statuses(balancer_id)
        if told is not None and told["takeover"] == "prepared":
            self.api.delete(f"/loadbalancers/{balancer_id}?cascade=true")

    def _wait(self, balancer_id: str, outcome: AdoptionOutcome) -> AdoptionReport:
        deadline = self.clock() + STATUS_TIMEOUT
        while (now := self.octavia.find(balancer_id)).provisioning.startswith("PENDING"):
            if self.clock() > deadline:
                return self._unfinished(
                    balancer_id, "Octavia has not received the status; check that octavia-driver-agent runs"
                )
            self.sleep(POLL_INTERVAL)
        if now.provisioning != "ACTIVE":
            return self._unfinished(
                balancer_id, f"provisioning_status is {now.provisioning}; see the log of Fairlead's server"
            )
        return AdoptionReport(load_balancer=balancer_id, outcome=outcome)

    def _unfinished(self, balancer_id: str, why: str) -> AdoptionReport:
        return AdoptionReport(load_balancer=balancer_id, outcome=AdoptionOutcome.UNFINISHED, message=why)

    def _wish(self, standing: BalancerRecord, body: Body) -> dict[str, Any]:
        """Request body. If Octavia's provider is Fairlead already, `leaves` was checked before."""
        return {**body, "takeover": True, **({"leaves": self.leaves} if standing.provider == STOCK else {})}


def _option(error: ServerError) -> str:
    """Format an error; the text of a 501 is only the option's name."""
    return f"the provider does not support {error}" if error.status == 501 else str(error)
