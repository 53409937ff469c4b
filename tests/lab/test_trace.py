"""End to end: `fairlead trace` explains decisions about a packet, in Fairlead's OVN and with rows of other programs."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from fairlead.cli.main import DIFFERENT, main
from fairlead.lab import Lab
from harness.lab.site import PORT, CreatedBalancer, LabSite, open_site

pytestmark = pytest.mark.lab

MEMBERS = ("tr1", "tr2")
FOREIGN = "10.0.0.78:8080"


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members and `near` on one network, `far` on another one across a router."""
    site = open_site(lab)
    site.network("trace-a", "10.0.0.0/24", "fd00:a::/64")
    site.network("trace-b", "10.0.1.0/24", "fd00:b::/64")
    site.router("trace", "trace-a-v4", "trace-a-v6", "trace-b-v4", "trace-b-v6")
    site.machines("trace-a", dict.fromkeys((*MEMBERS, "tr-near"), "chassis1"))
    site.machines("trace-b", {"tr-far": "chassis2"})
    yield site
    for name in (*MEMBERS, "tr-near", "tr-far"):
        lab.remove_workload(name)
    site.close()


class TracingOperator:
    """Runs the command, and parses its output."""

    def __init__(self, site: LabSite, capsys: pytest.CaptureFixture[str]) -> None:
        self._site = site
        self._capsys = capsys

    def run_trace(self, client: str, to: str, *more: str, server: bool = True, code: int = 0) -> Any:
        lab = self._site.lab
        words = ["trace", "--from", lab.workload(client).port_id, "--to", to, "--json", *more]
        words += ["--northbound", lab.northbound, "--southbound", lab.southbound]
        assert main([*words, "--url", self._site.service.url if server else "http://127.0.0.1:1"]) == code
        return json.loads(self._capsys.readouterr().out)


def at(address: str, port: int = 80) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


@pytest.mark.parametrize("version", [4, 6])
def test_trace_names_the_load_balancer_the_listener_and_all_members(
    site: LabSite, capsys: pytest.CaptureFixture[str], version: int
) -> None:
    operator = TracingOperator(site, capsys)
    with site.balancer(f"trace-a-v{version}", MEMBERS, version=version) as balancer:
        site.set_member(balancer, "tr1", weight=3)
        site.lab.wait_synced()
        for client in ("tr-near", "tr-far"):
            found = operator.run_trace(client, at(balancer.vip))
            expect_balanced(site, balancer, found, version)
        silent = operator.run_trace("tr-near", at(balancer.vip), server=False)
        assert (silent["load_balancer"], silent["listener"]) == ({"id": balancer.id, "name": ""}, None)
        assert operator.run_trace("tr-near", at(balancer.vip, 81), code=DIFFERENT)["outcome"] == "no listener"
        echo = operator.run_trace("tr-far", balancer.vip, "--protocol", "icmp")
        assert (echo["outcome"], echo["load_balancer"]) == ("answered", None)


def expect_balanced(site: LabSite, balancer: CreatedBalancer, found: Any, version: int) -> None:
    endpoints = {name: at(site.address(name, version), PORT) for name in MEMBERS}
    assert found["outcome"] == "balanced", found["trace"]
    assert (found["load_balancer"]["id"], found["listener"]["id"]) == (balancer.id, balancer.listener)
    shares = {each["endpoint"]: each["slots"] / found["slots"] for each in found["members"]}
    assert shares == {endpoints["tr1"]: 0.75, endpoints["tr2"]: 0.25}
    assert found["port"] in {site.lab.workload(name).port_id for name in MEMBERS}
    assert balancer.id in found["summary"]


def test_trace_names_allowed_cidrs_or_missing_members_as_the_cause(
    site: LabSite, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = TracingOperator(site, capsys)
    with site.balancer("trace-a-v4", MEMBERS) as balancer:
        site.cloud.load_balancer.update_listener(balancer.listener, allowed_cidrs=["192.0.2.0/24"])
        site.settle(balancer.id)
        site.lab.wait_synced()
        for server in (True, False):
            found = operator.run_trace("tr-near", at(balancer.vip), server=server, code=DIFFERENT)
            assert (found["outcome"], found["listener"]["id"]) == ("refused", balancer.listener)
            assert "dropped by allowed_cidrs of load balancer" in found["summary"]
        site.cloud.load_balancer.update_listener(balancer.listener, allowed_cidrs=None)
        site.settle(balancer.id)
        for name in MEMBERS:
            site.set_member(balancer, name, admin_state_up=False)
        site.lab.wait_synced()
        found = operator.run_trace("tr-far", at(balancer.vip), code=DIFFERENT)
        assert (found["outcome"], found["load_balancer"]["id"]) == ("no member", balancer.id)


def test_trace_names_an_unmanaged_load_balancer_by_its_row(site: LabSite, capsys: pytest.CaptureFixture[str]) -> None:
    operator = TracingOperator(site, capsys)
    switch = site.cloud.network.find_network("trace-a").id
    backend = at(site.address("tr2"), 9)
    words = ("lb-add", "theirs", FOREIGN, backend, "--", "ls-lb-add", switch, "theirs")
    site.lab.exec("central", ("ovn-nbctl", *words))
    site.lab.wait_synced()
    found = operator.run_trace("tr-near", FOREIGN)
    assert (found["outcome"], found["load_balancer"], found["row"]["name"]) == ("balanced", None, "theirs")
    assert found["members"] == [{"endpoint": backend, "name": "", "slots": 1}]
    site.lab.exec("central", ("ovn-nbctl", "lb-del", "theirs"))
    assert operator.run_trace("tr-near", at(site.address("tr1"), 9))["outcome"] == "delivered"
    nobody = operator.run_trace("tr-far", "10.0.0.77:80", code=DIFFERENT)
    assert nobody["outcome"] == "nobody", nobody["trace"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--from", "nobody", "--to", "10.0.0.1:80"], 1, "port nobody does not exist in OVN"),
        (["--from", "x", "--to", "10.0.0.1"], 2, "expected ADDRESS:PORT or [IPv6]:PORT, got '10.0.0.1'"),
        (["--from", "x", "--to", "fd00::1:80"], 2, "expected ADDRESS:PORT or [IPv6]:PORT, got 'fd00::1:80'"),
        (["--from", "x", "--to", "10.0.0.1:80", "--via", "x"], 2, "'x' is not a valid IP address."),
    ],
)
def test_trace_reports_invalid_arguments(
    site: LabSite, capsys: pytest.CaptureFixture[str], words: list[str], code: int, says: str
) -> None:
    databases = ["--northbound", site.lab.northbound, "--southbound", site.lab.southbound]
    assert main(["trace", *words, *databases]) == code
    assert says in capsys.readouterr().err


def test_trace_reports_that_ovn_trace_ignores_chassis_specific_members(
    site: LabSite, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each chassis has its own choice of members, which the output must mention because ovn-trace finds no listener."""
    lab = site.lab
    with site.balancer("trace-a-v4", MEMBERS, locality="CHASSIS") as balancer:
        words = ["trace", "--from", lab.workload("tr-near").port_id, "--to", at(balancer.vip)]
        words += ["--northbound", lab.northbound, "--southbound", lab.southbound, "--url", site.service.url]
        assert main(words) != 0
        assert f"chassis1 chooses separately for {balancer.vip}" in capsys.readouterr().err


def test_trace_reads_database_addresses_from_the_lab_environment(
    site: LabSite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for line in site.service.openrc.read_text().splitlines():
        for name, _, value in (word.partition("=") for word in line.removeprefix("export ").split()):
            monkeypatch.setenv(name, value)
    words = ["--from", site.lab.workload("tr-near").port_id, "--to", site.address("tr1"), "--protocol", "icmp"]
    assert main(["trace", *words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["port"] == site.lab.workload("tr1").port_id
