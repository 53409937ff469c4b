"""Killed at any instant: what was acknowledged is there, nothing is stuck, and OVN has what the model says."""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic
from typing import Any

import httpx
import pytest

from fairlead.lab import Lab
from lab.servers import LBS, NETWORKS, Server, serving, until

pytestmark = pytest.mark.lab

KILLS = 50
LONGEST_LIFE = 0.4


@dataclass
class Ledger:
    """What the server has acknowledged, and what it was asked for without an answer."""

    names: dict[str, str] = field(default_factory=dict)
    """Load balancer -> its name, as acknowledged last."""
    gone: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    acknowledged: int = 0


def write_until_it_dies(server: Server, subnet: str, ledger: Ledger, chance: random.Random) -> None:
    with suppress(httpx.TransportError):
        while True:
            write_once(server.client, subnet, ledger, chance)
            ledger.acknowledged += 1


def write_once(client: httpx.Client, subnet: str, ledger: Ledger, chance: random.Random) -> None:
    """An object that is asked about is unsure until the answer is there."""
    known = sorted(ledger.names.keys() - ledger.unsure)
    what = chance.choice(["create", "rename", "delete"]) if len(known) > 5 else "create"
    if what == "create":
        body = {"name": f"n{chance.random()}", "vip_subnet_id": subnet, "listeners": [listener()]}
        made = good(client.post(LBS, json={"loadbalancer": body})).json()["loadbalancer"]
        ledger.names[made["id"]] = made["name"]
        return
    identity = chance.choice(known)
    ledger.unsure.add(identity)
    if what == "rename":
        name = f"r{chance.random()}"
        good(client.put(f"{LBS}/{identity}", json={"loadbalancer": {"name": name}}))
        ledger.names[identity] = name
    else:
        good(client.delete(f"{LBS}/{identity}?cascade=true"))
        del ledger.names[identity]
        ledger.gone.add(identity)
    ledger.unsure.discard(identity)


def listener() -> dict[str, Any]:
    members = [{"address": f"10.0.9.{number}", "protocol_port": 80} for number in range(1, 4)]
    pool = {"name": "p", "protocol": "TCP", "lb_algorithm": "ROUND_ROBIN", "members": members}
    return {"protocol": "TCP", "protocol_port": 80, "default_pool": pool}


def good(answer: httpx.Response) -> httpx.Response:
    assert answer.status_code < 300, answer.text
    return answer


def test_fifty_kills_under_a_stream_of_writes(lab: Lab, tmp_path: Path):
    chance, ledger = random.Random(7), Ledger()
    mark = {"FAIRLEAD_OVN_MARK": "crash"}
    with serving(lab, tmp_path, **mark) as server:
        network = server.make(NETWORKS, "network", name="net")["id"]
        body = {"network_id": network, "cidr": "10.0.0.0/16", "ip_version": 4}
        subnet = server.make("/network/v2.0/subnets", "subnet", **body)["id"]
    for _ in range(KILLS):
        with serving(lab, tmp_path, **mark) as server:
            writer = Thread(target=write_until_it_dies, args=(server, subnet, ledger, chance))
            writer.start()
            dies = monotonic() + chance.uniform(0, LONGEST_LIFE)
            writer.join(dies - monotonic())
            server.kill()
            writer.join()
    assert ledger.acknowledged > KILLS
    with serving(lab, tmp_path, **mark) as server:
        until(lambda: server.fairlead("plan")[0] == 0)
        check(server, ledger)
        tear_down(server, network)
    rows = lab.exec("central", ["ovn-nbctl", "--bare", "--columns=name", "find", "Load_Balancer"])
    assert rows.strip() == ""


def check(server: Server, ledger: Ledger) -> None:
    found = {}
    page = f"{LBS}?limit=1000"
    for balancer in server.client.get(page).json()["loadbalancers"]:
        found[balancer["id"]] = balancer["name"]
        assert balancer["provisioning_status"] == "ACTIVE"
    sure = {identity: name for identity, name in ledger.names.items() if identity not in ledger.unsure}
    assert {identity: found.get(identity) for identity in sure} == sure
    assert ledger.gone & found.keys() == set()


def tear_down(server: Server, network: str) -> None:
    for balancer in server.client.get(f"{LBS}?limit=1000").json()["loadbalancers"]:
        good(server.client.delete(f"{LBS}/{balancer['id']}?cascade=true"))
    good(server.client.delete(f"{NETWORKS}/{network}"))
    until(lambda: server.fairlead("plan")[0] == 0)
