"""The key directory: valid references, and no path into another project's directory."""

import os
from pathlib import Path

import pytest

from fairlead.keystores.directory import Directory
from fairlead.keystores.interface import MAX_CONTENT_BYTES, Unreadable


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for project in ("ours", "theirs"):
        (tmp_path / "keys" / project).mkdir(parents=True)
        put(tmp_path / "keys" / project / "web.pem", project)
    put(tmp_path / "outside.pem", "outside")
    return tmp_path / "keys"


def put(path: Path, text: str, mode: int = 0o640) -> None:
    path.write_text(text)
    path.chmod(mode)


async def read(folder: Path, reference: str, project: str = "ours") -> str:
    return (await Directory(folder).read(project, reference, None)).material.decode()


async def test_a_reference_names_a_file_of_the_project(folder: Path):
    assert ("ours", "theirs") == (await read(folder, "web.pem"), await read(folder, "web.pem", "theirs"))


@pytest.mark.parametrize(
    "reference",
    [
        *("../theirs/web.pem", "../../outside.pem", "/etc/hostname", "./web.pem", "web.pem/", "a/b", "..", ".", ""),
        *("web.pem\0", "web.pem\n", ".web.pem", "http://127.0.0.1/v1/containers/1", "x" * 129, "ключ"),
    ],
)
async def test_reference_outside_the_project_folder_is_rejected(folder: Path, reference: str):
    with pytest.raises(Unreadable, match="must be a file name"):
        await read(folder, reference)


@pytest.mark.parametrize("project", ["", ".", "..", "../keys/theirs", "ours/../theirs", "/etc", "a\0"])
async def test_invalid_project_name_has_no_keys(folder: Path, project: str):
    with pytest.raises(Unreadable, match="no keys"):
        await read(folder, "web.pem", project)


async def test_symbolic_links_are_not_followed(folder: Path):
    (folder / "ours" / "other.pem").symlink_to(folder / "theirs" / "web.pem")
    (folder / "ours" / "own.pem").symlink_to(folder / "ours" / "web.pem")
    (folder / "third").symlink_to(folder / "theirs")
    for reference, project in (("other.pem", "ours"), ("own.pem", "ours"), ("web.pem", "third")):
        with pytest.raises(Unreadable, match="cannot be opened"):
            await read(folder, reference, project)


async def test_error_does_not_reveal_files_of_other_projects(folder: Path):
    put(folder / "theirs" / "secret.pem", "it")
    said = []
    for reference in ("secret.pem", "nothing.pem"):
        with pytest.raises(Unreadable) as refused:
            await read(folder, reference)
        said.append(str(refused.value))
    assert ["the project has no file of this name"] * 2 == said


async def test_insecure_oversized_or_special_file_is_rejected(folder: Path):
    put(folder / "ours" / "open.pem", "key", 0o644)
    put(folder / "ours" / "large.pem", "x" * (MAX_CONTENT_BYTES + 1))
    (folder / "ours" / "folder.pem").mkdir()
    os.mkfifo(folder / "ours" / "pipe.pem", 0o600)
    for name, why in (("open", "all users"), ("large", "bytes"), ("folder", "regular file"), ("pipe", "regular file")):
        with pytest.raises(Unreadable, match=why):
            await read(folder, f"{name}.pem")
