"""Replaces processes that run an older HAProxy program than the one on disk, for example after a package upgrade.

Processes are replaced one after the other, in the same way as for a change of a listener. If the new program rejects a
configuration or does not start, the old process continues to serve.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.drivers.haproxy.network import ProxyNetwork
from fairlead.drivers.haproxy.supervisor import Supervisor
from fairlead.drivers.interface import DriverError

LOG = logging.getLogger(__name__)
REPLACEMENT_INTERVAL = 0.25
"""Seconds between two replacements, because a node has a process for each network and other work."""
RETRY_INTERVAL = 60.0
"""Seconds before a failed replacement is retried. The new program may no longer support an option of the configuration.
"""


@dataclass(slots=True)
class ProgramUpgrader:
    supervisor: Supervisor
    task: "asyncio.Task[None] | None" = None

    def start(self, networks: Iterable[ProxyNetwork]) -> None:
        """Start the replacement of outdated processes, unless one is in progress."""
        if self.task is None or self.task.done():
            file = self.supervisor.program.file
            outdated = [each for each in networks if is_outdated(each, file)]
            self.task = asyncio.ensure_future(self._replace(outdated)) if outdated else None

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def _replace(self, outdated: Sequence[ProxyNetwork]) -> None:
        LOG.info("%s was upgraded; replacing %d proxies", self.supervisor.program.path, len(outdated))
        for network in outdated:
            await replace_program(self.supervisor, network)
            await asyncio.sleep(REPLACEMENT_INTERVAL)


def is_outdated(network: ProxyNetwork, file: str) -> bool:
    """Whether the network's process serves, runs another program file than `file`, and may be replaced now."""
    now = asyncio.get_running_loop().time()
    if network.running is None or not network.is_running or network.is_unresponsive or not network.state.is_applied:
        return False  # a new process will start in any case
    return (
        bool(file)
        and network.running.program != file
        and now >= network.upgrade_retry_at
        and not network.replacement_backoff.wait(now)
    )


async def replace_program(keeper: Supervisor, network: ProxyNetwork) -> None:
    """Replace the process of a network if it is still outdated."""
    async with network.busy:
        process = network.desired
        if process is None or not is_outdated(network, keeper.program.file):
            return
        try:
            network.replacement_backoff.record_start(asyncio.get_running_loop().time())
            await keeper.write(network, await keeper.check_all(network, process))
            await keeper.replace(network, process, moved=False)
        except (OSError, Unwritable, DriverError) as error:
            LOG.warning("proxy of %s keeps running its older program: %s", network.state.folder.name, error)
            network.state.is_applied = True  # the old process has loaded all rows
            network.upgrade_retry_at = asyncio.get_running_loop().time() + RETRY_INTERVAL
            await keeper.roll_back(network)
