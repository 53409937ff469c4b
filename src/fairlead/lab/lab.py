"""A lab: OVN central and several compute nodes on one machine, each in a network namespace.

`up` succeeds completely or leaves nothing, and `down` removes everything, whatever was killed before. A healthy lab is
left as it is by `up`; any other is removed and recreated.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from fairlead.lab import central, chassis, databases, namespaces, programs, records, workload
from fairlead.lab.base import LabBase
from fairlead.lab.chassis import DatapathType
from fairlead.lab.cleanup import has_remains, remove_all
from fairlead.lab.databases import COMMAND_TIMEOUT
from fairlead.lab.errors import LabMismatch, LabNotFound, MissingTools, NotRoot, UnknownNode
from fairlead.lab.layout import CENTRAL, FABRIC, OUTSIDE, RUN_DIR, LabChassis, Layout, plan_chassis, workload_device
from fairlead.lab.processes import LabCommand, run
from fairlead.lab.records import LabDataplane, LabRecord, LockMode
from fairlead.lab.status import LabStatus, read_status
from fairlead.lab.workload import Workload

PACKAGES = ("openvswitch-switch", "ovn-central", "ovn-host", "iproute2", "ethtool")
TOOLS = (
    *("ovsdb-tool", "ovsdb-server", "ovs-vswitchd", "ovs-vsctl", "ovs-appctl"),
    *("ovn-northd", "ovn-controller", "ovn-nbctl", "ovn-sbctl", "ovn-trace"),
)
MACHINE_TOOLS = ("ip", "ethtool", "unshare", "mount", "chroot")

Progress = Callable[[str], None]


def discard_progress(_: str) -> None:
    """Discard a progress message."""


def require_machine(root: Path | None = None) -> None:
    """Check that this machine can run a lab with the programs of this root (None: its own); raises NotRoot or
    MissingTools."""
    if os.geteuid() != 0:
        raise NotRoot
    schemas = (*central.SCHEMAS.values(), chassis.SCHEMA)
    missing = [*programs.find_missing(root, TOOLS, schemas), *programs.find_missing(None, MACHINE_TOOLS, ())]
    if missing:
        raise MissingTools(missing, PACKAGES)


DEFAULT_CHASSIS_COUNT = 2
"""Default number of chassis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lab(LabBase):
    """A running lab."""

    record: LabRecord

    @classmethod
    def up(
        cls,
        name: str = "lab",
        chassis: int | None = None,
        run_dir: Path = RUN_DIR,
        progress: Progress = discard_progress,
        root: str | None = None,
    ) -> Self:
        """Bring up a lab, or attach to a healthy one; returns when every chassis is registered and has its tunnels.

        OVN and Open vSwitch come from `root`; None uses the environment, "" the machine's own programs. For values that
        are None and not in the environment, a running lab keeps its own, and a new lab gets the default.
        """
        source = programs.choose_root(root)
        require_machine(source)
        layout = Layout(name=name, run_dir=run_dir)
        with records.locked(layout, LockMode.EXCLUSIVE):
            records.require_dataplane(layout, LabDataplane.OVN)
            running = _find_healthy(layout)
            if running is None:
                count = chassis or _recorded_chassis(layout) or DEFAULT_CHASSIS_COUNT
                if has_remains(layout):
                    progress(f"lab {name}: unhealthy; removing it and its contents")
                progress(f"lab {name}: starting the central and {count} chassis")
                running = _bring_up(layout, plan_chassis(count), source, progress)
            elif chassis is not None and running.chassis != plan_chassis(chassis):
                raise LabMismatch(name, f"{len(running.chassis)} chassis", "--chassis")
            elif programs.is_chosen(root) and running.root != _name(source):
                raise LabMismatch(name, f"the programs of {running.root or 'this machine'}", "--root")
            return cls(layout=layout, record=running)

    @classmethod
    def open(cls, name: str = "lab", run_dir: Path = RUN_DIR) -> Self:
        """Attach to a running lab."""
        layout = Layout(name=name, run_dir=run_dir)
        return cls(layout=layout, record=records.read_lab(layout))

    @property
    def northbound(self) -> str:
        return self.layout.northbound

    @property
    def southbound(self) -> str:
        return self.layout.southbound

    def down(self) -> None:
        take_down(self.name, self.layout.run_dir)

    def status(self) -> LabStatus:
        return read_status(self.layout, self.record)

    # Nodes and workloads

    def workloads(self) -> tuple[Workload, ...]:
        return records.read_workloads(self.layout, Workload)

    def workload(self, name: str) -> Workload:
        return records.read_workload(self.layout, name, Workload)

    def chassis(self, name: str) -> LabChassis:
        nodes = {node.name: node for node in self.record.chassis}
        if name not in nodes:
            raise UnknownNode(name, tuple(nodes))
        return nodes[name]

    def set_zones(self, name: str, *zones: str) -> None:
        """Set the availability zones of the chassis to exactly these."""
        chassis.set_zones(self.layout, self.chassis(name), zones)

    def add_workload(self, added: Workload) -> None:
        """Plug a workload in; returns when its server listens, without waiting for OVN to bind its port
        (`wait_bound`)."""
        node = self.chassis(added.chassis)
        with records.locked(self.layout, LockMode.SHARED), ExitStack() as undo:
            records.read_lab(self.layout)
            records.write_workload(self.layout, added)
            undo.callback(self._remove_plugged, added)
            workload.plug(self.layout, node, added)
            undo.pop_all()

    def move_workload(self, name: str, to: str) -> None:
        """Move a workload to another chassis, like a live migration: its processes continue. Like `add_workload`, this
        does not wait for OVN."""
        with records.locked(self.layout, LockMode.SHARED):
            moved = self.workload(name)
            workload.migrate(self.layout, self.chassis(moved.chassis), self.chassis(to), moved)
            records.replace_workload(self.layout, replace(moved, chassis=to))

    def remove_workload(self, name: str) -> None:
        with records.locked(self.layout, LockMode.SHARED):
            self._remove_plugged(self.workload(name))

    def _remove_plugged(self, removed: Workload) -> None:
        workload.unplug(self.layout, self.chassis(removed.chassis), removed)
        shutil.rmtree(self.layout.node_directory(removed.name), ignore_errors=True)
        records.delete_workload(self.layout, removed.name)

    def command(self, place: str, argv: Sequence[str]) -> LabCommand:
        """Return a command that runs in a node or workload; OVN and Open vSwitch clients find their databases there."""
        nodes = [CENTRAL, FABRIC, OUTSIDE, *(node.name for node in self.record.chassis)]
        homes = {node: node for node in nodes} | {each.name: each.chassis for each in self.workloads()}
        if place not in homes:
            raise UnknownNode(place, tuple(homes))
        argv = namespaces.inside(self.layout.namespace(place), argv)
        return LabCommand(argv=argv, environment=self.layout.environment(homes[place]))

    def trace(self, datapath: str, microflow: str, *options: str) -> str:
        """Run ovn-trace; an empty datapath means that of the microflow's inport."""
        words = (datapath, microflow) if datapath else (microflow,)
        argv = ("ovn-trace", f"--db={self.southbound}", *options, *words)
        return run(LabCommand(argv=argv, environment={"PATH": self.layout.search_path}))

    # Conditions

    def wait_synced(self, seconds: float = COMMAND_TIMEOUT) -> None:
        """Wait until the datapath of every chassis implements the Northbound database for every packet."""
        client = databases.northbound(self.layout)
        databases.wait(client, seconds, "every chassis has caught up with the Northbound", ("--wait=hv", "sync"))
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: chassis.await_revalidation(self.layout, node), self.record.chassis))

    def wait_registered(self, seconds: float = COMMAND_TIMEOUT) -> None:
        words = _join_commands(("wait-until", "Chassis", node.name) for node in self.record.chassis)
        databases.wait_until(databases.southbound(self.layout), seconds, *words)

    def wait_tunnels(self, seconds: float = COMMAND_TIMEOUT) -> None:
        """Wait until the switch of every chassis has a tunnel to every other one."""
        peers = len(self.record.chassis) - 1
        switches = [databases.switch(self.layout, node.name) for node in self.record.chassis]
        condition = "the switch of every chassis has its tunnels"
        databases.poll_until(seconds, condition, lambda: all(_tunnels(switch) >= peers for switch in switches))

    def wait_bound(self, *names: str, seconds: float = COMMAND_TIMEOUT) -> None:
        """Wait until the ports of these workloads are bound to their chassis and their flows are installed."""
        bound = [self.workload(name) for name in names]
        for each in bound:
            row = ("Interface", workload_device(each.name), "external_ids:ovn-installed=true")
            databases.wait_until(databases.switch(self.layout, each.chassis), seconds, "wait-until", *row)
        words = _join_commands(("wait-until", "Port_Binding", each.port_id, "up=true") for each in bound)
        databases.wait_until(databases.southbound(self.layout), seconds, *words)


def take_down(name: str, run_dir: Path = RUN_DIR) -> bool:
    """Remove a lab, complete or partial; returns whether anything was there."""
    if os.geteuid() != 0:
        raise NotRoot
    layout = Layout(name=name, run_dir=run_dir)
    with records.locked(layout, LockMode.EXCLUSIVE):
        found = has_remains(layout)
        remove_all(layout)
    return found


def names(run_dir: Path = RUN_DIR) -> tuple[str, ...]:
    """Return the names of running labs of any dataplane."""
    return tuple(
        sorted(path.parent.name for file in records.RECORD_FILES.values() for path in run_dir.glob(f"*/{file}"))
    )


def _find_healthy(layout: Layout) -> LabRecord | None:
    """Return the record of a complete and healthy lab, or None."""
    try:
        record = records.read_lab(layout)
    except LabNotFound:
        return None
    return record if read_status(layout, record).is_healthy else None


def _bring_up(layout: Layout, nodes: Sequence[LabChassis], root: Path | None, progress: Progress) -> LabRecord:
    datapath = chassis.detect_datapath()
    record = LabRecord(name=layout.name, chassis=tuple(nodes), datapath=datapath, root=_name(root))
    with clean_up_on_failure(layout):
        layout.directory.mkdir(parents=True)
        if root is not None:
            programs.write_wrappers(layout, root)
            progress(f"lab {layout.name}: {programs.versions(layout)}, from {root}")
        for place in (CENTRAL, FABRIC, OUTSIDE, *(node.name for node in nodes)):
            namespaces.add(layout.namespace(place))
        chassis.start_fabric(layout, nodes)
        chassis.start_outside(layout, nodes)
        _start_programs(layout, record, progress)
        _await_nodes(layout, record)
        records.write_lab(layout, LabDataplane.OVN, record)
    progress(
        f"lab {layout.name}: up, Open vSwitch in {_describe_datapath(record.datapath)},"
        f" Northbound at {layout.northbound}"
    )
    return record


@contextmanager
def clean_up_on_failure(layout: Layout) -> Iterator[None]:
    """Remove earlier remains, and remove everything again if the block fails."""
    remove_all(layout)
    with ExitStack() as undo:
        undo.callback(remove_all, layout)
        yield
        undo.pop_all()


def _start_programs(layout: Layout, record: LabRecord, progress: Progress) -> None:
    with ThreadPoolExecutor() as pool:
        nodes = [pool.submit(chassis.start_switch, layout, node, record.datapath) for node in record.chassis]
        pool.submit(central.start, layout).result()
        progress(f"lab {layout.name}: central started")
        for started in nodes:
            started.result()
        list(pool.map(lambda node: chassis.start_controller(layout, node), record.chassis))


def _await_nodes(layout: Layout, record: LabRecord) -> None:
    lab = Lab(layout=layout, record=record)
    lab.wait_registered()
    lab.wait_synced()
    lab.wait_tunnels()
    if record.datapath is DatapathType.NETDEV:
        for node in record.chassis:
            chassis.add_peer_neighbours(layout, node, record.chassis)


def _tunnels(switch: LabCommand) -> int:
    """Count tunnels; an interface has an OpenFlow port once the switch has created it."""
    return len(databases.find(switch, "Interface", ("name",), "type=geneve", "ofport>0"))


def _recorded_chassis(layout: Layout) -> int:
    """Return the recorded number of chassis, or 0 without a record."""
    try:
        return len(records.read_lab(layout).chassis)
    except LabNotFound:
        return 0


def _name(root: Path | None) -> str:
    return "" if root is None else str(root)


def _describe_datapath(datapath: DatapathType) -> str:
    return "user space" if datapath is DatapathType.NETDEV else "the kernel"


def _join_commands(commands: Iterator[tuple[str, ...]]) -> tuple[str, ...]:
    """Join commands into one invocation, separated by two dashes."""
    return tuple(word for command in commands for word in ("--", *command))[1:]
