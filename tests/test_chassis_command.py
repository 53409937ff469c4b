"""`fairlead chassis`, and how a node becomes one that is known by its own command."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from fairlead import cli
from harness.nodes import Deployed, play

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
WELL = {
    "name": "one",
    "host": "h1",
    "in_ovn": True,
    "alive": True,
    "zones": [],
    "ports": 3,
    "covered_for": 0,
    "proxies": [{"at": "net1", "project_id": "demo", "serving": 2, "wanted": 2}],
    "agent": AGENT,
    "enrolled": {"since": "2026-01-01T12:00:00Z", "until": "2026-04-01T12:00:00Z"},
    "token_until": None,
}
FAILING = {"dataplane": "haproxy", "owner": "loadbalancer/web", "error": "no such file"}


def run(monkeypatch: pytest.MonkeyPatch, answer: Any, *words: str) -> int:
    monkeypatch.setattr(cli, "_ask", lambda arguments, method, path, body=None: answer)
    return cli.main(["chassis", *words])


def test_a_table_for_people_and_json_for_programs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    assert run(monkeypatch, {"chassis": [WELL]}, "list") == 0
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["chassis", "host", "ports", "agent"]
    assert row.split()[:5] == ["one", "h1", "3", "heard", "0.1"]
    assert run(monkeypatch, {"chassis": [WELL]}, "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == [WELL]


@pytest.mark.parametrize(
    "row",
    [
        {**WELL, "agent": {**AGENT, "heard": False}},
        {**WELL, "agent": {**AGENT, "unapplied": [FAILING]}},
        {**WELL, "alive": False},
        {**WELL, "proxies": [{"at": "net1", "project_id": "demo", "serving": 0, "wanted": 2}]},
    ],
    ids=["silent", "failing", "dead", "not serving"],
)
def test_what_is_not_well_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch, row: Any):
    assert run(monkeypatch, {"chassis": [WELL, row]}, "list") == 3
    assert run(monkeypatch, row, "show", "one") == 3
    assert run(monkeypatch, WELL, "show", "one") == 0


def test_what_could_not_be_applied_is_shown(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    run(monkeypatch, {**WELL, "agent": {**AGENT, "unapplied": [FAILING]}}, "show", "one")
    told = capsys.readouterr().out
    assert "haproxy loadbalancer/web: no such file" in told
    assert "of net1 for project demo: serves 2 of 2 listeners" in told


def test_a_node_is_enrolled_by_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    own = tmp_path / "own" / "identity.pem"
    monkeypatch.setenv("FAIRLEAD_AGENT_IDENTITY", str(own))

    async def story(stage: Deployed) -> None:
        (tmp_path / "token").write_text(await stage.token("one") + "\n")
        words = ["agent", "--enroll", str(tmp_path / "token")]
        assert await asyncio.to_thread(cli.main, words) == 0
        assert set(stage.snapshot.nodes) == {"one"}
        assert own.stat().st_mode & 0o777 == 0o600
        assert await asyncio.to_thread(cli.main, words) == 1

    play(tmp_path, story)
    told = capsys.readouterr()
    assert f"{own}: chassis one, until" in told.out
    assert "the token is not good" in told.err
