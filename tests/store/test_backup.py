"""A backup is one file with a consistent snapshot of a deployment; a restore checks it before any write."""

import asyncio
import gzip
import json
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from fairlead.cli.main import main
from fairlead.store.backup import BadBackup, check_backup
from fairlead.store.opening import open_store
from harness.etcd import etcd_cluster
from harness.populated_stores import populate, run_with_store, write_something

pytestmark = pytest.mark.slow

_NUMBERS = count()


@pytest.fixture(scope="module")
def etcd():
    with etcd_cluster() as cluster:
        yield cluster


@pytest.fixture(params=["sqlite", "etcd"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite://{tmp_path}/s.db"
    return f"{request.getfixturevalue('etcd').url}/backup{next(_NUMBERS)}"


@pytest.fixture
def other(url: str, tmp_path: Path, etcd) -> str:
    """Return the URL of a new store of the other kind."""
    return f"sqlite://{tmp_path}/other.db" if url.startswith("etcd") else f"{etcd.url}/backup{next(_NUMBERS)}"


async def run(*words: str, code: int = 0) -> None:
    """Run the command in a thread, because it has an event loop of its own."""
    assert await asyncio.to_thread(main, ["store", *words]) == code


async def saved(url: str, path: Path) -> Path:
    await run_with_store(url, populate)
    await run("backup", str(path), "--store", url)
    return path


async def read(url: str) -> tuple[dict[str, bytes], int, set[str]]:
    """Return all documents, the revision, and the names of deleted documents."""
    store = await open_store(url)
    try:
        documents, revision = await store.range("")
        return {each.key: each.value for each in documents}, revision, await store.deleted()
    finally:
        await store.close()


async def test_backup_of_one_store_restores_into_any_store(url: str, other: str, tmp_path: Path, capsys):
    file = await saved(url, tmp_path / "b.fairlead")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.glob("*fairlead*")] == ["b.fairlead"]
    before, revision, gone = await read(url)
    await run("restore", str(file), "--store", other, "--dry-run")
    assert f"a restore would write it into {other}, which is empty; nothing was written" in capsys.readouterr().out
    await run("restore", str(file), "--store", other, "--json")
    assert json.loads(capsys.readouterr().out)["documents"] == len(before)
    after, later, gone_after = await read(other)
    assert (after, gone_after) == (before, gone)
    assert later >= revision + 1_000_000
    await run_with_store(other, lambda store: populate(store, 2))


async def test_nonempty_store_and_existing_backup_file_are_not_overwritten(url: str, tmp_path: Path, capsys):
    file = await saved(url, tmp_path / "b.fairlead")
    octets, before = file.read_bytes(), await read(url)
    await run("backup", str(file), "--store", url, code=1)
    assert "exists; give another name" in capsys.readouterr().err
    assert file.read_bytes() == octets
    await run("restore", str(file), "--store", url, code=1)
    assert "--replace" in capsys.readouterr().err
    assert await read(url) == before
    await run_with_store(url, write_something)
    await run("restore", str(file), "--store", url, "--replace")
    documents, revision, _ = await read(url)
    assert documents == before[0]
    assert revision > before[1] + 1_000_000


async def test_restore_dry_run_reports_the_outcome_and_writes_nothing(url: str, tmp_path: Path, capsys):
    file = await saved(url, tmp_path / "b.fairlead")
    before = await read(url)
    has = f"{len(before[0])} documents, revision {before[1]}"
    for options, would, words in (
        ((), "refuse", f"a restore would be rejected, because {url} is not empty: {has}; nothing was written"),
        (("--replace",), "replace", f"a restore would replace all of {url}: {has}; nothing was written"),
    ):
        await run("restore", str(file), "--store", url, "--dry-run", *options)
        printed = capsys.readouterr()
        assert (words in printed.out, "--replace" in printed.out + printed.err) == (True, False), printed
        await run("restore", str(file), "--store", url, "--dry-run", "--json", *options)
        assert json.loads(capsys.readouterr().out)["would"] == would
    assert await read(url) == before


async def test_copy_dry_run_reports_a_nonempty_target_and_writes_nothing(url: str, other: str, capsys):
    for each in (url, other):
        await run_with_store(each, populate)
    before = await read(other)
    await run("copy", url, other, "--dry-run", code=1)
    printed = capsys.readouterr()
    assert f"{other} is not empty: {len(before[0])} documents, revision {before[1]}" in printed.err
    assert "--replace" not in printed.out + printed.err
    assert await read(other) == before


@pytest.fixture
async def good(tmp_path: Path) -> bytes:
    return (await saved(f"sqlite://{tmp_path}/good.db", tmp_path / "good.fairlead")).read_bytes()


Spoil = Callable[[bytes], bytes]


def unpacked(change: Callable[[list[bytes]], list[bytes]]) -> Spoil:
    return lambda octets: gzip.compress(b"".join(change(gzip.decompress(octets).splitlines(keepends=True))))


def flip(octets: bytes) -> bytes:
    middle = len(octets) // 2
    return octets[:middle] + bytes((octets[middle] ^ 1,)) + octets[middle + 1 :]


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda octets: octets[: len(octets) // 2], "is truncated"),
        (lambda octets: octets[:-1], "is truncated"),
        (lambda _: b"", "is not a backup"),
        (lambda _: b"SQLite format 3\0", "is not a backup"),
        (gzip.decompress, "is not a backup"),
        (flip, "damaged|is not a backup"),
        (unpacked(lambda lines: lines[:-1]), "is truncated"),
        (unpacked(lambda lines: [*lines[:3], *lines[4:]]), "checksum"),
        (unpacked(lambda lines: [*lines, lines[-1]]), "data follows the end line"),
        (unpacked(lambda lines: [lines[0], b"{}}\n", *lines[1:]]), "a line is unreadable"),
        (unpacked(lambda lines: [lines[0].replace(b'"backup":1', b'"backup":2'), *lines[1:]]), "newer version"),
    ],
)
async def test_damaged_backup_is_rejected_before_any_write(
    good: bytes, tmp_path: Path, spoil: Spoil, words: str, capsys
):
    file = tmp_path / "bad.fairlead"
    file.write_bytes(spoil(good))
    with pytest.raises(BadBackup, match=words):
        check_backup(file)
    await run("restore", str(file), "--store", f"sqlite://{tmp_path}/new.db", code=1)
    assert capsys.readouterr().err.startswith("fairlead: ")
    assert not (tmp_path / "new.db").exists()


def test_backup_truncated_anywhere_is_rejected(good: bytes, tmp_path: Path):
    file = tmp_path / "bad.fairlead"
    for length in range(0, len(good), max(1, len(good) // 100)):
        file.write_bytes(good[:length])
        with pytest.raises(BadBackup):
            check_backup(file)


async def test_backup_with_a_newer_document_is_rejected(tmp_path: Path):
    url = f"sqlite://{tmp_path}/s.db"
    puts = {"network/n": b'{"newer": "than this"}'}
    await run_with_store(url, lambda store: store.transact(guards={}, puts=puts, deletes=[]))
    await run("backup", f"{tmp_path}/b", "--store", url)
    with pytest.raises(BadBackup, match="cannot read a document"):
        check_backup(tmp_path / "b")


async def test_backup_of_a_running_server_is_consistent(url: str, tmp_path: Path):
    """A backup of a running server is consistent: pairs written by one transaction are equal, although writes
    continue."""
    command = [sys.executable, "-m", "fairlead.cli.main", "store", "backup", f"{tmp_path}/b", "--store", url]
    store = await open_store(url)
    padding = {f"claim/m{each}": b"x" * 1000 for each in range(1500)}
    await store.transact(guards={}, puts={**padding, "claim/a": b"1", "claim/z": b"1"}, deletes=[])
    number = 1
    backup = await asyncio.create_subprocess_exec(*command)
    waiting = asyncio.create_task(backup.wait())
    while not waiting.done():
        number += 1
        puts = {"claim/a": b"%d" % number, "claim/z": b"%d" % number}
        await store.transact(guards={}, puts=puts, deletes=[])
    await store.close()
    assert await waiting == 0

    lines = [json.loads(each) for each in gzip.decompress((tmp_path / "b").read_bytes()).splitlines()]
    found = {each["key"]: each["value"] for each in lines if "key" in each}
    assert found["claim/a"] == found["claim/z"]
    assert 0 < int(found["claim/a"]) < number


async def test_store_commands_copy_verify_and_reopen(url: str, other: str, tmp_path: Path, capsys):
    await run_with_store(url, populate)
    number = len((await read(url))[0])
    await run("copy", url, other, "--dry-run", "--json")
    assert json.loads(capsys.readouterr().out)["documents"] == number
    assert not (tmp_path / "other.db").exists()
    await run("copy", url, other, "--json")
    done = json.loads(capsys.readouterr().out)
    assert (done["documents"], done["differing"], done["first"]) == (number, 0, [])
    await run("verify", url, other)
    await run_with_store(other, write_something)
    await run("verify", url, other, code=3)
    assert "claim/x: missing in the first store" in capsys.readouterr().out
    await run("copy", url, other, code=1)
    assert "copy from there" in capsys.readouterr().err
    await run("reopen", url, code=1)
    await run("reopen", other)
    await run("reopen", url, "--force")
    await run_with_store(url, lambda store: populate(store, 1))
    await run("copy", "mysql://x", url, code=2)
    await run("copy", url, "sqlite://x", code=2)
    await run("copy", f"sqlite://{tmp_path}/nothing.db", other, code=1)
    assert not (tmp_path / "nothing.db").exists()
