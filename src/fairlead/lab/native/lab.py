"""A lab of plain Linux hosts: each with FRR, behind two routers, with machines, and an outside network.

The methods have the names of the OVN lab's where they do the same. In addition, the lab injects faults of a fabric:
power, links, sessions, routers that redistribute flows. A fault returns when it is in place, not when other nodes have
detected it, because detection is the subject of tests.
"""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from fairlead.lab import namespaces, processes, programs, records
from fairlead.lab.base import LabBase
from fairlead.lab.cleanup import has_remains
from fairlead.lab.databases import COMMAND_TIMEOUT, poll_until
from fairlead.lab.errors import LabMismatch, LabNotFound, MissingTools, NotRoot, UnknownNode
from fairlead.lab.lab import Progress, clean_up_on_failure, discard_progress, take_down
from fairlead.lab.layout import RUN_DIR, Layout
from fairlead.lab.native import fabric, machine, management_network, routes, routing
from fairlead.lab.native.machine import Machine
from fairlead.lab.native.plan import OUTSIDE_SITE, ROUTERS, FabricLink, FabricRouter, Site, link, plan_hosts
from fairlead.lab.native.status import NativeStatus, list_nodes, read_status
from fairlead.lab.processes import LabCommand
from fairlead.lab.records import LabDataplane, LockMode

PACKAGES = ("frr", "nftables", "iproute2")
TOOLS = (*(str(routing.DAEMON_FOLDER / program) for program in routing.PROGRAMS), "vtysh", "nft", "ip")
DEFAULT_HOST_COUNT = 3
"""Default number of hosts."""


def require_machine() -> None:
    """Check that this machine can run a lab of plain hosts; raises NotRoot or MissingTools."""
    if os.geteuid() != 0:
        raise NotRoot
    if missing := [*programs.find_missing(None, TOOLS, ())]:
        raise MissingTools(missing, PACKAGES)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeRecord:
    name: str
    chassis: tuple[Site, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeLab(LabBase):
    """A running lab of plain hosts."""

    record: NativeRecord

    @classmethod
    def up(
        cls,
        name: str = "lab",
        chassis: int | None = None,
        run_dir: Path = RUN_DIR,
        progress: Progress = discard_progress,
    ) -> Self:
        """Bring up a lab, or attach to a healthy one; returns when every place has all routes to every other one.

        `chassis` is the number of hosts; with None, a running lab keeps its own, and a new lab gets the default.
        """
        require_machine()
        layout = Layout(name=name, run_dir=run_dir)
        with records.locked(layout, LockMode.EXCLUSIVE):
            records.require_dataplane(layout, LabDataplane.NATIVE)
            running = _find_healthy(layout)
            if running is None:
                count = chassis or _recorded_hosts(layout) or DEFAULT_HOST_COUNT
                if has_remains(layout):
                    progress(f"lab {name}: unhealthy; removing it and its contents")
                progress(f"lab {name}: starting two routers and {count} hosts")
                running = _bring_up(layout, plan_hosts(count))
                progress(f"lab {name}: up")
            elif chassis is not None and len(running.chassis) != chassis:
                raise LabMismatch(name, f"{len(running.chassis)} hosts", "--chassis")
            return cls(layout=layout, record=running)

    @classmethod
    def open(cls, name: str = "lab", run_dir: Path = RUN_DIR) -> Self:
        """Attach to a running lab."""
        layout = Layout(name=name, run_dir=run_dir)
        return cls(layout=layout, record=_read_record(layout))

    def down(self) -> None:
        take_down(self.name, self.layout.run_dir)

    def status(self) -> NativeStatus:
        return read_status(self.layout, self.record.chassis, self.workloads())

    # Places

    def workloads(self) -> tuple[Machine, ...]:
        return records.read_workloads(self.layout, Machine)

    def workload(self, name: str) -> Machine:
        return records.read_workload(self.layout, name, Machine)

    def chassis(self, name: str) -> Site:
        """Return the host of this name, or the outside: the sites that have machines."""
        sites = {site.name: site for site in (*self.record.chassis, OUTSIDE_SITE)}
        if name not in sites:
            raise UnknownNode(name, tuple(sites))
        return sites[name]

    def router(self, name: str) -> FabricRouter:
        routers = {router.name: router for router in ROUTERS}
        if name not in routers:
            raise UnknownNode(name, tuple(routers))
        return routers[name]

    def add_workload(self, added: Machine) -> None:
        """Plug a machine in; returns when its server listens."""
        site = self.chassis(added.chassis)
        with records.locked(self.layout, LockMode.SHARED), ExitStack() as undo:
            _read_record(self.layout)
            records.write_workload(self.layout, added)
            undo.callback(self._remove_plugged, added)
            machine.plug(self.layout, site, added)
            undo.pop_all()

    def remove_workload(self, name: str) -> None:
        with records.locked(self.layout, LockMode.SHARED):
            self._remove_plugged(self.workload(name))

    def _remove_plugged(self, removed: Machine) -> None:
        machine.unplug(self.layout, self.chassis(removed.chassis), removed)
        shutil.rmtree(self.layout.node_directory(removed.name), ignore_errors=True)
        records.delete_workload(self.layout, removed.name)

    def command(self, place: str, argv: Sequence[str]) -> LabCommand:
        """Return a command that runs in a node or machine; `vtysh` uses the daemons of the node."""
        places = [*list_nodes(self.record.chassis), *(each.name for each in self.workloads())]
        if place not in places:
            raise UnknownNode(place, places)
        argv = namespaces.inside(self.layout.namespace(place), argv)
        return LabCommand(argv=argv, environment=routing.environment(self.layout, place))

    def forward_port(self, listen: str) -> None:
        """Forward HOST:PORT on every host to the same loopback address of this machine."""
        management_network.start_relays(self.layout, [host.name for host in self.record.chassis], listen)

    # Faults

    def cut(self, router: str, site: str) -> None:
        """Cut the link silently; neither end loses its carrier."""
        fabric.drop_packets(self.layout, [self._link(router, site)])

    def mend(self, router: str, site: str) -> None:
        fabric.restore_packets(self.layout, [self._link(router, site)])

    def end_session(self, router: str, site: str) -> None:
        """End the BGP session from the router, which notifies its peer and rejects new sessions."""
        routing.end_session(self.layout, self._link(router, site))

    def begin_session(self, router: str, site: str) -> None:
        """Allow the BGP session again, without waiting for its establishment."""
        routing.begin_session(self.layout, self._link(router, site))

    def rehash(self, router: str, seed: int) -> None:
        """Redistribute the router's flows over its next hops, as after a restart or replacement."""
        fabric.set_multipath_seed(self.layout, self.router(router), seed)

    def stop_routing(self, place: str) -> None:
        """Kill the routing daemons of a node. Its kernel keeps their routes."""
        self._require_node(place)
        routing.kill(self.layout, place)

    def start_routing(self, place: str) -> None:
        self._require_node(place)
        routing.start(self.layout, place, _configuration(self.record.chassis, place))

    def power_off(self, place: str) -> None:
        """Power off a host or a router: its links go silent first, then all processes there and in its machines are
        killed."""
        self._require_node(place)
        fabric.drop_packets(self.layout, self._links(place))
        management_network.stop_relays(self.layout, place)
        behind = (each.name for each in self.workloads() if each.chassis == place)
        dead = [self.layout.namespace(each) for each in (place, *behind)]
        processes.kill(namespaces.processes(dead), lambda pid: pid in namespaces.processes(dead))

    def power_on(self, place: str) -> None:
        """Boot a node: a host has only its files left, and its machines restart. Returns when its daemons run; the
        caller starts a host's agent."""
        self._require_node(place)
        if any(place == host.name for host in self.record.chassis):
            self._boot_host(self.chassis(place))
        fabric.restore_packets(self.layout, self._links(place))
        self.start_routing(place)

    def _boot_host(self, host: Site) -> None:
        behind = [each for each in self.workloads() if each.chassis == host.name]
        for each in behind:
            machine.unplug(self.layout, host, each)
        fabric.delete_site(self.layout, host)
        fabric.create_site(self.layout, host)
        management_network.restart_relays(self.layout, host.name)
        for each in behind:
            machine.plug(self.layout, host, each)

    def _links(self, place: str) -> list[FabricLink]:
        """Return the links of a router or a site."""
        sites = (*self.record.chassis, OUTSIDE_SITE)
        return [link(router, site) for router in ROUTERS for site in sites if place in (router.name, site.name)]

    def _link(self, router: str, site: str) -> FabricLink:
        return link(self.router(router), self.chassis(site))

    def _require_node(self, place: str) -> None:
        if place not in (known := list_nodes(self.record.chassis)):
            raise UnknownNode(place, known)

    # Conditions

    def next_hops(self, place: str, address: str) -> frozenset[str]:
        """Return the next hops of the kernel's own route to the address; empty without such a route."""
        return routes.read_next_hops(self.layout, place, 6 if ":" in address else 4).get(address, frozenset())

    def wait_next_hops(self, place: str, address: str, *by: str, seconds: float = COMMAND_TIMEOUT) -> None:
        """Wait until the next hops are exactly these."""
        condition = f"next hops of {place} to {address} are {', '.join(by) or 'none'}"
        poll_until(seconds, condition, lambda: self.next_hops(place, address) == frozenset(by))

    def wait_routed(self, seconds: float = COMMAND_TIMEOUT) -> None:
        """Wait until every place has all routes to every other one, with BFD on each."""
        hosts = self.record.chassis
        poll_until(
            seconds,
            "every place has all routes to every other place",
            lambda: routes.has_all_routes(self.layout, hosts),
        )


def _read_record(layout: Layout) -> NativeRecord:
    return records.read_record(layout, LabDataplane.NATIVE, NativeRecord)


def _find_healthy(layout: Layout) -> NativeRecord | None:
    """Return the record of a complete and healthy lab, or None."""
    try:
        record = _read_record(layout)
    except LabNotFound:
        return None
    machines = records.read_workloads(layout, Machine)
    return record if read_status(layout, record.chassis, machines).is_healthy else None


def _recorded_hosts(layout: Layout) -> int:
    """Return the recorded number of hosts, or 0 without a record."""
    try:
        return len(_read_record(layout).chassis)
    except LabNotFound:
        return 0


def _bring_up(layout: Layout, hosts: Sequence[Site]) -> NativeRecord:
    record = NativeRecord(name=layout.name, chassis=tuple(hosts))
    with clean_up_on_failure(layout):
        routing.provide_vtysh(layout)
        for router in ROUTERS:
            fabric.create_router(layout, router)
        for site in (OUTSIDE_SITE, *hosts):
            fabric.create_site(layout, site)
        with ThreadPoolExecutor(max_workers=4) as pool:
            list(pool.map(lambda node: routing.start(layout, node, _configuration(hosts, node)), list_nodes(hosts)))
        NativeLab(layout=layout, record=record).wait_routed()
        records.write_lab(layout, LabDataplane.NATIVE, record)
    return record


def _configuration(hosts: Sequence[Site], place: str) -> str:
    """Return the configuration of a node's routing daemons."""
    texts = {router.name: routing.render_router(router, (*hosts, OUTSIDE_SITE)) for router in ROUTERS}
    texts[OUTSIDE_SITE.name] = routing.render_outside(OUTSIDE_SITE)
    return texts.get(place) or next(routing.render_host(host) for host in hosts if host.name == place)
