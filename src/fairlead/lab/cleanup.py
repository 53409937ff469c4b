"""Remove a lab, complete or partial, without any memory of its creation.

Everything with the lab's namespace prefix or its mark, in such a namespace, or in its run directory belongs to the lab,
and nothing else is touched. The same code serves `down`, the start of `up`, and the remains of a killed `up`: a program
that has just started has no namespace and no pidfile yet, only the mark.
"""

import os
import shutil
from contextlib import suppress

from fairlead.lab import agents, namespaces, processes
from fairlead.lab.errors import LabCommandFailed, LabError
from fairlead.lab.layout import Layout

MAX_PASSES = 5


def has_remains(layout: Layout) -> bool:
    """Return whether anything of the lab is on the machine."""
    return layout.directory.exists() or bool(namespaces.existing(layout.prefix) or _marked(layout))


def remove_all(layout: Layout) -> None:
    """Remove the lab, repeated until nothing is found, because a child of a killed `up` may still run."""
    for _ in range(MAX_PASSES):
        if not has_remains(layout):
            return
        _end_processes(layout)
        for namespace in namespaces.existing(layout.prefix):
            with suppress(LabCommandFailed):
                namespaces.delete(namespace)
        agents.remove_memory_directories(layout)
        shutil.rmtree(layout.directory, ignore_errors=True)
    if has_remains(layout):
        raise LabError(f"cannot remove {layout.directory} or a namespace {layout.prefix}*; see: ip netns list")


def _end_processes(layout: Layout) -> None:
    """End the processes, ovn-controllers first: at exit they still use the databases, and wait if those are gone."""
    found = _processes(layout)
    processes.end(processes.select_by_name(found, "ovn-controller"), lambda pid: pid in _processes(layout))
    found = _processes(layout)
    processes.end(found, lambda pid: pid in found)


def _processes(layout: Layout) -> frozenset[int]:
    inside = namespaces.processes(namespaces.existing(layout.prefix))
    return frozenset(inside) | _marked(layout)


def _marked(layout: Layout) -> frozenset[int]:
    """Return marked processes, except this one, which a shell of the lab may have started."""
    return processes.find_marked(layout.directory) - {os.getpid()}
