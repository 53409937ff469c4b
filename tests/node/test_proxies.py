"""Reports of a node about its proxies, with a real HAProxy on loopback."""

import asyncio
import contextlib
import errno
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fairlead.drivers.haproxy import HAProxy, supervisor
from fairlead.drivers.haproxy.process import Program, RunningProcess, read_running
from fairlead.model.documents.agent import Agent
from fairlead.model.snapshot import Snapshot
from fairlead.node.listener_counters import CounterSums
from fairlead.node.proxies import ProxyIntervals, ProxyReconciler
from fairlead.node.reports import Reports
from harness.fixed_slice import FixedSlice
from harness.haproxy_site import NET, LoopbackPlaces
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, needs_haproxy, pool, view
from harness.waiting import eventually


@needs_haproxy
async def test_proxy_that_fails_to_restart_is_reported_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
):
    with TemporaryDirectory() as folder:
        await _lose_a_proxy(Path(folder), monkeypatch)


async def _lose_a_proxy(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, broken, port = supervisor.start, False, free_port()

    async def fail(*known: Any) -> RunningProcess:
        if broken:
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start(*known)

    monkeypatch.setattr(supervisor, "start", fail)
    web = pool("web")
    given = FixedSlice("node", folder / "slice", view([listener("one", port, web)], [web]))
    agent = Agent(name="node", version="1", host="node", since=datetime.now(UTC), heartbeat=1.0)
    reports, looks = Reports(lambda: agent, list, 0), ProxyIntervals(CounterSums(), 60.0, 60.0)
    driver = HAProxy(folder / "p", LoopbackPlaces(), reports.set_proxy_ports, Program(path=PROGRAM, user=""))
    work = asyncio.ensure_future(ProxyReconciler(given, reports, driver, looks).run())
    try:
        await eventually(lambda: [*reports._proxy_ports.values()] == [{port}])
        [running] = [read_running(each) for each in (folder / "p").glob("*/")]
        assert running is not None
        assert not reports._unapplied
        broken = True
        os.kill(running.pid, signal.SIGKILL)
        await eventually(lambda: "No space left" in reports._unapplied.get(("haproxy", str(WEB)), ""))
        assert not reports._proxy_ports
        broken = False
        await eventually(lambda: not reports._unapplied and [*reports._proxy_ports.values()] == [{port}])
        given.replace(Snapshot(), WEB, NET)
        await eventually(lambda: not [*(folder / "p").glob("*/")])
    finally:
        work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work
