"""The management network, by which hosts reach servers of this machine at the servers' own loopback addresses.

Each host has a relay for each address. Relays run outside the host's namespace, so powering off a host also silences
its connections to servers: the relays are stopped, and no connection is closed.
"""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress

from fairlead.lab import namespaces, processes
from fairlead.lab.layout import Layout
from fairlead.lab.processes import LAB_VARIABLE, LabCommand, run

RELAY_FOLDER = "servers"
"""Directory of empty files, each named after an address that hosts reach."""


def start_relays(layout: Layout, hosts: Iterable[str], listen: str) -> None:
    """Forward HOST:PORT on all of these hosts to this machine's loopback."""
    folder = layout.directory / RELAY_FOLDER
    folder.mkdir(exist_ok=True)
    (folder / listen).touch()
    for host in hosts:
        _start_relay(layout, host, listen)


def stop_relays(layout: Layout, host: str) -> None:
    for pid in _pids(layout, host):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)


def restart_relays(layout: Layout, host: str) -> None:
    """Restart the host's relays in its current namespace."""
    processes.kill(_pids(layout, host), lambda pid: processes.is_marked(pid, layout.directory))
    for address in sorted((layout.directory / RELAY_FOLDER).glob("*")):
        _start_relay(layout, host, address.name)


def _start_relay(layout: Layout, host: str, listen: str) -> None:
    own = layout.node_directory(host)
    own.mkdir(exist_ok=True)
    files = ("--pidfile", str(own / f"relay-{listen}.pid"), "--log-file", str(own / f"relay-{listen}.log"))
    place = ("--namespace", str(namespaces.DIRECTORY / layout.namespace(host)), "--listen", listen)
    argv = (sys.executable, "-m", "fairlead.lab.relay", *place, *files)
    run(LabCommand(argv=argv, environment={LAB_VARIABLE: str(layout.directory)}))


def _pids(layout: Layout, host: str) -> list[int]:
    """Return the pids of running relays."""
    found = (processes.read_pidfile(path) for path in layout.node_directory(host).glob("relay-*.pid"))
    return [pid for pid in found if pid is not None and processes.is_marked(pid, layout.directory)]
