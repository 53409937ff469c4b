"""The sandbox of the agent's systemd unit suffices for the rows of a plain host, with and without proxies."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import harness.systemd_sandbox
from harness.net_namespace import NetNamespace, net_namespace, require_root

pytestmark = pytest.mark.slow
UNITS = Path(__file__).parents[2] / "packaging" / "systemd"
AGENT, PROXIES = UNITS / "fairlead-agent.service", UNITS / "fairlead-agent-proxies.conf"
PROGRAM = """
import asyncio
from ipaddress import ip_address
from fairlead.dataplane.native import HostTunnel
from fairlead.dataplane.rows import diff
from fairlead.drivers.native.driver import Native
from fairlead.model.documents.owner import Kind, Owner
from harness.fabric import OWNER, host_address, rows_of

async def main():
    driver = Native()
    await driver.open()
    for host in (2, 3):
        way = HostTunnel(host=host, address=host_address(host))
        await driver.apply(Owner(Kind.HOST, f"host{host}"), diff({way.key: way}, {}))
    rows = {row.key: row for row in rows_of(1, bytes(slot % 3 for slot in range(256)))}
    await driver.apply(OWNER, diff(rows, {}))
    assert (await driver.read_all())[OWNER] == rows
    await driver.remove()

asyncio.run(main())
"""


@pytest.fixture
def host() -> Iterator[NetNamespace]:
    require_root("/usr/sbin/nft", "/usr/bin/systemd-analyze", "/usr/bin/setpriv")
    with net_namespace() as made:
        yield made


@pytest.mark.parametrize("units", [(AGENT,), (AGENT, PROXIES)], ids=["agent", "proxies"])
def test_agent_in_the_systemd_sandbox_writes_reads_and_removes_rows(
    host: NetNamespace, units: tuple[Path, ...], tmp_path: Path
) -> None:
    before = host.run("ip", "rule")
    confined = sys.executable, harness.systemd_sandbox.__file__, ":".join(map(str, units)), str(tmp_path)
    tests = str(Path(__file__).parents[1])
    host.run(*confined, "env", f"PYTHONPATH={tests}", sys.executable, "-c", PROGRAM)
    assert host.run("ip", "rule") == before
    assert host.run("nft", "list", "ruleset") == ""
