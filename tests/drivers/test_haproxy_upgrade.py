"""HAProxy's program is replaced on a disk, as an upgrade of its package does, while clients ask."""

import asyncio
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fairlead.drivers.haproxy import upgrading
from fairlead.drivers.haproxy.process import Program, began_of
from fairlead.model.documents.loadbalancer import ListenerProtocol
from harness.haproxy_site import NET, NETWORK, Asking, Site, asked, opened_site, rows
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool
from harness.waiting import DEADLINE, eventually, turns

pytestmark = [needs_haproxy]


@pytest.fixture
def program() -> Iterator[Path]:
    """A copy of HAProxy."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "haproxy"
        shutil.copy(PROGRAM, path)
        yield path


@pytest.fixture
async def site(program: Path) -> AsyncIterator[Site]:
    """Its driver starts the copy."""
    async with opened_site() as made:
        made.driver._keeper.program = Program(path=str(program), user="")
        yield made


def upgrade(program: Path, to: str = PROGRAM) -> None:
    """As dpkg does: another file gets the name."""
    shutil.copy(to, program.with_suffix(".new"))
    program.with_suffix(".new").chmod(0o755)
    program.with_suffix(".new").rename(program)


class KeptAlive(Asking):
    """On one connection while it stays."""

    def _ask(self) -> None:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=DEADLINE)
        while not self._ended.is_set():
            try:
                connection.request("GET", "/")
                self.answers.append(connection.getresponse().read().decode())
            except (OSError, HTTPException) as error:
                self.answers.append(repr(error))
                connection.close()
        connection.close()


async def test_a_program_that_is_another_one_serves_without_a_failed_request_or_a_lost_connection(
    site: Site, machines: tuple[int, int], program: Path
):
    port, plain = free_port(), free_port()
    long = listener("two", plain, pool("web"), protocol=ListenerProtocol.TCP)
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0]), more=[long]))
    first = site.pid
    await site.driver.look()
    assert (site.pid, site.driver._upgrading.task) == (first, None)
    with (
        Asking(port) as asking,
        KeptAlive(port) as kept_alive,
        socket.create_connection(("127.0.0.1", plain), DEADLINE) as client,
    ):
        assert b"200" in await asyncio.to_thread(asked, client)
        upgrade(program)
        site.allow_replacement()
        await site.driver.look()
        await eventually(lambda: site.pid != first)
        seen = len(asking.answers), len(kept_alive.answers)
        await eventually(lambda: len(asking.answers) > seen[0] + 5 and len(kept_alive.answers) > seen[1] + 5)
        assert b"200" in await asyncio.to_thread(asked, client)
        assert runs(site.pid, program)
        assert began_of(first)
    assert (set(asking.answers), set(kept_alive.answers)) == ({"m1"}, {"m1"})
    assert None not in site.said
    second = site.pid
    site.allow_replacement()
    await eventually(lambda: site.driver._upgrading.task is None or site.driver._upgrading.task.done())
    await site.driver.look()
    assert (site.pid, site.driver._upgrading.task) == (second, None)


def runs(pid: int, program: Path) -> bool:
    return Path(f"/proc/{pid}/exe").samefile(program)


async def test_one_that_was_replaced_while_no_agent_was_there_is_found_by_the_next(
    site: Site, machines: tuple[int, int], program: Path
):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first, before = site.pid, site.driver._keeper.program
    await site.driver.close()
    upgrade(program)
    site.driver = site.new()
    site.driver._keeper.program = before
    await site.driver.open()
    assert site.pid == first
    await site.driver.look()
    await eventually(lambda: site.pid != first)


async def test_a_program_that_does_not_start_keeps_nobody_from_being_served(
    site: Site, machines: tuple[int, int], program: Path, monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    monkeypatch.setattr(upgrading, "AGAIN", 3600.0)
    with Asking(port) as asking:
        await asyncio.to_thread(program.unlink)
        site.allow_replacement()
        await site.driver.look()
        upgrade(program, "/bin/false")
        await site.driver.look()
        [network] = site.driver._networks.values()
        await eventually(lambda: network.again > 0)
        assert (site.pid, site.driver.failure_of(WEB)) == (first, None)
        upgrade(program)
        await eventually(lambda: site.driver._upgrading.task is None or site.driver._upgrading.task.done())
        site.allow_replacement()
        await site.driver.look()
        assert site.driver._upgrading.task is None  # not that soon
        network.again = 0.0
        await site.driver.look()
        await eventually(lambda: site.pid != first)
    assert set(asking.answers) == {"m1"}


async def test_processes_are_replaced_one_after_the_other(
    site: Site, machines: tuple[int, int], program: Path, monkeypatch: pytest.MonkeyPatch
):
    """Looks that come meanwhile begin nothing beside it."""
    begun, free = list[object](), asyncio.Event()

    async def replace(keeper: object, network: object) -> None:
        begun.append(network)
        await free.wait()

    await site.put(NET, NETWORK)
    await site.put(WEB, rows(free_port(), member("m1", machines[0])))
    monkeypatch.setattr(upgrading, "replace_program", replace)
    monkeypatch.setattr(upgrading, "PAUSE", 0.0)
    site.allow_replacement()
    upgrade(program)
    [network] = site.driver._networks.values()
    site.driver._networks["again"] = network
    for _ in range(3):
        await site.driver.look()
    await turns()
    assert begun == [network]
    free.set()
    await eventually(lambda: begun == [network, network])
    del site.driver._networks["again"]
