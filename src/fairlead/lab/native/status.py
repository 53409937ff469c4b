"""Current state of a lab of plain hosts, read from the machine on each call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.lab import namespaces, server
from fairlead.lab.layout import Layout
from fairlead.lab.native import routing
from fairlead.lab.native.machine import Machine
from fairlead.lab.native.plan import OUTSIDE_SITE, ROUTERS, Site
from fairlead.lab.processes import is_marked, read_pidfile
from fairlead.lab.status import NamespaceStatus, ProcessStatus
from fairlead.lab.workload import SERVER_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeStatus:
    name: str
    run_dir: str
    chassis: tuple[Site, ...]
    processes: tuple[ProcessStatus, ...]
    namespaces: tuple[NamespaceStatus, ...]
    workloads: tuple[Machine, ...]
    service: tuple[str, ...] = ()
    """Lines about the Fairlead server that runs with the lab."""

    @property
    def is_healthy(self) -> bool:
        """Return whether everything that `up` and `add_workload` created exists; a host that is powered off is not
        healthy."""
        return all(process.alive for process in self.processes) and all(each.exists for each in self.namespaces)


def read_status(layout: Layout, hosts: Sequence[Site], machines: Sequence[Machine]) -> NativeStatus:
    existing = namespaces.existing(layout.prefix)
    places = [*list_nodes(hosts), *(machine.name for machine in machines)]
    return NativeStatus(
        name=layout.name,
        run_dir=str(layout.directory),
        chassis=tuple(hosts),
        processes=tuple(_processes(layout, hosts, machines)),
        namespaces=tuple(NamespaceStatus(name=name, exists=name in existing) for name in map(layout.namespace, places)),
        workloads=tuple(machines),
        service=server.describe(layout),
    )


def list_nodes(hosts: Sequence[Site]) -> list[str]:
    """Return all places except machines."""
    return [OUTSIDE_SITE.name, *(router.name for router in ROUTERS), *(host.name for host in hosts)]


def _processes(layout: Layout, hosts: Sequence[Site], machines: Sequence[Machine]) -> Iterator[ProcessStatus]:
    expected = [
        (node, program, pid) for node in list_nodes(hosts) for program, pid in routing.pids(layout, node).items()
    ]
    served = [machine.name for machine in machines if machine.serve]
    expected += [
        (name, SERVER_NAME, read_pidfile(layout.node_directory(name) / f"{SERVER_NAME}.pid")) for name in served
    ]
    for node, program, pid in expected:
        alive = pid is not None and is_marked(pid, layout.directory)
        yield ProcessStatus(node=node, program=program, pid=pid, alive=alive)
