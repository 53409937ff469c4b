"""End to end: guarantees of slot tables for connections while members are added, removed, drained and re-weighted."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random

import pytest

from fairlead.lab import Lab, Traffic
from fairlead.lab.layout import workload_device
from harness.lab.holder import ConnectionHolder, holding
from harness.lab.site import PORT, CreatedBalancer, LabSite, open_site
from harness.waiting import wait_equal

pytestmark = [pytest.mark.lab, pytest.mark.extended]

MEMBERS = [f"s{number}" for number in range(6)]
CLIENTS = {"watcher1": "chassis1", "watcher2": "chassis2"}
CHANGES = 6
KEYS = 300
NEIGHBOURS = re.compile(r"\btable=(66|67),")
"""Flows of MAC_Binding rows: OFTABLE_MAC_BINDING and OFTABLE_MAC_LOOKUP of ovn-controller's lflow.h."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab)
    site.network("slots", "10.0.0.0/24", "fd00:5::/64")
    site.machines("slots", {name: f"chassis{1 + place % 2}" for place, name in enumerate(MEMBERS)}, serve=[PORT])
    site.machines("slots", CLIENTS)
    yield site
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    site.close()


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_random_member_changes_break_no_connection_and_move_no_other_key(site: LabSite, seed: int):
    """Each step adds, removes, drains or re-weights one member.

    Open connections stay with their member unless it is removed. New ones from the same ports go to the previous
    member, unless that one or the new one was changed.
    """
    random = Random(seed)
    weights = {name: random.choice([1, 2, 3]) for name in MEMBERS[:3]}
    with (
        site.balancer("slots-v4", list(weights), weights=weights, lb_algorithm="SOURCE_IP_PORT") as balancer,
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


def test_failures_and_drains_over_both_ip_versions_move_no_other_key(site: LabSite):
    """Six members of IPv4 and six of IPv6, with a monitor, drain, fail and recover in turn.

    One drains in the other family, three fail and recover in another order, one drains and returns. The output lists
    the keys that each step moved, and how many of them should not have moved.
    """
    with two_families(site) as balancer:
        keys = start = ask_keys(site, balancer, 30_000)
        steps: list[tuple[str, str, Callable[[], None]]] = [
            ("drains over IPv6", "s5/6", lambda: site.set_member(balancer, "s5/6", weight=0)),
            *((f"{verb}", f"s{n}", partial(plug_in, site, balancer, f"s{n}", verb == "returns")) for verb, n in DEATHS),
            ("drains", "s4", lambda: site.set_member(balancer, "s4", weight=0)),
            ("comes back", "s4", lambda: site.set_member(balancer, "s4", weight=1)),
        ]
        for what, who, step in steps:
            step()
            before, keys = keys, ask_keys(site, balancer, 30_000)
            moved = [key for key in keys if keys[key] != before[key]]
            wrong = [key for key in moved if who not in (before[key], keys[key])]
            print(f"{who} {what}: {len(moved)} of {KEYS} keys moved, {len(wrong)} of others")
            assert wrong == []
        assert keys == start


DEATHS = [("dies", 1), ("dies", 2), ("dies", 0), ("returns", 2), ("returns", 0), ("returns", 1)]


def plug_in(site: LabSite, balancer: CreatedBalancer, name: str, lives: bool) -> None:
    """Unbind or bind the port, as when a virtual machine stops or starts; wait for the API's status and all flows."""
    workload = site.lab.workload(name)
    port = ["external_ids", "iface-id"] if not lives else [f'external_ids:iface-id="{workload.port_id}"']
    command = ["ovs-vsctl", "set" if lives else "remove", "Interface", workload_device(name), *port]
    site.lab.exec(workload.chassis, command)
    member, wanted = site.member(balancer, name), "ONLINE" if lives else "ERROR"
    get = site.cloud.load_balancer.get_member
    wait_equal(lambda: get(member, balancer.pool).operating_status, wanted)
    site.settle(balancer.id)


@contextmanager
def two_families(site: LabSite) -> Iterator[CreatedBalancer]:
    monitor = {"type": "TCP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1}
    more = {"additional_vips": [{"subnet_id": site.subnet("slots-v6").id}], "lb_algorithm": "SOURCE_IP_PORT"}
    with site.balancer("slots-v4", MEMBERS, **more) as balancer:
        members = [
            {"name": f"{name}{kind}", "address": site.address(name, version), "protocol_port": PORT}
            for version, kind in ((4, ""), (6, "/6"))
            for name in MEMBERS
        ]
        site.cloud.load_balancer.put(f"/lbaas/pools/{balancer.pool}/members", json={"members": members})
        site.settle(balancer.id)
        site.cloud.load_balancer.create_health_monitor(pool_id=balancer.pool, **monitor)
        site.settle(balancer.id)
        members_of = site.cloud.load_balancer.members
        wait_equal(lambda: {m.operating_status for m in members_of(balancer.pool)}, {"ONLINE"})
        yield balancer


def change_one(site: LabSite, balancer: CreatedBalancer, random: Random, weights: dict[str, int]) -> str:
    """Change one member through the API and in `weights`, and return its name. At least two members keep serving."""
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


def open_more(holder: ConnectionHolder, names: dict[int, str], serving: set[str]) -> dict[int, str]:
    opened = holder.open(3)
    assert {name for port, name in opened.items() if port not in names} <= serving
    return opened


def check_held(held: list[tuple[ConnectionHolder, dict[int, str]]], weights: dict[str, int]) -> None:
    for holder, before in held:
        now = holder.exchange_all()
        assert [port for port, name in before.items() if name in weights and now[port] != name] == []


def ask_keys(site: LabSite, balancer: CreatedBalancer, first: int) -> dict[int, str]:
    """Member of each key, which is a source port of one client."""
    traffic = Traffic(to=balancer.vip, port=80, count=KEYS, concurrency=8, source_port_from=first)
    result = site.lab.traffic("watcher1", traffic)
    assert result.errors == {}
    return dict(result.keys)


@pytest.mark.parametrize("count", [2, 5])
def test_datapath_flows_do_not_grow_with_connections(site: LabSite, count: int):
    """One datapath flow per bucket, some per member, and some common ones. OpenFlow's flows do not change."""
    with site.balancer("slots-v4", MEMBERS[:count]) as balancer:
        vips = site.lab.exec("central", ["ovn-nbctl", "get", "Load_Balancer", f"{balancer.id}-tcp", "vips"])
        buckets = len(re.findall(rf":{PORT}\b", vips))
        openflow = count_openflow(site.lab)
        few, many = (count_datapath(site, balancer, connections) for connections in (400, 2000))
        assert openflow == count_openflow(site.lab)
        assert abs(many - few) <= 4
        assert many <= buckets + 10 * count + 20


def count_openflow(lab: Lab) -> list[str]:
    """Number of flows, and all groups, of each node, without the neighbours that routers learn."""
    found = []
    for node in lab.record.chassis:
        said = lab.exec(node.name, ["ovs-ofctl", "-O", "OpenFlow15", "--no-stats", "dump-flows", "br-int"])
        flows = [line for line in said.splitlines() if "actions=" in line and not NEIGHBOURS.search(line)]
        assert flows
        found.append(str(len(flows)))
        found.append(lab.exec(node.name, ["ovs-ofctl", "-O", "OpenFlow15", "dump-groups", "br-int"]).partition("\n")[2])
    return found


def count_datapath(site: LabSite, balancer: CreatedBalancer, connections: int) -> int:
    """Number of IPv4 datapath flows on both nodes after so many connections, starting without any.

    Flows to the source of probes are left out: a member answers a deleted monitor's probe repeatedly for a minute,
    because its answer is not rejected.
    """
    options = ["ovn-nbctl", "--bare", "get", "NB_Global", ".", "options:svc_monitor_mac"]
    probing = site.lab.exec("central", options).strip().strip('"')
    for node in CLIENTS.values():
        site.lab.exec(node, ["ovs-appctl", "-t", "ovs-vswitchd", "revalidator/purge"])
    result = site.lab.traffic("watcher2", Traffic(to=balancer.vip, port=80, count=connections, concurrency=16))
    assert result.errors == {}
    dumps = [site.lab.exec(node, ["ovs-appctl", "-t", "ovs-vswitchd", "dpctl/dump-flows"]) for node in CLIENTS.values()]
    flows = [line for dump in dumps for line in dump.splitlines() if "eth_type(0x0800)" in line]
    assert flows
    return sum(f"dst={probing}" not in line for line in flows)
