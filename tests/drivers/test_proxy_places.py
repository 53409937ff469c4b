"""Network namespaces of proxies: a real namespace with its device, a real Open vSwitch database, and clients.

The switch is another namespace. Its end of the device has the addresses of all other machines on the network.
"""

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from fairlead.dataplane.haproxy import Frontend, Process, Route
from fairlead.dataplane.rows import Rows, diff
from fairlead.drivers.haproxy import HAProxy
from fairlead.drivers.haproxy.process import Program, read_running
from fairlead.drivers.interface import Requeue
from fairlead.drivers.ovn.vswitch.database import OvsTools
from fairlead.drivers.ovn.vswitch.proxy_ports import ProxyNamespaces, device_name
from fairlead.model.documents.owner import Owner
from harness.haproxy_site import NET, RepeatingClient, await_more_answers, eventually_answers, get, response_on, rows
from harness.machines import machine
from harness.net_namespace import NetNamespace, net_namespace, require_root
from harness.proxied import PROGRAM, WEB, member
from harness.waiting import DEADLINE, eventually, wait_until

pytestmark = pytest.mark.slow

SERVER, SCHEMA = "/usr/sbin/ovsdb-server", "/usr/share/openvswitch/vswitch.ovsschema"
BRIDGE, PREFIX, NETWORK, PORT = "br-places", f"fl-places-{os.getpid()}", "net1", 2000
DEVICE = device_name(NETWORK)
MINE, OTHERS = ("10.0.0.61/24", "fd00::61/64"), ("10.0.0.1/24", "fd00::1/64", "10.0.0.2/24", "10.0.1.1/24")
LEADING = Route(destination="0.0.0.0/0", nexthop="10.0.0.1"), Route(destination="::/0", nexthop="fd00::1")
PROCESS = Process(
    network=NETWORK,
    port="port1",
    mac="02:00:00:00:00:61",
    mtu=1442,
    addresses=MINE,
    routes=LEADING,
    connections=100,
    threads=1,
)
MORE = (*MINE, "10.0.1.61/24")
IN_PLACE = {
    "another way": {"routes": (Route(destination="0.0.0.0/0", nexthop="10.0.0.2"), LEADING[1])},
    "one way more": {"routes": (*LEADING, Route(destination="10.9.0.0/16", nexthop="10.0.0.2"))},
    "no way": {"routes": ()},
    "one address more": {"addresses": MORE},
    "a subnet and its ways less": {"addresses": MINE[:1], "routes": LEADING[:1]},
    "smaller packets": {"mtu": 1300},
    "larger packets": {"mtu": 8900},
}
"""Attributes that change while the device stays."""
RECREATED = {"another MAC": {"mac": "02:00:00:00:00:62"}, "another port": {"port": "port2"}}


@dataclass
class Switch:
    apart: NetNamespace
    folder: Path

    @property
    def places(self) -> ProxyNamespaces:
        return ProxyNamespaces(BRIDGE, PREFIX, OvsTools(self.folder))

    def inside(self, *command: str) -> Any:
        """Run `ip` in the proxy's namespace."""
        [name] = [each.name for each in Path("/run/netns").glob(f"{PREFIX}-*")]
        said = self.apart.run("nsenter", f"--net=/run/netns/{name}", "ip", "-json", *command)
        return json.loads(said or "[]")

    @property
    def device(self) -> dict[str, Any]:
        [found] = [each for each in self.inside("address", "show") if each["ifname"] == DEVICE]
        return dict(found)

    @property
    def found(self) -> tuple[object, ...]:
        """Return the namespace's state, in the form of a row."""
        device, ways = self.device, set[tuple[str, str]]()
        addresses = {f"{one['local']}/{one['prefixlen']}" for one in device["addr_info"]}
        for version, everything in (("-4", "0.0.0.0/0"), ("-6", "::/0")):
            for way in self.inside(version, "route", "show"):
                if "gateway" in way:
                    ways.add((everything if way["dst"] == "default" else way["dst"], way["gateway"]))
        return device["address"], {device["mtu"], self.mtu}, addresses, ways

    @property
    def mtu(self) -> int:
        """MTU of the switch's end."""
        [found] = json.loads(self.apart.run("ip", "-json", "link", "show", DEVICE))
        return int(found["mtu"])

    def join(self) -> None:
        """Add the other machines' addresses to the network."""
        self.apart.ip(*(f"address replace {each} dev {DEVICE}{' nodad' * (':' in each)}" for each in OTHERS))


def wanted(process: Process) -> tuple[object, ...]:
    ways = {(each.destination, each.nexthop) for each in process.routes}
    return process.mac, {process.mtu}, set(process.addresses), ways


@pytest.fixture
async def switch() -> AsyncIterator[Switch]:
    """Yield a switch; the thread enters its namespace."""
    require_root(SERVER, SCHEMA)
    with net_namespace() as made, TemporaryDirectory() as name:
        folder = Path(name)
        made.ip(f"link add {BRIDGE} type veth peer name br-others")
        subprocess.run(["ovsdb-tool", "create", folder / "db", SCHEMA], check=True)
        command = [SERVER, f"--remote=punix:{folder}/db.sock", f"--unixctl={folder}/ctl", "-vconsole:off"]
        with subprocess.Popen([*command, str(folder / "db")], cwd=folder) as server:
            try:
                wait_until((folder / "db.sock").exists)
                asking = f"--db=unix:{folder}/db.sock"
                subprocess.run(
                    ["ovs-vsctl", asking, "--no-wait", "init", "--", "add-br", BRIDGE], check=True, timeout=DEADLINE
                )
                with made.inside():
                    found = Switch(made, folder)
                    yield found
                    await found.places.remove(NETWORK)
            finally:
                server.terminate()


@pytest.mark.parametrize("change", IN_PLACE.values(), ids=IN_PLACE)
async def test_namespace_changes_keep_the_device(switch: Switch, change: dict[str, Any]) -> None:
    """Changes of a namespace keep its device; each is made and reverted, also by an agent without memory."""
    await switch.places.make(PROCESS)
    first = switch.device["ifindex"]
    for process in (PROCESS, replace(PROCESS, **change), PROCESS):
        for _ in range(2):
            await switch.places.make(process)
            assert (switch.found, switch.device["ifindex"]) == (wanted(process), first)


@pytest.mark.parametrize("change", RECREATED.values(), ids=RECREATED)
async def test_different_port_creates_a_new_device(switch: Switch, change: dict[str, Any]) -> None:
    await switch.places.make(PROCESS)
    first = switch.device["ifindex"]
    await switch.places.make(replace(PROCESS, **change))
    assert switch.found == wanted(replace(PROCESS, **change))
    assert switch.device["ifindex"] != first


async def test_drift_of_a_namespace_is_repaired(switch: Switch) -> None:
    """Drift is repaired with everything below it: the kernel removes an address together with its routes."""
    await switch.places.make(PROCESS)
    first = switch.device["ifindex"]
    switch.inside("address", "flush", "dev", DEVICE)
    switch.inside("address", "add", "10.0.0.99/24", "dev", DEVICE)
    await switch.places.make(PROCESS)
    assert (switch.found, switch.device["ifindex"]) == (wanted(PROCESS), first)


# With the proxy process


@dataclass
class HaproxyStandIn:
    driver: HAProxy
    folder: Path
    said: list[frozenset[int] | None]

    @property
    def pid(self) -> int:
        [folder] = self.folder.glob("*/")
        running = read_running(folder)
        assert running is not None
        return running.pid

    async def put(self, owner: Owner, found: Rows) -> None:
        async def is_applied() -> bool:
            await self.driver.apply(owner, diff(found, await self.driver.read(owner)))
            return True

        await eventually(is_applied, retry=(Requeue,))


def at(addresses: tuple[str, ...], *members: Any) -> Rows:
    """Return the rows of a load balancer whose proxy has these addresses."""
    binds = [("bind", f"{each.partition('/')[0]}:{PORT}") for each in addresses if ":" not in each]
    found: Rows = rows(PORT, *members)
    return {
        key: replace(row, lines=(*(line for line in row.lines if line[0] != "bind"), *binds))
        if isinstance(row, Frontend)
        else row
        for key, row in found.items()
    }


async def stand(switch: Switch, test: Callable[[HaproxyStandIn], Awaitable[None]]) -> None:
    said = list[frozenset[int] | None]()
    with TemporaryDirectory() as name:
        folder = Path(name) / "p"
        driver = HAProxy(folder, switch.places, lambda _, ports: said.append(ports), Program(path=PROGRAM, user=""))
        it = HaproxyStandIn(driver, folder, said)
        await driver.open()
        try:
            await it.put(NET, {PROCESS.key: PROCESS})
            await test(it)
        finally:
            await it.put(WEB, {})
            await it.put(NET, {})
            await driver.close()


async def test_route_and_mtu_changes_keep_the_process_and_its_connections(switch: Switch) -> None:
    """Routes and packets change under a running proxy: the process stays, no client bypasses it, and a connection
    survives."""

    async def change(it: HaproxyStandIn) -> None:
        await switch.places.make(PROCESS)
        switch.join()
        with machine("m1", host="10.0.1.1") as found:
            await it.put(WEB, at(MINE, member("m1", found.port, address="10.0.1.1")))
            first = it.pid
            with (
                RepeatingClient(PORT, "10.0.0.61") as asking,
                socket.create_connection(("10.0.0.61", PORT), DEADLINE) as client,
            ):
                assert b"200" in await asyncio.to_thread(response_on, client)
                for changed in ({"routes": (replace(LEADING[0], nexthop="10.0.0.2"),)}, {"mtu": 1300}, {}):
                    process = replace(PROCESS, **changed)
                    await it.put(NET, {PROCESS.key: process})
                    assert switch.found == wanted(process)
                    await await_more_answers(asking)
                    assert b"200" in await asyncio.to_thread(response_on, client)
            assert (set(asking.answers), it.pid, it.said) == ({"m1"}, first, [frozenset({PORT})])

    await stand(switch, change)


async def test_added_address_loses_no_request_and_a_new_device_interrupts_briefly(switch: Switch) -> None:
    async def change(it: HaproxyStandIn) -> None:
        await switch.places.make(PROCESS)
        switch.join()
        with machine("m1", host="10.0.0.1") as found:
            one = member("m1", found.port, address="10.0.0.1")
            await it.put(WEB, at(MINE, one))
            first = it.pid
            with RepeatingClient(PORT, "10.0.0.61") as asking:
                await it.put(NET, {PROCESS.key: replace(PROCESS, addresses=MORE)})
                await it.put(WEB, at(MORE, one))
                assert await asyncio.to_thread(get, PORT, "10.0.1.61") == "m1"
                assert it.pid != first
                await await_more_answers(asking)
            assert set(asking.answers) == {"m1"}
            assert None not in it.said
            await it.put(NET, {PROCESS.key: replace(PROCESS, addresses=MORE, mac="02:00:00:00:00:62")})
            assert None in it.said
            switch.join()
            await eventually_answers("m1", PORT, "10.0.0.61")

    await stand(switch, change)
