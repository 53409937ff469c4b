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
from fairlead.drivers.haproxy.backoff import MANY
from fairlead.drivers.haproxy.network import folder_name
from fairlead.drivers.haproxy.process import CONTROL, MAX_REPLACED, PID, NotStarted, Program, Running, all_running
from fairlead.drivers.haproxy.runtime import CommandFailed
from fairlead.drivers.interface import DriverError, Later
from fairlead.model.documents.owner import Kind, Owner
from harness.haproxy_site import NET, NETWORK, Asking, Site, eventually_answers, get, rows
from harness.ports import free_port
from harness.proxied import PROGRAM, WEB, listener, member, needs_haproxy, pool, view
from harness.waiting import DEADLINE, eventually, eventually_equal

pytestmark = [needs_haproxy, pytest.mark.slow]


async def test_an_agent_that_begins_while_the_switch_is_away_goes_on_when_it_is_back(
    site: Site, machines: tuple[int, int]
):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    await site.driver.close()
    site.said.clear()
    site.places.refusals = 2
    site.driver = site.new()
    await site.driver.open()
    assert site.said == []
    await eventually_equal(lambda: site.said, [{port}])
    assert site.pid == first
    os.kill(first, signal.SIGKILL)
    await eventually_equal(lambda: site.said, [{port}, None, {port}])


async def test_a_process_that_no_agent_has_written_down_is_found_and_replaced(site: Site, machines: tuple[int, int]):
    """It was started by an agent that was killed in that moment."""
    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", one)))
    first, [folder] = site.pid, site.folder.iterdir()
    await site.driver.close()
    (folder / PID).unlink()
    site.driver = site.new()
    with Asking(port) as asking:
        await site.driver.open()
        await site.put(WEB, rows(port, member("m2", two)))
        await eventually(lambda: [each.pid for each in all_running(folder)] == [site.pid])
    assert site.pid != first
    assert set(asking.answers) <= {"m1", "m2"}
    assert await asyncio.to_thread(get, port) == "m2"


def breaks_off(monkeypatch: pytest.MonkeyPatch, times: int) -> list[None]:
    """So often no process can be started, because the folder is full: one item for each failure that is to come."""
    left, start = [None] * times, supervisor.start

    async def fail(*known: Any) -> Running:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "No space left on device")
        return await start(*known)

    monkeypatch.setattr(supervisor, "start", fail)
    return left


async def test_one_that_stands_still_serves_nobody_and_another_takes_its_place(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(liveness, "LOOK", 0.05)
    monkeypatch.setattr(liveness, "SILENT", 0.3)
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first = site.pid
    os.kill(first, signal.SIGSTOP)
    await eventually_equal(lambda: site.said[-1], None)
    os.kill(first, signal.SIGCONT)
    await eventually_equal(lambda: site.said[-1], {port})
    assert (site.pid, await asyncio.to_thread(get, port)) == (first, "m1")
    monkeypatch.setattr(liveness, "GIVEN_UP", 0.6)
    os.kill(first, signal.SIGSTOP)
    await eventually(lambda: site.said[-1] == {port} and site.pid != first)
    await eventually_answers("m1", port)


async def test_one_that_is_to_be_replaced_later_is_watched_until_then(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """It refused a command, and there was no time for another one; then it ended."""

    async def refuse(*_: Any) -> None:
        raise CommandFailed("no such server")

    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", one)))
    first = site.pid
    site.hold_replacements()
    monkeypatch.setattr(driver, "tell", refuse)
    monkeypatch.setattr(
        change_queue, "AT_ONCE", DEADLINE
    )  # a change that goes on by itself would wait for the replacement
    await site.put(WEB, rows(port, member("m2", two)))
    assert site.pid == first
    os.kill(first, signal.SIGKILL)
    await eventually_equal(lambda: site.said[-2:], [None, {port}])
    assert await asyncio.to_thread(get, port) == "m2"


async def test_one_that_does_not_come_back_is_told_of_until_it_does(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    failures = breaks_off(monkeypatch, 1000)
    os.kill(site.pid, signal.SIGKILL)
    await eventually(lambda: "No space left" in (site.driver.failure_of(WEB) or ""))
    assert site.failing == [[WEB]]
    assert site.said[-1] is None
    failures.clear()
    await eventually_equal(lambda: site.driver.failure_of(WEB), None)
    assert site.failing == [[WEB]] * 2
    assert await asyncio.to_thread(get, port) == "m1"


async def test_one_that_ends_again_and_again_is_told_of_until_it_stays(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    told = list[str | None]()
    site.driver.follow(lambda _: site.settled.set(), lambda _: told.append(site.driver.failure_of(WEB)))
    monkeypatch.setattr(supervisor, "_now", lambda: 0.0)  # however long a start takes, ends come soon after each other
    for number in range(MANY):
        if number == MANY - 1:
            monkeypatch.setattr(supervisor, "STEADY", 1.0)
        assert told == []
        os.kill(site.pid, signal.SIGKILL)
        await eventually(lambda ends=number + 1: site.said == [{port}, *([None, {port}] * ends)])
    await eventually_equal(lambda: told, [f"HAProxy has ended {MANY} times, each soon after the last", None])


async def test_one_that_takes_long_keeps_no_other_network_waiting(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    port, other, slow, start = free_port(), Owner(Kind.LOAD_BALANCER, "slow"), asyncio.Event(), supervisor.start

    async def wait(folder: Path, *known: Any) -> Running:
        if folder.name == folder_name("net2"):
            await slow.wait()
            raise NotStarted("HAProxy does not answer")
        return await start(folder, *known)

    monkeypatch.setattr(supervisor, "start", wait)
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    [process] = (row for row in NETWORK.values() if isinstance(row, Process))
    net2, theirs = replace(process, network="net2"), elsewhere(rows(free_port()), "net2")
    await site.put(Owner(Kind.NETWORK, "net2"), {net2.key: net2})
    with pytest.raises(Later):
        await site.driver.apply(other, diff(theirs, {}))
    assert await site.driver.read(other) == {}
    with pytest.raises(Later):
        await site.driver.apply(other, diff(theirs, {}))
    site.allow_replacement()
    await site.put(WEB, rows(port, member("m1", machines[0]), member("m2", machines[1]), more=[listener("two", 1025)]))
    assert site.said[-1] == {port, 1025}
    site.settled.clear()
    slow.set()
    await site.settled.wait()
    with pytest.raises(DriverError, match="does not answer"):
        await site.driver.apply(other, diff(theirs, {}))
    assert await site.driver.read(other) == {}
    await site.put(Owner(Kind.NETWORK, "net2"), {})


def elsewhere(found: Rows, network: str) -> Rows:
    return {
        key: replace(row, process=network) if isinstance(row, Frontend | Backend) else row for key, row in found.items()
    }


async def test_a_full_disk_ends_no_watch(site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    breaks_off(monkeypatch, 2)
    os.kill(site.pid, signal.SIGKILL)
    await eventually_answers("m1", port)


async def test_a_change_that_was_begun_and_failed_is_undone(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch
):
    """Whatever has been written for it by then."""
    port, other, (one, two) = free_port(), free_port(), machines
    await site.put(NET, NETWORK)
    good = rows(port, member("m1", one))
    await site.put(WEB, good)
    site.allow_replacement()
    breaks_off(monkeypatch, 1)
    with pytest.raises(DriverError, match="No space left"):
        await site.put(WEB, rows(other, member("m2", two)))
    assert await site.driver.read(WEB) == good
    [folder] = site.folder.iterdir()
    await eventually(lambda: f":{port}" in (folder / "haproxy.cfg").read_text())
    os.kill(site.pid, signal.SIGKILL)
    await eventually_answers("m1", port)
    await eventually_equal(lambda: site.said[-1], {port})


async def test_of_those_that_were_replaced_only_so_many_go_on(site: Site):
    """Their clients keep them alive, who wait for an answer."""
    port, held = free_port(), ExitStack()
    await site.put(NET, NETWORK)
    with held, socket.create_server(("127.0.0.1", 0)) as silent:
        web = pool("web", member("m1", silent.getsockname()[1]))
        for limit in range(100, 100 + MAX_REPLACED + 3):
            site.allow_replacement()
            await site.put(WEB, HAPROXY.compile(view([listener("one", port, web, connection_limit=limit)], [web]), WEB))
            client = held.enter_context(socket.create_connection(("127.0.0.1", port)))
            client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            held.enter_context((await asyncio.to_thread(silent.accept))[0])
        [folder] = site.folder.iterdir()
        await eventually_equal(lambda: len(all_running(folder)), MAX_REPLACED + 1)
    await eventually_equal(lambda: len(all_running(folder)), 1)


async def test_members_that_come_and_go_fill_no_file(site: Site, machines: tuple[int, int]):
    port = free_port()
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    first, [folder] = site.pid, site.folder.iterdir()
    for up in (False, True, False):
        await site.put(WEB, rows(port, member("m1", machines[0], admin_state_up=up)))
    assert site.pid == first
    assert {each.name for each in folder.iterdir()} == {"draft", "haproxy.cfg", "pid", "rows.json", "sockets"}


async def test_why_one_does_not_start_is_said(site: Site):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        await site.put(NET, NETWORK)
        with pytest.raises(DriverError, match=r"HAProxy has ended: .*[Cc]annot bind"):
            await site.put(WEB, rows(taken.getsockname()[1]))


async def test_folders_of_others_stay(site: Site):
    theirs = site.folder / "mail" / "letter"
    theirs.parent.mkdir(parents=True)
    theirs.touch()
    await site.driver.open()
    assert theirs.exists()
    shutil.rmtree(theirs.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to others")
async def test_who_serves_may_write_nothing_but_its_sockets(machines: tuple[int, int]):
    """Or whoever gets hold of it would have the agent follow its links, and end processes that it names."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        before = os.umask(0o077)
        try:
            await _serve_as_another(Path(name) / "run" / "p", machines[0])
        finally:
            os.umask(before)


def check_rights(site: Site) -> None:
    [own] = site.folder.iterdir()
    sockets, user = (own / CONTROL).parent, pwd.getpwnam("haproxy").pw_uid
    assert Path(f"/proc/{site.pid}").stat().st_uid == user
    assert (sockets.stat().st_uid, sockets.stat().st_mode & 0o777) == (user, 0o700)
    for each in (own, *own.rglob("*")):
        if each != sockets and sockets not in each.parents and not each.is_symlink():
            assert (each.stat().st_uid, each.stat().st_mode & 0o027) == (0, 0), each


async def _serve_as_another(folder: Path, member_port: int) -> None:
    port, site = free_port(), Site(folder)
    site.driver = HAProxy(folder, site.places, lambda *_: None, Program(path=PROGRAM))
    site.driver.follow(lambda _: site.settled.set(), site.failing.append)
    await site.driver.open()
    try:
        await site.put(NET, NETWORK)
        await site.put(WEB, rows(port, member("m1", member_port)))
        assert await asyncio.to_thread(get, port) == "m1"
        check_rights(site)
    finally:
        await site.put(WEB, {})
        await site.put(NET, {})
        await site.driver.close()


async def test_one_tenant_s_that_does_not_start_keeps_none_of_another_on_the_same_network(
    site: Site, machines: tuple[int, int]
):
    """Processes of several tenants on a shared network are of one owner."""
    port, guests = free_port(), [f"net1/guest{number}" for number in range(4)]
    for guest in guests:
        bad = {
            key: replace(row, process=guest, lines=(("balance", "nonsense"), *row.lines))
            for key, row in rows(free_port()).items()
            if isinstance(row, Frontend | Backend)
        }
        await site.put(Owner(Kind.LOAD_BALANCER, guest), bad)
    await site.put(WEB, rows(port, member("m1", machines[0])))
    processes = [row for row in NETWORK.values() if isinstance(row, Process)]
    theirs = {each.key: each for row in processes for guest in guests for each in [replace(row, network=guest)]}
    with pytest.raises(DriverError, match="balance"):
        await site.put(NET, {**NETWORK, **theirs})
    await eventually_answers("m1", port)
    await eventually_equal(lambda: site.driver.read(NET), NETWORK)  # it serves a moment before that
    for guest in guests:
        await site.put(Owner(Kind.LOAD_BALANCER, guest), {})


async def test_a_configuration_that_takes_too_long_to_read_is_its_owners_error(
    site: Site, machines: tuple[int, int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    """What was served before is served, and others can change."""
    port, (one, two) = free_port(), machines
    await site.put(NET, NETWORK)
    await site.put(WEB, rows(port, member("m1", one)))
    slow = tmp_path / "haproxy"
    slow.write_text(f'#!/bin/sh\ncase " $* " in *" -c "*) exec sleep 60 ;; esac\nexec {PROGRAM} "$@"\n')
    slow.chmod(0o755)
    quick = site.driver._keeper.program
    site.driver._keeper.program = replace(quick, path=str(slow))
    monkeypatch.setattr(process, "READY", 0.3)
    site.allow_replacement()
    more = [listener("two", free_port(), pool("web"))]
    with pytest.raises(DriverError, match="has not read the configuration after 0 s"):
        await site.put(WEB, rows(port, member("m1", one), more=more))
    assert site.driver.failure_of(WEB) is None
    await eventually_answers("m1", port)
    site.driver._keeper.program = quick
    monkeypatch.undo()
    site.allow_replacement()
    await site.put(WEB, rows(port, member("m2", two), more=more))
    await eventually_answers("m2", port)
