"""The server as an operator has it: killed, doubled, asked, and behind a password."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import bcrypt
import pytest

from fairlead.lab import Lab, take_down
from lab.servers import BINARIES, LBS, NETWORKS, Server, serving, until
from lab.site import free_port

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def own_lab(machine: None) -> Iterator[Lab]:
    """Two deployments must not share a mark, so these tests have an OVN of their own."""
    take_down("servers")
    try:
        yield Lab.up("servers", chassis=1)
    finally:
        take_down("servers")


def build(server: Server, name: str) -> str:
    """A network with a load balancer on it; answers the load balancer's id."""
    network = server.make(NETWORKS, "network", name=name)
    subnet = server.make("/network/v2.0/subnets", "subnet", network_id=network["id"], cidr="10.0.0.0/24", ip_version=4)
    made = server.make(LBS, "loadbalancer", name=name, vip_subnet_id=subnet["id"])
    identity: str = made["id"]
    server.wait_for(identity, "ACTIVE")
    return identity


def tear_down(server: Server) -> None:
    for balancer in server.client.get(LBS).json()["loadbalancers"]:
        server.client.delete(f"{LBS}/{balancer['id']}?cascade=true")
    for network in server.client.get(NETWORKS).json()["networks"]:
        server.client.delete(f"{NETWORKS}/{network['id']}")
    until(lambda: server.fairlead("plan")[0] == 0)


def names(lab: Lab, table: str) -> set[str]:
    return set(lab.exec("central", ["ovn-nbctl", "--bare", "--columns=name", "list", table]).split())


def test_killed_and_started_again_it_knows_everything_and_writes_nothing(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "kept")
        server.kill()
    with serving(own_lab, tmp_path) as server:
        server.wait_for(identity, "ACTIVE")
        assert "resync: 0 owners differ" in server.log.read_text()
        assert server.fairlead("plan") == (0, "nothing to do\n")
        tear_down(server)
    assert names(own_lab, "Logical_Switch") | names(own_lab, "Load_Balancer") == set()


def test_what_was_deleted_while_ovn_was_away_goes_when_it_is_back(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "gone")
        assert names(own_lab, "Logical_Switch")
    nowhere = f"unix:{tmp_path}/nothing.sock"
    with serving(own_lab, tmp_path, FAIRLEAD_OVN_NORTHBOUND=nowhere) as server:
        assert server.client.delete(f"{LBS}/{identity}").status_code == 204
        late = server.make(NETWORKS, "network", name="late")
        assert server.fairlead("plan")[0] == 1
    with serving(own_lab, tmp_path) as server:
        until(lambda: server.fairlead("plan")[0] == 0)
        assert late["id"] in names(own_lab, "Logical_Switch")
        tear_down(server)


def test_somebody_elses_change_of_our_row_is_undone(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "mine")
        listener = server.make(
            "/load-balancer/v2.0/lbaas/listeners",
            "listener",
            loadbalancer_id=identity,
            protocol="TCP",
            protocol_port=80,
        )
        assert listener["loadbalancers"] == [{"id": identity}]
        until(lambda: f"{identity}-tcp" in names(own_lab, "Load_Balancer"))
        own_lab.exec("central", ["ovn-nbctl", "lb-del", f"{identity}-tcp"])
        until(lambda: f"{identity}-tcp" in names(own_lab, "Load_Balancer"))
        tear_down(server)


def test_rows_of_others_are_left_alone(own_lab: Lab, tmp_path: Path):
    own_lab.exec("central", ["ovn-nbctl", "ls-add", "theirs", "--", "lb-add", "their-lb", "10.9.9.9:80", "10.9.9.1:80"])
    with serving(own_lab, tmp_path) as server:
        build(server, "ours")
        code, said = server.fairlead("resync", "--force")
        assert (code, "0 owners differed" in said) == (0, True)
        tear_down(server)
    assert (names(own_lab, "Logical_Switch"), names(own_lab, "Load_Balancer")) == ({"theirs"}, {"their-lb"})
    own_lab.exec("central", ["ovn-nbctl", "ls-del", "theirs", "--", "lb-del", "their-lb"])


def test_of_two_servers_one_writes_and_the_other_takes_over(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as first, serving(own_lab, tmp_path) as second:
        through_second = build(second, "both")
        first.wait_for(through_second, "ACTIVE")
        first.kill()
        started = monotonic()
        network = second.make(NETWORKS, "network", name="after")
        until(lambda: network["id"] in names(own_lab, "Logical_Switch"), 5)
        assert monotonic() - started < 5
        second.wait_for(through_second, "ACTIVE")
        tear_down(second)


def test_the_operators_commands(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "shown")
        code, said = server.fairlead("show", identity)
        assert (code, "ACTIVE" in said, "Logical_Router_Port" in said) == (0, True, True)
        code, said = server.fairlead("show", "nothing")
        assert (code, "nothing is called 'nothing'" in said) == (1, True)
        shown = json.loads(server.fairlead("show", f"loadbalancer/{identity}", "--json")[1])
        assert shown["desired"] == shown["actual"]
        assert server.fairlead("plan", "--json") == (0, "{}\n")
        tear_down(server)


def test_behind_a_password_the_stock_client_works_and_sees_its_project_only(own_lab: Lab, tmp_path: Path):
    users = tmp_path / "users"
    hashed = {name: bcrypt.hashpw(f"{name}-secret".encode(), bcrypt.gensalt(4)).decode() for name in ("ann", "eve")}
    users.write_text(f"ann:{hashed['ann']}:shop:member,reader\neve:{hashed['eve']}:other:admin\n")
    options = {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(users)}
    with serving(own_lab, tmp_path, **options) as server:
        assert server.client.get(LBS).status_code == 401
        assert openstack(server, "ann", "ann-secret", "network", "create", "n1")[0] == 0
        subnet = ("subnet", "create", "--network", "n1", "--subnet-range", "10.0.0.0/24", "s1")
        assert openstack(server, "ann", "ann-secret", *subnet)[0] == 0
        made = openstack(
            server, "ann", "ann-secret", "loadbalancer", "create", "--name", "l1", "--vip-subnet-id", "s1", "--wait"
        )
        assert (made[0], '"project_id": "shop"' in made[1]) == (0, True)
        code, said = openstack(server, "ann", "wrong", "loadbalancer", "list")
        assert (code, "401" in said or "requires authentication" in said) == (1, True), said
        server.client.auth = ("eve", "eve-secret")
        assert len(server.client.get(LBS).json()["loadbalancers"]) == 1
        tear_down_as(server, ("eve", "eve-secret"))
        log = server.log.read_text()
        assert [secret for secret in ("ann-secret", "eve-secret", *hashed.values()) if secret in log] == []


def tear_down_as(server: Server, credentials: tuple[str, str]) -> None:
    os.environ["FAIRLEAD_USER"], os.environ["FAIRLEAD_PASSWORD"] = credentials
    try:
        tear_down(server)
    finally:
        del os.environ["FAIRLEAD_USER"], os.environ["FAIRLEAD_PASSWORD"]


def openstack(server: Server, user: str, password: str, *argv: str) -> tuple[int, str]:
    """The unmodified command, configured by its environment alone."""
    flags = ["-f", "json"] if argv[1] in ("create", "list") else []
    done = subprocess.run(
        [BINARIES / "openstack", *argv, *flags],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("OS_")},
            "OS_AUTH_TYPE": "http_basic",
            "OS_USERNAME": user,
            "OS_PASSWORD": password,
            "OS_ENDPOINT": server.url,
            "OS_NETWORK_ENDPOINT_OVERRIDE": f"{server.url}/network",
            "OS_LOAD_BALANCER_ENDPOINT_OVERRIDE": f"{server.url}/load-balancer",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


def test_the_demo(machine: None):
    """What the README promises to a newcomer, with the lab it leaves taken down."""
    demo = Path(__file__).parent.parent.parent / "scripts" / "demo.py"
    try:
        done = subprocess.run(
            [sys.executable, demo],
            env={**os.environ, "FAIRLEAD_DEMO_LISTEN": f"127.0.0.1:{free_port()}", "FAIRLEAD_DEMO_LAB": "testdemo"},
            capture_output=True,
            text=True,
            check=False,
            timeout=170,
        )
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines() if " tcp " in line or " udp " in line]
        assert [row[-1] for row in rows] == ["0"] * 6
    finally:
        take_down("testdemo")
