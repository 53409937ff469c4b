"""End to end: what the slot tables promise, seen by connections while members come, go, are drained and re-weighted."""

import re
from collections.abc import Iterator
from random import Random

import pytest

from fairlead.lab import Lab, Traffic
from lab.holder import Holder, holding
from lab.site import PORT, Balancer, Site, open_site

pytestmark = pytest.mark.lab

MEMBERS = [f"s{number}" for number in range(6)]
CLIENTS = {"watcher1": "chassis1", "watcher2": "chassis2"}
CHANGES = 6
KEYS = 300


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[Site]:
    site = open_site(lab)
    site.network("slots", "10.0.0.0/24")
    site.machines("slots", {name: f"chassis{1 + place % 2}" for place, name in enumerate(MEMBERS)}, serve=[PORT])
    site.machines("slots", CLIENTS)
    yield site
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    site.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_random_sequence_breaks_no_connection_and_moves_no_key_of_a_survivor(site: Site, seed: int):
    """One member is added, removed, drained or re-weighted at a time. Connections that are open stay with their member
    unless it is removed; new ones from the same ports go to the member they went to, unless that one or their new one
    is the one that changed."""
    random = Random(seed)
    weights = {name: random.choice([1, 2, 3]) for name in MEMBERS[:3]}
    with (
        site.balancer("slots-v4", list(weights), weights=weights) as balancer,
        holding(site.lab, "watcher1", balancer.vip, 80) as near,
        holding(site.lab, "watcher2", balancer.vip, 80) as far,
    ):
        held = [(holder, holder.open(10)) for holder in (near, far)]
        keys = ask_keys(site, balancer, first_key := 20_000 + 1000 * seed)
        for _ in range(CHANGES):
            who = change_one(site, balancer, random, weights)
            check_held(held, weights)
            before, keys = keys, ask_keys(site, balancer, first_key)
            serving = {name for name, weight in weights.items() if weight}
            assert set(keys.values()) == serving
            assert [key for key in keys if before[key] != keys[key] and who not in (before[key], keys[key])] == []
            if who not in serving:
                assert [key for key in keys if before[key] != keys[key] and before[key] != who] == []
            held = [(holder, open_more(holder, names, serving)) for holder, names in held]


def change_one(site: Site, balancer: Balancer, random: Random, weights: dict[str, int]) -> str:
    """Change one member through the API and in `weights`; say which one. Two at least keep serving."""
    serving = [name for name, weight in weights.items() if weight]
    spare = [name for name in MEMBERS if name not in weights]
    possible = ["re-weight"] + ["add"] * 2 * bool(spare) + ["remove", "drain"] * (len(serving) > 2)
    what, who = random.choice(possible), random.choice(serving)
    weight = 0 if what == "drain" else random.choice([each for each in (1, 2, 3, 5) if each != weights[who]])
    if what == "add":
        who = spare[0]
        member = {"name": who, "address": site.address(who), "protocol_port": PORT, "weight": weight}
        site.cloud.load_balancer.create_member(balancer.pool, **member)
    elif what == "remove":
        site.cloud.load_balancer.delete_member(site.member(balancer, who), balancer.pool)
    else:
        site.cloud.load_balancer.update_member(site.member(balancer, who), balancer.pool, weight=weight)
    site.settle(balancer.id)
    weights[who] = weight
    if what == "remove":
        del weights[who]
    return who


def open_more(holder: Holder, names: dict[int, str], serving: set[str]) -> dict[int, str]:
    opened = holder.open(3)
    assert {name for port, name in opened.items() if port not in names} <= serving
    return opened


def check_held(held: list[tuple[Holder, dict[int, str]]], weights: dict[str, int]) -> None:
    for holder, before in held:
        now = holder.ask()
        assert [port for port, name in before.items() if name in weights and now[port] != name] == []


def ask_keys(site: Site, balancer: Balancer, first: int) -> dict[int, str]:
    """Who answers each key: a source port of one client."""
    traffic = Traffic(to=balancer.vip, port=80, count=KEYS, concurrency=8, source_port_from=first)
    result = site.lab.traffic("watcher1", traffic)
    assert result.errors == {}
    return dict(result.keys)


@pytest.mark.parametrize("count", [2, 5])
def test_flows_do_not_grow_with_connections(site: Site, count: int):
    """One flow of the datapath for each bucket, some for each member, some that all share. OpenFlow's do not change."""
    with site.balancer("slots-v4", MEMBERS[:count]) as balancer:
        vips = site.lab.exec("central", ["ovn-nbctl", "get", "Load_Balancer", f"{balancer.id}-tcp", "vips"])
        buckets = len(re.findall(rf":{PORT}\b", vips))
        openflow = count_openflow(site.lab)
        few, many = (count_datapath(site, balancer, connections) for connections in (400, 2000))
        assert openflow == count_openflow(site.lab)
        assert abs(many - few) <= 4
        assert many <= buckets + 10 * count + 20


def count_openflow(lab: Lab) -> list[str]:
    """How many flows, and all groups, of each node."""
    found = []
    for node in lab.record.chassis:
        said = lab.exec(node.name, ["ovs-ofctl", "-O", "OpenFlow15", "dump-aggregate", "br-int"])
        found.append(said.partition("flow_count=")[2].strip())
        found.append(lab.exec(node.name, ["ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br-int"]).partition("\n")[2])
    return found


def count_datapath(site: Site, balancer: Balancer, connections: int) -> int:
    """Flows for IPv4 on both nodes after so many connections, beginning with none."""
    for node in CLIENTS.values():
        site.lab.exec(node, ["ovs-appctl", "-t", "ovs-vswitchd", "revalidator/purge"])
    result = site.lab.traffic("watcher2", Traffic(to=balancer.vip, port=80, count=connections, concurrency=16))
    assert result.errors == {}
    dumps = [site.lab.exec(node, ["ovs-appctl", "-t", "ovs-vswitchd", "dpctl/dump-flows"]) for node in CLIENTS.values()]
    return sum(dump.count("eth_type(0x0800)") for dump in dumps)
