"""The management network: by what hosts reach servers of this machine, at the servers' own addresses on loopback.

Each host has a relay for each address. It is outside of the host's namespace, so that a host without power is silent to
servers as well: its relays stand still, and no connection ends.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

from fairlead.lab import namespaces, processes
from fairlead.lab.layout import Layout
from fairlead.lab.processes import MARK, Command, run

FOLDER = "servers"
"""Of empty files, each called as an address that hosts reach."""


def reach(layout: Layout, hosts: Iterable[str], listen: str) -> None:
    """HOST:PORT on loopback is this machine's for all of these hosts, from now on."""
    folder = layout.directory / FOLDER
    folder.mkdir(exist_ok=True)
    (folder / listen).touch()
    for host in hosts:
        _start(layout, host, listen)


def silence(layout: Layout, host: str) -> None:
    for pid in _pids(layout, host):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def begin_again(layout: Layout, host: str) -> None:
    """In the namespace that the host has now."""
    processes.kill(_pids(layout, host), lambda pid: processes.is_marked(pid, layout.directory))
    for address in sorted((layout.directory / FOLDER).glob("*")):
        _start(layout, host, address.name)


def _start(layout: Layout, host: str, listen: str) -> None:
    own = layout.node_directory(host)
    own.mkdir(exist_ok=True)
    files = ("--pidfile", str(own / f"relay-{listen}.pid"), "--log-file", str(own / f"relay-{listen}.log"))
    place = ("--namespace", str(namespaces.DIRECTORY / layout.namespace(host)), "--listen", listen)
    argv = (sys.executable, "-m", "fairlead.lab.relay", *place, *files)
    run(Command(argv=argv, environment={MARK: str(layout.directory)}))


def _pids(layout: Layout, host: str) -> list[int]:
    """Those that live."""
    found = (processes.read_pidfile(path) for path in layout.node_directory(host).glob("relay-*.pid"))
    return [pid for pid in found if pid is not None and processes.is_marked(pid, layout.directory)]
