"""`fairlead agent --remove`: removes what Fairlead wrote, and keeps the rest of a plain host."""

import os
from pathlib import Path

import pytest

from fairlead.config.options import AgentOptions
from fairlead.drivers.interface import DriverError
from fairlead.node import process
from fairlead.node.presence import mark_running
from harness.net_namespace import net_namespace, require_root


@pytest.mark.parametrize(("host", "stays"), [("one", False), ("", True)])
async def test_remove_deletes_proxies_on_a_plain_host_but_not_on_a_compute_node(tmp_path: Path, host: str, stays: bool):
    require_root("/usr/sbin/nft")
    left = tmp_path / "0123456789ab"
    left.mkdir()
    (left / "haproxy.cfg").write_text("")
    with net_namespace() as made, made.inside():
        await process.remove(AgentOptions(host=host, proxy_directory=str(tmp_path)))
    assert left.exists() is stays


async def test_remove_fails_while_an_agent_runs_on_the_host(tmp_path: Path):
    require_root("/usr/sbin/nft")
    left = tmp_path / "0123456789ab"
    left.mkdir()
    options = AgentOptions(host="one", proxy_directory=str(tmp_path))
    with net_namespace() as made, made.inside():
        with mark_running(), pytest.raises(DriverError, match=f"process {os.getpid()}\\): stop it first"):
            await process.remove(options)
        assert left.exists()
        await process.remove(options)
    assert not left.exists()


async def test_agent_on_another_host_does_not_block_remove(tmp_path: Path):
    require_root("/usr/sbin/nft")
    with net_namespace() as other, other.inside():
        running = mark_running()
    with running, net_namespace() as made, made.inside():
        await process.remove(AgentOptions(host="one", proxy_directory=str(tmp_path)))
