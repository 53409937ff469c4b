"""A complete server and a complete agent as processes, each with its option file: start, service, stop.

The tests find an import that only the start needs, and a part that the start omits.
"""

import sqlite3
from pathlib import Path

import httpx
import pytest

from fairlead.agent_protocol.enrolment import read_token
from fairlead.node.connection import Connection, Remote
from fairlead.node.identity import enrol
from harness.ports import free_port
from harness.supervised import supervised
from harness.waiting import DEADLINE

pytestmark = pytest.mark.slow


def write_options(path: Path, **sections: dict[str, str | int]) -> Path:
    lines = [
        f"[{name}]\n" + "".join(f"{key} = {value!r}\n" for key, value in own.items()) for name, own in sections.items()
    ]
    path.write_text("".join(lines))
    return path


async def test_server_with_all_listeners_starts_serves_without_ovn_and_stops(tmp_path: Path):
    """A server with all listeners starts, serves its APIs while OVN is down, and stops."""
    where, for_nodes, for_lxd = (f"127.0.0.1:{free_port()}" for _ in range(3))
    options = write_options(
        tmp_path / "fairlead.toml",
        server={"listen": where},
        store={"path": str(tmp_path / "store.db")},
        nodes={"listen": for_nodes, "socket": f"unix:{tmp_path}/agent.socket", "socket_chassis": "one"},
        lxd={"listen": for_lxd, "socket": f"unix:{tmp_path}/lxd.socket"},
        health={"prober": "agents"},
        ovn={"northbound": f"unix:{tmp_path}/nobody.sock", "southbound": f"unix:{tmp_path}/nobody.sock"},
    )
    own = {"WATCHDOG_USEC": "200000"}
    with supervised(tmp_path, ("server", "--config", str(options)), own) as server:
        with httpx.Client(base_url=f"http://{where}", timeout=DEADLINE) as client:
            assert client.get("/healthz").status_code == 200
            network = client.post("/network/v2.0/networks", json={"network": {"name": "n"}})
            assert (network.status_code, network.json()["network"]["name"]) == (201, "n"), network.text
            assert client.get("/load-balancer/v2/lbaas/loadbalancers").json()["loadbalancers"] == []
            assert "fairlead_event_loop_lag_seconds_bucket" in client.get("/metrics").text
            token = client.post("/operator/chassis/one/token").json()["token"]
        await connect_to_server(token, tmp_path)
        server.wait_for("WATCHDOG=1")
        assert server.terminate() == 0, server.log.read_text()
    assert "Traceback" not in server.log.read_text()
    with sqlite3.connect(tmp_path / "store.db") as store:
        assert store.execute("pragma integrity_check").fetchone() == ("ok",)
    store.close()


async def connect_to_server(token: str, folder: Path) -> None:
    """Call the listeners that are not for tenants: each identifies or rejects its caller."""
    identity = await enrol(read_token(token), folder / "one.pem")
    assert identity.chassis == "one"
    for remote, path, key in (
        (Remote(url=f"unix:{folder}/agent.socket"), "/agent/openapi.json", "openapi"),
        (Remote(url=f"unix:{folder}/lxd.socket"), "/1.0", "metadata"),
    ):
        connection = Connection(remote, DEADLINE)
        assert key in await connection.request("GET", path)
        connection.close()


def test_agent_starts_without_switch_or_server_and_stops(tmp_path: Path):
    options = write_options(
        tmp_path / "fairlead.toml",
        agent={
            "servers": f"http://127.0.0.1:{free_port()}",
            "identity_file": str(tmp_path / "identity.pem"),
            "state_file": str(tmp_path / "agent.json"),
            "run_dir": str(tmp_path),
        },
    )
    with supervised(tmp_path, ("agent", "--config", str(options)), {"WATCHDOG_USEC": "200000"}) as agent:
        agent.wait_for("WATCHDOG=1")
        assert agent.terminate() == 0, agent.log.read_text()
    assert "Traceback" not in agent.log.read_text()
