"""`fairlead chassis`, and enrolment by the node's own command."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli import main
from harness.nodes import NodesDeployment, play
from harness.served import served

AGENT = {
    "version": "0.1",
    "host": "h1",
    "since": "2026-01-01T12:00:00Z",
    "last_heard": "2026-01-01T12:00:05Z",
    "heard": True,
    "listens": True,
    "probes": 4,
    "unapplied": [],
}
WELL: dict[str, Any] = {
    "name": "one",
    "host": "h1",
    "in_ovn": True,
    "alive": True,
    "zones": [],
    "ports": 3,
    "covered_for": 0,
    "declared": None,
    "proxies": [{"at": "net1", "project_id": "demo", "serving": 2, "wanted": 2}],
    "agent": AGENT,
    "enrolled": {"since": "2026-01-01T12:00:00Z", "until": "2026-04-01T12:00:00Z", "expired": False},
    "token_until": None,
}
FAILING = {"dataplane": "haproxy", "owner": "loadbalancer/web", "error": "no such file"}


def run(monkeypatch: pytest.MonkeyPatch, answer: Any, *words: str) -> int:
    monkeypatch.setattr(main, "_ask", lambda arguments, method, path, body=None: answer)
    return main.main(["chassis", *words])


def test_node_list_prints_a_table_or_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert run(monkeypatch, {"chassis": [WELL]}, "list") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["chassis", "host", "ports", "agent"]
    assert row.split()[:5] == ["one", "h1", "3", "connected", "0.1"]
    assert run(monkeypatch, {"chassis": [WELL]}, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [WELL]


@pytest.mark.parametrize(("starved", "state"), [({"starved": True}, "starved"), ({"starved": False}, "connected")])
def test_a_starved_agent_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], starved: dict[str, bool], state: str
):
    run(monkeypatch, {"chassis": [{**WELL, "agent": {**AGENT, **starved}}]}, "list")
    assert capsys.readouterr().out.splitlines()[1].split()[3] == state


@pytest.mark.parametrize(
    "row",
    [
        {**WELL, "agent": {**AGENT, "heard": False}},
        {**WELL, "agent": {**AGENT, "starved": True}},
        {**WELL, "agent": {**AGENT, "unapplied": [FAILING]}},
        {**WELL, "alive": False},
        {**WELL, "enrolled": {**WELL["enrolled"], "expired": True}},
        {**WELL, "proxies": [{"at": "net1", "project_id": "demo", "serving": 0, "wanted": 2}]},
    ],
    ids=["silent", "starved", "failing", "dead", "expired", "not serving"],
)
def test_unhealthy_node_sets_the_exit_code(monkeypatch: pytest.MonkeyPatch, row: Any):
    assert run(monkeypatch, {"chassis": [WELL, row]}, "list") == 3
    assert run(monkeypatch, row, "show", "one") == 3
    assert run(monkeypatch, WELL, "show", "one") == 0


def test_a_certificate_that_has_expired_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    row = {**WELL, "enrolled": {**WELL["enrolled"], "expired": True}}
    run(monkeypatch, {"chassis": [WELL, row]}, "list")
    _, well, over = capsys.readouterr().out.splitlines()
    assert ("until 2026-04-01T12:00:00Z" in well, "expired 2026-04-01T12:00:00Z" in over) == (True, True)


def test_apply_errors_and_proxies_of_a_node_are_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    run(monkeypatch, {**WELL, "agent": {**AGENT, "unapplied": [FAILING]}}, "show", "one")
    told = capsys.readouterr().out
    assert "haproxy loadbalancer/web: no such file" in told
    assert "on net1 of project demo: serves 2 of 2 listeners" in told


def test_enroll_command_writes_the_identity_and_a_token_works_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    own = tmp_path / "own" / "identity.pem"
    monkeypatch.setenv("FAIRLEAD_AGENT_IDENTITY_FILE", str(own))

    async def story(stage: NodesDeployment) -> None:
        (tmp_path / "token").write_text(await stage.token("one") + "\n")
        words = ["agent", "--enroll", str(tmp_path / "token")]
        assert await asyncio.to_thread(main.main, words) == 0
        assert set(stage.snapshot.nodes) == {"one"}
        assert own.stat().st_mode & 0o777 == 0o600
        assert await asyncio.to_thread(main.main, words) == 1

    play(tmp_path, story)
    told = capsys.readouterr()
    assert f"{own}: chassis one, until" in told.out
    assert "the token is invalid" in told.err


# Plain hosts


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    with served(tmp_path) as found:
        yield found


def ran(url: str, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Return the exit code and the output."""
    try:
        code = main.main(["chassis", *words, "--url", url])
    except SystemExit as error:  # raised by argparse
        code = int(error.code or 0)
    told = capsys.readouterr()
    return code, told.out, told.err


ONE = ("host", "set", "one", "--address", "10.20.0.21", "--address", "fd00:20::21", "--number", "7")
BEHIND = ("--prefix", "10.1.0.0/24", "--prefix", "fd00:1::/64=alice")
SHOWN = {
    "name": "one",
    "number": 7,
    "addresses": ["10.20.0.21", "fd00:20::21"],
    "prefixes": [{"cidr": "10.1.0.0/24", "project_id": None}, {"cidr": "fd00:1::/64", "project_id": "alice"}],
    "draining": False,
}


def test_a_plain_host_is_declared_listed_drained_and_removed(url: str, capsys: pytest.CaptureFixture[str]):
    code, told, _ = ran(url, capsys, *ONE, *BEHIND)
    assert code == 0
    assert [line.split(maxsplit=1)[1] for line in told.splitlines()] == [
        "one",
        "7",
        "10.20.0.21 fd00:20::21",
        "10.1.0.0/24 fd00:1::/64=alice",
        "serves",
    ]
    assert json.loads(ran(url, capsys, "host", "show", "one", "--json")[1]) == SHOWN
    assert ran(url, capsys, "host", "set", "two", "--address", "10.20.0.22")[0] == 0
    head, first, second = ran(url, capsys, "host", "list")[1].splitlines()
    assert head.split() == ["host", "number", "addresses", "prefixes", "state"]
    assert (first.split()[0], second.split()[0]) == ("one", "two")
    assert ran(url, capsys, "drain", "one") == (0, "one: draining; new connections go to members on other hosts\n", "")
    assert json.loads(ran(url, capsys, "drain", "one", "--json")[1]) == {**SHOWN, "draining": True}
    assert "plain host, drained" in ran(url, capsys, "list")[1]
    assert ran(url, capsys, "undrain", "one") == (0, "one: draining ended\n", "")
    assert json.loads(ran(url, capsys, "host", "set", "one", "--no-prefix", "--json")[1]) == {**SHOWN, "prefixes": []}
    assert ran(url, capsys, "host", "remove", "two") == (0, "two: host removed\n", "")
    assert json.loads(ran(url, capsys, "host", "remove", "one", "--json")[1]) == {"removed": "one"}
    assert ran(url, capsys, "host", "list") == (0, "", "")
    assert ran(url, capsys, "host", "list", "--json") == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("words", "code", "why"),
    [
        (("host", "set", "two", "--address", "10.20.0.300"), 1, "'10.20.0.300' is not a valid IP address."),
        (("host", "set", "two", "--prefix", "10.2.0.0/24"), 1, "two needs an address"),
        (("host", "set", "two", "--address", "10.20.0.21"), 1, "address 10.20.0.21 is used by host one"),
        (("host", "set", "one", "--number", "8"), 1, "the number 7 of host one cannot be changed"),
        (("host", "set", "one", "--prefix", "10.1.0.0/33"), 1, "'10.1.0.0/33' is not a valid IP subnet."),
        (("host", "set", "one", "--prefix", "10.1.0.0/24="), 2, "the project is missing"),
        (("host", "set", "one", "--prefix", "10.1.0.0/24", "--no-prefix"), 2, "not allowed with argument"),
        (("host", "set"), 2, "NAME"),
        (("host",), 2, "COMMAND"),
        (("host", "show", "two"), 1, "host two does not exist"),
        (("host", "remove", "two"), 1, "host two does not exist"),
        (("drain", "two"), 1, "`fairlead chassis host set`"),
        (("undrain", "two"), 1, "`fairlead chassis host set`"),
    ],
)
def test_invalid_host_command_is_rejected_and_stores_nothing(
    url: str, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, why: str
):
    ran(url, capsys, *ONE, *BEHIND)
    found, told, said = ran(url, capsys, *words)
    assert (found, told) == (code, "")
    assert why in said
    assert json.loads(ran(url, capsys, "host", "list", "--json")[1]) == [SHOWN]


def test_host_set_help_explains_the_prefix_syntax(url: str, capsys: pytest.CaptureFixture[str]):
    code, told, _ = ran(url, capsys, "host", "set", "--help")
    assert (code, "CIDR[=PROJECT]" in told) == (0, True)
    assert "for members of that project only" in " ".join(told.split())
