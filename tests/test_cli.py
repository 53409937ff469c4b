"""The command: help that a person can use, errors that say what is wrong, exit codes that a script can use."""

import ast
import base64
import json
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from fairlead import __version__
from fairlead.cli.main import main
from harness.waiting import DEADLINE


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    "argv",
    [
        (),
        ("server",),
        ("agent",),
        ("plan",),
        ("show",),
        ("resync",),
        ("lab",),
        ("lab", "up"),
        ("lxd",),
        ("lxd", "token"),
        ("octavia",),
        ("octavia", "sync"),
        ("alive",),
        ("pool",),
        ("pool", "set"),
        ("pool", "show"),
        ("listener", "set"),
        ("listener", "show"),
        ("local-ip", "set"),
        ("local-ip", "show"),
    ],
)
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]):
    code, out, _ = run(capsys, *argv, "--help")
    assert (code, "usage: fairlead" in out) == (0, True)


def test_version_option_prints_the_version(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "--version") == (0, f"fairlead {__version__}\n", "")


def test_config_template_is_printed_and_check_reports_an_invalid_option(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    assert "[ovn]" in run(capsys, "config", "template")[1]
    assert run(capsys, "server", "--check")[:2] == (0, "the configuration is valid\n")
    assert run(capsys, "agent", "--check")[:2] == (0, "the configuration is valid\n")
    monkeypatch.setenv("FAIRLEAD_SERVER_LISTEN", "0.0.0.0:1")
    code, out, err = run(capsys, "server", "--check")
    assert (code, out, "is reachable from other hosts" in err) == (2, "", True)


def test_check_reports_a_missing_or_malformed_password_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FAIRLEAD_SERVER_AUTHENTICATION", "http_basic")
    monkeypatch.setenv("FAIRLEAD_SERVER_PASSWORD_FILE", str(tmp_path / "users"))
    code, out, err = run(capsys, "server", "--check")
    assert (code, out, f"server.password_file: {tmp_path}/users: No such file" in err) == (2, "", True)
    (tmp_path / "users").touch(mode=0o600)
    (tmp_path / "users").write_text("x:y:z:nonsense\n")
    code, out, err = run(capsys, "server", "--check")
    assert (code, out, "users:1: expected user:bcrypt hash:project:role" in err) == (2, "", True)


def test_keystone_authentication_needs_no_user_password_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    (tmp_path / "password").touch(mode=0o600)
    (tmp_path / "password").write_text("secret")
    monkeypatch.setenv("FAIRLEAD_SERVER_AUTHENTICATION", "keystone")
    monkeypatch.setenv("FAIRLEAD_KEYSTONE_URL", "http://127.0.0.1:5000")
    monkeypatch.setenv("FAIRLEAD_KEYSTONE_PASSWORD_FILE", str(tmp_path / "password"))
    assert run(capsys, "server", "--check") == (0, "the configuration is valid\n", "")


@pytest.mark.parametrize("argv", [("plan",), ("show", "web"), ("resync",)])
def test_unreachable_server_is_named_in_the_error(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]):
    code, out, err = run(capsys, *argv, "--url", "http://127.0.0.1:1")
    assert (code, out, "http://127.0.0.1:1 does not answer" in err) == (1, "", True)


CHANGE = {"create": ["Row a"], "update": [["Row b 1", "Row b 2"]], "delete": ["Row c"]}
UNHEARD = {1: [], 2: ["h2"], 3: [f"h{number}" for number in range(2, 7)]}
"""Port of a client -> the hosts on the way of its flow that do not hear of changes."""
ANSWERS: dict[str, object] = {
    "/operator/plan": {"plan": {"network/n": {**CHANGE, "dataplanes": {"ovn": CHANGE}}}},
    "/operator/owners/web": {
        "owner": "loadbalancer/1", "name": "web", "generation": 7, "applied": 6, "error": "toy: refused",
        "status": "ERROR", "down": {}, "unknown": {}, "desired": {"a": "Row a"}, "actual": {},
        "dataplanes": {
            "ovn": {"applied": 7, "error": None, "desired": {"k": "Row k"}, "actual": {"k": "Row k"}},
            "toy": {"applied": 6, "error": "refused", "desired": {"a": "Row a"}, "actual": {}},
        },
    },
    "/operator/owners/api": {
        "owner": "loadbalancer/2", "name": "", "generation": 7, "applied": 7, "error": None,
        "status": "ACTIVE", "down": {}, "unknown": {}, "desired": {}, "actual": {},
        "dataplanes": {"native": {"left_out": 3, "nodes": {
            "h1": {"rows": {"a": "Row a", "b": "Row b"}, "agent": "heard", "error": None},
            "h2": {"rows": {"a": "Row c"}, "agent": "silent", "error": None},
            "h3": {"rows": {}, "agent": "none", "error": None},
        }}},
    },
    "/operator/owners/api?chassis=h1": {
        "owner": "loadbalancer/2", "name": "", "generation": 7, "applied": 7, "error": None,
        "status": "ACTIVE", "down": {}, "unknown": {}, "desired": {}, "actual": {},
        "dataplanes": {"native": {"left_out": 0, "nodes": {
            "h1": {"rows": {"a": "Row a"}, "agent": "heard", "error": "refused"}}}},
    },
    **{f"/operator/flow?client=10.0.0.9%3A{port}&to=10.0.0.10%3A80&protocol=tcp": {
        "load_balancer": {"id": "1", "name": "web"}, "listener": {"id": "2", "name": ""}, "slot": 5, "admitted": True,
        "endpoint": "10.1.0.7:80", "proxy": False, "member": None, "chassis": "h1", "before": None, "unheard": unheard,
    } for port, unheard in UNHEARD.items()},
    "/operator/chassis/h1/rows": {"dataplanes": {"native": {"host/h2": {"w": "Way 2"}, "loadbalancer/2": {"a": "A"}}}},
    "/1.0/certificates": {"metadata": {"metadata": {"secret": "s", "fingerprint": "f", "addresses": ["h:1"],
                                                    "expiresAt": "2026-01-01T00:00:00Z"}}},
    "/1.0/operations?recursion=1": {"metadata": {"running": [
        {"id": "i", "metadata": {"expiresAt": "2026-01-01T00:00:00Z",
                                 "request": {"name": "laptop", "restricted": True, "projects": ["shop"]}}}]}},
    "/1.0/operations/i": {"metadata": None},
    "/1.0/certificates/ab": {"metadata": None},
    "/1.0/certificates?recursion=1": {"metadata": [
        {"fingerprint": "abcd", "name": "laptop", "restricted": False, "projects": []},
        {"fingerprint": "aa11", "name": "twins", "restricted": True, "projects": ["shop"]},
        {"fingerprint": "bb22", "name": "twins", "restricted": True, "projects": []}]},
    "/1.0/certificates/abcd": {"metadata": None},
    "/operator/resync": {"changed": 3, "dataplanes": {"ovn": 1, "toy": 2}},
}  # fmt: skip


@pytest.fixture
def operator() -> Iterator[str]:
    """A server that has these answers alone; its address."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(ANSWERS[self.path]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_DELETE = do_GET  # noqa: N815 - the library's name

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


def test_drift_and_errors_are_listed_by_dataplane(capsys: pytest.CaptureFixture[str], operator: str):
    code, out, err = run(capsys, "plan", "--url", operator)
    assert (code, out) == (3, "network/n in ovn\n  + Row a\n  - Row c\n  ~ Row b 1\n  > Row b 2\n")
    assert err == "1 owners differ\n"
    code, out, _ = run(capsys, "show", "web", "--url", operator)
    assert (code, out.splitlines()) == (
        3,
        [
            "loadbalancer/1 'web'  ERROR  generation 7, applied 6",
            "  toy: refused",
            "  ovn: applied 7",
            "    Row k",
            "  toy: applied 6, refused",
            "  + Row a",
        ],
    )
    code, out, _ = run(capsys, "resync", "--url", operator)
    assert (code, out) == (0, "3 objects differed and are being reconciled (ovn: 1, toy: 2)\n")


def test_plain_host_rows_are_listed_by_host(capsys: pytest.CaptureFixture[str], operator: str):
    code, out, _ = run(capsys, "show", "api", "--url", operator)
    assert (code, out.splitlines()) == (
        0,
        [
            "loadbalancer/2  ACTIVE  generation 7, applied 7",
            "  native on h1",
            "    Row a",
            "    Row b",
            "  native on h2, agent stale",
            "    Row c",
            "  native on h3, no agent",
            "  native on 3 more: --host NAME",
        ],
    )
    code, out, _ = run(capsys, "show", "api", "--host", "h1", "--url", operator)
    assert (code, out.splitlines()[1:]) == (3, ["  native on h1, refused", "    Row a"])
    code, out, _ = run(capsys, "show", "api", "--host", "h1", "--json", "--url", operator)
    assert (code, json.loads(out)["dataplanes"]["native"]["left_out"]) == (3, 0)
    code, out, _ = run(capsys, "plan", "--host", "h1", "--url", operator)
    assert (code, out) == (0, "host/h2 in native on h1\n    Way 2\nloadbalancer/2 in native on h1\n    A\n")
    told = json.loads(run(capsys, "plan", "--host", "h1", "--json", "--url", operator)[1])
    assert told["native"]["host/h2"] == {"w": "Way 2"}


def test_agent_plan_without_a_host_or_server_state_is_an_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    code, _, err = run(capsys, "agent", "--plan")
    assert (code, "agent.host is not set" in err) == (1, True)
    monkeypatch.setenv("FAIRLEAD_AGENT_HOST", "h1")
    monkeypatch.setenv("FAIRLEAD_AGENT_STATE_FILE", str(tmp_path / "agent.json"))
    code, _, err = run(capsys, "agent", "--plan")
    assert (code, err.splitlines()[-1].startswith("fairlead: no slice of host h1 in ")) == (1, True)


def test_lxd_commands_manage_tokens_and_trusted_certificates(capsys: pytest.CaptureFixture[str], operator: str):
    code, out, _ = run(capsys, "lxd", "token", "laptop", "--project", "shop", "--url", operator)
    assert code == 0
    token = json.loads(base64.b64decode(out))
    assert token == {
        "client_name": "laptop", "secret": "s", "fingerprint": "f", "addresses": ["h:1"],
        "expires_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    told = json.loads(run(capsys, "lxd", "token", "laptop", "--json", "--url", operator)[1])
    assert (told["token"], told["addresses"]) == (out.strip(), ["h:1"])
    line = "i  2026-01-01T00:00:00Z  restricted to shop  laptop\n"
    assert run(capsys, "lxd", "tokens", "--url", operator)[:2] == (0, line)
    assert json.loads(run(capsys, "lxd", "tokens", "--json", "--url", operator)[1])[0]["projects"] == ["shop"]
    assert json.loads(run(capsys, "lxd", "revoke", "laptop", "--json", "--url", operator)[1]) == {"revoked": ["i"]}
    code, out, _ = run(capsys, "lxd", "certificates", "--url", operator)
    assert (code, out.splitlines()[0]) == (0, "abcd  administrator  laptop")
    assert run(capsys, "lxd", "forget", "ab", "--url", operator)[:2] == (0, "")
    forgotten = run(capsys, "lxd", "forget", "laptop", "--json", "--url", operator)
    assert (forgotten[0], json.loads(forgotten[1])) == (0, {"forgotten": "abcd"})
    code, out, err = run(capsys, "lxd", "forget", "twins", "--url", operator)
    assert (code, out) == (1, "")
    assert err == "fairlead: 2 certificates have the name 'twins'; give one of the fingerprints aa11, bb22\n"


def test_unknown_command_exits_with_2(capsys: pytest.CaptureFixture[str]):
    assert run(capsys, "bogus")[0] == 2


def test_unreachable_bridge_is_reported_by_agent_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FAIRLEAD_AGENT_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("FAIRLEAD_AGENT_BRIDGE", "br-nowhere")
    code, out, err = run(capsys, "agent", "--once")
    assert (code, out, "ovs-ofctl" in err) == (1, "", True)


@pytest.mark.parametrize("words", [(), ("10.0.0.9:40000",), ("--to", "10.0.0.10:80"), ("a", "b", "--from", "c")])
def test_trace_rejects_incomplete_arguments_and_prints_the_syntax(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
):
    code, out, err = run(capsys, "trace", *words)
    assert (code, out) == (1, "")
    assert "ADDRESS:PORT" in err


@pytest.mark.parametrize(
    ("port", "doubt"),
    [
        (1, ""),
        (
            2,
            "; may be outdated: the agent of host h2 is unresponsive, so the kernel there may have an older"
            " configuration",
        ),
        (
            3,
            "; may be outdated: the agents of hosts h2, h3, h4 and 2 more are unresponsive, so the kernel there may"
            " have an older configuration",
        ),
    ],
)
def test_trace_names_the_hosts_with_unresponsive_agents(
    capsys: pytest.CaptureFixture[str], operator: str, port: int, doubt: str
):
    flow = f"10.0.0.9:{port}", "10.0.0.10:80"
    code, out, _ = run(capsys, "trace", *flow, "--url", operator)
    assert (code, out) == (0, f"slot 5 of load balancer web: member 10.1.0.7:80 on host h1{doubt}\n")
    code, out, _ = run(capsys, "trace", *flow, "--json", "--url", operator)
    assert (code, json.loads(out)["unheard"]) == (0, UNHEARD[port])


def test_a_migrated_configuration_is_printed_byte_for_byte(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "fairlead.toml"
    path.write_text('[server]\n\tlisten = "[::1]:80"\t# caf\u00e9\n\thosts = "a:1"\n')
    code, out, _ = run(capsys, "config", "migrate", str(path))
    assert (code, out) == (0, '[server]\n\tlisten = "[::1]:80"\t# caf\u00e9\n\tallowed_hosts = "a:1"\n')


def test_effective_options_are_printed_as_toml(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setenv("FAIRLEAD_OVN_OWNER_TAG", "a\x7f\x85\u2028\tb")
    code, out, _ = run(capsys, "config", "show")
    assert (code, tomllib.loads(out)) == (0, {"ovn": {"owner_tag": "a\x7f\x85\u2028\tb"}})


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_version_and_help_import_no_server_lab_or_model(option: str):
    """Completion and scripts call them often, so they start in a fraction of a second."""
    program = f"""
import sys
from fairlead.cli.main import main
try:
    main(["{option}"])
except SystemExit:
    pass
print(sorted(name for name in sys.modules if name.startswith("fairlead.")), file=sys.stderr)
print([name for name in ("asyncio", "yaml", "uvloop", "cryptography") if name in sys.modules], file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=DEADLINE)
    ours, heavy = map(ast.literal_eval, done.stderr.splitlines())
    packages = {name.split(".")[1] for name in ours}
    assert (packages, heavy) == ({"cli", "config", "http", "runtime"}, [])
    assert [name for name in ours if name.startswith("fairlead.config.")] == ["fairlead.config.errors"]
