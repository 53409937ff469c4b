"""The command against the whole application: its requests, output and exit codes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fairlead.cli.main import main
from fairlead.cli.tenant.commands import parse_monitor
from fairlead.http.server_client import ApiClient
from harness.served import served, write_clouds

MEMBER = {"address": "10.0.0.200", "protocol_port": 8080}
POOL = {"protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": [MEMBER]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a clouds.yaml for a server that has pools of these names."""
    path = tmp_path_factory.mktemp("tenant")
    with served(path) as url:
        write_clouds(path, url)
        server = ApiClient(url=url)
        network = server.request("POST", "/network/v2.0/networks", {"network": {"name": "net"}})["network"]["id"]
        subnet = {"network_id": network, "cidr": "10.0.0.0/24", "ip_version": 4}
        made = server.request("POST", "/network/v2.0/subnets", {"subnet": subnet})["subnet"]["id"]
        listeners = [
            {
                "name": "front" if name == "web" else "",
                "protocol": "TCP",
                "protocol_port": port,
                "default_pool": {**POOL, "name": name},
            }
            for port, name in ((80, "web"), (81, "twin"), (82, "other"))
        ]
        body = {"loadbalancer": {"name": "lb", "vip_subnet_id": made, "listeners": listeners}}
        lbaas = "/load-balancer/v2/lbaas"
        balancer = server.request("POST", f"{lbaas}/loadbalancers", body)["loadbalancer"]
        other = next(pool["id"] for pool in balancer["pools"] if pool["name"] == "other")
        server.request("PUT", f"{lbaas}/pools/{other}", {"pool": {"name": "twin"}})
        local_ip = {"local_ip": {"name": "cache", "network_id": network}}
        cache = server.request("POST", "/network/v2.0/local_ips", local_ip)["local_ip"]["id"]
        port = server.request("POST", "/network/v2.0/ports", {"port": {"network_id": network}})["port"]["id"]
        replica = {"port_association": {"fixed_port_id": port}}
        server.request("POST", f"/network/v2.0/local_ips/{cache}/port_associations", replica)
        yield path


@pytest.fixture(autouse=True)
def cloud(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(folder / "clouds.yaml"))
    monkeypatch.setenv("OS_CLOUD", "fairlead")


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(argv)
    except SystemExit as end:
        code = int(str(end.code))
    said = capsys.readouterr()
    return code, said.out, said.err


def show(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    code, out, err = run(capsys, *argv, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("locality", ["chassis", "zone", "none"])
def test_pool_set_changes_only_the_locality(capsys: pytest.CaptureFixture[str], locality: str):
    before = show(capsys, "pool", "show", "web")
    after = show(capsys, "pool", "set", "web", "--locality", locality)
    assert after["locality"] == locality.upper()
    shown = show(capsys, "pool", "show", before["id"])
    kept = before.keys() - {"locality", "updated_at", "provisioning_status"}
    assert {key: shown[key] for key in kept} == {key: before[key] for key in kept}
    assert shown["locality"] == locality.upper()


def test_pool_set_accepts_down_member_and_locality_together(capsys: pytest.CaptureFixture[str]):
    before = show(capsys, "pool", "show", "web")
    after = show(capsys, "pool", "set", "web", "--down-member", "keep", "--locality", "zone")
    assert (before["down_member"], after["down_member"], after["locality"]) == ("KEEP", "KEEP", "ZONE")
    show(capsys, "pool", "set", "web", "--locality", before["locality"].lower())


def test_pool_show_prints_one_line_per_column(capsys: pytest.CaptureFixture[str]):
    code, out, err = run(capsys, "pool", "show", "web")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, err, lines["name"], lines["protocol"]) == (0, "", "web", "TCP")


def test_listener_set_no_raw_shows_raw_as_none(capsys: pytest.CaptureFixture[str]):
    assert show(capsys, "listener", "set", "front", "--no-raw")["raw"] is None
    assert "raw                  none" in run(capsys, "listener", "show", "front")[1].splitlines()


MONITOR = {"type": "TCP", "port": 80, "delay": 5, "timeout": 3, "max_retries": 3, "max_retries_down": 3}


def test_local_ip_set_changes_only_the_given_attributes(capsys: pytest.CaptureFixture[str]):
    before = show(capsys, "local-ip", "show", "cache")
    assert (before["fallback"], before["ip_mode"], before["health_monitor"]) == ("forward", "translate", None)
    typed = "type=tcp,port=80,delay=5,timeout=3,max-retries=3"
    after = show(capsys, "local-ip", "set", "cache", "--fallback", "reject", "--health-monitor", typed)
    changing = {"updated_at", "revision_number", "fallback", "health_monitor"}
    assert {key: after[key] for key in before.keys() - changing} == {
        key: before[key] for key in before.keys() - changing
    }
    assert (after["fallback"], after["health_monitor"]) == ("reject", MONITOR)
    lines = run(capsys, "local-ip", "show", before["id"])[1].splitlines()
    assert "fallback           reject" in lines
    assert any(line.startswith("port_associations ") and "operating_status=OFFLINE" in line for line in lines)
    after = show(capsys, "local-ip", "set", before["id"], "--no-health-monitor", "--ip-mode", "passthrough")
    assert (after["fallback"], after["health_monitor"], after["ip_mode"]) == ("reject", None, "passthrough")
    after = show(capsys, "local-ip", "set", "cache", "--ip-mode", "translate", "--fallback", "drop")
    assert (after["ip_mode"], after["fallback"]) == ("translate", "drop")


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (("local-ip", "show", "nobody"), 1, "no Local IP 'nobody'"),
        (("local-ip", "set", "cache", "--fallback", "away"), 2, "invalid choice: 'away'"),
        (("local-ip", "set", "cache", "--health-monitor", "type=http,port=80"), 1, "health_monitor"),
        (("local-ip", "set", "cache", "--health-monitor", "type=tcp"), 1, "'port' is required"),
        (("pool", "show", "nobody"), 1, "no pool 'nobody'"),
        (("pool", "set", "twin", "--locality", "none"), 1, "2 objects have the name 'twin'; "),
        (("pool", "set", "web", "--locality", "rack"), 2, "invalid choice: 'rack'"),
        (("pool", "set", "web"), 2, "no option to set"),
        (("pool", "set", "web", "--down-member", "flee"), 2, "invalid choice: 'flee'"),
        (("pool", "set", "web", "--down-member", "reset"), 1, "down_member RESET"),
        (("listener", "set", "front", "--raw", "5353482d"), 2, "expected LOCATION:VALUE"),
        (("listener", "set", "front", "--raw", "0:535"), 1, "two for each"),
        (("listener", "set", "front", "--raw", "4096:53"), 1, "4095"),
        (("listener", "set", "front", "--raw", "0:5353"), 1, "option: raw"),
        (("listener", "set", "front", "--raw", "0:53", "--no-raw"), 2, "not allowed with"),
        (("listener", "set", "front"), 2, "no option to set"),
        (("pool", "show", "web", "--os-cloud", "other"), 2, "no cloud 'other'"),
        (("local-ip", "set", "x"), 2, "no option to set"),
        (("local-ip", "set", "x", "--health-monitor", "port=eighty"), 2, "port: expected an integer, got 'eighty'"),
        (("local-ip", "set", "x", "--health-monitor", "port=80", "--no-health-monitor"), 2, "not allowed with"),
    ],
)
def test_invalid_command_prints_an_error_and_no_output(
    capsys: pytest.CaptureFixture[str], argv: tuple[str, ...], code: int, words: str
):
    ended, out, err = run(capsys, *argv)
    assert (ended, out, words in err) == (code, "", True)


def test_unreachable_server_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("OS_CLOUD")
    monkeypatch.setenv("OS_ENDPOINT", "http://127.0.0.1:1")
    code, out, err = run(capsys, "pool", "show", "web")
    assert (code, out, "http://127.0.0.1:1/load-balancer does not answer" in err) == (1, "", True)


def test_health_monitor_argument_is_parsed():
    text = "type=udp-connect,port=53,delay=5,timeout=3,max-retries=3,max-retries-down=2"
    assert parse_monitor(text) == {
        "type": "UDP-CONNECT",
        "port": 53,
        "delay": 5,
        "timeout": 3,
        "max_retries": 3,
        "max_retries_down": 2,
    }
