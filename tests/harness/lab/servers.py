"""Fairlead servers as an operator runs them: processes with a store, a log and an address."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import httpx

from fairlead.lab import Lab, databases
from harness.lab.site import ACTIVE_TIMEOUT, MARKED_TABLES
from harness.ports import free_port
from harness.waiting import wait_equal, wait_until

BINARIES = Path(sys.executable).parent
LBS = "/load-balancer/v2.0/lbaas/loadbalancers"
LISTENERS = "/load-balancer/v2.0/lbaas/listeners"
POOLS = "/load-balancer/v2.0/lbaas/pools"
NETWORKS = "/network/v2.0/networks"
SUBNETS = "/network/v2.0/subnets"


@dataclass(frozen=True)
class FairleadProcess:
    process: "subprocess.Popen[bytes]"
    client: httpx.Client
    log: Path
    url: str

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def create(self, path: str, root: str, **body: Any) -> Any:
        answer = self.client.post(path, json={root: body})
        assert answer.status_code == 201, answer.text
        return answer.json()[root]

    def balancer(self, identity: str) -> Any:
        return self.client.get(f"{LBS}/{identity}").json()["loadbalancer"]

    def balancers(self) -> dict[str, Any]:
        return {each["id"]: each for each in self.client.get(f"{LBS}?limit=1000").json()["loadbalancers"]}

    def wait_for(self, identity: str, status: str) -> None:
        wait_equal(lambda: self.balancer(identity)["provisioning_status"], status)

    def fairlead(self, *argv: str) -> tuple[int, str]:
        done = subprocess.run(
            [BINARIES / "fairlead", *argv, "--url", self.url], capture_output=True, text=True, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def is_ready(self) -> bool:
        return self.client.get("/readyz").status_code == 200

    def is_holder(self) -> bool:
        """Whether this server is the leader, which writes."""
        return self.client.get("/readyz").text == "ready\n"

    def is_idle(self) -> bool:
        """Whether OVN has the desired rows, by the server's plan, for which it reads OVN."""
        answer = self.client.get("/operator/plan")
        return answer.status_code == 200 and answer.json()["plan"] == {}


class HasNorthbound(Protocol):
    @property
    def northbound(self) -> str:
        """The remote of its Northbound database."""


@contextmanager
def serving(
    lab: HasNorthbound, folder: Path, *, port: int = 0, program: str = "fairlead.cli.main", **environment: str
) -> Iterator[FairleadProcess]:
    """Run a server with its store in the folder, and kill it at the end.

    Without a connection to the Southbound database a server is not ready after half a minute.
    """
    port, log = port or free_port(), folder / f"{len(list(folder.glob('*.log')))}.log"
    url = f"http://127.0.0.1:{port}"
    with ExitStack() as stack:
        process = subprocess.Popen(
            [sys.executable, "-m", program, "server"],
            env={
                **os.environ,
                "FAIRLEAD_SERVER_LISTEN": f"127.0.0.1:{port}",
                "FAIRLEAD_STORE_PATH": str(folder / "fairlead.db"),
                "FAIRLEAD_OVN_NORTHBOUND": lab.northbound,
                **({"FAIRLEAD_OVN_SOUTHBOUND": lab.southbound} if isinstance(lab, Lab) else {}),
                **environment,
            },
            stderr=stack.enter_context(log.open("wb")),
        )
        stack.callback(process.wait)
        stack.callback(process.kill)
        client = stack.enter_context(httpx.Client(base_url=url, timeout=ACTIVE_TIMEOUT))
        wait_until(lambda: process.poll() is not None or answers(client), "the server answers")
        assert process.poll() is None, log.read_text()
        yield FairleadProcess(process=process, client=client, log=log, url=url)


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/").status_code in (200, 401, 503)
    except httpx.TransportError:
        return False


def holder_first(first: FairleadProcess, second: FairleadProcess) -> tuple[FairleadProcess, FairleadProcess]:
    """The leader and the standby."""
    texts = {"ready\n", "ready: another server is the leader\n"}
    wait_equal(lambda: {server.client.get("/readyz").text for server in (first, second)}, texts)
    return (first, second) if first.is_holder() else (second, first)


def rows_of(lab: Lab, mark: str) -> dict[str, list[str]]:
    """Keys or names of all rows with this mark in the Northbound database, by table, read with OVN's own client."""
    rows = {table: sorted(_keys(lab, table, mark)) for table in MARKED_TABLES}
    return {table: keys for table, keys in rows.items() if keys}


def _keys(lab: Lab, table: str, mark: str) -> Iterator[str]:
    client = databases.northbound(lab.layout)
    if table == "Load_Balancer_Group":  # has no external_ids; the name has the mark
        names = (row.text("name") for row in databases.find(client, table, ("name",)))
        yield from (name for name in names if name.startswith(f"{mark},"))
        return
    for row in databases.find(client, table, ("external_ids",), f"external_ids:fairlead={mark}"):
        yield row.mapping("external_ids")["fairlead:key"]
