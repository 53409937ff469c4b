"""Replaces processes that run an older HAProxy program than the one on disk, for example after a package upgrade.

Processes are replaced one after the other, in the same way as for a change of a listener. If the new program rejects a
configuration or does not start, the old process continues to serve.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fairlead.dataplane.haproxy_words import Unwritable
from fairlead.drivers.haproxy.network import Network
from fairlead.drivers.haproxy.supervisor import Keeper
from fairlead.drivers.interface import DriverError

LOG = logging.getLogger(__name__)
PAUSE = 0.25
"""Seconds between two replacements, because a node has a process for each network and other work."""
AGAIN = 60.0
"""Seconds before a failed replacement is retried. The new program may no longer support an option of the configuration.
"""


@dataclass(slots=True)
class Upgrading:
    keeper: Keeper
    task: "asyncio.Task[None] | None" = None

    def look(self, networks: Iterable[Network]) -> None:
        """Start the replacement of outdated processes, unless one is in progress."""
        if self.task is None or self.task.done():
            file = self.keeper.program.file
            outdated = [each for each in networks if is_outdated(each, file)]
            self.task = asyncio.ensure_future(self._replace(outdated)) if outdated else None

    async def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    async def _replace(self, outdated: Sequence[Network]) -> None:
        LOG.info("%s is another program by now; replacing %d proxies", self.keeper.program.path, len(outdated))
        for network in outdated:
            await replace_program(self.keeper, network)
            await asyncio.sleep(PAUSE)


def is_outdated(network: Network, file: str) -> bool:
    """Whether the network's process serves, runs another program file than `file`, and may be replaced now."""
    now = asyncio.get_running_loop().time()
    if network.running is None or not network.is_there or network.is_silent or not network.kept.settled:
        return False  # a new process will start in any case
    return bool(file) and network.running.program != file and now >= network.again and not network.pace.wait(now)


async def replace_program(keeper: Keeper, network: Network) -> None:
    """Replace the process of a network if it is still outdated."""
    async with network.busy:
        process = network.wanted
        if process is None or not is_outdated(network, keeper.program.file):
            return
        try:
            network.pace.spend(asyncio.get_running_loop().time())
            await keeper.write(network, await keeper.check_all(network, process))
            await keeper.replace(network, process, moved=False)
        except (OSError, Unwritable, DriverError) as error:
            LOG.warning("the proxy of %s goes on with its older program: %s", network.kept.folder.name, error)
            network.kept.settled = True  # the old process has loaded all rows
            network.again = asyncio.get_running_loop().time() + AGAIN
            await keeper.hold(network)
