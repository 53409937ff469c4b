"""Kills of the server or of OVN's database at any time: acknowledged changes persist, and OVN converges to them."""

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import Any

import httpx
import pytest

from fairlead.lab import Lab
from harness.lab.northbound import unreliable_northbound
from harness.lab.servers import LBS, NETWORKS, POOLS, SUBNETS, FairleadProcess, rows_of, serving
from harness.pools import upper_half
from harness.waiting import pause, wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

MAX_KILLS = 50
MAX_LIFETIME = 0.4
OVN_KILLS = 15
BETWEEN_WRITES = 0.005
"""Seconds; about 100 changes per second."""
CIDR = {"cidr": "10.0.0.0/16", "ip_version": 4, "allocation_pools": upper_half("10.0.0.0/16")}
MARK = {"FAIRLEAD_OVN_OWNER_TAG": "crash"}


@dataclass
class NodeCounts:
    """Acknowledged changes, and requests without a response."""

    names: dict[str, str] = field(default_factory=dict)
    """Last acknowledged name of each load balancer."""
    pools: dict[str, str] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=dict)
    """Last acknowledged members of each load balancer."""
    gone: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    acknowledged: int = 0


def write_until_it_dies(server: FairleadProcess, subnet: str, node_counts: NodeCounts, chance: random.Random) -> None:
    with suppress(httpx.TransportError):
        while True:
            node_counts.acknowledged += write_once(server.client, subnet, node_counts, chance)


def write_once(client: httpx.Client, subnet: str, node_counts: NodeCounts, chance: random.Random) -> bool:
    """Send a random request; return whether it was acknowledged. Its object is unsure until the response arrives."""
    known = sorted(node_counts.names.keys() - node_counts.unsure)
    kinds = ["create", "rename", "join", "part", "delete"] if len(known) < 40 else ["delete"]
    what = chance.choice(kinds) if len(known) > 5 else "create"
    if what == "create":
        create(client, subnet, node_counts, chance)
        return True
    identity = chance.choice(known)
    node_counts.unsure.add(identity)
    is_written = change(what, identity, client, node_counts, chance)
    node_counts.unsure.discard(identity)
    return is_written


def change(what: str, identity: str, client: httpx.Client, node_counts: NodeCounts, chance: random.Random) -> bool:
    """Send a change. Returns False without a change if the wait for an earlier one of the load balancer times out."""
    members = f"{POOLS}/{node_counts.pools[identity]}/members"
    match what:
        case "rename":
            name = f"r{chance.random()}"
            if accepted(client.put(f"{LBS}/{identity}", json={"loadbalancer": {"name": name}})):
                node_counts.names[identity] = name
                return True
        case "join":
            body = {"address": f"10.0.8.{chance.randrange(1, 250)}", "protocol_port": chance.randrange(1, 60_000)}
            if accepted(answer := client.post(members, json={"member": body})):
                node_counts.members[identity].add(answer.json()["member"]["id"])
                return True
        case "part" if node_counts.members[identity]:
            member = min(node_counts.members[identity])
            if accepted(client.delete(f"{members}/{member}")):
                node_counts.members[identity].remove(member)
                return True
        case "delete":
            if accepted(client.delete(f"{LBS}/{identity}?cascade=true")):
                del node_counts.names[identity]
                node_counts.gone.add(identity)
                return True
    return False


def accepted(answer: httpx.Response) -> bool:
    return answer.status_code != 409 and good(answer).is_success


def create(client: httpx.Client, subnet: str, node_counts: NodeCounts, chance: random.Random) -> str:
    body = {"name": f"n{chance.random()}", "vip_subnet_id": subnet, "listeners": [listener()]}
    made = good(client.post(LBS, json={"loadbalancer": body})).json()["loadbalancer"]
    node_counts.pools[made["id"]] = made["pools"][0]["id"]
    node_counts.members[made["id"]] = {member["id"] for member in made["pools"][0]["members"]}
    node_counts.names[made["id"]] = made["name"]
    identity: str = made["id"]
    return identity


def listener() -> dict[str, Any]:
    members = [{"address": f"10.0.9.{number}", "protocol_port": 80} for number in range(1, 4)]
    pool = {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": members}
    return {"protocol": "TCP", "protocol_port": 80, "default_pool": pool}


def good(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code < 300, answer.text
    return answer


def create_objects(server: FairleadProcess) -> str:
    """Create a network, and return the id of its subnet."""
    network = server.create(NETWORKS, "network", name="net")["id"]
    subnet: str = server.create(SUBNETS, "subnet", network_id=network, **CIDR)["id"]
    return subnet


def check(server: FairleadProcess, node_counts: NodeCounts) -> None:
    found = server.balancers()
    assert {balancer["provisioning_status"] for balancer in found.values()} <= {"ACTIVE"}
    sure = {identity: name for identity, name in node_counts.names.items() if identity not in node_counts.unsure}
    assert {identity: found.get(identity, {}).get("name") for identity in sure} == sure
    assert node_counts.gone & found.keys() == set()
    for identity in sure:
        members = server.client.get(f"{POOLS}/{node_counts.pools[identity]}/members?limit=1000").json()["members"]
        assert {member["id"] for member in members} == node_counts.members[identity]


def check_rows(lab: Lab, folder: Path) -> None:
    """Assert that a new server, without memory, finds all rows right, and each once."""
    with serving(lab, folder, **MARK) as fresh:
        wait_until(fresh.is_ready)
        wait_until(fresh.is_idle)
    for table, keys in rows_of(lab, "crash").items():
        assert len(keys) == len(set(keys)), table


def tear_down(server: FairleadProcess, lab: Lab) -> None:
    for identity in server.balancers():
        good(server.client.delete(f"{LBS}/{identity}?cascade=true"))
    for network in server.client.get(NETWORKS).json()["networks"]:
        good(server.client.delete(f"{NETWORKS}/{network['id']}"))
    wait_until(server.is_idle)
    assert rows_of(lab, "crash") == {}


def test_acknowledged_writes_survive_fifty_kills_of_the_server(lab: Lab, tmp_path: Path):
    """In every fifth round OVN's database is killed too, shortly before it would confirm the server's writes."""
    chance, node_counts = random.Random(7), NodeCounts()
    with serving(lab, tmp_path, **MARK) as server:
        subnet = create_objects(server)
    for life in range(MAX_KILLS):
        with serving(lab, tmp_path, **MARK) as server, unreliable_northbound(lab) as northbound:
            writer = Thread(target=write_until_it_dies, args=(server, subnet, node_counts, chance))
            writer.start()
            writer.join(chance.uniform(0, MAX_LIFETIME))
            if life % 5 == 0:
                northbound.kill()
            server.kill()
            writer.join()
    assert node_counts.acknowledged > MAX_KILLS
    with serving(lab, tmp_path, **MARK) as server:
        wait_until(server.is_idle)
        check(server, node_counts)
        check_rows(lab, tmp_path)
        tear_down(server, lab)


# Kills of OVN's database


@contextmanager
def stream(server: FairleadProcess, subnet: str, node_counts: NodeCounts, chance: random.Random) -> Iterator[None]:
    """Continuous changes. Each is acknowledged, or rejected without a write, whatever the state of OVN."""
    enough, failures = Event(), list[BaseException]()

    def write() -> None:
        try:
            with httpx.Client(base_url=server.url, timeout=60) as client:
                while not enough.wait(BETWEEN_WRITES):
                    node_counts.acknowledged += write_once(client, subnet, node_counts, chance)
        except BaseException as failure:  # noqa: BLE001 - re-raised where the thread is joined
            failures.append(failure)

    writer = Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        enough.set()
        writer.join()
    assert failures == []


def hold_down(server: FairleadProcess, subnet: str, chance: random.Random) -> str:
    """Create a load balancer while OVN is down: the request is acknowledged, and the status is not ACTIVE."""
    made = create(server.client, subnet, NodeCounts(), chance)
    assert server.balancer(made)["provisioning_status"] in ("PENDING_CREATE", "ERROR")
    return made


def all_active(server: FairleadProcess) -> bool:
    return {each["provisioning_status"] for each in server.balancers().values()} <= {"ACTIVE"}


def test_acknowledged_writes_survive_fifteen_kills_of_the_northbound_database(lab: Lab, tmp_path: Path):
    chance, node_counts = random.Random(8), NodeCounts()
    with serving(lab, tmp_path, **MARK) as server, unreliable_northbound(lab) as northbound:
        subnet = create_objects(server)
        with stream(server, subnet, node_counts, chance):
            for _ in range(OVN_KILLS):
                applied, acknowledged = figure(server, "applied"), node_counts.acknowledged
                wait_until(lambda applied=applied: figure(server, "applied") > applied)
                pause(chance.uniform(0, 0.3))
                northbound.kill()
                wait_until(lambda: not server.is_ready())
                wait_until(lambda acknowledged=acknowledged: node_counts.acknowledged > acknowledged + 10)
                assert server.client.get("/healthz").status_code == 200
                northbound.start()
                wait_until(server.is_ready)
        wait_until(lambda: all_active(server))
        wait_until(server.is_idle)
        check(server, node_counts)
        check_rows(lab, tmp_path)
        tear_down(server, lab)
    print(f"{node_counts.acknowledged} changes acknowledged")


def figure(server: FairleadProcess, name: str) -> int:
    number: int = server.client.get("/operator/statistics").json()[name]
    return number


def test_objects_created_while_northbound_is_down_are_not_reported_active(lab: Lab, tmp_path: Path):
    chance, node_counts = random.Random(9), NodeCounts()
    with serving(lab, tmp_path, **MARK) as server, unreliable_northbound(lab) as northbound:
        subnet = create_objects(server)
        old = create(server.client, subnet, node_counts, chance)
        wait_until(lambda: all_active(server))
        northbound.kill()
        wait_until(lambda: not server.is_ready())
        made = hold_down(server, subnet, chance)
        assert server.balancer(old)["provisioning_status"] == "ACTIVE"
        member = {"address": "10.0.7.7", "protocol_port": 80}
        answer = server.client.post(f"{POOLS}/{node_counts.pools[old]}/members", json={"member": member})
        node_counts.members[old].add(good(answer).json()["member"]["id"])
        wait_equal(lambda: server.balancer(made)["provisioning_status"], "ERROR")
        wait_equal(lambda: server.balancer(old)["provisioning_status"], "ERROR")
        code, said = server.fairlead("plan")
        assert (code, "OVN" in said) == (1, True), said
        northbound.start()
        wait_until(lambda: all_active(server))
        check(server, node_counts)
        check_rows(lab, tmp_path)
        tear_down(server, lab)


@pytest.mark.parametrize("seconds", [0.3, 2.0])
def test_short_northbound_freeze_keeps_the_connection_and_its_transactions(lab: Lab, tmp_path: Path, seconds: float):
    """No inactivity probe fails, so the connection remains, and pending transactions complete."""
    chance, node_counts = random.Random(10), NodeCounts()
    with serving(lab, tmp_path, **MARK) as server, unreliable_northbound(lab) as northbound:
        subnet = create_objects(server)
        with stream(server, subnet, node_counts, chance):
            wait_until(lambda: node_counts.acknowledged > 50)
            northbound.freeze()
            pause(seconds)
            made = hold_down(server, subnet, chance)
            northbound.thaw()
            wait_equal(lambda: server.balancer(made)["provisioning_status"], "ACTIVE")
        wait_until(lambda: all_active(server))
        wait_until(server.is_idle)
        assert "disconnected" not in server.log.read_text()
        check(server, node_counts)
        check_rows(lab, tmp_path)
        tear_down(server, lab)


def test_server_killed_during_a_long_northbound_freeze_converges_on_restart(lab: Lab, tmp_path: Path):
    """The server detects a connection without traffic; a server that starts meanwhile serves its API without OVN."""
    chance, node_counts = random.Random(11), NodeCounts()
    with unreliable_northbound(lab) as northbound:
        with serving(lab, tmp_path, **MARK, FAIRLEAD_OVN_PROBE_INTERVAL="5") as server:
            subnet = create_objects(server)
            with stream(server, subnet, node_counts, chance):
                wait_until(lambda: node_counts.acknowledged > 50)
                northbound.freeze()
                wait_until(lambda: not server.is_ready())
                made = hold_down(server, subnet, chance)
                wait_equal(lambda: server.balancer(made)["provisioning_status"], "ERROR")
            server.kill()
        with serving(lab, tmp_path, **MARK) as server:
            assert (server.is_ready(), server.client.get("/healthz").status_code) == (False, 200)
            hold_down(server, subnet, chance)
            with stream(server, subnet, node_counts, chance):
                northbound.thaw()
                wait_until(server.is_ready)
                wait_equal(lambda: server.balancer(made)["provisioning_status"], "ACTIVE")
            wait_until(lambda: all_active(server))
            wait_until(server.is_idle)
            check(server, node_counts)
            check_rows(lab, tmp_path)
            tear_down(server, lab)


def test_restarted_server_applies_many_acknowledged_deletions(lab: Lab, tmp_path: Path):
    """The mass-deletion guard is for a wrong store; this store has the deletions."""
    chance, node_counts = random.Random(12), NodeCounts()
    with unreliable_northbound(lab) as northbound:
        with serving(lab, tmp_path, **MARK) as server:
            subnet = create_objects(server)
            for _ in range(30):
                create(server.client, subnet, node_counts, chance)
            wait_until(lambda: all_active(server))
            wait_until(server.is_idle)
            northbound.kill()
            for identity in list(node_counts.names)[:25]:
                good(server.client.delete(f"{LBS}/{identity}?cascade=true"))
                del node_counts.names[identity]
                node_counts.gone.add(identity)
            server.kill()
            northbound.start()
        with serving(lab, tmp_path, **MARK) as server:
            wait_until(server.is_idle)
            check(server, node_counts)
            check_rows(lab, tmp_path)
            tear_down(server, lab)
