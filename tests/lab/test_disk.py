"""Failures of the store's disk: full, read-only, file deleted. Acknowledged changes are stored."""

import os
import sqlite3
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from threading import Thread

import httpx
import pytest

from fairlead.lab import Lab
from fairlead.store.interface import StoreUnavailable
from fairlead.store.sqlite import SqliteStore
from harness.lab.labs import lab_name
from harness.lab.servers import BINARIES, LBS, NETWORKS, SUBNETS, FairleadProcess, rows_of, serving
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.extended]

MARK = {"FAIRLEAD_OVN_OWNER_TAG": "disk"}
SIZE = 8 * 2**20
"""Bytes: twice SQLite's write-ahead log of 1,000 pages, which is beside the database, so that a deletion has space."""
WRITERS = 4


@pytest.fixture
def disk(machine: None, tmp_path: Path) -> Iterator[Path]:
    """A small disk, named so that the next run removes it after a kill."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", lab_name("disk"), place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def serving_from(disk: Path, lab: Lab, folder: Path) -> Iterator[FairleadProcess]:
    with serving(lab, folder, FAIRLEAD_STORE_PATH=str(disk / "fairlead.db"), **MARK) as server:
        yield server


@contextmanager
def filled(disk: Path) -> Iterator[None]:
    """Fill the disk to the last byte."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for block in (2**16, 1):
            try:
                while file.write(b"x" * block) == block:
                    pass
            except OSError as error:
                assert error.errno == 28, error  # noqa: PT017
    try:
        yield
    finally:
        ballast.unlink()


def subnet_of(server: FairleadProcess) -> str:
    network = server.create(NETWORKS, "network", name="disk")["id"]
    subnet: str = server.create(SUBNETS, "subnet", network_id=network, cidr="10.0.0.0/16", ip_version=4)["id"]
    return subnet


def write_until_refused(server: FairleadProcess, subnet: str, made: set[str], refusals: list[httpx.Response]) -> None:
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for _ in range(2000):
            answer = client.post(LBS, json={"loadbalancer": {"name": "x" * 200, "vip_subnet_id": subnet}})
            if answer.status_code != 201:
                refusals.append(answer)
                return
            made.add(answer.json()["loadbalancer"]["id"])


def delete_until_refused(server: FairleadProcess, made: set[str]) -> httpx.Response:
    """Delete load balancers until a deletion fails. Small ones may still fit into the last page."""
    for identity in sorted(made):
        answer = server.client.delete(f"{LBS}/{identity}?cascade=true")
        if answer.status_code != 204:
            return answer
        made.remove(identity)
    raise AssertionError("there was room for everything")


def rename_until_refused(server: FairleadProcess, identity: str) -> httpx.Response:
    for number in range(1000):
        name = f"{number}" * 50
        answer = server.client.put(f"{LBS}/{identity}", json={"loadbalancer": {"name": name}})
        if answer.status_code != 200:
            return answer
        assert server.balancer(identity)["name"] == name
    raise AssertionError("there was room for everything")


def check_refusal(answer: httpx.Response) -> None:
    text = answer.json()["faultstring"] if "faultstring" in answer.json() else answer.json()["NeutronError"]["message"]
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
    assert "nothing was written" in text
    assert "disk is full" in text


def check_whole(disk: Path, server: FairleadProcess, made: set[str], lab: Lab) -> None:
    """Assert that the API's list, the file, the plan and the rows agree."""
    assert set(server.balancers()) == made
    with closing(sqlite3.connect(disk / "fairlead.db", timeout=5)) as file:
        assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        stored = {key for (key,) in file.execute("SELECT key FROM document WHERE key LIKE 'loadbalancer/%'")}
    assert stored == {f"loadbalancer/{identity}" for identity in made}
    wait_until(server.is_idle)
    rows = rows_of(lab, "disk").get("Logical_Router_Port", [])
    assert len(rows) == len(set(rows))


def clear(server: FairleadProcess, lab: Lab) -> None:
    for identity in server.balancers():
        assert server.client.delete(f"{LBS}/{identity}?cascade=true").status_code == 204
    for network in server.client.get(NETWORKS).json()["networks"]:
        assert server.client.delete(f"{NETWORKS}/{network['id']}").status_code == 204
    wait_equal(lambda: rows_of(lab, "disk"), {})


def test_full_disk_rejects_writes_whole_and_writes_resume_with_free_space(lab: Lab, disk: Path, tmp_path: Path):
    made: set[str] = set()
    refusals: list[httpx.Response] = []
    with serving_from(disk, lab, tmp_path) as server:
        subnet = subnet_of(server)
        writers = [Thread(target=write_until_refused, args=(server, subnet, made, refusals)) for _ in range(WRITERS)]
        for writer in writers:
            writer.start()
        wait_until(lambda: len(made), is_enough=lambda found: found > 20)
        with filled(disk):
            for writer in writers:
                writer.join()
            refusals.append(delete_until_refused(server, made))
            refusals.append(rename_until_refused(server, min(made)))
            refusals.append(server.client.post(NETWORKS, json={"network": {"name": "n" * 255}}))
            assert len(refusals) == WRITERS + 3
            for refusal in refusals:
                check_refusal(refusal)
            assert server.client.get(f"{LBS}/{min(made)}").status_code == 200
            assert (server.client.get("/healthz").status_code, server.is_ready()) == (200, True)
            check_whole(disk, server, made, lab)
        made.add(server.create(LBS, "loadbalancer", name="again", vip_subnet_id=subnet)["id"])
        assert server.client.delete(f"{LBS}/{min(made)}?cascade=true").status_code == 204
        made.remove(min(made))
        check_whole(disk, server, made, lab)
        server.kill()
    with serving_from(disk, lab, tmp_path) as server:
        check_whole(disk, server, made, lab)
        clear(server, lab)


def test_server_killed_on_a_full_disk_restarts_with_all_acknowledged_changes(lab: Lab, disk: Path, tmp_path: Path):
    made: set[str] = set()
    refusals: list[httpx.Response] = []
    with serving_from(disk, lab, tmp_path) as server:
        subnet = subnet_of(server)
        made.add(server.create(LBS, "loadbalancer", name="kept", vip_subnet_id=subnet)["id"])
        with filled(disk):
            write_until_refused(server, subnet, made, refusals)
            server.kill()
            with serving_from(disk, lab, tmp_path) as again:
                check_whole(disk, again, made, lab)
                write_until_refused(again, subnet, made, refusals)
                for refusal in refusals:
                    check_refusal(refusal)
    with serving_from(disk, lab, tmp_path) as server:
        check_whole(disk, server, made, lab)
        clear(server, lab)


def start_in_vain(disk: Path) -> tuple[int, str]:
    store = str(disk / "fairlead.db")
    environment = {**os.environ, "FAIRLEAD_STORE_PATH": store, "FAIRLEAD_SERVER_LISTEN": "unix:/nonexistent/s", **MARK}
    done = subprocess.run(
        [BINARIES / "fairlead", "server"], env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    return done.returncode, done.stderr


def test_creating_a_store_on_a_full_disk_fails_with_a_one_line_error(disk: Path):
    with filled(disk):
        code, said = start_in_vain(disk)
    assert (code, said.count("\n")) == (1, 1), said
    assert str(disk) in said
    assert "disk is full" in said


def test_start_on_a_read_only_disk_fails_with_a_one_line_error(disk: Path):
    with closing(sqlite3.connect(disk / "fairlead.db")) as file:
        file.execute("CREATE TABLE t (x)")
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    code, said = start_in_vain(disk)
    assert (code, said.count("\n")) == (1, 1), said
    assert "Read-only file system" in said


@pytest.mark.parametrize("gone", ["fairlead.db", "fairlead.db-wal"])
def test_server_rejects_writes_while_a_store_file_is_missing(lab: Lab, disk: Path, tmp_path: Path, gone: str):
    """SQLite continues to write to a deleted file; all of that would be lost at the next start."""
    made: set[str] = set()
    with serving_from(disk, lab, tmp_path) as server, ExitStack() as undo:
        subnet = subnet_of(server)
        made.add(server.create(LBS, "loadbalancer", name="kept", vip_subnet_id=subnet)["id"])
        (disk / gone).rename(disk / "elsewhere")
        undo.callback((disk / "elsewhere").rename, disk / gone)
        answer = server.client.post(LBS, json={"loadbalancer": {"name": "lost", "vip_subnet_id": subnet}})
        assert answer.status_code == 503, answer.text
        assert f"{gone}" in answer.json()["faultstring"]
        undo.close()
        made.add(server.create(LBS, "loadbalancer", name="again", vip_subnet_id=subnet)["id"])
        check_whole(disk, server, made, lab)
        server.kill()
    with serving_from(disk, lab, tmp_path) as server:
        check_whole(disk, server, made, lab)
        clear(server, lab)


async def test_full_disk_during_the_wal_checkpoint_loses_no_commit(disk: Path):
    """After a commit SQLite copies a log of 1,000 pages into the database.

    The copy may fail without losing the commit.
    """
    subprocess.run(["mount", "-o", f"remount,size={2 * SIZE}", disk], check=True)

    store = await SqliteStore.open(disk / "fairlead.db")
    log, stored = disk / "fairlead.db-wal", 0
    while log.stat().st_size < 3_500_000:
        stored = await store.transact(guards={}, puts={f"k{stored}": b"x" * 20_000}, deletes=[])
    room = (disk / "room").open("wb")
    room.write(b"x" * 1_500_000)
    room.close()
    with filled(disk):
        (disk / "room").unlink()
        refusal = ""
        while not refusal:
            try:
                stored = await store.transact(guards={}, puts={f"k{stored}": b"x" * 20_000}, deletes=[])
            except StoreUnavailable as error:
                refusal = str(error)
        assert "disk is full" in refusal
        assert log.stat().st_size > 1000 * 4096
        assert (await store.range(""))[1] == stored
    assert await store.transact(guards={}, puts={"again": b""}, deletes=[]) == stored + 1
    await store.close()
    store = await SqliteStore.open(disk / "fairlead.db")
    documents, revision = await store.range("")
    assert (len(documents), revision) == (stored + 1, stored + 1)
    await store.close()
