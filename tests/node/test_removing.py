"""`fairlead agent --remove`: removes what Fairlead wrote, and keeps the rest of a plain host."""

import os
from pathlib import Path

import pytest

from fairlead.config.options import AgentOptions
from fairlead.drivers.interface import DriverError
from fairlead.node import process
from fairlead.node.presence import be_present
from harness.apart import apart, require_root


@pytest.mark.parametrize(("host", "stays"), [("one", False), ("", True)])
async def test_proxies_go_where_the_agent_is_a_plain_hosts_and_stay_beside_a_switch(
    tmp_path: Path, host: str, stays: bool
):
    require_root("/usr/sbin/nft")
    left = tmp_path / "0123456789ab"
    left.mkdir()
    (left / "haproxy.cfg").write_text("")
    with apart() as made, made.inside():
        await process.remove(AgentOptions(host=host, proxy_directory=str(tmp_path)))
    assert left.exists() is stays


async def test_nothing_goes_while_an_agent_runs_that_would_make_it_anew(tmp_path: Path):
    require_root("/usr/sbin/nft")
    left = tmp_path / "0123456789ab"
    left.mkdir()
    options = AgentOptions(host="one", proxy_directory=str(tmp_path))
    with apart() as made, made.inside():
        with be_present(), pytest.raises(DriverError, match=f"process {os.getpid()}: end it first"):
            await process.remove(options)
        assert left.exists()
        await process.remove(options)
    assert not left.exists()


async def test_an_agent_on_another_host_is_no_hindrance(tmp_path: Path):
    require_root("/usr/sbin/nft")
    with apart() as other, other.inside():
        running = be_present()
    with running, apart() as made, made.inside():
        await process.remove(AgentOptions(host="one", proxy_directory=str(tmp_path)))
