"""End to end: features beyond packet filters, by HAProxy on plain hosts, on whichever host a router sends a flow to."""

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from openstack.exceptions import BadRequestException

from fairlead.drivers.haproxy.process import start_time_of
from fairlead.lab import Protocol, agents
from fairlead.lab.errors import LabCommandFailed
from fairlead.lab.load import Load, LoadTarget
from fairlead.lab.native import NativeLab
from fairlead.lab.processes import end, is_marked
from fairlead.lab.server import start, stop
from harness.addresses import holds_address
from harness.certificates import Authority
from harness.lab.native_hosts import HOSTS, ROUTERS, machine, pid_of, serve
from harness.lab.native_served import (
    AGENT,
    CLIENTS,
    MEMBER_PORT,
    NUMBER,
    OPTIONS,
    PORT,
    NativeSite,
    hold_connections,
    record_changes,
    remove,
    serving,
    vips,
)
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.lab

CA = Authority()
WEB = CA.issue("web.example")
SPARE = 77
"""Number without a machine."""
FRESH = 20
"""Requests, each on a new connection."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "ca.pem").write_text(CA.pem)
    return folder


@pytest.fixture(scope="module")
def served(native: NativeLab, keys: Path) -> Iterator[NativeSite]:
    with serving(native, FAIRLEAD_KEYS_DIRECTORY=str(keys)) as found:
        project = found.cloud.network.find_network("pool", ignore_missing=False).project_id
        own = keys / project
        own.mkdir()
        (own / "web.pem").write_text(WEB.certificate_and_key)
        (own / "web.pem").chmod(0o600)
        yield found


@contextmanager
def balancer(served: NativeSite, *listeners: dict[str, Any], pools: tuple[dict[str, Any], ...] = ()) -> Iterator[Any]:
    """A load balancer with a VIP of each IP version."""
    subnets = {each.ip_version: each.id for each in served.cloud.network.subnets(network_id=served.pool)}
    made = served.cloud.load_balancer.create_load_balancer(
        name="web",
        vip_subnet_id=subnets[4],
        additional_vips=[{"subnet_id": subnets[6]}],
        listeners=list(listeners),
        pools=list(pools),
    )
    try:
        served.settle(made.id)
        yield made
    finally:
        served.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)
        wait_until(
            lambda: not any(served.lab.next_hops(r, v) for r in ROUTERS for v in vips(made)), "nobody announces it"
        )


def listener(
    served: NativeSite, protocol: str, *names: str, algorithm: str = "ROUND_ROBIN", **more: Any
) -> dict[str, Any]:
    """A listener with members of both IP versions: a proxy connects clients of either to any of them."""
    pool_protocol = "TCP" if protocol == "TCP" else "HTTP"
    pool = {"name": "p", "protocol": pool_protocol, "lb_algorithm": algorithm, "members": served.members(*names)}
    port = 443 if protocol == "TERMINATED_HTTPS" else PORT
    return {"name": "l", "protocol": protocol, "protocol_port": port, "default_pool": pool, **more}


def await_hosts(served: NativeSite, made: Any, *hosts: str) -> None:
    """Wait until exactly these hosts announce the VIPs, and every client can connect."""
    for vip in vips(made):
        for router in ROUTERS:
            served.lab.wait_next_hops(router, vip, *hosts)
        for client in (*CLIENTS, *HOSTS):
            condition = f"{client} connects to {vip}"
            wait_until(lambda c=client, v=vip: connects(served, c, v, made.listeners[0]["id"]), condition)


def connects(served: NativeSite, client: str, vip: str, listener_id: str) -> bool:
    port = served.cloud.load_balancer.get_listener(listener_id).protocol_port
    try:
        served.lab.exec(client, (sys.executable, "-c", CONNECT, vip, str(port)))
    except LabCommandFailed:
        return False
    return True


CONNECT = """
import socket, sys
socket.create_connection((sys.argv[1], int(sys.argv[2])), 15).close()
"""


def get(served: NativeSite, client: str, vip: str, path: str, *more: str) -> tuple[str, str]:
    """Status code and name of the member. Raises CommandFailed."""
    scheme = "https" if "--cacert" in more else "http"
    host = f"[{vip}]" if ":" in vip else vip
    where = ("--connect-to", f"::{host}:", f"{scheme}://web.example{path}")
    words = ["curl", "-sS", "-m", "15", "-w", "\n%{http_code}", *more, *where]
    *body, code = served.lab.exec(client, words).strip().splitlines()
    return code, "".join(body)


def answers(served: NativeSite, made: Any, path: str = "/", *more: str) -> Counter[str]:
    """Answers to clients outside and on a host, over both IP versions; all must succeed."""
    found = Counter[str]()
    for client in (*CLIENTS, "host2"):
        for vip in vips(made):
            got = [get(served, client, vip, path, *more) for _ in range(FRESH)]
            assert {code for code, _ in got} == {"200"}, (client, vip)
            found.update(name for _, name in got)
    return found


def test_path_rules_select_pools_for_external_and_host_clients(served: NativeSite) -> None:
    rule = {"type": "PATH", "compare_type": "STARTS_WITH", "value": "/api"}
    policy = {"action": "REDIRECT_TO_POOL", "redirect_pool": {"name": "api"}, "rules": [rule]}
    other = {"name": "api", "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN", "members": served.members("n3")}
    asked = listener(served, "HTTP", "n1", "n2", l7policies=[policy])
    with balancer(served, asked, pools=(other,)) as made:
        await_hosts(served, made, *HOSTS)
        web, api = answers(served, made), answers(served, made, "/api/things")
        assert set(web) == {"n1", "n2"}
        assert set(api) == {"n3"}
        total = web.total() + api.total() + 2 * len((*CLIENTS, *HOSTS))  # with the connections that send nothing
        find = served.cloud.load_balancer.get_load_balancer_statistics
        wait_equal(lambda: find(made.id).total_connections, total)
        assert_statuses(served, made, "ONLINE")
    wait_until(lambda: not processes(served), "no proxy is left")


def assert_statuses(served: NativeSite, made: Any, status: str) -> None:
    api = served.cloud.load_balancer
    wait_equal(lambda: api.get_load_balancer(made.id).operating_status, status)
    assert {each.operating_status for each in api.listeners(load_balancer_id=made.id)} == {status}


def processes(served: NativeSite) -> dict[str, int]:
    """PID of the proxy of each host."""
    folder = served.lab.layout.directory / "fairlead"
    written = {host: list((folder / f"agent-{host}.proxies").glob("*/pid")) for host in HOSTS}
    found = {host: int(its[0].read_text().split()[0]) for host, its in written.items() if its}
    return {host: pid for host, pid in found.items() if start_time_of(pid)}


def test_tls_is_terminated_on_hosts_and_no_log_contains_a_private_key(served: NativeSite, keys: Path) -> None:
    asked = listener(served, "TERMINATED_HTTPS", "n1", "n2", default_tls_container_ref="web.pem")
    with balancer(served, asked) as made:
        await_hosts(served, made, *HOSTS)
        for option in ("--http1.1", "--http2"):
            assert set(answers(served, made, "/", "--cacert", str(keys / "ca.pem"), option)) == {"n1", "n2"}
        logs = [path.read_text() for path in (served.lab.layout.directory / "fairlead").glob("*.log")]
        assert not any("PRIVATE KEY" in text for text in logs)


@pytest.mark.extended
def test_rehash_host_drain_and_agent_restart_break_no_proxied_flow(served: NativeSite) -> None:
    with balancer(served, listener(served, "TCP", "n1", "n2", "n3", algorithm="LEAST_CONNECTIONS")) as made:
        await_hosts(served, made, *HOSTS)
        targets = tuple(LoadTarget(to=vip, port=PORT, protocol=Protocol.TCP) for vip in vips(made))
        steady = Load(targets=targets, rate=20, count=8000, held=90, seconds=300, period=0.3, timeout=30)
        with served.lab.load("far", steady) as load:
            wait_until(
                lambda: hold_connections(served),
                "flows are held",
                is_enough=lambda found: found >= steady.held * 2 // 3,
            )
            for seed in (11, 12, 13):
                for router in ROUTERS:
                    served.lab.rehash(router, seed)
            served.operator.request("PUT", "/operator/hosts/host3/draining", None)
            await_hosts(served, made, "host1", "host2")
            for router in ROUTERS:
                served.lab.rehash(router, 14)
            served.operator.request("DELETE", "/operator/hosts/host3/draining", None)
            await_hosts(served, made, *HOSTS)
            agent = served.agents["host1"].process
            agent.kill()
            agent.wait()
            served.start_agent("host1")
            for router in ROUTERS:
                served.lab.rehash(router, 15)
            seen = load.stop()
        assert [each for each in seen.failed if each.member] == []
        assert sum(seen.held.values()) == steady.held
        assert set(seen.held) == {"n1", "n2", "n3"}
        assert len(seen.failed) <= seen.opened / 100


@pytest.mark.extended
def test_server_restart_moves_no_slot(served: NativeSite, keys: Path) -> None:
    """The new server has no reports about proxies yet, and sends no slice without them."""
    layout, listen = served.lab.layout, served.service.url.removeprefix("http://")
    asked = listener(served, "TCP", "n1", "n2", algorithm="LEAST_CONNECTIONS")
    with balancer(served, asked) as made, ExitStack() as stack:
        await_hosts(served, made, *HOSTS)
        changes = [stack.enter_context(record_changes(served.lab, host)) for host in HOSTS]
        steady = Load(
            targets=(LoadTarget(to=vips(made)[0], port=PORT),), rate=40, count=8000, held=40, seconds=200, timeout=30
        )
        with served.lab.load("far", steady) as load:
            stop(layout, served.service)
            served.service = start(layout, listen, {"FAIRLEAD_KEYS_DIRECTORY": str(keys), **OPTIONS})
            wait_until(lambda: all(runs(served, host) for host in HOSTS), "it has heard of all proxies")
            seen = load.stop()
        assert seen.failed == []
        assert set(seen.held) == {"n1", "n2"}
    assert [line for lines in changes for line in lines if "owner4" in line or "pattern" in line] == []


def runs(served: NativeSite, host: str) -> bool:
    """Whether the proxy serves, according to the server."""
    proxies = served.operator.request("GET", f"/operator/chassis/{host}")["proxies"]
    return [each["serving"] for each in proxies] == [1]


def test_killed_proxy_is_restarted_and_serves_again(served: NativeSite) -> None:
    with balancer(served, listener(served, "HTTP", "n1", "n2")) as made:
        await_hosts(served, made, *HOSTS)
        before = processes(served)
        assert set(before) == set(HOSTS)
        os.kill(before["host2"], signal.SIGKILL)
        wait_until(
            lambda: processes(served).get("host2"),
            "there is another one",
            is_enough=lambda found: found not in (None, before["host2"]),
        )
        await_hosts(served, made, *HOSTS)
        assert set(answers(served, made)) == {"n1", "n2"}


def test_internal_port_of_a_proxy_refuses_connections(served: NativeSite) -> None:
    with balancer(served, listener(served, "HTTP", "n1", "n2")) as made:
        await_hosts(served, made, *HOSTS)
        listening = served.lab.exec("host1", ("ss", "-Hltn"))
        own = [line for line in listening.splitlines() if holds_address(line, made.vip_address)]
        [port] = {line.split()[3].rpartition(":")[2] for line in own}
        for client in (*CLIENTS, "host1", "host2"):
            for vip in vips(made):
                where = f"http://[{vip}]:{port}/" if ":" in vip else f"http://{vip}:{port}/"
                with pytest.raises(LabCommandFailed, match=r"refused|Couldn't connect"):
                    served.lab.exec(client, ("curl", "-sS", "-m", "15", where))


def test_proxies_and_monitors_reach_no_address_of_a_host_itself(served: NativeSite) -> None:
    """A member's address that the host itself gets is excluded, and a host's own address is rejected as a member."""
    host, lab = served.lab.chassis("host1"), served.lab
    spare = host.addresses(SPARE)[0]
    asked, refused = listener(served, "HTTP", "n2"), listener(served, "HTTP", "n2")
    asked["default_pool"]["members"].append({"name": "spare", "address": spare, "protocol_port": 80})
    refused["default_pool"]["members"].append({"name": "own", "address": host.gateway, "protocol_port": 80})
    with balancer(served, asked) as made:
        await_hosts(served, made, *HOSTS)
        with pytest.raises(BadRequestException, match=host.gateway), balancer(served, refused):
            pass
        lab.exec("host1", ("ip", "address", "add", f"{spare}/32", "dev", "router1"))
        serve(lab, "host1")
        try:
            assert lab.exec("host2", ("curl", "-sS", "-m", "15", f"http://{spare}/")), "hosts themselves reach it"
            wait_equal(lambda: status(served, made, "spare"), "ERROR")
            wait_equal(lambda: set(answers(served, made)), {"n2"})
            assert set(answers(served, made)) == {"n2"}
        finally:
            lab.exec("host1", ("ip", "address", "del", f"{spare}/32", "dev", "router1"))
            end([pid_of(lab, "host1")], lambda pid: is_marked(pid, lab.layout.directory))
        wait_equal(lambda: status(served, made, "spare"), "NO_MONITOR")


def status(served: NativeSite, made: Any, name: str) -> str:
    """Operating status of a member of the only pool."""
    api = served.cloud.load_balancer
    [pool] = api.pools(loadbalancer_id=made.id)
    [member] = api.members(pool.id, name=name)
    return str(member.operating_status)


@pytest.mark.extended
def test_only_hosts_with_haproxy_announce_and_the_others_report_an_error(served: NativeSite) -> None:
    def begin(host: str, **more: str) -> None:
        served.agents[host].stop()
        served.agents[host] = agents.start_one(served.lab.layout, served.service.url, host, {**AGENT, **more})

    nowhere = {"FAIRLEAD_AGENT_HAPROXY_BINARY": "/nonexistent/haproxy"}
    for host in ("host1", "host2"):
        begin(host, **nowhere)
    try:
        with balancer(served, listener(served, "HTTP", "n1", "n2")) as made:
            await_hosts(served, made, "host3")
            assert set(answers(served, made)) == {"n1", "n2"}
            assert_statuses(served, made, "ONLINE")
            [told] = served.operator.request("GET", "/operator/chassis/host1")["agent"]["unapplied"]
            assert "HAProxy not found" in json.dumps(told)
    finally:
        for host in ("host1", "host2"):
            begin(host)
    begin("host3", **nowhere)
    for host in ("host1", "host2"):
        begin(host, **nowhere)
    try:
        with balancer(served, listener(served, "HTTP", "n1", "n2")) as made:
            assert_statuses(served, made, "ERROR")
    finally:
        for host in HOSTS:
            begin(host)


@pytest.mark.extended
def test_remove_command_ends_the_proxies_of_a_stopped_agent(served: NativeSite) -> None:
    with balancer(served, listener(served, "HTTP", "n1", "n2")) as made:
        await_hosts(served, made, *HOSTS)
        pid = processes(served)["host3"]
        served.agents["host3"].stop()
        assert start_time_of(pid)
        remove(served.lab, "host3")
        assert "host3" not in processes(served)
        assert not start_time_of(pid)
        served.start_agent("host3")
        await_hosts(served, made, *HOSTS)
        wait_equal(lambda: set(answers(served, made)), {"n1", "n2"})


def test_unresponsive_member_gets_no_requests(served: NativeSite) -> None:
    monitor = {"type": "HTTP", "delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 2, "url_path": "/"}
    asked = listener(served, "HTTP", "n1", "n2")
    asked["default_pool"]["healthmonitor"] = monitor
    with balancer(served, asked) as made:
        await_hosts(served, made, *HOSTS)
        assert set(answers(served, made)) == {"n1", "n2"}
        served.lab.remove_workload("n2")
        try:
            wait_equal(lambda: set(answers(served, made)), {"n1"})
        finally:
            served.lab.add_workload(machine(served.lab, "n2", "host2", NUMBER, MEMBER_PORT))
