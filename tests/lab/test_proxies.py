"""End to end: listeners that ask what no switch can do, led on each node to the HAProxy there."""

import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import httpx
import pytest

from fairlead.drivers.haproxy.metrics import CACHE_SECONDS
from fairlead.drivers.haproxy.process import start_time_of
from fairlead.lab import Lab, agents
from fairlead.lab.errors import LabCommandFailed
from fairlead.lab.server import start, stop
from harness.lab.members import cut_cable, mend_cable
from harness.lab.proxied import OPTIONS, get
from harness.lab.site import CURL, CreatedBalancer, LabSite, codes, open_site
from harness.waiting import pause, wait_equal, wait_until

pytestmark = [pytest.mark.lab]

MEMBERS = ("w1", "w2")
CLIENTS = ("near", "other", "far")
POOL = {"lb_algorithm": "ROUND_ROBIN"}
CHANGES = 200
T = TypeVar("T")


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, **OPTIONS)
    site.network("thuja", "10.0.0.0/24", "fd00:a::/64")
    site.network("maple", "10.0.1.0/24", "fd00:b::/64")
    site.router("leading", "thuja-v4", "thuja-v6", "maple-v4", "maple-v6")
    site.machines("thuja", {"w1": "chassis1", "w2": "chassis2"}, serve=[8080])
    site.machines("thuja", {"near": "chassis1", "other": "chassis2"})
    site.machines("maple", {"far": "chassis2"})
    yield site
    for name in (*MEMBERS, *CLIENTS):
        lab.remove_workload(name)
    site.close()


@pytest.fixture(scope="module", autouse=True)
def nodes(site: LabSite) -> Iterator[dict[str, agents.LabAgent]]:
    started = {agent.chassis: agent for agent in agents.start(site.lab.layout, site.url)}
    yield started
    for agent in started.values():
        agent.stop()


def serves(site: LabSite, client: str, vip: str, path: str = "/", *more: str) -> bool:
    try:
        return get(site, client, vip, path, *more)[0] == "200"
    except LabCommandFailed:
        return False


@contextmanager
def web(site: LabSite, version: int = 4, **pool: object) -> Iterator[CreatedBalancer]:
    with site.balancer(f"thuja-v{version}", MEMBERS, protocol="HTTP", version=version, **{**POOL, **pool}) as balancer:
        wait_equal(lambda: set(processes(site)), {"chassis1", "chassis2"})
        wait_until(lambda: all(serves(site, each, balancer.vip) for each in CLIENTS), "each client is served")
        yield balancer


def processes(site: LabSite) -> dict[str, int]:
    """Chassis -> the process of its proxy, as its agent has written it down, while it lives."""
    return {name: process for name, (_, process) in living(site).items()}


def living(site: LabSite) -> dict[str, tuple[Path, int]]:
    """Chassis -> the folder and the process of its proxy. One that is replaced, whose load balancer has gone, or that
    was of another file in the same lab, may be named and not be there."""
    found = {}
    for name in nodes_of(site):
        for path in (site.lab.layout.directory / "fairlead" / f"agent-{name}.proxies").glob("*/pid"):
            process = int(path.read_text().split()[0])
            if start_time_of(process):  # who has ended may be there until whoever started it has noticed
                found[name] = path.parent, process
    return found


def nodes_of(site: LabSite) -> list[str]:
    return [node.name for node in site.lab.status().chassis]


def counted(site: LabSite, chassis: str) -> int:
    """The requests that the proxy there has had."""
    folder, _ = living(site)[chassis]
    said = site.lab.exec("outside", ["python3", "-c", ASK, str(folder / "sockets" / "control")])
    return sum(int(line["stot"]) for line in json.loads(said) if line["svname"] == "FRONTEND")


ASK = """
import csv, json, socket, sys
with socket.socket(socket.AF_UNIX) as asking:
    asking.connect(sys.argv[1])
    asking.sendall(b"show stat\\n")
    text = b"".join(iter(lambda: asking.recv(65536), b"")).decode()
print(json.dumps(list(csv.DictReader(text.removeprefix("# ").splitlines()))))
"""


def as_long(vip: str, ended: Path) -> str:
    """And a hundred times more."""
    enough = f"[ ! -e {ended} ] || left=$((left - 1)); [ $left != 0 ] || break"
    return f"left=100; for _ in $(seq 1000); do {enough}; {CURL} http://{vip}/; done"


def again(vip: str, times: int) -> str:
    return f"for _ in $(seq {times}); do {CURL} http://{vip}/; done"


def until_ended(host: str, ended: Path) -> str:
    return f"while [ ! -e {ended} ]; do {CURL} http://{host}/; done"


@pytest.mark.parametrize("version", [4, 6])
def test_clients_are_served_by_the_proxy_on_their_node(site: LabSite, version: int):
    with web(site, version) as balancer:
        assert site.cloud.load_balancer.get_listener(balancer.listener).operating_status == "ONLINE"
        for client, chassis in {"near": "chassis1", "other": "chassis2", "far": "chassis2"}.items():
            before = {each: counted(site, each) for each in ("chassis1", "chassis2")}
            seen = Counter(get(site, client, balancer.vip) for _ in range(8))
            after = {each: counted(site, each) for each in before}
            assert seen == {("200", "w1"): 4, ("200", "w2"): 4}, client
            assert {each: after[each] - before[each] for each in before} == {**dict.fromkeys(before, 0), chassis: 8}


@pytest.mark.parametrize("version", [4, 6])
def test_the_vip_answers_ping_whether_a_proxy_serves_or_not(site: LabSite, version: int):
    """OVN does; no proxy and no member is asked."""
    with web(site, version) as balancer:
        for client in CLIENTS:
            site.lab.exec(client, ["ping", f"-{version}", "-c", "1", "-w", "30", balancer.vip])
        site.cloud.load_balancer.update_listener(balancer.listener, admin_state_up=False)
        site.settle(balancer.id)
        for client in CLIENTS:
            site.lab.exec(client, ["ping", f"-{version}", "-c", "1", "-w", "30", balancer.vip])


@pytest.mark.parametrize("version", [4, 6])
def test_raw_listener_forwards_only_connections_with_the_configured_bytes(site: LabSite, version: int):
    with site.balancer(f"thuja-v{version}", MEMBERS, version=version) as balancer:
        assert get(site, "near", balancer.vip)[0] == "200"
        raw = {"location": 0, "value": b"GET /of-ours".hex()}
        path = f"{site.url}/load-balancer/v2/lbaas/listeners/{balancer.listener}"
        httpx.put(path, json={"listener": {"raw": raw}}).raise_for_status()
        wait_until(lambda: not any(serves(site, each, balancer.vip) for each in CLIENTS), "others are refused")
        for client in CLIENTS:
            wait_until(partial(serves, site, client, balancer.vip, "/of-ours"), "it is led on")
            assert not serves(site, client, balancer.vip, "/of-others")
        httpx.put(path, json={"listener": {"raw": None}}).raise_for_status()
        wait_until(lambda: all(serves(site, each, balancer.vip) for each in CLIENTS), "everybody is led on")


def test_proxy_with_chassis_locality_prefers_members_on_its_node(site: LabSite):
    with web(site) as balancer:
        before = processes(site)
        path = f"{site.url}/load-balancer/v2/lbaas/pools/{balancer.pool}"
        httpx.put(path, json={"pool": {"locality": "CHASSIS"}}).raise_for_status()
        for client, member in {"near": "w1", "other": "w2", "far": "w2"}.items():
            wait_equal(lambda who=client: answers(site, who, balancer.vip), {member})
        site.set_member(balancer, "w1", weight=0)
        wait_equal(lambda: answers(site, "near", balancer.vip), {"w2"})
        assert processes(site) == before  # nobody was replaced for it


def answers(site: LabSite, client: str, vip: str) -> set[str]:
    return {get(site, client, vip)[1] for _ in range(4)}


def test_path_rule_redirects_matching_requests(site: LabSite):
    with web(site) as balancer:
        api = site.cloud.load_balancer
        policy = api.create_l7_policy(
            listener_id=balancer.listener, action="REDIRECT_TO_URL", redirect_url="http://elsewhere.example/"
        )
        api.create_l7_rule(policy.id, type="PATH", compare_type="STARTS_WITH", value="/old")
        wait_equal(lambda: get(site, "near", balancer.vip, "/old/page")[0], "302")
        assert get(site, "near", balancer.vip, "/old/page") == ("302", "http://elsewhere.example/")
        assert get(site, "near", balancer.vip, "/new")[0] == "200"


def test_killed_proxy_is_restarted_while_its_node_is_served(site: LabSite):
    with web(site) as balancer:
        first = processes(site)["chassis1"]
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: serves(site, "near", balancer.vip), "somebody serves")
        wait_until(
            lambda: processes(site).get("chassis1", first), "it is there again", is_enough=lambda found: found != first
        )
        assert get(site, "near", balancer.vip)[0] == "200"


@pytest.mark.extended
def test_clients_of_a_node_without_agent_and_proxy_use_the_other_node(site: LabSite, nodes: dict[str, agents.LabAgent]):
    """Nobody is left there who could say that it serves no more, and nobody starts another one."""
    with web(site) as balancer:
        agent, proxy = nodes["chassis1"].process, processes(site)["chassis1"]
        for each in (agent.pid, proxy):
            os.kill(each, signal.SIGKILL)
        agent.wait()
        try:
            wait_until(lambda: serves(site, "near", balancer.vip), "somebody serves")
            assert {get(site, client, balancer.vip)[0] for client in CLIENTS for _ in range(8)} == {"200"}
            assert "chassis1" not in processes(site)
        finally:
            nodes["chassis1"] = agents.start_one(site.lab.layout, site.url, "chassis1")
        wait_until(
            lambda: processes(site).get("chassis1", proxy), "it is there again", is_enough=lambda found: found != proxy
        )
        before = counted(site, "chassis1")
        wait_until(lambda: serves(site, "near", balancer.vip) and counted(site, "chassis1") > before, "it serves")


@pytest.mark.extended
def test_frozen_proxy_is_bypassed_and_then_replaced(site: LabSite):
    """It takes connections all the while: only that nobody answers says that it stands still."""
    with web(site) as balancer:
        first = processes(site)["chassis1"]
        os.kill(first, signal.SIGSTOP)
        wait_until(lambda: serves(site, "near", balancer.vip, "/", "-m", "1"), "somebody serves")
        wait_until(
            lambda: processes(site).get("chassis1", first),
            "another one is there",
            is_enough=lambda found: found != first,
        )
        assert get(site, "near", balancer.vip)[0] == "200"


@pytest.mark.extended
def test_proxies_outlive_a_stopped_agent(site: LabSite, nodes: dict[str, agents.LabAgent]):
    with web(site) as balancer:
        before = processes(site)
        nodes["chassis1"].stop()
        assert get(site, "near", balancer.vip)[0] == "200"
        nodes["chassis1"] = agents.start_one(site.lab.layout, site.url, "chassis1")
        site.set_member(balancer, "w1", weight=0)
        wait_equal(lambda: [get(site, "near", balancer.vip)[1] for _ in range(6)], ["w2"] * 6)
        assert processes(site) == before


def test_member_and_listener_changes_fail_no_request(site: LabSite, tmp_path: Path):
    with web(site) as balancer:
        first, end = processes(site), tmp_path / "end"
        with ThreadPoolExecutor(1) as threads:
            words = ["sh", "-c", until_ended(balancer.vip, end)]
            asking = threads.submit(site.lab.exec, "near", words, timeout=600)
            for weight in (0, 5, 1, 0, 3, 1):
                site.set_member(balancer, "w1", weight=weight)
            site.cloud.load_balancer.update_listener(balancer.listener, connection_limit=1000)
            wait_until(lambda: processes(site), "a new process takes its place", is_enough=lambda found: found != first)
            end.touch()
            assert set(codes(asking.result())) == {"200"}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.extended
def test_burst_of_changes_starts_few_processes_and_fails_no_request(site: LabSite, tmp_path: Path, version: int):
    """Each would need one. How long the last state may wait is tested on a clock of its own, in test_haproxy_pace."""
    with web(site, version) as balancer, ThreadPoolExecutor(1) as threads:
        host = f"[{balancer.vip}]" if version == 6 else balancer.vip
        pids, end = set(processes(site).items()), tmp_path / "end"
        words = ["sh", "-c", until_ended(host, end)]
        asking = threads.submit(site.lab.exec, "near", words, timeout=600)
        try:
            for limit in range(1001, 1001 + CHANGES):
                site.cloud.load_balancer.update_listener(balancer.listener, connection_limit=limit)
                pids |= set(processes(site).items())
            wait_until(lambda: all(f"maxconn {limit}" in each for each in configured(site)), "the last one is there")
            wait_until(lambda: all(serves(site, each, balancer.vip) for each in CLIENTS), "in a process")
        finally:
            end.touch()
        found = codes(asking.result())
    pids |= set(processes(site).items())
    print(f"{CHANGES} changes, {len(pids) - 2} processes on 2 nodes; {found}")
    assert len(pids) <= CHANGES / 2  # a quarter, if each node had one for each change
    assert set(found) == {"200"}


def configured(site: LabSite) -> list[str]:
    folder = site.lab.layout.directory / "fairlead"
    return [each.read_text() for each in folder.glob("agent-*.proxies/*/haproxy.cfg")]


ASK_AND_COUNT = """
for _ in $(seq {times}); do
    curl -sS -o /dev/null -m 15 -w '%{{size_request}} %{{size_header}} %{{size_download}}\n' -A {agent} http://{host}/
done
"""


def figures(site: LabSite, balancer: CreatedBalancer) -> Counter[str]:
    """Of the load balancer, which are those of its one listener."""
    api = site.cloud.load_balancer
    whole, listener = (
        Counter({name: found[name] for name in FIGURES})
        for found in (
            api.get_load_balancer_statistics(balancer.id),
            api.get_listener_statistics(balancer.listener),
        )
    )
    return whole if whole == listener else Counter()


FIGURES = ("active_connections", "bytes_in", "bytes_out", "request_errors", "total_connections")


def ask_and_count(site: LabSite, balancer: CreatedBalancer, times: int) -> Counter[str]:
    """What all clients together have sent and got."""
    host = f"[{balancer.vip}]" if ":" in balancer.vip else balancer.vip
    words = ASK_AND_COUNT.format(times=times, agent="a" * 200, host=host)
    said = [line.split() for each in CLIENTS for line in site.lab.exec(each, ["sh", "-c", words]).splitlines()]
    sent, heads, bodies = (sum(map(int, column)) for column in zip(*said, strict=True))
    assert len(said) == times * len(CLIENTS)
    return Counter(total_connections=len(said), bytes_in=sent, bytes_out=heads + bodies)


def shown(site: LabSite, balancer: CreatedBalancer, wanted: Counter[str]) -> None:
    try:
        wait_equal(lambda: figures(site, balancer), wanted)
    finally:
        assert figures(site, balancer) == wanted


@pytest.mark.parametrize("version", [4, 6])
def test_bytes_and_connections_of_proxied_clients_are_counted_once(
    site: LabSite, nodes: dict[str, agents.LabAgent], version: int
):
    """On both nodes, over members that change, processes that are replaced and killed, and agents that begin anew."""
    with web(site, version) as balancer:
        had = sum(counted(site, each) for each in nodes)  # of the processes that run: others may have been replaced

        def of_before() -> Counter[str]:
            found = figures(site, balancer)
            return found if found["total_connections"] >= had and not found["active_connections"] else Counter()

        wait_until(of_before, "what was before")
        wanted, first = at_rest(of_before), processes(site)
        wanted += ask_and_count(site, balancer, 10)
        site.set_member(balancer, "w1", weight=5)
        wanted += ask_and_count(site, balancer, 10)
        site.cloud.load_balancer.update_listener(balancer.listener, connection_limit=1000)
        wanted += ask_and_count(site, balancer, 10)
        wait_until(lambda: not set(first.values()) & set(processes(site).values()), "new processes")
        wanted += ask_and_count(site, balancer, 10)
        shown(site, balancer, wanted)
        killed = processes(site)["chassis1"]
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda: processes(site).get("chassis1", killed),
            "it is there again",
            is_enough=lambda found: found != killed,
        )
        nodes["chassis2"].stop()
        nodes["chassis2"] = agents.start_one(site.lab.layout, site.url, "chassis2")
        wanted += ask_and_count(site, balancer, 10)
        shown(site, balancer, wanted)


@pytest.mark.parametrize("version", [4, 6])
def test_prometheus_listener_exposes_only_metrics_of_its_load_balancer(site: LabSite, version: int):
    """Of what its own node's proxy has counted, over processes; nothing of another load balancer beside it."""
    with web(site, version) as balancer, site.balancer(f"thuja-v{version}", ["w2"], protocol="HTTP", **POOL) as other:
        api = site.cloud.load_balancer
        listener = api.create_listener(loadbalancer_id=balancer.id, protocol="PROMETHEUS", protocol_port=9100)
        sample = f'octavia_listener_http_requests_total{{listener="{balancer.listener}"}}'
        for client in CLIENTS:
            wait_until(lambda who=client: sample in scrape(site, who, balancer.vip), "it is told")

        def scraped() -> float:
            """An agent that is busy answers 503."""
            texts = (scrape(site, "near", balancer.vip) for _ in range(20))
            return figure(next(text for text in texts if sample in text), sample)

        wait_until(lambda: serves(site, "near", balancer.vip) and scraped() > 0, "its own proxy serves it")
        seen = [at_rest(scraped)]
        for limit in (1000, 2000):
            for _ in range(4):
                assert get(site, "near", balancer.vip)[0] == "200"
            first = processes(site)
            api.update_listener(balancer.listener, connection_limit=limit)
            wait_until(lambda before=first: not set(before.values()) & set(processes(site).values()), "new processes")
            seen.append(scraped())
        assert seen == sorted(seen)  # beside others' work another node's proxy may have answered some of them
        wait_until(lambda: serves(site, "near", balancer.vip) and scraped() >= seen[0] + 8, "all is counted")
        told = scrape(site, "near", balancer.vip)
        assert f'octavia_pool_status{{pool="{balancer.pool}:http:5000:50000",state="UP"}} 1' in told
        assert f'member="{site.member(balancer, "w1")}"' in told
        assert listener.id in told
        assert not {each for each in (other.listener, other.pool, "haproxy_") if each in told}


def scrape(site: LabSite, client: str, vip: str) -> str:
    try:
        host = f"[{vip}]" if ":" in vip else vip
        return site.lab.exec(client, ["curl", "-sSf", "-m", "15", f"http://{host}:9100/metrics"])
    except LabCommandFailed:
        return ""


def at_rest(look: Callable[[], T]) -> T:
    """What is seen twice, between which the node's agent has asked its proxies once more."""
    seen = [look()]

    def rests() -> bool:
        pause(2 * CACHE_SECONDS)
        seen.append(look())
        return seen[-1] == seen[-2]

    wait_until(rests, "it rests")
    return seen[-1]


def figure(text: str, sample: str) -> float:
    return next(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(sample + " "))


def test_proxy_sends_no_requests_to_a_member_that_fails_its_monitor(site: LabSite):
    monitor = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1, "url_path": "/"}
    with web(site, healthmonitor=monitor) as balancer:
        member = site.member(balancer, "w1")
        api = site.cloud.load_balancer
        wait_equal(lambda: api.get_member(member, balancer.pool).operating_status, "ONLINE")
        cut_cable(site, "w1")
        try:
            wait_equal(lambda: [answer(site, balancer) for _ in range(4)], ["w2"] * 4)
        finally:
            mend_cable(site, "w1")
        wait_equal(lambda: {answer(site, balancer) for _ in range(4)}, {"w1", "w2"})


def answer(site: LabSite, balancer: CreatedBalancer) -> str:
    try:
        return get(site, "near", balancer.vip)[1]
    except LabCommandFailed:
        return ""


@pytest.mark.extended
def test_server_restart_removes_no_proxy(site: LabSite, tmp_path: Path):
    """It knows of none before agents have told it; nobody probes a member here, for whom it would wait too."""
    ended = tmp_path / "ended"
    with web(site) as balancer, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(site.lab.exec, "near", ["sh", "-c", as_long(balancer.vip, ended)])
        other = start(site.lab.layout, site.url.removeprefix("http://"), OPTIONS)
        wait_equal(lambda: httpx.get(f"{site.url}/readyz").status_code, 200)
        site.set_member(balancer, "w1", weight=7)
        assert not asking.done()
        ended.touch()
        found = codes(asking.result())
    stop(site.lab.layout, other)
    assert {*found} == {"200"}
    assert found["200"] > 100
