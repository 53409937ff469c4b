"""Dataplanes defined by the tests, central and per node, below the unchanged product: cases, status, APIs, metrics."""

import asyncio
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from fairlead.api.app import make_app
from fairlead.api.http.authentication import authenticate_as_admin
from fairlead.api.octavia import make_front_end
from fairlead.compilers.ovn import OVN
from fairlead.compilers.providers import DATAPLANES, DEFAULT, IMPLEMENTATIONS, checked_by, dataplanes_of
from fairlead.compilers.unsupported import Unsupported
from fairlead.dataplane.rows import NO_ROWS, Rows
from fairlead.drivers.fake import Fault
from fairlead.drivers.interface import Unreachable
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.status import AppliedState, combine_applied
from fairlead.model.queries.balancer_state import derive_balancer_status
from fairlead.model.registry.changeset import Changes, apply_changes
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import Steps, run_to_completion
from harness.api import in_process_server
from harness.case import Case, RowPlacement, State, parse_chassis, parse_model, parse_plugged, places_of, read_case
from harness.toy import NAMES, TOY, TOYS
from harness.waiting import eventually
from harness.walk import SimulatedDeployment, check_goldens, walk_every_path

STORIES = [read_case(path, TOYS) for path in sorted(Path(__file__).parent.glob("*.txt"))]
of_each_story = pytest.mark.parametrize("story", STORIES, ids=lambda story: story.path.stem)


@of_each_story
def test_compiled_rows_match_the_case(story: Case) -> None:
    check_goldens(story)


@of_each_story
@pytest.mark.parametrize("restarting", [False, True], ids=["running", "restarted"])
@pytest.mark.parametrize("seed", [None, 1], ids=["calm", "faults"])
def test_every_walk_converges_to_the_rows_of_the_case(story: Case, seed: int | None, restarting: bool) -> None:
    walk_every_path(story, seed=seed, restarting=restarting)


# Status, while one of several dataplanes fails


BOTH = """\
network net1 10.0.0.0/24
port vm1 net1 10.0.0.11
web vip=10.0.0.10 on=net1 provider=both tcp:80=a/10.0.0.11:8080
old vip=10.0.0.20 on=net1 tcp:80=a/10.0.0.11:8080
cut vip=10.0.0.30 on=net1 provider=edge tcp:80=a/10.0.0.11:8080
plugged chassis1 vm1
plugged chassis2 vm2
"""
WEB, OLD, CUT = (Owner(Kind.LOAD_BALANCER, name) for name in ("web", "old", "cut"))
CHASSIS1 = RowPlacement("leaf", "chassis1")


def make_world() -> SimulatedDeployment:
    documents, down = parse_model(BOTH, {})
    plugged = parse_plugged(BOTH)
    state = State(
        name="both",
        model=BOTH,
        expected={},
        documents=documents,
        down=down,
        plugged=plugged,
        chassis=parse_chassis(BOTH),
    )
    world = SimulatedDeployment(dataplanes=TOYS, places=places_of(TOYS, (state,)))
    world.mark(world._change(state))
    return world


def refuse(world: SimulatedDeployment, where: RowPlacement, refusing: bool = True) -> None:
    """Make every apply of this dataplane fail, or succeed again."""
    site = world.site(where)
    site.driver._fault = lambda: Fault.REJECTED if refusing else Fault.NONE


async def settle(world: SimulatedDeployment, *places: RowPlacement) -> None:
    """Let each site, or these, process its queue once."""
    for site in world.sites:
        while (not places or site.where in places) and await site.reconciler.step():
            pass


def statuses(world: SimulatedDeployment, owner: Owner) -> tuple[str, str]:
    balancer = world.snapshot.load_balancers[owner.id]
    stands = derive_balancer_status(world.snapshot, balancer, world.dataplanes().applied(owner))
    return stands.provisioning_status(balancer).value, stands.of_balancer().value


@pytest.fixture
def world() -> SimulatedDeployment:
    return make_world()


async def test_load_balancer_in_two_dataplanes_is_active_when_both_apply(world: SimulatedDeployment):
    assert statuses(world, WEB) == ("PENDING_CREATE", "OFFLINE")
    await settle(world, RowPlacement("ovn"))
    assert statuses(world, WEB) == ("PENDING_CREATE", "OFFLINE")
    assert statuses(world, OLD) == ("ACTIVE", "ONLINE"), "it has nothing in the toy"
    await settle(world)
    assert {statuses(world, each) for each in (WEB, OLD, CUT)} == {("ACTIVE", "ONLINE")}


async def test_failed_central_dataplane_is_an_error_of_its_owners_only(world: SimulatedDeployment):
    refuse(world, RowPlacement("toy"))
    await settle(world)
    assert [statuses(world, each)[0] for each in (WEB, OLD, CUT)] == ["ERROR", "ACTIVE", "ERROR"]
    assert world.dataplanes().applied(WEB).error == "toy: refused"
    refuse(world, RowPlacement("toy"), refusing=False)
    await world.run_until_idle()
    assert {statuses(world, each) for each in (WEB, OLD, CUT)} == {("ACTIVE", "ONLINE")}


async def test_unreadable_dataplane_is_no_error_of_owners_without_rows(world: SimulatedDeployment):
    async def unreachable(_: Owner) -> Rows:
        raise Unreachable("no connection")

    world.site(RowPlacement("toy")).driver.read = unreachable  # type: ignore[method-assign]
    await settle(world)
    assert [statuses(world, each)[0] for each in (WEB, OLD, CUT)] == ["ERROR", "ACTIVE", "ERROR"]


async def test_failed_node_leaves_every_load_balancer_active(world: SimulatedDeployment):
    """The agent reports the failure; it degrades load balancers of hosts (tests/model/test_balancer_status.py)."""

    refuse(world, CHASSIS1)
    await settle(world)
    assert {statuses(world, each) for each in (WEB, OLD, CUT)} == {("ACTIVE", "ONLINE")}
    assert [*world.dataplanes().known(CUT)] == ["toy"]


async def test_wait_for_news_covers_every_dataplane(world: SimulatedDeployment):
    kept = world.dataplanes()
    waiting = asyncio.ensure_future(kept.wait_for_outcome(WEB, world.snapshot.revision))
    await settle(world, RowPlacement("ovn"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await settle(world)
    await eventually(waiting.done)
    await waiting
    kept.read_again(WEB)
    assert [len(world.site(RowPlacement(name)).reconciler) for name in ("ovn", "toy")] == [1, 1]


def test_owner_without_a_central_dataplane_is_applied_when_stored():
    assert combine_applied({}, 7) == AppliedState(generation=7)


# Compilers


def test_change_is_accepted_if_every_dataplane_of_the_provider_compiles():
    model = (
        "network net1 10.0.0.0/24\n"
        "dns vip=10.0.0.20 on=net1 provider=both udp:53=-\n"
        "old vip=10.0.0.21 on=net1 udp:53=-\n"
    )
    documents, _ = parse_model(model, {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    check = checked_by(TOYS)
    run_to_completion(check(snapshot, OLD))
    with pytest.raises(Unsupported, match=r"both does not support listener\.protocol UDP"):
        run_to_completion(check(snapshot, Owner(Kind.LOAD_BALANCER, "dns")))


def test_single_dataplane_is_used_without_a_wrapper():
    (only,) = dataplanes_of(DEFAULT)
    assert only == OVN


def test_yielding_compiler_yields_only_for_its_own_owners():
    def compile_in_steps(view: Snapshot, owner: Owner) -> Steps[Rows]:
        yield
        yield
        return TOY.compile(view, owner)

    balancers = "old vip=10.0.0.21 on=net1 tcp:53=-\nnew vip=10.0.0.22 on=net1 provider=toy tcp:53=-\n"
    model = f"network net1 10.0.0.0/24\n{balancers}"
    documents, _ = parse_model(model, {})
    snapshot = apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)
    (toy,) = dataplanes_of(NAMES, {"toy": replace(TOY, compile_in_steps=compile_in_steps)})
    new = Owner(Kind.LOAD_BALANCER, "new")
    work = toy.compile_in_steps(snapshot, new)
    assert [next(work), next(work)] == [None, None]
    assert run_to_completion(work) == TOY.compile(snapshot, new) != NO_ROWS
    with pytest.raises(StopIteration) as end:
        next(toy.compile_in_steps(snapshot, OLD))
    assert end.value.value == NO_ROWS


def test_providers_name_exactly_the_existing_dataplanes():
    assert {name for each in IMPLEMENTATIONS.values() for name in each.dataplanes} == set(DATAPLANES)


# Operator's view


async def see(folder: Path, *paths: str) -> list[httpx.Response]:
    """Return responses of the operator API and metrics while chassis1 and the toy fail."""
    world = make_world()
    refuse(world, CHASSIS1)
    refuse(world, RowPlacement("toy"))
    await settle(world)
    async with in_process_server(make_front_end, folder, "") as place:
        kept = world.dataplanes()
        place.model.snapshot = world.snapshot
        services = replace(place.services, applied=kept.applied)
        app = make_app(services, kept, authenticate_as_admin).all
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://door") as client:
            return [await (client.post(path[1:]) if path[0] == "!" else client.get(path)) for path in paths]


async def test_plan_is_shown_in_total_and_by_dataplane(tmp_path: Path):
    (answer,) = await see(tmp_path, "/operator/plan")
    plan = answer.json()["plan"]
    web = plan["loadbalancer/web"]
    assert web["create"] == ["Service web-tcp-80 on net1: 10.0.0.10:80", "Target web-a of web-tcp-80: 10.0.0.11:8080*1"]
    assert web["dataplanes"] == {"toy": {name: web[name] for name in ("create", "update", "delete")}}
    assert "loadbalancer/old" not in plan


async def test_an_owner_is_shown_by_dataplane(tmp_path: Path):
    (answer,) = await see(tmp_path, "/operator/owners/cut")
    shown = answer.json()
    assert (shown["status"], shown["error"]) == ("ERROR", "refused")
    assert list(shown["dataplanes"]) == ["toy"]
    toy = shown["dataplanes"]["toy"]
    assert (list(toy["desired"]), toy["actual"]) == (["Service cut-tcp-80", "Target cut-tcp-80 cut-a"], {})
    assert shown["desired"] == toy["desired"]


async def test_statistics_and_metrics_are_shown_by_dataplane(tmp_path: Path):
    resynced, figures, metrics = await see(tmp_path, "!/operator/resync", "/operator/statistics", "/metrics")
    assert resynced.json() == {"changed": 0, "dataplanes": {"ovn": 0, "toy": 0}}, "those that wait are looked at anyway"
    told = figures.json()
    assert told["failed"] == told["dataplanes"]["toy"]["failed"] == 3
    for line in (
        'fairlead_applies_total{dataplane="toy",outcome="failed"} 3.0',
        'fairlead_applies_total{dataplane="ovn",outcome="failed"} 0.0',
        'fairlead_failovers_total{dataplane="toy"} 0.0',
        'fairlead_dataplane_leader{dataplane="toy"} 1.0',
    ):
        assert line in metrics.text
