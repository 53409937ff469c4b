"""A text in an editor: until it is accepted, or given up."""

import io
from pathlib import Path

import pytest

from fairlead.network_cli.document import Description, parse_yaml
from fairlead.network_cli.editor import HELP, edit
from fairlead.network_cli.failure import Failure


@pytest.fixture(autouse=True)
def appending(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An editor whose user adds a line each time."""
    script = tmp_path / "my editor"
    script.write_text('#!/bin/sh\necho "# once" >>"$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("VISUAL", f"'{script}'")


def test_what_is_refused_is_edited_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    written: list[str] = []

    def accept(text: str) -> None:
        written.append(text)
        if len(written) < 3:
            raise Failure(f"no. {len(written)}")

    monkeypatch.setattr("sys.stdin", io.StringIO("\n\n"))
    edit("a: b\n", accept)
    assert written == ["a: b\n" + "# once\n" * times for times in (1, 2, 3)]
    assert capsys.readouterr().err.startswith("Config parsing error: no. 1\nPress enter to open the editor again")


def test_who_gives_up_is_told_why(monkeypatch: pytest.MonkeyPatch):
    def accept(_: str) -> None:
        raise Failure("no")

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    with pytest.raises(Failure, match=r"^no$"):
        edit("", accept)


def test_an_editor_that_fails(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("VISUAL", "false")
    with pytest.raises(Failure, match="false: "):
        edit("", lambda _: None)


def test_the_help_above_the_text_is_none_of_it():
    assert parse_yaml(HELP) == Description()
