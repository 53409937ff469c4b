"""What was typed: options anywhere, and words that no command has."""

from pathlib import Path

import pytest

from fairlead.cli import main
from fairlead.network_cli.commands import ALL_FLAGS, COMMANDS
from fairlead.network_cli.failure import Failure
from fairlead.network_cli.helping import PROGRAM
from fairlead.network_cli.words import parse

LB = ("network", "load-balancer")


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No server: what is refused here is refused before one is asked."""
    monkeypatch.setenv("FAIRLEAD_CLIENT", str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_REMOTE", f"unix:{tmp_path}/none")


def say(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_options_stand_anywhere():
    typed = parse(["-q", "list", "--project", "p", "n", "-fcsv", "--columns=l", "--", "-x"], ALL_FLAGS)
    assert typed.words == ("list", "n", "-x")
    assert typed.given == {"quiet": True, "project": "p", "format": "csv", "columns": "l"}


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["--nope"], "unknown flag: --nope"),
        (["--nope=1"], "unknown flag: --nope"),
        (["-z"], "unknown shorthand flag: 'z' in -z"),
        (["--format"], "flag needs an argument: --format"),
    ],
)
def test_options_that_there_are_not(argv: list[str], complaint: str):
    with pytest.raises(Failure) as refused:
        parse(argv, ALL_FLAGS)
    assert str(refused.value) == complaint


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command):
    code, out, err = say(capsys, "network", *command.name.split(), "--help")
    assert (code, err) == (0, "")
    assert command.about in out
    assert all(f"--{flag.name}" in out for flag in command.flags)
    assert max(len(line) for line in out.splitlines() if PROGRAM not in line) <= 100


@pytest.mark.parametrize("words", [(), LB, (*LB, "backend"), (*LB, "--help"), ("network",)])
def test_groups_list_their_commands(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]):
    code, out, _ = say(capsys, *(words or LB))
    assert (code, "backend add" in out) == (0, True)


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("frob",), 'unknown command "frob" for "fairlead network load-balancer"'),
        (("backend", "frob"), 'unknown command "frob" for "fairlead network load-balancer backend"'),
        (("show", "n"), "Invalid number of arguments"),
        (("show", "n", "a", "b"), "Invalid number of arguments"),
        (("backend", "add", "n", "a", "b"), "Invalid number of arguments"),
        (("show", "--force", "n", "a"), "unknown flag: --force"),
        (("show", "", "192.0.2.9"), "Missing network name"),
        (("show", "n", ""), "Missing listen address"),
        (("show", "x:n", "192.0.2.9"), 'The remote "x" doesn\'t exist'),
        (("create", "n", "--allocate=ipv5"), 'Invalid value "ipv5" for flag "--allocate"'),
        (("create", "n", "192.0.2.9", "user.a"), "Bad key/value pair: user.a"),
        (("list", "n", "-f", "xx"), 'Invalid value "xx" for flag "--format"'),
    ],
)
def test_what_is_refused_before_a_server_is_asked(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], complaint: str
):
    code, out, err = say(capsys, *LB, *words)
    assert (code, out, err.splitlines()[-1]) == (1, "", f"Error: {complaint}")


def test_a_wrong_number_of_words_shows_how_it_is_said(capsys: pytest.CaptureFixture[str]):
    _, _, err = say(capsys, *LB, "show", "n")
    assert err.startswith("Usage:\n  fairlead network load-balancer show [<remote>:]<network> <listen_address>")


def test_another_word_behind_network(capsys: pytest.CaptureFixture[str]):
    code, _, err = say(capsys, "network", "forward", "list")
    assert (code, 'unknown command "forward" for "fairlead network"' in err) == (1, True)


def test_a_server_that_is_not_there(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    code, _, err = say(capsys, *LB, "list", "n")
    assert (code, err) == (1, f"Error: The server doesn't appear to be started (socket path: {tmp_path}/none)\n")
