"""Takeover step by step: after a kill at any step the result is consistent, or is so after another run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from fairlead.http.server_client import ServerError
from fairlead.octavia_plugin.adoption import Adoption, NotAnswered, NotHandedOver, Outcome, Standing

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
    silent: NotAnswered | None = None
    """Error of Neutron, or of Octavia's database, when the VIP's port is handed over."""
    steps: list[str] = field(default_factory=list)
    now: float = 0.0

    @property
    def adoption(self) -> Adoption:
        return Adoption(door=self, octavia=self, ports=self, clock=lambda: self.now, sleep=self.sleep)  # type: ignore[arg-type]

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

    def find(self, name: str) -> Standing:
        if name not in (LB, "web"):
            raise NotHandedOver("unknown", f"Octavia has no load balancer {name}")
        return Standing(id=LB, provider=self.provider, provisioning=self.provisioning, vip_port_id=PORT)

    def look(self, balancer_id: str) -> Mapping[str, Any]:
        return {"id": balancer_id}

    @contextmanager
    def handing_over(self, balancer_id: str, *, port_was_made: bool) -> Iterator[Mapping[str, Any]]:
        yield self.look(balancer_id)
        with self.step("commit"):
            self.provider, self.provisioning = "fairlead", "PENDING_UPDATE"

    # Neutron

    def was_made(self, port_id: str) -> bool:
        return self.port_was_made

    def give(self, port_id: str, balancer_id: str) -> None:
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


def test_a_load_balancer_is_prepared_committed_taken_and_told():
    world = World()
    report = world.adoption.adopt("web")
    assert (report.outcome, report.load_balancer) == (Outcome.ADOPTED, LB)
    assert world.steps == ["prepare", "commit", "give", "take"]
    assert is_whole(world)
    assert world.adoption.adopt(LB).outcome is Outcome.ALREADY


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fatal", range(4))
def test_who_is_killed_anywhere_runs_it_again_and_all_is_whole(fatal: int, late: bool):
    world = World(fatal=fatal, late=late, agent=False)
    with pytest.raises(Killed):
        world.adoption.adopt(LB)
    assert world.provider == "fairlead" or world.fairlead in (None, "prepared"), "the stock provider's rows serve"
    world.agent = True
    assert world.adoption.adopt(LB).outcome in (Outcome.ADOPTED, Outcome.ALREADY)
    assert world.provider == "fairlead"
    assert is_whole(world)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("fatal", range(4))
def test_who_does_not_come_again_leaves_the_rest_to_the_agent(fatal: int, late: bool):
    world = World(fatal=fatal, late=late, agent=False)
    with pytest.raises(Killed):
        world.adoption.adopt(LB)
    world.be_agent()
    assert is_whole(world)


@pytest.mark.parametrize(("status", "outcome"), [(501, Outcome.REFUSED), (None, Outcome.FAILED), (500, Outcome.FAILED)])
def test_what_fairlead_refuses_changes_nothing(status: int | None, outcome: Outcome):
    for do in (Adoption.adopt, Adoption.try_out):
        world = World(refusal=ServerError("connection_limit", status))
        report = do(world.adoption, "web")
        assert (report.outcome, world.steps, world.provider) == (outcome, [], "ovn")
        assert "connection_limit" in str(report)


def test_who_does_not_answer_after_the_commit_leaves_the_rest_to_be_done():
    world = World(silent=NotAnswered("database", "Octavia's database: it has gone away"), agent=False)
    report = world.adoption.adopt("web")
    assert (report.outcome, world.provider) == (Outcome.UNFINISHED, "fairlead")
    assert report.message == "Octavia's database: it has gone away; run this again"
    world.silent, world.agent = None, True
    assert world.adoption.adopt("web").outcome is Outcome.ADOPTED
    assert is_whole(world)


def test_nothing_is_written_by_a_dry_run():
    world = World()
    assert world.adoption.try_out("web").outcome is Outcome.POSSIBLE
    assert world.steps == []
    assert world.adoption.try_out("other").outcome is Outcome.REFUSED


def test_without_the_agent_it_is_said_what_is_missing():
    world = World(agent=False)
    report = world.adoption.adopt("web")
    assert (report.outcome, world.fairlead) == (Outcome.UNFINISHED, "taken")
    assert "driver-agent" in report.message
