"""An agent ends in the midst of replacing a process: the next one goes on with the process that serves."""

import asyncio
import errno
import os
import shutil
import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fairlead.dataplane.rows import diff
from fairlead.drivers.haproxy import process, supervisor
from fairlead.drivers.haproxy.process import CONTROL, PID, Program, find_processes, find_serving
from fairlead.drivers.haproxy.runtime import running_pid
from fairlead.drivers.haproxy.state import StoredState
from fairlead.drivers.interface import Requeue
from fairlead.model.documents.loadbalancer import ListenerProtocol
from harness.haproxy_site import (
    NET,
    NETWORK,
    HaproxySite,
    RepeatingClient,
    eventually_answers,
    response_on,
    rows,
    sockets_at,
)
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool
from harness.waiting import DEADLINE, eventually

pytestmark = [needs_haproxy, pytest.mark.slow]


def ends_here(*_: object, **__: object) -> Any:
    raise asyncio.CancelledError


def before_it_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "_spawn", ends_here)


def while_it_starts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "_wait_responding", ends_here)


def before_its_number_is_written(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(process, "write_atomic", ends_here)


def before_others_are_told(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervisor, "retire", ends_here)


def before_it_is_settled(patch: pytest.MonkeyPatch) -> None:
    write = StoredState.write

    def end(kept: StoredState, *, settled: bool) -> None:
        if settled:
            ends_here()
        write(kept, settled=settled)

    patch.setattr(StoredState, "write", end)


MOMENTS = [
    before_it_starts,
    while_it_starts,
    before_its_number_is_written,
    before_others_are_told,
    before_it_is_settled,
]


async def upgraded(site: HaproxySite, port: int, plain: int, target: int) -> None:
    """Its program is another file."""
    path = Path(site.driver._supervisor.program.path)
    shutil.copy(path, path.with_suffix(".new"))
    path.with_suffix(".new").rename(path)
    await site.driver.poll()
    assert site.driver._upgrader.task is not None
    await site.driver._upgrader.task


async def changed(site: HaproxySite, port: int, plain: int, target: int) -> None:
    with suppress(Requeue):
        await site.driver.apply(WEB, diff(made(port, plain, target, limit=300), await site.driver.read(WEB)))
    [network] = site.driver._networks.values()
    assert network.queue.task is not None
    await network.queue.task


def made(port: int, plain: int, target: int, limit: int = 200) -> Any:
    long = listener("two", plain, pool("web"), protocol=ListenerProtocol.TCP, connection_limit=limit)
    return rows(port, member("m1", target), more=[long])


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("replaced", [upgraded, changed])
async def test_restarted_agent_adopts_the_serving_process_after_an_interruption(
    site: HaproxySite,
    machines: tuple[int, int],
    moment: Callable[[pytest.MonkeyPatch], None],
    replaced: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
):
    port, plain, target = free_port(), free_port(), machines[0]
    with ExitStack() as held:
        program = Path(held.enter_context(TemporaryDirectory())) / "haproxy"
        shutil.copy(PROGRAM, program)
        site.driver._supervisor.program = Program(path=str(program), user="")
        await site.apply_until_done(NET, NETWORK)
        await site.apply_until_done(WEB, made(port, plain, target))
        [folder] = site.folder.glob("*/")
        client = held.enter_context(socket.create_connection(("127.0.0.1", plain), DEADLINE))  # so that it stays
        assert b"200" in await asyncio.to_thread(response_on, client)
        before = sockets_at(port)
        asking = held.enter_context(RepeatingClient(port))
        site.allow_replacement()
        with monkeypatch.context() as killed:
            moment(killed)
            with pytest.raises(asyncio.CancelledError):
                await replaced(site, port, plain, target)
        await site.driver.close()
        site.driver = site.new()
        await site.driver.open()
        [network] = site.driver._networks.values()
        await eventually(lambda: network.state.is_applied)
        assert sockets_at(port) == before
        for limit in (400, 500):
            site.allow_replacement()
            await site.apply_until_done(WEB, made(port, plain, target, limit))
            assert network.running is not None
            assert site.pid == network.running.pid == find_processes(folder)[-1].pid
            assert await running_pid(folder / CONTROL) == site.pid
            assert sockets_at(port) == before
        assert b"200" in await asyncio.to_thread(response_on, client)
        held.pop_all().close()
    assert set(asking.answers) == {"m1"}
    assert None not in site.reported_ports


async def test_process_without_a_written_pid_file_is_found(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """The folder is full, and the one before it lives on with a connection: the file says nothing then."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    port, plain, target = free_port(), free_port(), machines[0]
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, made(port, plain, target))
    [folder], first = site.folder.glob("*/"), site.pid
    with socket.create_connection(("127.0.0.1", plain), DEADLINE) as client:
        assert b"200" in await asyncio.to_thread(response_on, client)
        site.allow_replacement()
        with monkeypatch.context() as full:
            full.setattr(process, "write_atomic", refuse)
            await site.apply_until_done(WEB, made(port, plain, target, 300))
        [network] = site.driver._networks.values()
        assert network.running is not None
        assert (network.running.pid != first, (folder / PID).exists()) == (True, False)
        found = await find_serving(folder)
        assert found is not None
        assert found.pid == network.running.pid


async def test_ended_process_is_restarted_without_waiting_for_a_replaced_one(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(process, "START_TIMEOUT", 3600.0)  # the test would not see the end of such a wait
    port, plain, target = free_port(), free_port(), machines[0]
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, made(port, plain, target))
    with socket.create_connection(("127.0.0.1", plain), DEADLINE) as client:
        assert b"200" in await asyncio.to_thread(response_on, client)
        site.allow_replacement()
        await site.apply_until_done(WEB, made(port, plain, target, 300))
        await site.driver.close()
        os.kill(site.pid, signal.SIGKILL)
        site.driver = site.new()
        await site.driver.open()
        await eventually_answers("m1", port)
        assert b"200" in await asyncio.to_thread(response_on, client)
