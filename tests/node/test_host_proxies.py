"""A plain host with and without HAProxy, as it reports to servers."""

import asyncio
import contextlib
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fairlead.drivers.haproxy import HAProxy, HostNamespace
from fairlead.drivers.haproxy.process import Program, find_processes
from fairlead.model.documents.agent import Agent
from fairlead.node import host_proxies
from fairlead.node.host_proxies import HostProxyReconciler
from fairlead.node.listener_counters import CounterSums
from fairlead.node.proxies import ProxyIntervals, ProxyReconciler
from fairlead.node.reports import Reports
from harness.case import read_state
from harness.fixed_slice import FixedSlice
from harness.proxied import PROGRAM, needs_haproxy
from harness.waiting import eventually

TEXT = """\
network pool announced 127.0.0.0/8
host h1 1 10.20.0.21 10.1.0.0/24
web vip=127.203.0.5 on=pool provider=native http:80{proxy=2000}=a/10.1.0.11:8080
plugged h1
"""


class FirstReport(Reports):
    """Records the first report that a server receives."""

    def __init__(self) -> None:
        agent = Agent(name="h1", version="1", host="h1", since=datetime.now(UTC), heartbeat=1.0)
        super().__init__(lambda: agent, list, 0)
        self.first: dict[str, frozenset[int]] | None = None

    async def run(self) -> None:
        self.first = dict(self._proxy_ports)


def make(folder: Path, program: str) -> tuple[HostProxyReconciler, FirstReport]:
    given, heard = FixedSlice("h1", folder / "slice", read_state("now", TEXT, {}, {}).snapshot()), FirstReport()
    driver = HAProxy(folder / "p", HostNamespace(), heard.set_proxy_ports, Program(path=PROGRAM, user=""))
    return HostProxyReconciler(
        given, heard, ProxyReconciler(given, heard, driver, ProxyIntervals(CounterSums(), 60.0, 60.0)), program
    ), heard


async def test_missing_haproxy_is_reported_until_the_program_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_proxies, "RETRY_INTERVAL", 0.01)

    program = tmp_path / "haproxy"
    host, heard = make(tmp_path, str(program))
    work = asyncio.ensure_future(host.run())
    await host.run_reports()
    assert heard.first == {}
    assert f"HAProxy not found at {program}" in heard._unapplied["haproxy", "host/h1"]
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    await eventually(lambda: ("haproxy", "host/h1") not in heard._unapplied)
    await end(work)


@needs_haproxy
async def test_first_report_contains_proxies_left_by_an_earlier_agent():
    with TemporaryDirectory() as folder:  # paths of sockets must be short
        await _restart(Path(folder))


async def _restart(place: Path) -> None:
    host, heard = make(place, PROGRAM)
    work = asyncio.ensure_future(host.run())
    await eventually(lambda: heard._proxy_ports == {"pool/demo": {2000}})
    await end(work)
    host, heard = make(place, PROGRAM)
    work = asyncio.ensure_future(host.run())
    await host.run_reports()
    assert heard.first == {"pool/demo": {2000}}
    await end(work)
    [folder] = (each for each in (place / "p").iterdir() if each.is_dir())
    assert find_processes(folder)
    driver = HAProxy(place / "p", HostNamespace(), lambda *_: None)
    await driver.remove()
    assert not find_processes(folder)


async def end(work: "asyncio.Future[None]") -> None:
    work.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await work
