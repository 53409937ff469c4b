"""Takeover step by step: after a kill at any step the result is consistent, or is so after another run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import Adoption, AdoptionOutcome, BalancerRecord, ServiceFailed, TakeoverForbidden

LB, PORT = "aaaaaaaa-0000-4000-8000-000000000001", "ffffffff-0000-4000-8000-000000000001"


class Killed(BaseException):
    """Equivalent of SIGKILL: no code catches it."""


@dataclass
class World:
    """Octavia's database, Neutron and Fairlead's front end as the command uses them.

    `steps` are its modifying calls in order; at the one with the number `fatal` it is killed, before or after the
    effect.
    """

    provider: str = "ovn"
    provisioning: str = "ACTIVE"
    port_was_made: bool = True
    fairlead: str | None = None
    """`prepared`, `taken`, or None."""
    refusal: ServerError | None = None
    fatal: int = -1
    late: bool = False
    agent: bool = True
    silent: ServiceFailed | None = None
    """Error of Neutron, or of Octavia's database, when the VIP's port is handed over."""
    steps: list[str] = field(default_factory=list)
    now: float = 0.0

    @property
    def adoption(self) -> Adoption:
        return Adoption(api=self, octavia=self, ports=self, clock=lambda: self.now, sleep=self.sleep)  # type: ignore[arg-type]

    def sleep(self, seconds: float) -> None:
        """Advance the time. The agent runs in the meantime."""
        self.now += seconds
        if self.agent:
            self.be_agent()

    def be_agent(self) -> None:
        """Complete a committed takeover, and report the status after it."""
        if self.provider == "fairlead" and self.fairlead == "prepared":
            self.adoption.finish(LB)
        if self.provider == "fairlead" and self.fairlead == "taken":
            self.provisioning = "ACTIVE"

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        is_fatal = len(self.steps) == self.fatal
        self.steps.append(name)
        if is_fatal and not self.late:
            raise Killed
        yield
        if is_fatal:
            raise Killed

    # Octavia

    def find(self, name: str) -> BalancerRecord:
        if name not in (LB, "web"):
            raise TakeoverForbidden("unknown", f"Octavia has no load balancer {name}")
        return BalancerRecord(id=LB, provider=self.provider, provisioning=self.provisioning, vip_port_id=PORT)

    def look(self, balancer_id: str) -> Mapping[str, Any]:
        return {"id": balancer_id}

    @contextmanager
    def handing_over(self, balancer_id: str, *, port_was_made: bool) -> Iterator[Mapping[str, Any]]:
        yield self.look(balancer_id)
        with self.step("commit"):
            self.provider, self.provisioning = "fairlead", "PENDING_UPDATE"

    # Neutron

    def is_stock_port(self, port_id: str) -> bool:
        return self.port_was_made

    def hand_to_octavia(self, port_id: str, balancer_id: str) -> None:
        if self.silent:
            raise self.silent
        with self.step("give"):
            self.port_was_made = False

    # Fairlead

    def statuses(self, balancer_id: str) -> Mapping[str, Any] | None:
        return None if self.fairlead is None else {"takeover": self.fairlead}

    def post(self, path: str, root: str, body: Mapping[str, Any]) -> None:
        assert body["takeover"]
        if self.refusal:
            raise self.refusal
        if path == "/trials":
            return
        with self.step("prepare"):
            assert self.fairlead is None, "its id is in use"
            self.fairlead = "prepared"

    def delete(self, path: str) -> None:
        assert path == f"/loadbalancers/{LB}?cascade=true"
        with self.step("forget"):
            assert self.fairlead == "prepared", "what serves would go"
            self.fairlead = None

    def take_over(self, balancer_id: str) -> None:
        with self.step("take"):
            assert self.provider == "fairlead", "Octavia would not know whose it is"
            assert self.fairlead is not None
            self.fairlead = "taken"


def is_whole(world: World) -> bool:
    ours = world.provider == "fairlead" and world.fairlead == "taken" and not world.port_was_made
    return (ours and world.provisioning == "ACTIVE") or (world.provider == "ovn" and world.fairlead != "taken")


def test_adoption_prepares_commits_and_takes_the_load_balancer():
    world = World()
    report = world.adoption.adopt("web")
    assert (report.outcome, report.load_balancer) == (AdoptionOutcome.ADOPTED, LB)
    assert world.steps == ["prepare", "commit", "give", "take"]
    assert is_whole(world)
    assert world.adoption.adopt(LB).outcome is AdoptionOutcome.ALREADY


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fatal", range(4))
def test_adoption_killed_at_any_step_is_completed_by_another_run(fatal: int, late: bool):
    world = World(fatal=fatal, late=late, agent=False)
    with pytest.raises(Killed):
        world.adoption.adopt(LB)
    assert world.provider == "fairlead" or world.fairlead in (None, "prepared"), "the stock provider's rows serve"
    world.agent = True
    assert world.adoption.adopt(LB).outcome in (AdoptionOutcome.ADOPTED, AdoptionOutcome.ALREADY)
    assert world.provider == "fairlead"
    assert is_whole(world)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fatal", range(4))
def test_adoption_killed_at_any_step_is_completed_by_the_agent(fatal: int, late: bool):
    world = World(fatal=fatal, late=late, agent=False)
    with pytest.raises(Killed):
        world.adoption.adopt(LB)
    world.be_agent()
    assert is_whole(world)


@pytest.mark.parametrize(
    ("status", "outcome"),
    [(501, AdoptionOutcome.REFUSED), (None, AdoptionOutcome.FAILED), (500, AdoptionOutcome.FAILED)],
)
def test_adoption_rejected_by_the_server_changes_nothing(status: int | None, outcome: AdoptionOutcome):
    for do in (Adoption.adopt, Adoption.dry_run):
        world = World(refusal=ServerError("connection_limit", status))
        report = do(world.adoption, "web")
        assert (report.outcome, world.steps, world.provider) == (outcome, [], "ovn")
        assert "connection_limit" in str(report)


def test_adoption_without_a_response_after_the_commit_is_unfinished():
    world = World(silent=ServiceFailed("database", "Octavia's database: it has gone away"), agent=False)
    report = world.adoption.adopt("web")
    assert (report.outcome, world.provider) == (AdoptionOutcome.UNFINISHED, "fairlead")
    assert report.message == "Octavia's database: it has gone away; run the command again"
    world.silent, world.agent = None, True
    assert world.adoption.adopt("web").outcome is AdoptionOutcome.ADOPTED
    assert is_whole(world)


def test_adoption_dry_run_writes_nothing():
    world = World()
    assert world.adoption.dry_run("web").outcome is AdoptionOutcome.POSSIBLE
    assert world.steps == []
    assert world.adoption.dry_run("other").outcome is AdoptionOutcome.REFUSED


def test_adoption_without_the_agent_names_the_driver_agent():
    world = World(agent=False)
    report = world.adoption.adopt("web")
    assert (report.outcome, world.fairlead) == (AdoptionOutcome.UNFINISHED, "taken")
    assert "driver-agent" in report.message
