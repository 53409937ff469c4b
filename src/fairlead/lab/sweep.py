"""Remove a lab, whole or in pieces, without any memory of what was made.

What bears the lab's namespace prefix or its mark, lives in such a namespace, or lies in its run directory is the lab's;
nothing else is touched. The same sweep serves `down`, the start of `up`, and what a killed `up` left behind: a program
that it had just begun is in no namespace yet and has no pidfile, and bears the mark alone.
"""

import os
import shutil
from contextlib import suppress

from fairlead.lab import agents, namespaces, processes
from fairlead.lab.errors import CommandFailed, LabError
from fairlead.lab.layout import Layout

PASSES = 5


def remains(layout: Layout) -> bool:
    """Whether anything of the lab is on the machine."""
    return layout.directory.exists() or bool(namespaces.existing(layout.prefix) or _marked(layout))


def sweep(layout: Layout) -> None:
    """Repeats until a look finds nothing: a child of a killed `up` may still be at work."""
    for _ in range(PASSES):
        if not remains(layout):
            return
        _end_processes(layout)
        for namespace in namespaces.existing(layout.prefix):
            with suppress(CommandFailed):
                namespaces.delete(namespace)
        agents.remove_memory(layout)
        shutil.rmtree(layout.directory, ignore_errors=True)
    if remains(layout):
        raise LabError(f"cannot remove {layout.directory} or a namespace {layout.prefix}*; see: ip netns list")


def _end_processes(layout: Layout) -> None:
    """The controllers first: at their end they still talk to the databases, and wait for them if they are gone."""
    found = _processes(layout)
    processes.end(processes.named(found, "ovn-controller"), lambda pid: pid in _processes(layout))
    found = _processes(layout)
    processes.end(found, lambda pid: pid in found)


def _processes(layout: Layout) -> frozenset[int]:
    inside = namespaces.processes(namespaces.existing(layout.prefix))
    return frozenset(inside) | _marked(layout)


def _marked(layout: Layout) -> frozenset[int]:
    """Whoever asks may have been started for the lab too: by a shell that it opened."""
    return processes.marked(layout.directory) - {os.getpid()}
