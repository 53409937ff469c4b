"""HAProxy on a node where something fails: nothing stays wrong for ever, and who serves has no rights of the agent."""

import asyncio
import errno
import os
import pwd
import shutil
import signal
import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fairlead.compilers.haproxy import HAPROXY
from fairlead.dataplane.haproxy import Backend, Frontend, Process
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.haproxy import HAProxy, change_queue, driver, liveness, process, supervisor
from fairlead.drivers.haproxy.backoff import CRASH_LOOP_ENDS
from fairlead.drivers.haproxy.network import folder_name
from fairlead.drivers.haproxy.process import (
    CONTROL,
    MAX_REPLACED,
    PID,
    NotStarted,
    Program,
    RunningProcess,
    find_processes,
)
from fairlead.drivers.haproxy.runtime import CommandFailed
from fairlead.drivers.interface import DriverError, Requeue
from fairlead.model.documents.owner import Kind, Owner
from harness.haproxy_site import NET, NETWORK, HaproxySite, RepeatingClient, eventually_answers, get, rows
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually, eventually_equal

pytestmark = [needs_haproxy, pytest.mark.slow]


async def test_agent_started_without_the_switch_resumes_when_the_switch_returns(
    site: HaproxySite, machines: tuple[int, int]
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    await site.driver.close()
    site.reported_ports.clear()
    site.places.remaining_failures = 2
    site.driver = site.new()
    await site.driver.open()
    assert site.reported_ports == []
    await eventually_equal(lambda: site.reported_ports, [{port}])
    assert site.pid == first
    os.kill(first, signal.SIGKILL)
    await eventually_equal(lambda: site.reported_ports, [{port}, None, {port}])


async def test_unrecorded_process_is_found_and_replaced(site: HaproxySite, machines: tuple[int, int]):
    """It was started by an agent that was killed in that moment."""
    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    first, [folder] = site.pid, site.folder.iterdir()
    await site.driver.close()
    (folder / PID).unlink()
    site.driver = site.new()
    with RepeatingClient(port) as asking:
        await site.driver.open()
        await site.apply_until_done(WEB, rows(port, member("m2", two)))
        await eventually(lambda: [each.pid for each in find_processes(folder)] == [site.pid])
    assert site.pid != first
    assert set(asking.answers) <= {"m1", "m2"}
    assert await asyncio.to_thread(get, port) == "m2"


def fails_midway(monkeypatch: pytest.MonkeyPatch, times: int) -> list[None]:
    """So often no process can be started, because the folder is full: one item for each failure that is to come."""
    left, start = [None] * times, supervisor.start

    async def fail(*known: Any) -> RunningProcess:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start(*known)

    monkeypatch.setattr(supervisor, "start", fail)
    return left


async def test_frozen_process_is_reported_as_not_serving_and_replaced(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(liveness, "CHECK_INTERVAL", 0.05)
    monkeypatch.setattr(liveness, "UNRESPONSIVE_TIMEOUT", 0.3)
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    os.kill(first, signal.SIGSTOP)
    await eventually_equal(lambda: site.reported_ports[-1], None)
    os.kill(first, signal.SIGCONT)
    await eventually_equal(lambda: site.reported_ports[-1], {port})
    assert (site.pid, await asyncio.to_thread(get, port)) == (first, "m1")
    monkeypatch.setattr(liveness, "KILL_TIMEOUT", 0.6)
    os.kill(first, signal.SIGSTOP)
    await eventually(lambda: site.reported_ports[-1] == {port} and site.pid != first)
    await eventually_answers("m1", port)


async def test_process_awaiting_replacement_is_still_supervised(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """It refused a command, and there was no time for another one; then it ended."""

    async def refuse(*_: Any) -> None:
        raise CommandFailed("no such server")

    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    first = site.pid
    site.hold_replacements()
    monkeypatch.setattr(driver, "send_commands", refuse)
    monkeypatch.setattr(
        change_queue, "CALLER_TIMEOUT", DEADLINE
    )  # a change that goes on by itself would wait for the replacement
    await site.apply_until_done(WEB, rows(port, member("m2", two)))
    assert site.pid == first
    os.kill(first, signal.SIGKILL)
    await eventually_equal(lambda: site.reported_ports[-2:], [None, {port}])
    assert await asyncio.to_thread(get, port) == "m2"


async def test_failed_restart_is_reported_until_a_restart_succeeds(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    failures = fails_midway(monkeypatch, 1000)
    os.kill(site.pid, signal.SIGKILL)
    await eventually(lambda: "No space left" in (site.driver.failure_of(WEB) or ""))
    assert site.failed_owners == [[WEB]]
    assert site.reported_ports[-1] is None
    failures.clear()
    await eventually_equal(lambda: site.driver.failure_of(WEB), None)
    assert site.failed_owners == [[WEB]] * 2
    assert await asyncio.to_thread(get, port) == "m1"


async def test_repeated_process_exits_are_reported_until_the_process_stays_up(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    told = list[str | None]()
    site.driver.subscribe(lambda _: site.settled.set(), lambda _: told.append(site.driver.failure_of(WEB)))
    monkeypatch.setattr(supervisor, "_now", lambda: 0.0)  # however long a start takes, ends come soon after each other
    for number in range(CRASH_LOOP_ENDS):
        if number == CRASH_LOOP_ENDS - 1:
            monkeypatch.setattr(supervisor, "STABLE_SECONDS", 1.0)
        assert told == []
        os.kill(site.pid, signal.SIGKILL)
        await eventually(lambda ends=number + 1: site.reported_ports == [{port}, *([None, {port}] * ends)])
    await eventually_equal(
        lambda: told, [f"HAProxy exited {CRASH_LOOP_ENDS} times in a row, each soon after its start", None]
    )


async def test_slow_process_start_does_not_delay_other_networks(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port, other, slow, start = free_port(), Owner(Kind.LOAD_BALANCER, "slow"), asyncio.Event(), supervisor.start

    async def wait(folder: Path, *known: Any) -> RunningProcess:
        if folder.name == folder_name("net2"):
            await slow.wait()
            raise NotStarted("HAProxy does not answer")
        return await start(folder, *known)

    monkeypatch.setattr(supervisor, "start", wait)
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    [process] = (row for row in NETWORK.values() if isinstance(row, Process))
    net2, theirs = replace(process, network="net2"), elsewhere(rows(free_port()), "net2")
    await site.apply_until_done(Owner(Kind.NETWORK, "net2"), {net2.key: net2})
    with pytest.raises(Requeue):
        await site.driver.apply(other, diff(theirs, {}))
    assert await site.driver.read(other) == {}
    with pytest.raises(Requeue):
        await site.driver.apply(other, diff(theirs, {}))
    site.allow_replacement()
    await site.apply_until_done(
        WEB, rows(port, member("m1", machines[0]), member("m2", machines[1]), more=[listener("two", 1025)])
    )
    assert site.reported_ports[-1] == {port, 1025}
    site.settled.clear()
    slow.set()
    await site.settled.wait()
    with pytest.raises(DriverError, match="does not answer"):
        await site.driver.apply(other, diff(theirs, {}))
    assert await site.driver.read(other) == {}
    await site.apply_until_done(Owner(Kind.NETWORK, "net2"), {})


def elsewhere(found: Rows, network: str) -> Rows:
    return {
        key: replace(row, process=network) if isinstance(row, Frontend | Backend) else row for key, row in found.items()
    }


async def test_full_disk_does_not_end_supervision(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    fails_midway(monkeypatch, 2)
    os.kill(site.pid, signal.SIGKILL)
    await eventually_answers("m1", port)


async def test_failed_change_is_rolled_back(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """Whatever has been written for it by then."""
    port, other, (one, two) = free_port(), free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    good = rows(port, member("m1", one))
    await site.apply_until_done(WEB, good)
    site.allow_replacement()
    fails_midway(monkeypatch, 1)
    with pytest.raises(DriverError, match="No space left"):
        await site.apply_until_done(WEB, rows(other, member("m2", two)))
    assert await site.driver.read(WEB) == good
    [folder] = site.folder.iterdir()
    await eventually(lambda: f":{port}" in (folder / "haproxy.cfg").read_text())
    os.kill(site.pid, signal.SIGKILL)
    await eventually_answers("m1", port)
    await eventually_equal(lambda: site.reported_ports[-1], {port})


async def test_number_of_replaced_processes_is_bounded(site: HaproxySite):
    """Their clients keep them alive, who wait for an answer."""
    port, held = free_port(), ExitStack()
    await site.apply_until_done(NET, NETWORK)
    with held, socket.create_server(("127.0.0.1", 0)) as silent:
        web = pool("web", member("m1", silent.getsockname()[1]))
        for limit in range(100, 100 + MAX_REPLACED + 3):
            site.allow_replacement()
            await site.apply_until_done(
                WEB, HAPROXY.compile(view([listener("one", port, web, connection_limit=limit)], [web]), WEB)
            )
            client = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            held.enter_context((await asyncio.to_thread(silent.accept))[0])
        [folder] = site.folder.iterdir()
        await eventually_equal(lambda: len(find_processes(folder)), MAX_REPLACED + 1)
    await eventually_equal(lambda: len(find_processes(folder)), 1)


async def test_member_changes_leave_no_extra_files(site: HaproxySite, machines: tuple[int, int]):
    port = free_port()
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    first, [folder] = site.pid, site.folder.iterdir()
    for up in (False, True, False):
        await site.apply_until_done(WEB, rows(port, member("m1", machines[0], admin_state_up=up)))
    assert site.pid == first
    assert {each.name for each in folder.iterdir()} == {"draft", "haproxy.cfg", "pid", "rows.json", "sockets"}


async def test_start_failure_reason_is_reported(site: HaproxySite):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        await site.apply_until_done(NET, NETWORK)
        with pytest.raises(DriverError, match=r"HAProxy exited: .*[Cc]annot bind"):
            await site.apply_until_done(WEB, rows(taken.getsockname()[1]))


async def test_unrelated_folders_are_kept(site: HaproxySite):
    theirs = site.folder / "mail" / "letter"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    await site.driver.open()
    assert theirs.exists()
    shutil.rmtree(theirs.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
async def test_haproxy_user_may_write_nothing_but_its_sockets(machines: tuple[int, int]):
    """Or whoever gets hold of it would have the agent follow its links, and end processes that it names."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        before = os.umask(0o077)
        try:
            await _serve_as_another(Path(name) / "run" / "p", machines[0])
        finally:
            os.umask(before)


def check_rights(site: HaproxySite) -> None:
    [own] = site.folder.iterdir()
    sockets, user = (own / CONTROL).parent, pwd.getpwnam("haproxy").pw_uid
    assert Path(f"/proc/{site.pid}").stat().st_uid == user
    assert (sockets.stat().st_uid, sockets.stat().st_mode & 0o777) == (user, 0o700)
    for each in (own, *own.rglob("*")):
        if each != sockets and sockets not in each.parents and not each.is_symlink():
            assert (each.stat().st_uid, each.stat().st_mode & 0o027) == (0, 0), each


async def _serve_as_another(folder: Path, member_port: int) -> None:
    port, site = free_port(), HaproxySite(folder)
    site.driver = HAProxy(folder, site.places, lambda *_: None, Program(path=PROGRAM))
    site.driver.subscribe(lambda _: site.settled.set(), site.failed_owners.append)
    await site.driver.open()
    try:
        await site.apply_until_done(NET, NETWORK)
        await site.apply_until_done(WEB, rows(port, member("m1", member_port)))
        assert await asyncio.to_thread(get, port) == "m1"
        check_rights(site)
    finally:
        await site.apply_until_done(WEB, {})
        await site.apply_until_done(NET, {})
        await site.driver.close()


async def test_failed_process_of_a_tenant_does_not_stop_others_on_a_shared_network(
    site: HaproxySite, machines: tuple[int, int]
):
    """Processes of several tenants on a shared network are of one owner."""
    port, guests = free_port(), [f"net1/guest{number}" for number in range(4)]
    for guest in guests:
        bad = {
            key: replace(row, process=guest, lines=(("balance", "nonsense"), *row.lines))
            for key, row in rows(free_port()).items()
            if isinstance(row, Frontend | Backend)
        }
        await site.apply_until_done(Owner(Kind.LOAD_BALANCER, guest), bad)
    await site.apply_until_done(WEB, rows(port, member("m1", machines[0])))
    processes = [row for row in NETWORK.values() if isinstance(row, Process)]
    theirs = {each.key: each for row in processes for guest in guests for each in [replace(row, network=guest)]}
    with pytest.raises(DriverError, match="balance"):
        await site.apply_until_done(NET, {**NETWORK, **theirs})
    await eventually_answers("m1", port)
    await eventually_equal(lambda: site.driver.read(NET), NETWORK)  # it serves a moment before that
    for guest in guests:
        await site.apply_until_done(Owner(Kind.LOAD_BALANCER, guest), {})


async def test_configuration_check_timeout_is_an_error_of_its_owner_only(
    site: HaproxySite, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What was served before is served, and others can change."""
    port, (one, two) = free_port(), machines
    await site.apply_until_done(NET, NETWORK)
    await site.apply_until_done(WEB, rows(port, member("m1", one)))
    slow = tmp_path / "haproxy"
    slow.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) exec sleep 60 ;; esac\nexec {PROGRAM} "$@"\n')
    slow.chmod(0o755)
    quick = site.driver._supervisor.program
    site.driver._supervisor.program = replace(quick, path=str(slow))
    monkeypatch.setattr(process, "START_TIMEOUT", 0.3)
    site.allow_replacement()
    more = [listener("two", free_port(), pool("web"))]
    with pytest.raises(DriverError, match="timed out after 0 s reading the configuration"):
        await site.apply_until_done(WEB, rows(port, member("m1", one), more=more))
    assert site.driver.failure_of(WEB) is None
    await eventually_answers("m1", port)
    site.driver._supervisor.program = quick
    monkeypatch.undo()
    site.allow_replacement()
    await site.apply_until_done(WEB, rows(port, member("m2", two), more=more))
    await eventually_answers("m2", port)
