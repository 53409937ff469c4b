"""Whatever words tenants choose, no command prints a control character, nor a line that a tenant has written."""

import argparse
import ast
import json
import threading
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import fairlead
from fairlead.cli.main import _make_parser, main
from fairlead.octavia_plugin.findings import Finding, FindingType, sentence
from fairlead.runtime.terminal import escaped, table

HOSTILE = "web\x1b[2K\x1b]0;owned\x07\r\x9b2K\nFAKE line\u2028\u2029FAKE\u202e\u2066drows\u200f\u061c\x7f\x85"
"""A name, a description, an error: what moves cursors, ends lines, and turns the direction of text round."""
CONTROL = {chr(code) for code in (*range(32), *range(127, 160), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F))}
CONTROL |= {chr(code) for code in range(0x2066, 0x206A)}
ROWS = {HOSTILE: HOSTILE}
NODE = {"rows": ROWS, "agent": "heard", "error": HOSTILE}
HOST = {"name": HOSTILE, "number": 1, "addresses": [HOSTILE], "prefixes": [{"cidr": HOSTILE, "project_id": HOSTILE}],
        "draining": False}  # fmt: skip
AGENT = {"heard": True, "version": HOSTILE, "since": HOSTILE, "last_heard": HOSTILE,
         "unapplied": [{"dataplane": HOSTILE, "owner": HOSTILE, "error": HOSTILE}]}  # fmt: skip
CHASSIS = {"name": HOSTILE, "host": HOSTILE, "ports": 1, "alive": True, "in_ovn": True, "agent": AGENT,
           "enrolled": {"until": HOSTILE, "expired": True}, "token_until": HOSTILE, "declared": None, "covered_for": 1,
           "proxies": [{"at": HOSTILE, "project_id": HOSTILE, "serving": 1, "wanted": 2}]}  # fmt: skip
CHANGE = {"create": [HOSTILE], "update": [[HOSTILE, HOSTILE]], "delete": [HOSTILE]}
HEALTH = {"member": HOSTILE, "id": HOSTILE, "address": "fd00::1", "number": 80, "owner": HOSTILE, "owner_name": HOSTILE,
          "monitor": HOSTILE, "by": HOSTILE, "prober": "", "chassis": HOSTILE, "status": "ERROR",
          "since": "2026-01-01T00:00:00+00:00", "latency": 0.001, "error": HOSTILE, "why": HOSTILE}  # fmt: skip
OWNER = {"owner": HOSTILE, "name": HOSTILE, "generation": 1, "applied": 1, "error": HOSTILE, "status": HOSTILE,
         "member_of": [{"pool": HOSTILE, "load_balancer": HOSTILE, "id": HOSTILE, "address": HOSTILE}],
         "down": {HOSTILE: HOSTILE}, "unknown": {HOSTILE: HOSTILE}, "desired": ROWS, "actual": {},
         "dataplanes": {HOSTILE: {"applied": 1, "error": HOSTILE, "desired": {"a": HOSTILE, "b": HOSTILE},
                                  "actual": {"a": HOSTILE, "c": HOSTILE}, "nodes": {HOSTILE: NODE},
                                  "left_out": 1}}}  # fmt: skip
FLOW = {"load_balancer": {"id": HOSTILE, "name": HOSTILE}, "listener": {"id": "2", "name": HOSTILE}, "slot": 5,
        "admitted": True, "endpoint": HOSTILE, "proxy": False, "member": {"name": HOSTILE}, "chassis": HOSTILE,
        "before": HOSTILE, "unheard": [HOSTILE]}  # fmt: skip
TOKEN = {"secret": HOSTILE, "fingerprint": HOSTILE, "addresses": [HOSTILE], "expiresAt": HOSTILE,
         "request": {"name": HOSTILE, "restricted": True, "projects": [HOSTILE]}}  # fmt: skip
THING = {"id": HOSTILE, "name": HOSTILE, "members": [{"id": HOSTILE}], "raw": {HOSTILE: HOSTILE},
         "health_monitor": {"type": HOSTILE}}  # fmt: skip
MANY = {"pools": [THING], "listeners": [THING], "local_ips": [THING], "port_associations": [THING]}
ANSWERS: Mapping[str, Any] = {
    "/operator/plan": {"plan": {HOSTILE: {**CHANGE, "dataplanes": {HOSTILE: CHANGE}}}},
    "/operator/owners/": OWNER,
    "/operator/resync": {"changed": 3, "dataplanes": {HOSTILE: 1}},
    "/operator/health": {"health": [HEALTH]},
    "/operator/flow": FLOW,
    "/operator/chassis/h1/rows": {"dataplanes": {HOSTILE: {HOSTILE: ROWS}}},
    "/operator/chassis/h1/token": {"token": "t"},
    "/operator/chassis/": CHASSIS,
    "/operator/chassis": {"chassis": [CHASSIS]},
    "/operator/hosts/": HOST,
    "/operator/hosts": {"hosts": [HOST]},
    "/1.0/certificates?": {"metadata": [{"fingerprint": HOSTILE, "name": HOSTILE, "restricted": True,
                                         "projects": [HOSTILE]}]},
    "/1.0/certificates": {"metadata": {"metadata": TOKEN}},
    "/1.0/operations": {"metadata": {"running": [{"id": HOSTILE, "metadata": TOKEN}]}},
    "/load-balancer/v2": {**MANY, "pool": THING, "listener": THING, "local_ip": THING},
    "/network/v2": {**MANY, "local_ip": THING},
    "": HOSTILE,
}  # fmt: skip
"""Beginning of a path -> the answer; the first that fits."""
PRINTED: Mapping[str, tuple[str, ...]] = {
    "plan": ("plan", "plan --host=h1"),
    "show": ("show web",),
    "resync": ("resync",),
    "health": ("health",),
    "trace": ("trace 10.0.0.9:1 10.0.0.10:80",),
    "alive": ("alive", "alive --ready"),
    "chassis list": ("chassis list",),
    "chassis show": ("chassis show h1",),
    "chassis enroll": ("chassis enroll h1",),
    "chassis revoke": ("chassis revoke h1",),
    "chassis drain": ("chassis drain h1",),
    "chassis undrain": ("chassis undrain h1",),
    "chassis host list": ("chassis host list",),
    "chassis host show": ("chassis host show h1",),
    "chassis host set": ("chassis host set h1",),
    "chassis host remove": ("chassis host remove h1",),
    "lxd token": ("lxd token laptop",),
    "lxd tokens": ("lxd tokens",),
    "lxd revoke": ("lxd revoke laptop",),
    "lxd certificates": ("lxd certificates",),
    "lxd forget": ("lxd forget ab",),
    "pool show": ("pool show web",),
    "pool set": ("pool set web --locality none",),
    "listener show": ("listener show web",),
    "listener set": ("listener set web --no-raw",),
    "local-ip show": ("local-ip show web",),
    "local-ip set": ("local-ip set web --fallback drop",),
}
"""Command -> how it is typed."""
NO_TENANT = {
    *("server", "agent", "octavia", *(f"config {name}" for name in ("template", "show", "check", "migrate"))),
    *(f"store {name}" for name in ("copy", "verify", "backup", "restore", "reopen")),
}
"""Commands that print no tenants' words, or are in the tests below."""


class Answering(BaseHTTPRequestHandler):
    """All of its words are hostile, and it refuses what has `refused` in its path."""

    def do_GET(self) -> None:
        path = next(each for each in ANSWERS if self.path.startswith(each))
        refuses = "refused" in self.path
        answer = {"error": HOSTILE, "type": "error"} if refuses else ANSWERS[path]
        body = json.dumps(answer).encode() if path else HOSTILE.encode()
        self.send_response(400 if refuses else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_DELETE = do_PUT = do_GET  # noqa: N815 - the library's name

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """URL of a server that answers so."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def leaves(parser: argparse.ArgumentParser, words: str = "") -> Iterator[str]:
    """Every command of a parser."""
    groups = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for group in groups:
        for name, each in group.choices.items():
            yield from leaves(each, f"{words} {name}".strip())
    if not groups:
        yield words


def test_every_command_with_tenant_data_is_covered():
    commands = set(leaves(_make_parser()))
    assert commands - PRINTED.keys() - {"lab"} == NO_TENANT


@pytest.fixture
def printed(url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """All that a command prints."""
    monkeypatch.setenv("FAIRLEAD_URL", url)
    monkeypatch.setenv("FAIRLEAD_SERVER_LISTEN", url.removeprefix("http://"))
    monkeypatch.setenv("OS_ENDPOINT", url)

    def type_words(words: str) -> str:
        main(words.split())
        said = capsys.readouterr()
        return said.out + said.err

    return type_words


QUIET = ("chassis enroll", "chassis revoke", "chassis drain", "chassis undrain", "chassis host remove", "lxd")
"""Their success has no word of the server's."""


@pytest.mark.parametrize("words", [each for typed in PRINTED.values() for each in typed])
def test_no_command_prints_control_characters_or_forged_lines(words: str, printed: Callable[[str], str]):
    text = printed(words)
    assert sorted((CONTROL - {"\n"}) & set(text)) == []
    assert "owned" in text or words.startswith(QUIET), text
    assert [line for line in text.split("\n") if line.lstrip().startswith("FAKE")] == []


@pytest.mark.parametrize(
    "words",
    ["show refused", "chassis show refused", "lxd forget refused", "pool show refused"],
)
def test_no_error_message_prints_control_characters(words: str, printed: Callable[[str], str]):
    text = printed(words)
    assert sorted((CONTROL - {"\n"}) & set(text)) == []
    assert ("owned" in text, text.count("\n")) == (True, 1), text


@pytest.mark.parametrize("what", FindingType)
def test_octavia_difference_is_one_line_without_control_characters(what: FindingType):
    place = {"addresses": [HOSTILE], "network": HOSTILE}
    seen = place if what in (FindingType.ORPHAN, FindingType.KEPT_ORPHAN) else HOSTILE
    found = Finding(what=what, balancer="1", id="2", attribute="name", octavia=seen, fairlead=HOSTILE)
    assert sorted(CONTROL & set(sentence(found))) == []


def test_table_columns_are_aligned_with_hostile_values():
    assert table([("A", "B"), (HOSTILE, "x"), ("y", "z")])[2].index("z") == len(escaped(HOSTILE)) + 2


def test_only_the_terminal_module_prints():
    """A line that is printed elsewhere would go past it."""
    root = Path(fairlead.__file__).parent
    printing = set()
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(func=ast.Name(id="print")):
                    printing.add(path.relative_to(root))
                case ast.Attribute(attr="write" | "writelines", value=ast.Attribute(attr="stdout" | "stderr")):
                    printing.add(path.relative_to(root))
    assert {each for each in printing if each.parts[0] != "lab"} == {Path("runtime/terminal.py")}
