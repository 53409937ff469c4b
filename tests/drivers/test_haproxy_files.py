"""Files of an HAProxy process, bounds of a process, and which replaced processes end: without any process."""

import asyncio
import os
import pwd
import threading
from pathlib import Path
from typing import Any

import pytest

from fairlead.dataplane.haproxy import Frontend
from fairlead.dataplane.haproxy_policies import MAX_PROCESS_PATTERNS, Condition, Policy
from fairlead.dataplane.rows import Rows
from fairlead.drivers.haproxy import file_ownership, process
from fairlead.drivers.haproxy.file_ownership import FileOwnership
from fairlead.drivers.haproxy.network import ProxyNetwork, ours
from fairlead.drivers.haproxy.process import (
    MAX_REPLACED,
    Program,
    RunningProcess,
    check_draft,
    superfluous,
    write_files,
)
from fairlead.drivers.haproxy.state import StoredState
from fairlead.drivers.interface import DriverError
from fairlead.model.documents.owner import Kind, Owner
from fairlead.runtime.threads import in_thread

TEXTS = {"haproxy.cfg": "global\n", **{f"policies/{number}": f"now {number}\n" for number in range(50)}}
ONE, TWO = (Owner(Kind.LOAD_BALANCER, name) for name in ("one", "two"))


@pytest.fixture
def mine() -> FileOwnership:
    return FileOwnership(pwd.getpwuid(os.getuid()).pw_name)


def inodes(folder: Path) -> dict[str, int]:
    """A file that is written has another one."""
    return {name: (folder / name).stat().st_ino for name in TEXTS if (folder / name).exists()}


def test_only_changed_files_are_written(tmp_path: Path, mine: FileOwnership) -> None:
    write_files(tmp_path, TEXTS, mine)
    before = inodes(tmp_path)
    assert before.keys() == TEXTS.keys()
    write_files(tmp_path, TEXTS | {"policies/7": "now 8\n"}, mine)
    assert {name for name, its in inodes(tmp_path).items() if its != before[name]} == {"policies/7"}
    assert (tmp_path / "policies/7").read_text() == "now 8\n"
    write_files(tmp_path, {"haproxy.cfg": "global\n"}, mine)
    assert inodes(tmp_path) == {"haproxy.cfg": before["haproxy.cfg"]}


def test_file_with_a_wrong_mode_is_rewritten(tmp_path: Path, mine: FileOwnership) -> None:
    write_files(tmp_path, TEXTS, mine)
    (tmp_path / "haproxy.cfg").chmod(0o600)
    write_files(tmp_path, TEXTS, mine)
    assert (tmp_path / "haproxy.cfg").stat().st_mode & 0o777 == 0o640


def test_haproxy_user_is_looked_up_once_per_write(
    tmp_path: Path, mine: FileOwnership, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, find = list[str](), pwd.getpwnam

    def count(name: str) -> pwd.struct_passwd:
        found.append(name)
        return find(name)

    (tmp_path / "policies").mkdir()
    monkeypatch.setattr(file_ownership.pwd, "getpwnam", count)
    write_files(tmp_path, TEXTS, mine)
    assert found == [mine.user]


async def test_files_are_written_outside_the_event_loop_thread(
    tmp_path: Path, mine: FileOwnership, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads, write = set[threading.Thread](), file_ownership.write_atomic

    def note(*known: Any, **more: Any) -> None:
        threads.add(threading.current_thread())
        write(*known, **more)

    async def accept(*_: Any) -> None:
        return

    monkeypatch.setattr(file_ownership, "write_atomic", note)
    monkeypatch.setattr(process, "check", accept)
    await check_draft(tmp_path, TEXTS, mine, Program())
    assert len(inodes(tmp_path / "draft")) == len(TEXTS)
    assert threading.current_thread() not in threads
    assert threads


async def test_cancelled_call_waits_for_its_thread_to_end() -> None:
    begun, goes_on, ended = threading.Event(), threading.Event(), list[None]()

    def work() -> None:
        begun.set()
        goes_on.wait()
        ended.append(None)

    calling = asyncio.ensure_future(in_thread(work))
    await asyncio.to_thread(begun.wait)
    calling.cancel()
    asyncio.get_running_loop().call_soon(goes_on.set)
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert ended


def frontend(name: str, patterns: int) -> Rows:
    each = Policy(action="deny", conditions=(Condition(samples=("path",), matching=("-m", "str"), value="/"),))
    row = Frontend(name=name, process="net", connections=1, lines=(), policies=(each,) * patterns)
    return {row.key: row}


def test_pattern_limit_of_a_process_covers_all_owners(tmp_path: Path) -> None:
    """The owner whose change is one too many gets an error that names it; it may always have fewer than before."""
    network = ProxyNetwork(StoredState(tmp_path))
    network.check_patterns({ONE: frontend("f", MAX_PROCESS_PATTERNS)})
    network.state.owners[ONE] = ours(frontend("f", MAX_PROCESS_PATTERNS))
    network.check_patterns({TWO: frontend("g", 0)})
    with pytest.raises(
        DriverError, match=f"load balancer two: .* {MAX_PROCESS_PATTERNS + 1} values .* delete or disable"
    ):
        network.check_patterns({TWO: frontend("g", 1)})
    with pytest.raises(DriverError):
        network.check_patterns({ONE: frontend("f", MAX_PROCESS_PATTERNS + 1)})
    network.state.owners[ONE] = ours(frontend("f", MAX_PROCESS_PATTERNS + 100))
    network.check_patterns({ONE: frontend("f", MAX_PROCESS_PATTERNS + 99)})
    network.check_patterns({ONE: frontend("f", 10), TWO: frontend("g", 10)})


def test_replaced_process_with_unknown_connections_ends_in_turn() -> None:
    """Otherwise each change would end the process that it has just replaced."""
    replaced = [RunningProcess(number, "1") for number in range(MAX_REPLACED + 2)]
    assert superfluous(replaced[:MAX_REPLACED], replaced[:1]) == []
    assert superfluous(replaced, []) == replaced[:2]
    assert superfluous(replaced, replaced[3:5]) == replaced[3:5]
    assert superfluous(replaced, replaced[4:5]) == [replaced[4], replaced[0]]
    assert superfluous(replaced, replaced) == replaced[:2]
