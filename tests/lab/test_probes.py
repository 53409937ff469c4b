"""Probes by an agent through a real OVN: from one namespace on each node, for tenants with identical addresses."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from fairlead.drivers.ovn.vswitch.database import OvsTools
from fairlead.drivers.ovn.vswitch.probe_ports import OvsProbePorts, device_name
from fairlead.lab import Lab
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.checks import Check, HttpCheck, PlainCheck, ProbeSchedule, Target
from fairlead.model.documents.health import PROBE_TRANSPORTS, Endpoint, Health
from fairlead.model.documents.loadbalancer import MonitorType
from fairlead.model.documents.probe_result import ProbeResult
from fairlead.model.queries.probe_devices import ProbeDevice
from fairlead.node.prober_thread import ProberThread, ResultsByEndpoint
from harness.lab.members import cut_cable, end_process, mend_cable, start_process
from harness.lab.site import PORT, LabSite, open_site
from harness.waiting import eventually, eventually_equal

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

MONITOR = {"type": "TCP", "delay": 5, "timeout": 1, "max_retries": 1, "max_retries_down": 1}
HTTP = HttpCheck(is_tls=False, method="GET", path="/", version="1.0", host="x", codes=frozenset({200}))
QUICK = ProbeSchedule(delay=0.1, timeout=0.1, max_retries=1, max_retries_down=1)
CALM = ProbeSchedule(delay=0.5, timeout=0.5, max_retries=1, max_retries_down=2)


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    site = open_site(lab, FAIRLEAD_HEALTH_PROBER="agents")
    yield site
    site.close()


@dataclass
class Node:
    """The probing part of an agent on a chassis."""

    thread: ProberThread = field(init=False)
    seen: dict[Endpoint, ProbeResult] = field(default_factory=dict)

    def told(self, news: ResultsByEndpoint) -> None:
        self.seen.update(news)

    async def wait_seen(self, wanted: Mapping[Endpoint, Health]) -> None:
        """Wait until the endpoints have this health."""
        await eventually_equal(lambda: {each: self.seen[each].health for each in wanted if each in self.seen}, wanted)

    async def wait_error(self, error: str, *wanted: Endpoint) -> None:
        """Wait until the errors of these endpoints begin with this text."""
        await eventually(
            lambda: {self.seen[each].error for each in wanted if each in self.seen},
            error,
            is_enough=lambda found: found and all(each.startswith(error) for each in found),
        )


@contextlib.asynccontextmanager
async def node(site: LabSite, name: str, *networks: str) -> AsyncIterator[Node]:
    layout = site.lab.layout
    namespace, run_dir = layout.namespace(f"probes-{name}"), layout.node_directory(name)
    ports = OvsProbePorts("br-int", namespace, OvsTools(run_dir))
    made = await ports.apply([device(site, each) for each in networks])
    assert await ports.apply([device(site, each) for each in networks]) == frozenset(), "what is right is left alone"
    here = Node()
    here.thread = ProberThread(name, Path("/run/netns") / namespace, here.told)
    await here.thread.start()
    here.thread.change((), (), made)
    try:
        yield here
    finally:
        here.thread.stop()
        await ports.apply([])


def device(site: LabSite, name: str) -> ProbeDevice:
    """Probe device with the addresses of the port in OVN."""
    network = site.cloud.network.find_network(name, ignore_missing=False)
    told = site.lab.exec("central", ["ovn-nbctl", "lsp-get-addresses", f"probe-{network.id}"]).split()
    subnets = tuple(parse_network(site.cloud.network.get_subnet(each).cidr) for each in network.subnet_ids)
    return ProbeDevice(
        network_id=network.id,
        port_name=f"probe-{network.id}",
        mac=told[0],
        mtu=network.mtu,
        addresses=tuple(parse_address(each) for each in told[1:]),
        subnets=subnets,
    )


def type_of(check: Check) -> MonitorType:
    return MonitorType.HTTP if isinstance(check, HttpCheck) else check.type


def target(site: LabSite, machine: str, network: str, check: Check, rhythm: ProbeSchedule, version: int = 4) -> Target:
    found = site.cloud.network.find_network(network, ignore_missing=False)
    address, over = parse_address(site.address(machine, version)), PROBE_TRANSPORTS[type_of(check)]
    number = 0 if type_of(check) is MonitorType.PING else PORT
    port = site.lab.workload(machine).port_id
    asker = f"{machine}-{type_of(check)}"
    return Target(endpoint=Endpoint(port, address, number, over, found.id, asker), check=check, schedule=rhythm)


CHECKS = (
    HTTP,
    *(PlainCheck(type=each) for each in (MonitorType.TCP, MonitorType.PING, MonitorType.UDP_CONNECT)),
)


@pytest.fixture(scope="module")
def twins(site: LabSite) -> Iterator[None]:
    """Two networks with identical subnets, and machines with identical addresses on both.

    A load balancer on each network creates the ports from which its members are probed.
    """
    for name in ("oak", "fir"):
        site.network(name, "10.0.0.0/24", "fd00:a::/64")
        at = {f"{name}1": ("10.0.0.11", "fd00:a::11"), f"{name}2": ("10.0.0.12", "fd00:a::12")}
        site.machines(name, {f"{name}1": "chassis1", f"{name}2": "chassis2"}, serve=[PORT], at=at)
    assert site.address("oak1") == site.address("fir1")
    assert site.address("oak1", 6) == site.address("fir1", 6)
    with contextlib.ExitStack() as stack:
        for name in ("oak", "fir"):
            stack.enter_context(site.balancer(f"{name}-v4", (f"{name}1",), healthmonitor=MONITOR))
        yield
    for name in ("oak", "fir"):
        for number in (1, 2):
            site.lab.remove_workload(f"{name}{number}")


async def test_tenants_with_identical_addresses_are_probed_separately(site: LabSite, twins: None):
    assert site.address("oak1") == site.address("fir1")

    async with node(site, "chassis1", "oak", "fir") as here:
        all_, of = [], {}
        for name in ("oak", "fir"):
            for version in (4, 6):
                of[name, version] = [target(site, f"{name}1", name, check, CALM, version) for check in CHECKS]
                all_ += of[name, version]
        here.thread.change((), all_, ())
        await here.wait_seen({each.endpoint: Health.ONLINE for each in all_})
        end_process(site, "oak1")
        down = {
            each.endpoint: Health.ONLINE if each.check == CHECKS[2] else Health.ERROR
            for version in (4, 6)
            for each in of["oak", version]
        }
        up = {each.endpoint: Health.ONLINE for version in (4, 6) for each in of["fir", version]}
        await here.wait_seen({**down, **up})
        await here.wait_error("connection refused", *(each for each, health in down.items() if health is Health.ERROR))
        start_process(site, "oak1")
        await here.wait_seen({each.endpoint: Health.ONLINE for each in all_})
        there = site.lab.exec("chassis1", ["ovs-vsctl", "list-ports", "br-int"])
        assert device_name(device(site, "oak").network_id) in there
    left = site.lab.exec("chassis1", ["ovs-vsctl", "list-ports", "br-int"])
    assert device_name(device(site, "oak").network_id) not in left


DEATHS = (
    (end_process, start_process, "connection refused"),
    (cut_cable, mend_cable, "no answer in "),
)


async def test_quick_probes_detect_a_black_hole_and_a_reset(site: LabSite, twins: None):
    async with node(site, "chassis1", "oak") as here:
        asked = target(site, "oak1", "oak", CHECKS[1], QUICK)
        here.thread.change((), [asked], ())
        for die, revive, error in DEATHS * 2:
            await here.wait_seen({asked.endpoint: Health.ONLINE})
            await asyncio.to_thread(die, site, "oak1")
            await here.wait_error(error, asked.endpoint)
            assert here.seen[asked.endpoint].health is Health.ERROR
            await asyncio.to_thread(revive, site, "oak1")
