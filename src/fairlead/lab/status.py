"""Current state of a lab, read from the machine on each call."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fairlead.lab import central, chassis, databases, namespaces, server, workload
from fairlead.lab.chassis import DatapathType
from fairlead.lab.errors import LabCommandFailed
from fairlead.lab.layout import CENTRAL, FABRIC, OUTSIDE, Layout
from fairlead.lab.processes import is_marked, read_pidfile
from fairlead.lab.records import LabRecord, read_workloads
from fairlead.lab.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStatus:
    node: str
    program: str
    pid: int | None
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceStatus:
    name: str
    exists: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ChassisStatus:
    """`registered`: the Southbound database has a row for it."""

    name: str
    tunnel_address: str
    registered: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadStatus:
    """`bound`: OVN has bound a port with this id to this chassis, and its flows are installed."""

    name: str
    chassis: str
    port_id: str
    addresses: tuple[str, ...]
    bound: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LabStatus:
    name: str
    run_dir: str
    northbound: str
    southbound: str
    datapath: DatapathType
    root: str
    processes: tuple[ProcessStatus, ...]
    namespaces: tuple[NamespaceStatus, ...]
    chassis: tuple[ChassisStatus, ...]
    workloads: tuple[WorkloadStatus, ...]
    service: tuple[str, ...] = ()
    """Lines about the Fairlead server that runs with the lab."""

    @property
    def is_healthy(self) -> bool:
        """Return whether everything that `up` and `add_workload` created exists; the binding of ports does not
        count."""
        return (
            all(process.alive for process in self.processes)
            and all(namespace.exists for namespace in self.namespaces)
            and all(node.registered for node in self.chassis)
        )


def read_status(layout: Layout, record: LabRecord) -> LabStatus:
    workloads = read_workloads(layout, Workload)
    existing = namespaces.existing(layout.prefix)
    nodes = (CENTRAL, FABRIC, OUTSIDE, *(node.name for node in record.chassis), *(each.name for each in workloads))
    registered, bound = _southbound(layout)
    return LabStatus(
        name=layout.name,
        run_dir=str(layout.directory),
        northbound=layout.northbound,
        southbound=layout.southbound,
        datapath=record.datapath,
        root=record.root,
        processes=tuple(_processes(layout, record, workloads)),
        namespaces=tuple(NamespaceStatus(name=name, exists=name in existing) for name in map(layout.namespace, nodes)),
        chassis=tuple(
            ChassisStatus(name=node.name, tunnel_address=node.tunnel_address, registered=node.name in registered)
            for node in record.chassis
        ),
        workloads=tuple(
            WorkloadStatus(
                name=each.name,
                chassis=each.chassis,
                port_id=each.port_id,
                addresses=each.addresses,
                bound=(each.port_id, each.chassis) in bound,
            )
            for each in workloads
        ),
        service=server.describe(layout),
    )


def _processes(layout: Layout, record: LabRecord, workloads: Sequence[Workload]) -> Iterator[ProcessStatus]:
    expected = [(CENTRAL, program) for program in central.PROGRAMS]
    expected += [(node.name, program) for node in record.chassis for program in chassis.PROGRAMS]
    expected += [(each.name, workload.SERVER_NAME) for each in workloads if each.serve]
    for node, program in expected:
        pid = read_pidfile(layout.node_directory(node) / f"{program}.pid")
        alive = pid is not None and is_marked(pid, layout.directory)
        yield ProcessStatus(node=node, program=program, pid=pid, alive=alive)


def _southbound(layout: Layout) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
    """Return names of registered chassis, and (port, chassis) of bound ports; both empty if the database does not
    answer."""
    pidfile = layout.node_directory(CENTRAL) / "ovnsb_db.pid"
    client = databases.southbound(layout)
    pid = read_pidfile(pidfile)
    if pid is None or not is_marked(pid, layout.directory):
        return frozenset(), frozenset()
    try:
        rows = databases.find(client, "Chassis", ("_uuid", "name"))
        names = {row.text("_uuid"): row.text("name") for row in rows}
        ports = databases.find(client, "Port_Binding", ("logical_port", "chassis"), "up=true")
    except LabCommandFailed:
        return frozenset(), frozenset()
    bound = {(port.text("logical_port"), names.get(port.text("chassis"), "")) for port in ports}
    return frozenset(names.values()), frozenset(bound)
