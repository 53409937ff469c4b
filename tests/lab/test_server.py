"""The server as an operator runs it: killed, doubled, with commands of operators, and with passwords."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import httpx
import pytest

from fairlead.lab import Lab, processes, take_down
from harness.lab.labs import lab_name, lab_of
from harness.lab.northbound import unreliable_northbound
from harness.lab.servers import (
    BINARIES,
    LBS,
    LISTENERS,
    NETWORKS,
    POOLS,
    SUBNETS,
    FairleadProcess,
    holder_first,
    serving,
)
from harness.pools import upper_half
from harness.ports import free_port
from harness.waiting import DEADLINE, wait_equal, wait_until

pytestmark = pytest.mark.lab

CIDR = {"cidr": "10.0.0.0/24", "ip_version": 4, "allocation_pools": upper_half("10.0.0.0/24")}
WRITERS = 6
ROUNDS = 20


@pytest.fixture(scope="module")
def own_lab(machine: None) -> Iterator[Lab]:
    """A separate OVN, because these tests use the default mark, which two deployments must not share."""
    with lab_of("servers", chassis=1) as made:
        yield made


def build(server: FairleadProcess, name: str) -> str:
    """Create a network with a load balancer, and return the load balancer's id."""
    network = server.create(NETWORKS, "network", name=name)
    subnet = server.create(SUBNETS, "subnet", network_id=network["id"], **CIDR)
    made = server.create(LBS, "loadbalancer", name=name, vip_subnet_id=subnet["id"])
    identity: str = made["id"]
    server.wait_for(identity, "ACTIVE")
    return identity


def tear_down(server: FairleadProcess) -> None:
    for balancer in server.client.get(LBS).json()["loadbalancers"]:
        server.client.delete(f"{LBS}/{balancer['id']}?cascade=true")
    for network in server.client.get(NETWORKS).json()["networks"]:
        server.client.delete(f"{NETWORKS}/{network['id']}")
    wait_equal(lambda: server.fairlead("plan")[0], 0)


def names(lab: Lab, table: str) -> set[str]:
    return set(lab.exec("central", ["ovn-nbctl", "--bare", "--columns=name", "list", table]).split())


def test_restarted_server_has_all_objects_and_writes_nothing_to_ovn(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "kept")
        server.kill()
    with serving(own_lab, tmp_path) as server:
        server.wait_for(identity, "ACTIVE")
        assert "resync: 0 owners differ" in server.log.read_text()
        assert server.fairlead("plan") == (0, "nothing to do\n")
        tear_down(server)
    assert names(own_lab, "Logical_Switch") | names(own_lab, "Load_Balancer") == set()


@pytest.mark.extended
def test_changes_made_while_ovn_is_unreachable_are_applied_later(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "gone")
        assert names(own_lab, "Logical_Switch")
    nowhere = f"unix:{tmp_path}/nothing.sock"
    with serving(own_lab, tmp_path, FAIRLEAD_OVN_NORTHBOUND=nowhere) as server:
        assert server.client.delete(f"{LBS}/{identity}").status_code == 204
        late = server.create(NETWORKS, "network", name="late")
        assert server.fairlead("plan")[0] == 1
    with serving(own_lab, tmp_path) as server:
        wait_equal(lambda: server.fairlead("plan")[0], 0)
        assert late["id"] in names(own_lab, "Logical_Switch")
        tear_down(server)


def test_drift_of_a_managed_row_is_reverted(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "mine")
        listener = server.create(
            "/load-balancer/v2.0/lbaas/listeners",
            "listener",
            loadbalancer_id=identity,
            protocol="TCP",
            protocol_port=80,
        )
        assert listener["loadbalancers"] == [{"id": identity}]
        wait_until(lambda: f"{identity}-tcp" in names(own_lab, "Load_Balancer"))
        own_lab.exec("central", ["ovn-nbctl", "lb-del", f"{identity}-tcp"])
        wait_until(lambda: f"{identity}-tcp" in names(own_lab, "Load_Balancer"))
        tear_down(server)


def test_removed_member_is_shown_as_draining_until_the_drain_timeout(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path, FAIRLEAD_OVN_DRAIN_TIMEOUT="2") as server:
        identity = build(server, "parting")
        pool = {"name": "pool", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN"}
        listener = {"loadbalancer_id": identity, "protocol": "TCP", "protocol_port": 80, "default_pool": pool}
        members = f"{POOLS}/{server.create(LISTENERS, 'listener', **listener)['default_pool_id']}/members"
        one, _ = (server.create(members, "member", address=f"10.0.0.{each}", protocol_port=80) for each in (101, 102))
        assert server.client.delete(f"{members}/{one['id']}").status_code == 204
        wait_until(lambda: f"{identity}-tcp-parting" in names(own_lab, "Load_Balancer"))
        assert "10.0.0.101:80" in server.fairlead("show", identity)[1]
        wait_until(lambda: f"{identity}-tcp-parting" not in names(own_lab, "Load_Balancer"))
        assert f"{identity}-tcp" in names(own_lab, "Load_Balancer")
        server.wait_for(identity, "ACTIVE")
        tear_down(server)


def test_unmanaged_rows_are_left_unchanged(own_lab: Lab, tmp_path: Path):
    own_lab.exec("central", ["ovn-nbctl", "ls-add", "theirs", "--", "lb-add", "their-lb", "10.9.9.9:80", "10.9.9.1:80"])
    with serving(own_lab, tmp_path) as server:
        build(server, "ours")
        code, said = server.fairlead("resync", "--force")
        assert (code, "0 objects differed" in said) == (0, True)
        tear_down(server)
    assert (names(own_lab, "Logical_Switch"), names(own_lab, "Load_Balancer")) == ({"theirs"}, {"their-lb"})
    own_lab.exec("central", ["ovn-nbctl", "ls-del", "theirs", "--", "lb-del", "their-lb"])


def test_standby_server_takes_over_when_the_leader_is_killed(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as first, serving(own_lab, tmp_path) as second:
        through_second = build(second, "both")
        first.wait_for(through_second, "ACTIVE")
        first.kill()
        network = second.create(NETWORKS, "network", name="after")
        wait_until(lambda: network["id"] in names(own_lab, "Logical_Switch"))
        second.wait_for(through_second, "ACTIVE")
        tear_down(second)


@dataclass
class Writer:
    """One of several concurrent writers of a load balancer, with its acknowledged changes and its errors."""

    number: int
    server: FairleadProcess
    pool: str
    balancer: str
    weights: dict[str, int] = field(default_factory=dict)
    """Last acknowledged weight of each member, by address."""
    ids: dict[str, str] = field(default_factory=dict)
    ports: set[int] = field(default_factory=set)
    """Ports of its listeners."""
    unsure: set[str] = field(default_factory=set)
    refusals: list[int] = field(default_factory=list)
    acknowledged: int = 0

    def run(self) -> None:
        with (
            suppress(httpx.TransportError),  # killed: the last request is unsure
            httpx.Client(base_url=self.server.url, timeout=30) as client,
        ):
            for step in range(ROUNDS):
                address = f"10.0.{self.number + 100}.{step + 1}"
                self.add(client, address)
                self.weigh(client, address, 2 + step % 3)
                if step % 4 == 3:
                    self.remove(client, f"10.0.{self.number + 100}.{step}")
                if step % 5 == 4:
                    self.listen(client, 1000 * (self.number + 1) + step)

    def add(self, client: httpx.Client, address: str) -> None:
        body = {"member": {"address": address, "protocol_port": 80}}
        answer = self.ask(client, "POST", f"{POOLS}/{self.pool}/members", address, body)
        if answer is not None:
            self.weights[address], self.ids[address] = 1, answer.json()["member"]["id"]
            self.unsure.discard(address)

    def weigh(self, client: httpx.Client, address: str, weight: int) -> None:
        if address in self.ids:
            path = f"{POOLS}/{self.pool}/members/{self.ids[address]}"
            if self.ask(client, "PUT", path, address, {"member": {"weight": weight}}) is not None:
                self.weights[address] = weight
                self.unsure.discard(address)

    def remove(self, client: httpx.Client, address: str) -> None:
        if address in self.ids:
            path = f"{POOLS}/{self.pool}/members/{self.ids[address]}"
            if self.ask(client, "DELETE", path, address, None) is not None:
                del self.weights[address]
                self.unsure.discard(address)

    def listen(self, client: httpx.Client, port: int) -> None:
        body = {"listener": {"loadbalancer_id": self.balancer, "protocol": "TCP", "protocol_port": port}}
        if self.ask(client, "POST", LISTENERS, str(port), body) is not None:
            self.ports.add(port)
            self.unsure.discard(str(port))

    def ask(self, client: httpx.Client, method: str, path: str, thing: str, body: Any) -> httpx.Response | None:
        """Response to a change, or None if a documented error rejected it.

        The object is unsure until the response arrives.
        """
        self.unsure.add(thing)
        answer = client.request(method, path, json=body)
        if answer.status_code < 300:
            self.acknowledged += 1
            return answer
        assert answer.status_code in (409, 503), answer.text
        assert answer.status_code == 409 or answer.headers["retry-after"] == "1"
        self.refusals.append(answer.status_code)
        self.unsure.discard(thing)
        return None


def backends(lab: Lab, balancer: str) -> set[str]:
    """Members in the row of the load balancer, read with OVN's own client."""
    said = lab.exec("central", ["ovn-nbctl", "get", "Load_Balancer", f"{balancer}-tcp", "vips"])
    return set(re.findall(r"(10\.0\.1\d\d\.\d+):80\b", said))


@pytest.mark.extended
def test_concurrent_writers_to_two_servers_lose_no_update_through_a_failover(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as first, serving(own_lab, tmp_path) as second:
        balancer = build(first, "shared")
        listener = first.create(LISTENERS, "listener", loadbalancer_id=balancer, protocol="TCP", protocol_port=80)
        pool = first.create(POOLS, "pool", listener_id=listener["id"], protocol="TCP", lb_algorithm="ROUND_ROBIN")["id"]
        wait_equal(lambda: second.client.get(f"{POOLS}/{pool}").status_code, 200)
        writers = [
            Writer(number=number, server=(first, second)[number % 2], pool=pool, balancer=balancer)
            for number in range(WRITERS)
        ]
        with ThreadPoolExecutor(WRITERS) as threads:
            runs = [threads.submit(writer.run) for writer in writers]
            wait_until(
                lambda: sum(writer.acknowledged for writer in writers),
                is_enough=lambda found: found > WRITERS * ROUNDS / 2,
            )
            with unreliable_northbound(own_lab) as northbound:
                northbound.kill()
                wait_until(lambda: not first.is_ready() and not second.is_ready())
                northbound.start()
                wait_until(lambda: first.is_ready() and second.is_ready())
            wait_until(
                lambda: sum(writer.acknowledged for writer in writers), is_enough=lambda found: found > WRITERS * ROUNDS
            )
            holder, other = holder_first(first, second)
            holder.kill()
            stored = {address for writer in writers for address in writer.weights.keys() - writer.unsure}
            wait_until(lambda: other.is_holder() and not still_wanted(stored, writers) - backends(own_lab, balancer))
            for run in runs:
                run.result()
        other.wait_for(balancer, "ACTIVE")
        members = other.client.get(f"{POOLS}/{pool}/members?limit=1000").json()["members"]
        found = {member["address"]: member["weight"] for member in members}
        listening = {each["protocol_port"] for each in other.client.get(LISTENERS).json()["listeners"]}
        for writer in writers:
            sure = {address: weight for address, weight in writer.weights.items() if address not in writer.unsure}
            assert {address: found.get(address) for address in sure} == sure
            assert writer.ports <= listening
        unsure = {thing for writer in writers for thing in writer.unsure}
        assert found.keys() <= {address for writer in writers for address in writer.weights} | unsure
        assert len(found) == len(members), "a member was made twice"
        wait_until(other.is_idle)
        assert backends(own_lab, balancer) == set(found)
        refused = [code for writer in writers for code in writer.refusals]
        assert len(refused) < WRITERS * ROUNDS / 10, refused
        with serving(own_lab, tmp_path) as fresh:
            wait_until(fresh.is_idle)
        tear_down(other)


def still_wanted(addresses: set[str], writers: list[Writer]) -> set[str]:
    """Addresses of members that were not removed, and whose removal was not requested either."""
    return {address for writer in writers for address in addresses & (writer.weights.keys() - writer.unsure)}


def test_show_and_plan_commands_report_the_state(own_lab: Lab, tmp_path: Path):
    with serving(own_lab, tmp_path) as server:
        identity = build(server, "shown")
        code, said = server.fairlead("show", identity)
        assert (code, "ACTIVE" in said, "Logical_Router_Port" in said) == (0, True, True)
        code, said = server.fairlead("show", "nothing")
        assert (code, "'nothing' does not exist" in said) == (1, True)
        shown = json.loads(server.fairlead("show", f"loadbalancer/{identity}", "--json")[1])
        assert shown["desired"] == shown["actual"]
        assert (shown["name"], shown["down"]) == ("shown", {})
        assert server.fairlead("plan", "--json") == (0, "{}\n")
        tear_down(server)


def test_stock_client_works_with_password_authentication(own_lab: Lab, tmp_path: Path):
    users = tmp_path / "users"
    hashed = {name: bcrypt.hashpw(f"{name}-secret".encode(), bcrypt.gensalt(4)).decode() for name in ("ann", "eve")}
    users.touch(mode=0o600)
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


def test_agent_needs_the_service_role_with_password_authentication(own_lab: Lab, tmp_path: Path):
    secret = bcrypt.hashpw(b"told-secret", bcrypt.gensalt(rounds=4)).decode()
    roles = (("node", "service:chassis1"), ("ann", "member"), ("eve", "admin"))
    users = (f"{name}:{secret}:p:{role}" for name, role in roles)
    for secret_file in ("users", "password"):
        (tmp_path / secret_file).touch(mode=0o600)
    (tmp_path / "users").write_text("\n".join(users))
    (tmp_path / "password").write_text("told-secret\n")
    guarded = {
        "FAIRLEAD_SERVER_AUTHENTICATION": "http_basic",
        "FAIRLEAD_SERVER_PASSWORD_FILE": str(tmp_path / "users"),
        "FAIRLEAD_OVN_SOUTHBOUND": own_lab.southbound,
    }
    with serving(own_lab, tmp_path, **guarded) as server:
        server.client.auth = ("eve", "told-secret")
        said: dict[str, str] = {}
        for user, nodes in (("ann", 0), ("node", 1)):
            environment = {
                "FAIRLEAD_AGENT_SERVERS": server.url,
                "FAIRLEAD_AGENT_USER": user,
                "FAIRLEAD_AGENT_PASSWORD_FILE": str(tmp_path / "password"),
                "FAIRLEAD_AGENT_INTERVAL": "1",
                "FAIRLEAD_AGENT_STATE_FILE": str(tmp_path / f"{user}.json"),
                "FAIRLEAD_AGENT_RUN_DIR": str(own_lab.layout.node_directory("chassis1")),
            }
            log = tmp_path / user
            agent = processes.launch("agent", environment, log)
            said[user] = "" if nodes else "the agents API requires role"
            wait_until(lambda log=log, words=said[user]: words in log.read_text())
            wait_until(lambda told=f"fairlead_counting_agents {nodes}.0": told in server.client.get("/metrics").text)
            agent.terminate()
            assert agent.wait(DEADLINE) == 0
            said[user] = log.read_text()
        assert "retrying" not in said["node"]
        assert "told-secret" not in server.log.read_text() + "".join(said.values())


def tear_down_as(server: FairleadProcess, credentials: tuple[str, str]) -> None:
    os.environ["FAIRLEAD_USER"], os.environ["FAIRLEAD_PASSWORD"] = credentials
    try:
        tear_down(server)
    finally:
        del os.environ["FAIRLEAD_USER"], os.environ["FAIRLEAD_PASSWORD"]


def openstack(server: FairleadProcess, user: str, password: str, *argv: str) -> tuple[int, str]:
    """Exit code and output of the unmodified command, configured by its environment alone."""
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


@pytest.mark.extended
def test_demo_of_the_readme_succeeds(machine: None):
    """The demo of the README succeeds, and leaves a lab, which is taken down."""
    name, demo = lab_name("demo"), Path(__file__).parent.parent.parent / "scripts" / "demo.py"
    try:
        done = subprocess.run(
            [sys.executable, demo],
            env={**os.environ, "FAIRLEAD_DEMO_LISTEN": f"127.0.0.1:{free_port()}", "FAIRLEAD_DEMO_LAB": name},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr
        rows = [line.split() for line in done.stdout.splitlines() if " tcp " in line or " udp " in line]
        assert [row[-1] for row in rows if row[-1].isdecimal()] == ["0"] * 12, (
            "failures, of two load balancers and two Local IPs"
        )
        assert "incus network load-balancer list" in done.stdout
    finally:
        take_down(name)
