"""Connections continue during failures and restarts of the server and OVN's central, and changes of a pool's members.

An established connection to a member that is removed, disabled or has weight 0 continues until its ends close it; only
new ones go elsewhere. So no change in these tests may break a connection.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import bcrypt
import openstack
import openstack.connection
import pytest

from fairlead.lab import Lab, LabConnectionLost, Protocol, Traffic
from fairlead.lab.load import Load, LoadResult, LoadTarget, RunningLoad, sum_results
from fairlead.lab.server import ServerProcess
from harness.lab.northbound import OvnNorthd, monitoring, unreliable_northbound
from harness.lab.servers import FairleadProcess, rows_of, serving
from harness.lab.site import PORT, CreatedBalancer, LabSite
from harness.ports import free_port
from harness.waiting import DEADLINE, pause, wait_until

pytestmark = pytest.mark.lab

DEAD_SECONDS = 120
CHANGES = 20
MEMBERS = ("m0", "m1", "m2", "m3")
GUESTS = ("g0", "g1")
"""Members that are added and removed; their machines always run."""
CLIENTS = {"near1": "chassis1", "near2": "chassis2", "far1": "chassis1", "far2": "chassis2"}
"""Clients by chassis, on the switch of the VIP and behind a router."""
KINDS = [(version, protocol) for version in (4, 6) for protocol in Protocol]
ROUNDS = 5
"""Attempts until a change loses no packet: a defect loses one each time."""
MIN_CONNECTIONS = 2000
"""Minimum number of connections opened or in use during a run."""


@dataclass
class ServerHost:
    """A store, and the server that uses it. Servers run one after the other."""

    lab: Lab
    folder: Path
    port: int
    stack: ExitStack
    server: FairleadProcess
    diary: list[str] = field(default_factory=list)

    def start(self, port: int = 0, **options: str) -> FairleadProcess:
        """Stop the current server if it still runs, and start another one."""
        self.stack.close()
        serve = serving(self.lab, self.folder, port=port or self.port, FAIRLEAD_OVN_OWNER_TAG="traffic", **options)
        self.server = self.stack.enter_context(serve)
        return self.server

    def record(self, what: str) -> None:
        self.diary.append(what)


@dataclass(frozen=True)
class Scene:
    home: ServerHost
    site: LabSite
    balancers: Sequence[CreatedBalancer]

    def targets(self) -> tuple[LoadTarget, ...]:
        protocols = [protocol for _, protocol in KINDS]
        return tuple(
            LoadTarget(to=balancer.vip, port=80, protocol=protocol)
            for balancer, protocol in zip(self.balancers, protocols, strict=True)
        )

    def add(self, place: int, name: str) -> None:
        """Add a member to the pool of a balancer. Returns when every chassis has the flows."""
        balancer, (version, _) = self.balancers[place], KINDS[place]
        self.site.cloud.load_balancer.create_member(
            balancer.pool, name=name, address=self.site.address(name, version), protocol_port=PORT
        )
        self.site.settle(balancer.id)

    def remove(self, place: int, name: str) -> None:
        balancer = self.balancers[place]
        self.site.cloud.load_balancer.delete_member(self.site.member(balancer, name), balancer.pool)
        self.site.settle(balancer.id)


@pytest.fixture(scope="module")
def scene(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Four balancers, TCP and UDP over IPv4 and IPv6, with the same four members and a guest."""
    folder, port = tmp_path_factory.mktemp("traffic"), free_port()
    with ExitStack() as stack:
        first = stack.enter_context(ExitStack())
        server = first.enter_context(serving(lab, folder, port=port, FAIRLEAD_OVN_OWNER_TAG="traffic"))
        home = ServerHost(lab=lab, folder=folder, port=port, stack=first, server=server)
        site = LabSite(
            lab=lab, service=ServerProcess(url=server.url, folder=folder), cloud=connect(server.url), url=server.url
        )
        stack.callback(site.cloud.close)
        stack.callback(clear, site, home)
        site.network("blue", "10.0.0.0/24", "fd00:a::/64")
        site.network("green", "10.0.1.0/24", "fd00:b::/64")
        site.router("r1", "blue-v4", "blue-v6", "green-v4", "green-v6")
        servers = {name: f"chassis{1 + place % 2}" for place, name in enumerate((*MEMBERS, *GUESTS))}
        for name in (*servers, *CLIENTS):
            stack.callback(lab.remove_workload, name)
        site.machines("blue", servers, serve=[PORT])
        site.machines("blue", {name: CLIENTS[name] for name in ("near1", "near2")})
        site.machines("green", {name: CLIENTS[name] for name in ("far1", "far2")})
        made = [
            stack.enter_context(
                site.balancer(f"blue-v{version}", [*MEMBERS, "g0"], protocol=protocol.value.upper(), version=version)
            )
            for version, protocol in KINDS
        ]
        yield Scene(home=home, site=site, balancers=made)


def clear(site: LabSite, home: ServerHost) -> None:
    """Delete everything, and assert that no row is left."""
    router = site.cloud.network.find_router("r1")
    for port in site.cloud.network.ports(device_id=router.id):
        site.cloud.network.remove_interface_from_router(router, port_id=port.id)
    site.cloud.network.delete_router(router)
    for port in site.cloud.network.ports():
        site.cloud.network.delete_port(port)
    for network in site.cloud.network.networks():
        site.cloud.network.delete_network(network)
    wait_until(home.server.is_idle)
    assert rows_of(home.lab, "traffic") == {}
    assert home.lab.status().is_healthy, "a daemon of the lab ended by itself"


def connect(url: str) -> openstack.connection.Connection:
    return openstack.connection.Connection(
        auth_type="none",
        auth={"endpoint": url},
        network_endpoint_override=f"{url}/network",
        load_balancer_endpoint_override=f"{url}/load-balancer",
    )


@contextmanager
def loaded(scene: Scene, *, rate: float, held: int, seconds: float) -> Iterator[list[RunningLoad]]:
    """Load of all clients. `rate` and `held` are per client."""
    count = int(rate * seconds) + 1
    load = Load(targets=scene.targets(), rate=rate, count=count, held=held, seconds=seconds, timeout=30)
    with ExitStack() as stack:
        yield [stack.enter_context(scene.home.lab.load(client, load)) for client in CLIENTS]


def check_no_failed_connections(results: Sequence[LoadResult], home: ServerHost, held: int) -> None:
    """Assert that no connection broke.

    While Open vSwitch changes a group, a first packet may be lost and sent again; `loses_no_packet` checks all other
    cases.
    """
    print(sum_results(results))
    broken = sorted((each for result in results for each in result.failed), key=lambda each: each.at)
    assert broken == [], f"meanwhile: {home.diary}"
    assert sum_results(results)["held"] == held * len(CLIENTS)
    assert sum_results(results)["opened"] + sum_results(results)["held"] >= MIN_CONNECTIONS


def loses_no_packet(scene: Scene, happens: Callable[[], None]) -> bool:
    """Whether no packet was sent again, because of a loss or a delay of more than a second on a busy machine."""
    with loaded(scene, rate=20, held=8, seconds=30) as running:
        happens()
        results = [each.stop() for each in running]
    check_broken(results)
    return sum(len(result.retransmissions) for result in results) == 0


def check_broken(results: Sequence[LoadResult]) -> None:
    assert [each for result in results for each in result.failed] == []


def test_load_detects_broken_connections(scene: Scene, lab: Lab):
    """Precondition of the other tests: the load detects broken connections."""
    with ExitStack() as stack:
        balancer = stack.enter_context(scene.site.balancer("blue-v4", ["m0"]))
        target = LoadTarget(to=balancer.vip, port=80)
        load = Load(targets=(target,), rate=20, count=600, held=5, seconds=60, timeout=0.5, period=0.1)
        running = stack.enter_context(lab.load("near1", load))
        own = stack.enter_context(lab.hold("near1", Traffic(to=balancer.vip, port=80, timeout=3 * load.timeout)))
        assert own.exchange("before") == "m0 before"
        scene.site.cloud.load_balancer.delete_member(scene.site.member(balancer, "m0"), balancer.pool)
        scene.site.settle(balancer.id)
        refused = lab.traffic("near1", Traffic(to=balancer.vip, port=80))
        assert refused.errors == {"refused": 1}
        lab.exec("m0", ["ip", "route", "add", "blackhole", scene.site.address("near1")])
        try:
            with pytest.raises(LabConnectionLost):  # after three times the timeout of the load
                own.exchange("after")
            result = running.stop()
        finally:
            lab.exec("m0", ["ip", "route", "delete", "blackhole", scene.site.address("near1")])
    assert {each.kind for each in result.failed if not each.member} == {"refused"}
    assert [each.member for each in result.failed if each.member] == ["m0"] * 5


@pytest.mark.extended
def test_member_changes_kills_and_upgrades_break_no_connection(scene: Scene, lab: Lab, tmp_path: Path):
    """20 members are added and 20 removed; the server, OVN's database and northd are killed; a resync runs."""
    home, held = scene.home, 48
    with loaded(scene, rate=20, held=held, seconds=240) as running:
        for place in range(len(KINDS)):
            home.record(f"the guest that was there at the start leaves pool {place}")
            scene.remove(place, "g0")
        for change in range(CHANGES):
            place, name = change % len(KINDS), GUESTS[change // len(KINDS) % 2]
            home.record(f"{name} joins pool {place}")
            scene.add(place, name)
            home.record(f"{name} leaves pool {place}")
            scene.remove(place, name)
        for happens in (kill_the_server, run_full_resync, kill_the_database, kill_northd):
            home.record(happens.__name__)
            assert any(loses_no_packet(scene, partial(happens, scene)) for _ in range(ROUNDS)), happens
        with monitoring(lab, tmp_path) as monitor:
            home.record("another configuration, and back")
            assert any(loses_no_packet(scene, partial(upgrade, scene, tmp_path)) for _ in range(ROUNDS))
            assert monitor.writes() == []
        pause(MIN_CONNECTIONS / 70)
        results = [each.stop() for each in running]
    check_no_failed_connections(results, home, held)
    assert min(result.held.get("g0", 0) for result in results) > 0, "connections of the member that left go on"
    for place in range(len(KINDS)):
        scene.add(place, "g0")


def kill_the_server(scene: Scene) -> None:
    scene.home.server.kill()
    wait_until(scene.home.start().is_ready)
    wait_until(scene.home.server.is_idle)


def run_full_resync(scene: Scene) -> None:
    assert scene.home.server.client.post("/operator/resync").json()["changed"] == 0


def kill_the_database(scene: Scene) -> None:
    with unreliable_northbound(scene.home.lab) as northbound:
        northbound.kill()
        wait_until(lambda: not scene.home.server.is_ready())
        northbound.start()
        wait_until(scene.home.server.is_ready)
    wait_until(scene.home.server.is_idle)
    scene.home.lab.wait_synced()


def kill_northd(scene: Scene) -> None:
    OvnNorthd(scene.home.lab).restart()
    scene.home.lab.wait_synced()


def upgrade(scene: Scene, folder: Path) -> None:
    """Upgrade as a package does: stop, start with another configuration, and return to the old one."""
    home, users = scene.home, folder / "users"
    users.touch(mode=0o600)
    users.write_text(f"ann:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}:shop:admin\n")
    home.server.process.terminate()
    assert home.server.process.wait(DEADLINE) == 0
    changed = home.start(
        free_port(),
        FAIRLEAD_SERVER_AUTHENTICATION="http_basic",
        FAIRLEAD_SERVER_PASSWORD_FILE=str(users),
        FAIRLEAD_LOG_LEVEL="debug",
        FAIRLEAD_NETWORK_MTU="1400",
        FAIRLEAD_OVN_NORTHBOUND=f"unix:{folder}/nothing.sock,{home.lab.northbound}",
    )
    changed.client.auth = ("ann", "secret")
    wait_until(changed.is_ready)
    wait_until(changed.is_idle)
    changed.process.terminate()
    assert changed.process.wait(DEADLINE) == 0
    wait_until(home.start().is_ready)
    wait_until(home.server.is_idle)


def test_established_connections_outlive_removed_disabled_or_draining_members(scene: Scene):
    held = 48
    with loaded(scene, rate=1, held=held, seconds=100) as running:
        for place, balancer in enumerate(scene.balancers):
            scene.remove(place, "m1")
            scene.site.set_member(balancer, "m2", is_admin_state_up=False)
            scene.site.set_member(balancer, "m3", weight=0)
        with loaded(scene, rate=20, held=0, seconds=2) as later:
            new = [each.finish() for each in later]
        results = [each.stop() for each in running]
    for place, balancer in enumerate(scene.balancers):
        scene.add(place, "m1")
        scene.site.set_member(balancer, "m2", is_admin_state_up=True)
        scene.site.set_member(balancer, "m3", weight=1)
    check_broken([*results, *new])
    for result in results:
        assert {"m1", "m2", "m3"} <= set(result.held)
    for result in new:
        assert "m0" in result.answers
        assert result.answers.keys() & {"m1", "m2", "m3"} == set()


@pytest.mark.extended
def test_two_minutes_without_a_server_break_no_connection_and_cause_no_write(scene: Scene, lab: Lab, tmp_path: Path):
    home, held = scene.home, 48
    home.record("the server is dead")
    home.server.kill()
    with loaded(scene, rate=5, held=held, seconds=DEAD_SECONDS) as running, monitoring(lab, tmp_path) as monitor:
        results = [each.finish() for each in running]
        assert monitor.writes() == []
        check_no_failed_connections(results, home, held)
        wait_until(home.start().is_ready)
        wait_until(lambda: figures(home.server)["resyncs"], is_enough=lambda found: found > 0)
        wait_until(home.server.is_idle)
        assert (figures(home.server)["waiting"], figures(home.server)["applied"]) == (0, 0)
        assert monitor.writes() == []


def figures(server: FairleadProcess) -> dict[str, int]:
    said: dict[str, int] = server.client.get("/operator/statistics").json()
    return said
