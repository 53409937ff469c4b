"""HAProxy's program is replaced on a disk, as an upgrade of its package does, while clients ask."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fairlead.drivers.haproxy import program_upgrade
from fairlead.drivers.haproxy.process import Program, start_time_of
from fairlead.model.documents.loadbalancer import ListenerProtocol
from harness.haproxy_site import NET, NETWORK, HaproxySite, RepeatingClient, opened_site, response_on, rows
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool
from harness.waiting import DEADLINE, eventually, run_ready_tasks

pytestmark = [needs_haproxy]


@pytest.fixture
def program() -> Iterator[Path]:
    """A copy of HAProxy."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "haproxy"
        shutil.copy(PROGRAM, path)
        yield path


@pytest.fixture
async def site(program: Path) -> AsyncIterator[HaproxySite]:
    """Its driver starts the copy."""
    async with opened_site() as made:
        made.driver._supervisor.program = Program(path=str(program), user="")
        yield made


def upgrade(program: Path, to: str = PROGRAM) -> None:
    """As dpkg does: another file gets the name."""
    shutil.copy(to, program.with_suffix(".new"))
    program.with_suffix(".new").chmod(0o755)
    program.with_suffix(".new").rename(program)


class KeptAlive(RepeatingClient):
    """On one connection while it stays."""

    def _repeat_request(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        while not self._ended.is_set():
            try:
                connection.request("GET", "/")
                self.answers.append(connection.getresponse().read().decode())
            except (OSError, HTTPException) as error:
                self.answers.append(repr(error))
                connection.close()
        connection.close()


async def test_upgraded_program_replaces_the_process_without_lost_requests(
    site: HaproxySite, machines: tuple[int, int], program: Path
):
    port, plain = free_port(), free_port()
    long = listener("two", plain, pool("web"), protocol=ListenerProtocol.TCP)
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0]), more=[long]))
    first = site.pid
    await site.driver.poll()
    assert (site.pid, site.driver._upgrader.task) == (first, None)
    with (
        RepeatingClient(port) as asking,
        KeptAlive(port) as kept_alive,
        socket.create_connection(("127.0.0.1", plain), DEADLINE) as client,
    ):
        assert b"200" in await asyncio.to_thread(response_on, client)
        upgrade(program)
        site.allow_replacement()
        await site.driver.poll()
        await eventually(lambda: site.pid != first)
        seen = len(asking.answers), len(kept_alive.answers)
        await eventually(lambda: len(asking.answers) > seen[0] + 5 and len(kept_alive.answers) > seen[1] + 5)
        assert b"200" in await asyncio.to_thread(response_on, client)
        assert runs(site.pid, program)
        assert start_time_of(first)
    assert (set(asking.answers), set(kept_alive.answers)) == ({"m1"}, {"m1"})
    assert None not in site.reported_ports
    second = site.pid
    site.allow_replacement()
    await eventually(lambda: site.driver._upgrader.task is None or site.driver._upgrader.task.done())
    await site.driver.poll()
    assert (site.pid, site.driver._upgrader.task) == (second, None)


def runs(pid: int, program: Path) -> bool:
    return Path(f"/proc/{pid}/exe").samefile(program)


async def test_upgrade_during_agent_downtime_is_detected_by_the_next_agent(
    site: HaproxySite, machines: tuple[int, int], program: Path
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first, before = site.pid, site.driver._supervisor.program
    await site.driver.close()
    upgrade(program)
    site.driver = site.new()
    site.driver._supervisor.program = before
    await site.driver.open()
    assert site.pid == first
    await site.driver.poll()
    await eventually(lambda: site.pid != first)


async def test_upgraded_program_that_fails_to_start_leaves_the_old_one_serving(
    site: HaproxySite, machines: tuple[int, int], program: Path, monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    monkeypatch.setattr(program_upgrade, "RETRY_INTERVAL", 3600.0)
    with RepeatingClient(port) as asking:
        await asyncio.to_thread(program.unlink)
        site.allow_replacement()
        await site.driver.poll()
        upgrade(program, "/bin/false")
        await site.driver.poll()
        [network] = site.driver._networks.values()
        await eventually(lambda: network.upgrade_retry_at > 0)
        assert (site.pid, site.driver.failure_of(WEB)) == (first, None)
        upgrade(program)
        await eventually(lambda: site.driver._upgrader.task is None or site.driver._upgrader.task.done())
        site.allow_replacement()
        await site.driver.poll()
        assert site.driver._upgrader.task is None  # not that soon
        network.upgrade_retry_at = 0.0
        await site.driver.poll()
        await eventually(lambda: site.pid != first)
    assert set(asking.answers) == {"m1"}


async def test_upgrade_replaces_processes_one_after_the_other(
    site: HaproxySite, machines: tuple[int, int], program: Path, monkeypatch: pytest.MonkeyPatch
):
    """Looks that come meanwhile begin nothing beside it."""
    begun, free = list[object](), asyncio.Event()

    async def replace(keeper: object, network: object) -> None:
        begun.append(network)
        await free.wait()

    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(free_port(), member("m1", machines[0])))
    monkeypatch.setattr(program_upgrade, "replace_program", replace)
    monkeypatch.setattr(program_upgrade, "REPLACEMENT_INTERVAL", 0.0)
    site.allow_replacement()
    upgrade(program)
    [network] = site.driver._networks.values()
    site.driver._networks["again"] = network
    for _ in range(3):
        await site.driver.poll()
    await run_ready_tasks()
    assert begun == [network]
    free.set()
    await eventually(lambda: begun == [network, network])
    del site.driver._networks["again"]
