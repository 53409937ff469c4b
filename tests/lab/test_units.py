"""The systemd units: their permissions suffice for server and agent, and are small.

Without systemd `harness/systemd_sandbox.py` starts both with exactly the units' users, capabilities, system calls and
read-only paths; they work with the lab's OVN and Open vSwitch as on a real node.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

import harness.systemd_sandbox
from fairlead.lab import Lab, Traffic, namespaces
from fairlead.lab.layout import CENTRAL
from fairlead.lab.server import ServerProcess, start, stop
from harness.lab.members import HTTP, end_process, start_process
from harness.lab.site import ACTIVE_TIMEOUT, PORT, CreatedBalancer, LabSite, open_site
from harness.ports import free_port
from harness.supervised import SupervisedProcess, supervised
from harness.waiting import wait_equal, wait_until

UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
NODE = "chassis1"
MEMBERS = ("u1", "u2")
RESTARTED: list[ServerProcess] = []
"""Servers that replaced the first one of the site."""


def analyze(*words: str) -> str:
    if shutil.which("systemd-analyze") is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)("systemd-analyze is not here (Debian's package systemd)")
    done = subprocess.run(["systemd-analyze", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.lab
@pytest.mark.parametrize(("name", "most"), [("server", "15"), ("agent", "35")])
def test_systemd_units_are_valid_and_below_the_exposure_limit(tmp_path: Path, name: str, most: str):
    """The threshold is in tenths: 100 is a service without any restriction.

    setns(2) and network devices add to exposure.
    """
    unit = tmp_path / f"fairlead-{name}.service"
    text = (UNITS / unit.name).read_text()
    unit.write_text(text.replace("/usr/bin/fairlead", sys.executable))  # Fairlead is not installed here
    assert analyze("verify", "--man=no", str(unit)) == ""
    print(analyze("security", "--offline=true", f"--threshold={most}", str(unit)).strip().splitlines()[-1])


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    site.network("unit", "10.0.0.0/24", "fd00:a::/64")
    site.machines("unit", dict.fromkeys((*MEMBERS, "asks"), NODE), serve=[PORT])
    yield site
    for name in (*MEMBERS, "asks"):
        lab.remove_workload(name)
    site.close()
    for service in RESTARTED:
        stop(lab.layout, service)


@dataclass
class Confined:
    server: SupervisedProcess
    agent: SupervisedProcess
    client: httpx.Client
    begin_agent: Callable[[], AbstractContextManager[SupervisedProcess]]
    """Starts the agent again after it has ended."""
    proxies: Path
    """The folder of proxies."""

    def members(self, balancer: CreatedBalancer) -> dict[str, str]:
        found = self.client.get(f"/load-balancer/v2/lbaas/pools/{balancer.pool}/members").json()["members"]
        return {each["name"]: each["operating_status"] for each in found}

    def statistics(self, balancer: CreatedBalancer) -> dict[str, int]:
        answer = self.client.get(f"/load-balancer/v2/lbaas/loadbalancers/{balancer.id}/stats")
        return answer.json()["stats"] if answer.status_code == 200 else {}

    def status(self, process: SupervisedProcess) -> dict[str, str]:
        lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines()
        return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def through(lab: Lab, units: Sequence[str], *writable: Path) -> tuple[str, ...]:
    """Command prefix that enters the node's network namespace, which has its switch, with the units' restrictions."""
    inside = ("nsenter", f"--net=/run/netns/{lab.layout.namespace(NODE)}")
    unit, paths = (":".join(map(str, each)) for each in ([UNITS / name for name in units], writable))
    return *inside, sys.executable, harness.systemd_sandbox.__file__, unit, paths


@contextmanager
def drop_all_access(*paths: Path) -> Iterator[None]:
    """Open the databases' sockets for the server's group, as an operator does."""
    before = [(path, path.stat()) for path in paths]
    for path in paths:
        shutil.chown(path, group="nogroup")
        path.chmod(0o770)
    yield
    for path, was in before:
        os.chown(path, was.st_uid, was.st_gid)
        path.chmod(was.st_mode & 0o777)


def restart_server(site: LabSite) -> None:
    listen = site.url.removeprefix("http://")
    RESTARTED.append(start(site.lab.layout, listen, {"FAIRLEAD_HEALTH_PROBER": "agents"}))


@contextmanager
def confined_to_units(site: LabSite, *agents: str) -> Iterator[Confined]:
    """Run server and agent under their units, with the store of the original server.

    `agents` are the agent's unit and its drop-ins.
    """
    lab, central = site.lab, site.lab.layout.node_directory(CENTRAL)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=lab.layout.directory)))
        folder.chmod(0o777)
        state, own = folder / "server", folder / "agent"
        state.mkdir()
        own.mkdir(0o700)
        stop(lab.layout, site.service)
        stack.callback(restart_server, site)
        shutil.copy(site.service.folder / "fairlead.db", state)
        for path in (state, state / "fairlead.db"):
            shutil.chown(path, "nobody", "nogroup")
        stack.enter_context(drop_all_access(central / "ovnnb_db.sock", central / "ovnsb_db.sock"))
        agents_listen = f"127.0.0.1:{free_port()}"
        settings = {
            "FAIRLEAD_SERVER_LISTEN": f"unix:{state}/main.socket",
            "FAIRLEAD_STORE_PATH": f"{state}/fairlead.db",
            "FAIRLEAD_NODES_LISTEN": agents_listen,
            "FAIRLEAD_LXD_LISTEN": f"127.0.0.1:{free_port()}",
            "FAIRLEAD_HEALTH_PROBER": "agents",
            "FAIRLEAD_OVN_NORTHBOUND": lab.layout.northbound,
            "FAIRLEAD_OVN_SOUTHBOUND": lab.layout.southbound,
        }
        server = through(lab, ["fairlead-server.service"], state)
        serving = stack.enter_context(supervised(folder, ("server",), settings, server))
        reached = httpx.HTTPTransport(uds=f"{state}/main.socket")
        client = stack.enter_context(
            httpx.Client(transport=reached, base_url="http://localhost", timeout=ACTIVE_TIMEOUT)
        )
        token = folder / "token"
        token.write_text(client.post(f"/operator/chassis/{NODE}/token").json()["token"])
        probes = lab.layout.namespace("probes-unit")
        subprocess.run(["ip", "netns", "add", probes], check=True)  # ExecStartPre
        stack.callback(subprocess.run, ["ip", "netns", "delete", probes], check=True)
        switch = lab.layout.node_directory(NODE)  # instead of /run/openvswitch
        options = {
            "PATH": lab.layout.search_path,
            "FAIRLEAD_AGENT_SERVERS": f"https://{agents_listen}",
            "FAIRLEAD_AGENT_IDENTITY_FILE": f"{own}/identity.pem",
            "FAIRLEAD_AGENT_STATE_FILE": f"{own}/agent.json",
            "FAIRLEAD_AGENT_INTERVAL": "1",
            "FAIRLEAD_AGENT_RUN_DIR": str(switch),
            "FAIRLEAD_AGENT_PROBE_NAMESPACE": probes,
            "FAIRLEAD_AGENT_PROXY_DIRECTORY": f"{folder}/proxies",
            "FAIRLEAD_AGENT_PROXY_NAMESPACE_PREFIX": lab.layout.namespace("proxy-unit"),
        }
        agent = through(lab, agents, own, switch)
        enrolling = [*agent, sys.executable, "-m", "fairlead.cli.main", "agent", "--enroll", str(token)]
        subprocess.run(enrolling, env={**os.environ, **options}, check=True)
        begin_agent = partial(supervised, folder, ("agent",), options, agent)
        probing = stack.enter_context(begin_agent())
        stack.callback(lambda: print(serving.log.read_text(), probing.log.read_text()))
        yield Confined(serving, probing, client, begin_agent, folder / "proxies")


@pytest.mark.lab
@pytest.mark.parametrize("version", [4, 6])
def test_server_and_agent_work_within_the_limits_of_their_units(site: LabSite, version: int):
    """They probe, count, flush and reset connections of failed members, and write OVN's rows.

    Nothing else is permitted.
    """
    with ExitStack() as stack:
        balancer = stack.enter_context(
            site.balancer(f"unit-v{version}", MEMBERS, version=version, healthmonitor=HTTP, down_member="RESET")
        )
        confined = stack.enter_context(confined_to_units(site, "fairlead-agent.service"))
        wait_equal(lambda: set(confined.members(balancer).values()), {"ONLINE"})
        end_process(site, "u1")
        wait_equal(lambda: confined.members(balancer)["u1"], "ERROR")
        site.lab.wait_synced()
        found = site.lab.traffic("asks", Traffic(to=balancer.vip, port=80, count=20))
        assert set(found.answers) == {"u2"}
        wait_until(
            lambda: confined.statistics(balancer).get("total_connections", 0),
            "it is counted",
            is_enough=lambda found: found > 0,
        )
        start_process(site, "u1")
        wait_equal(lambda: confined.members(balancer)["u1"], "ONLINE")
        for process, mine in ((confined.server, 0), (confined.agent, 1 << 12 | 1 << 13 | 1 << 21)):
            status = confined.status(process)
            held = {int(status[name], 16) & ~mine for name in ("CapPrm", "CapEff", "CapBnd")}
            assert (held, status["NoNewPrivs"], status["Seccomp"]) == ({0}, "1", "2")
            assert "Operation not permitted" not in process.log.read_text()
        assert confined.status(confined.server)["Uid"].split()[0] == "65534"
        assert (confined.agent.terminate(), confined.server.terminate()) == (0, 0)


@pytest.mark.lab
@pytest.mark.parametrize("version", [4, 6])
def test_agent_runs_proxies_within_the_limits_of_its_drop_in(site: LabSite, version: int):
    """A proxy survives the agent, has no privileges, and receives changes from the next agent."""
    with ExitStack() as stack:
        balancer = stack.enter_context(site.balancer(f"unit-v{version}", MEMBERS, version=version, protocol="HTTP"))
        policy = site.cloud.load_balancer.create_l7_policy(
            listener_id=balancer.listener, action="REDIRECT_TO_URL", redirect_url="http://elsewhere.example/"
        )
        site.cloud.load_balancer.create_l7_rule(policy.id, type="PATH", compare_type="REGEX", value="^/o(l|k)d+$")
        confined = stack.enter_context(confined_to_units(site, "fairlead-agent.service", "fairlead-agent-proxies.conf"))
        wait_equal(lambda: code(site, balancer), "200")
        wait_equal(lambda: code(site, balancer, "/old"), "302")
        [proxy] = proxies(confined)
        assert (proxy.owner(), held_by(proxy)) == ("haproxy", {0})
        assert confined.agent.terminate() == 0
        assert (code(site, balancer), proxies(confined)) == ("200", [proxy])
        again = stack.enter_context(confined.begin_agent())
        confined.client.delete(f"/load-balancer/v2/lbaas/l7policies/{policy.id}").raise_for_status()
        wait_equal(lambda: code(site, balancer, "/old"), "200")
        mine = sum(1 << number for number in (0, 1, 5, 6, 7, 8, 12, 13, 21))
        status = confined.status(again)
        assert {int(status[name], 16) & ~mine for name in ("CapPrm", "CapEff", "CapBnd")} == {0}
        confined.client.delete(f"/load-balancer/v2/lbaas/listeners/{balancer.listener}").raise_for_status()
        wait_equal(lambda: proxies(confined), [])
        wait_equal(lambda: namespaces.existing(site.lab.layout.namespace("proxy-unit")), ())
        assert again.terminate() == 0


def code(site: LabSite, balancer: CreatedBalancer, path: str = "/") -> str:
    """Status code of the client's request, or "000" without a response."""
    host = f"[{balancer.vip}]" if ":" in balancer.vip else balancer.vip
    words = f"curl -s -m 15 -o /dev/null -w '%{{http_code}}' http://{host}{path} || true"
    return site.lab.exec("asks", ["sh", "-c", words]).strip()


def proxies(confined: Confined) -> list[Path]:
    """Folders in /proc of the proxies' processes."""
    numbers = [int(each.read_text().split()[0]) for each in confined.proxies.glob("*/pid")]
    return [path for number in numbers if (path := Path(f"/proc/{number}")).exists()]


def held_by(process: Path) -> set[int]:
    """Capability sets of a process, as bit masks."""
    lines = dict(line.split(":\t", 1) for line in (process / "status").read_text().splitlines() if ":\t" in line)
    return {int(lines[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
