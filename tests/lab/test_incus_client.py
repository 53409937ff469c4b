"""End to end: the unmodified clients of Incus and LXD, and our own command, at a server beside the lab.

The door is one more way to the same model: what is made here carries real packets, and is seen in Octavia's door.
"""

import itertools
import json
import os
import select
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO
from urllib.parse import quote

import pytest

from fairlead.lab import Lab, Protocol, Traffic, databases
from fairlead.lab.port_workloads import Placement, workload_of_port
from harness.lab import lxd_clients
from harness.lab.lxd_clients import LxdCommand
from harness.lab.lxd_transcript import STEPS, Addresses, play
from harness.lab.name_server import name_server
from harness.lab.northbound import unreliable_northbound
from harness.lab.servers import LBS, FairleadProcess, rows_of, serving
from harness.ports import free_port
from harness.waiting import wait_equal, wait_until

pytestmark = pytest.mark.lab

LB = ("network", "load-balancer")
PORTS = "/network/v2.0/ports"
MACHINES = {"c1": "chassis1", "c2": "chassis2", "asker": "chassis2"}
FIRST = {4: "10.20.0.11", 6: "fd00:20::11"}
SECOND = {4: "10.20.0.12", 6: "fd00:20::12"}
UPLINK = (
    "parent=physnet",
    "ipv4.gateway=203.0.113.1/24",
    "ipv4.ovn.ranges=203.0.113.30-203.0.113.59",
    "ipv4.routes=198.51.100.0/24",
    "ipv6.gateway=2001:db8::1/64",
    "ipv6.ovn.ranges=2001:db8::30-2001:db8::59",
    "ipv6.routes=2001:db8:1::/64,fd00:20::/64",
)
OVN = (
    "network=uplink",
    "ipv4.address=10.20.0.1/24",
    "ipv6.address=fd00:20::1/64",
    "ipv4.nat=true",
    "ipv6.nat=false",
    "ipv6.dhcp.stateful=true",
)
PROMPTS = [f"q{number}.example" for number in range(16)]


@dataclass(frozen=True, kw_only=True)
class IncusSite:
    """A server with both ways in, a network of an uplink, and machines on it."""

    lab: Lab
    server: FairleadProcess
    folder: Path
    socket: Path
    https: str
    incus: LxdCommand

    def token(self, name: str) -> str:
        """By which one client may join."""
        return self.incus.run_ok("config", "trust", "add", name, "-q").strip().splitlines()[-1]

    def home(self, name: str) -> Path:
        return Path(tempfile.mkdtemp(prefix=name, dir=self.folder))

    @contextmanager
    def balancer(self, listen: str, *lines: str) -> Iterator[str]:
        """One of the network, with these backends and ports; gone in the end."""
        self.incus.run_ok(*LB, "create", "net1", listen, "-q")
        try:
            for line in lines:
                command, _, rest = line.partition(" add ")
                self.incus.run_ok(*LB, command, "add", "net1", listen, *rest.split())
            self.settle()
            yield listen
        finally:
            self.incus.run_ok(*LB, "delete", "net1", listen, "-q")

    def settle(self) -> None:
        wait_until(self.server.is_idle)
        self.lab.wait_synced()


@pytest.fixture(scope="module")
def town(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[IncusSite]:
    folder = tmp_path_factory.mktemp("town")
    socket, https = folder / "lxd.socket", f"127.0.0.1:{free_port()}"
    home = folder / "home"
    home.mkdir()
    client = lxd_clients.incus(home, socket)
    options = {
        "FAIRLEAD_OVN_SOUTHBOUND": lab.southbound,
        "FAIRLEAD_OVN_GATEWAY_CHASSIS": "chassis1,chassis2",
        "FAIRLEAD_OVN_OWNER_TAG": "town",
        "FAIRLEAD_LXD_SOCKET": f"unix:{socket}",
        "FAIRLEAD_LXD_LISTEN": https,
    }
    with serving(lab, folder, **options) as server:
        town = IncusSite(lab=lab, server=server, folder=folder, socket=socket, https=https, incus=client)
        assert client.run_ok("network", "create", "uplink", "--type=physical", *UPLINK) == "Network uplink created\n"
        assert client.run_ok("network", "create", "net1", "--type=ovn", *OVN) == "Network net1 created\n"
        place_machines(town)
        route_in(town)
        yield town
        for name in MACHINES:
            lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"


def place_machines(town: IncusSite) -> None:
    """Ports come from Neutron's API: this door has none, for instances are not ours."""
    networks = town.server.client.get("/network/v2.0/networks?name=net1").json()["networks"]
    subnets = town.server.client.get(f"/network/v2.0/subnets?network_id={networks[0]['id']}").json()["subnets"]
    by_version = {each["ip_version"]: each["id"] for each in subnets}
    for number, (name, chassis) in enumerate(MACHINES.items(), 11):
        fixed = [
            {"subnet_id": by_version[4], "ip_address": f"10.20.0.{number}"},
            {"subnet_id": by_version[6], "ip_address": f"fd00:20::{number}"},
        ]
        port = town.server.create(PORTS, "port", name=name, network_id=networks[0]["id"], fixed_ips=fixed)
        placement = Placement(name=name, chassis=chassis, serve=(8080, 8081) if name != "asker" else ())
        town.lab.add_workload(workload_of_port(town.server.url, port["id"], placement))
    town.lab.wait_bound(*MACHINES)
    town.lab.wait_synced()


def route_in(town: IncusSite) -> None:
    """The host outside sends what is for the uplink's routes to the network's router."""
    for version, routed in ((4, "198.51.100.0/24"), (6, "2001:db8:1::/64")):
        via = town.incus.run_ok("network", "get", "net1", f"volatile.network.ipv{version}.address").strip()
        town.lab.exec("outside", ["ip", "route", "replace", routed, "via", via, "dev", "eth0"])


@pytest.mark.parametrize("version", [4, 6])
def test_every_command_prints_the_same_output_as_with_incus(town: IncusSite, version: int):
    play(town.incus, "net1", addresses(version), STEPS)


def test_certificate_is_removed_by_the_name_of_its_token(town: IncusSite):
    client = lxd_clients.incus(town.home("forgotten"))
    code, token = town.server.fairlead("lxd", "token", "short-lived")
    assert code == 0, token
    client.run_ok("remote", "add", "town", token.strip().splitlines()[-1])
    assert client.run_ok("network", "get", "town:net1", "network") == "uplink\n"
    assert town.server.fairlead("lxd", "forget", "short-lived")[0] == 0
    assert client.run_error("network", "get", "town:net1", "network") == "not authorized"


def test_networks_of_all_projects_are_listed_and_volatile_keys_are_read_only(town: IncusSite):
    town.incus.run_ok("project", "create", "shop", "-c", "features.networks=true")
    made = ("network", "create", "net9", "--project", "shop", "network=uplink", "ipv4.address=10.29.0.1/24")
    town.incus.run_ok(*made, "ipv4.nat=true", "ipv6.address=none")
    rows = town.incus.run_ok("network", "list", "--all-projects", "-f", "csv", "-c", "en").splitlines()
    assert rows == ["default,net1", "default,uplink", "shop,net9"]
    for version in (4, 6):
        key = f"volatile.network.ipv{version}.address"
        refused = town.incus.run_error("network", "unset", "net1", key)
        assert refused == f'Invalid value for network "net1" option "{key}": The value is set by the server'
    for filtered in ("((((", "name eq", "name eq ((((", "name eq )"):
        assert "Invalid filter" in town.incus.run_error("query", f"/1.0/networks?filter={quote(filtered)}")
    town.incus.run_ok("network", "delete", "net9", "--project", "shop")
    town.incus.run_ok("project", "delete", "shop")


def test_uplink_may_be_a_bridge_or_lack_a_gateway(town: IncusSite):
    """A bridge's own name is that of the physical network. Without a gateway a network comes up, and leads nowhere."""
    incus = town.incus
    ranges = ("ipv4.ovn.ranges=192.0.2.9-192.0.2.9", "ipv6.ovn.ranges=2001:db8:9::9-2001:db8:9::9")
    incus.run_ok(
        "network", "create", "br-town", "-q", "ipv4.address=192.0.2.1/24", "ipv6.address=2001:db8:9::1/64", *ranges
    )
    incus.run_ok("network", "create", "bare", "-q", "--type=physical", "parent=bare", *ranges)
    for number, uplink in enumerate(("br-town", "bare"), 30):
        made = ("network", "create", f"on-{uplink}", "-q", "--type=ovn", f"network={uplink}", "ipv4.nat=true")
        incus.run_ok(*made, f"ipv4.address=10.{number}.0.1/24", f"ipv6.address=fd00:{number}::1/64", "ipv6.nat=true")
    town.settle()
    listed = json.loads(incus.run_ok("network", "list", "-f", "json"))
    kinds = {each["name"]: (each["type"], each["status"]) for each in listed}
    assert kinds["br-town"] == ("bridge", "Created")
    assert (kinds["on-br-town"], kinds["on-bare"]) == (("ovn", "Created"), ("ovn", "Created"))
    assert outside_of(town) == {"on-br-town": CONFIG_VALUES, "on-bare": ["", ""]}
    assert wires_of(town) >= {"physnet", "br-town", "bare"}
    incus.run_ok("network", "set", "bare", "ipv4.gateway=192.0.2.1/24", "ipv6.gateway=2001:db8:9::1/64")
    town.settle()
    assert outside_of(town)["on-bare"] == CONFIG_VALUES
    for name in ("on-br-town", "on-bare", "br-town", "bare"):
        incus.run_ok("network", "delete", name, "-q")


CONFIG_VALUES = ["192.0.2.9", "2001:db8:9::9"]


def outside_of(town: IncusSite) -> dict[str, list[str]]:
    """The addresses outside of the networks of these uplinks."""
    keys = [f"volatile.network.ipv{version}.address" for version in (4, 6)]
    return {
        name: [town.incus.run_ok("network", "get", name, key).strip() for key in keys]
        for name in ("on-br-town", "on-bare")
    }


def wires_of(town: IncusSite) -> set[str]:
    """The physical networks of OVN's `localnet` ports."""
    client = databases.northbound(town.lab.layout)
    rows = databases.find(client, "Logical_Switch_Port", ("options",), "type=localnet")
    return {row.mapping("options")["network_name"] for row in rows}


def test_every_command_prints_the_same_over_https_with_a_token_certificate(town: IncusSite):
    incus = lxd_clients.incus(town.home("incus"))
    code, token = town.server.fairlead("lxd", "token", "incus")
    assert code == 0, token
    incus.run_ok("remote", "add", "town", token.strip().splitlines()[-1])
    play(replace(incus, remote="town:"), "net1", addresses(6), STEPS)


def test_client_adds_another_client_by_token(town: IncusSite):
    incus = lxd_clients.incus(town.home("another"))
    incus.run_ok("remote", "add", "town", town.token("another"))
    assert incus.run_ok(*LB, "list", "town:net1", "-f", "csv") == ""


def addresses(version: int) -> Addresses:
    listen = {4: "198.51.100.10", 6: "2001:db8:1::10"}[version]
    return Addresses(listen=listen, first=FIRST[version], second=SECOND[version])


WRONG = [
    (("backend", "add", "c1", "FIRST"), 'Duplicate name "c1" in backend specification 2'),
    (("backend", "add", "c 3", "FIRST"), "Name cannot contain white space in backend specification 2"),
    (("backend", "add", "c3", "nonsense"), 'Invalid target address for backend "c3"'),
    (
        ("backend", "add", "c3", "OTHER"),
        'Cannot mix IP versions in listen address and backend "c3" target address',
    ),
    (("backend", "add", "c3", "AWAY"), 'Target address is not within the network subnet for backend "c3"'),
    (
        ("backend", "add", "c3", "FIRST", "x"),
        "Invalid backend port specification 0 in backend specification 2:"
        ' strconv.ParseInt: parsing "x": invalid syntax',
    ),
    (
        ("port", "add", "sctp", "80", "c1"),
        "Invalid port protocol in port specification 1, protocol must be one of: tcp, udp",
    ),
    (("port", "add", "tcp", "", "c1"), "Missing listen port in port specification 1"),
    (
        ("port", "add", "tcp", "90-89", "c1"),
        "Invalid listen port in port specification 1: End port should be higher than start port",
    ),
    (("port", "add", "tcp", "80", "c1"), 'Duplicate listen port 80 for protocol "tcp" in port specification 1'),
    (("port", "add", "tcp", "81", "c3"), 'Invalid target backend name "c3" in port specification 1'),
    (
        ("port", "add", "udp", "81,82,83", "c2"),
        'Mismatch of listen port(s) and target port(s) count for backend "c2" in port specification 1',
    ),
]


@pytest.mark.parametrize("version", [4, 6])
def test_invalid_changes_fail_with_lxd_error_messages_and_write_nothing(town: IncusSite, version: int):
    listen = {4: "198.51.100.11", 6: "2001:db8:1::11"}[version]
    other, away = {4: (FIRST[6], "10.21.0.1"), 6: (FIRST[4], "fd00:21::1")}[version]
    names = {"FIRST": FIRST[version], "OTHER": other, "AWAY": away}
    lines = (f"backend add c1 {FIRST[version]}", f"backend add c2 {SECOND[version]} 81,82", "port add tcp 80 c1")
    with town.balancer(listen, *lines):
        before = town.incus.run_ok(*LB, "show", "net1", listen)
        for (kind, verb, *words), sentence in WRONG:
            filled = [names.get(word, word) for word in words]
            said = town.incus.run_error(*LB, kind, verb, "net1", listen, *filled)
            assert said == f"Failed updating load balancer: {sentence}"
        assert town.incus.run_ok(*LB, "show", "net1", listen) == before


def test_invalid_and_duplicate_listen_addresses_are_rejected(town: IncusSite):
    for listen, sentence in (
        ("192.0.2.1", 'Uplink network does not contain "192.0.2.1/32" in its routes'),
        ("2001:db8:2::1", 'Uplink network does not contain "2001:db8:2::1/128" in its routes'),
    ):
        assert town.incus.run_error(*LB, "create", "net1", listen) == f"Failed creating load balancer: {sentence}"
    with town.balancer("2001:DB8:1:0::12"):
        assert town.incus.run_ok(*LB, "list", "net1", "-f", "csv") == "2001:db8:1::12,,0\n"
        assert town.incus.run_error(*LB, "create", "net1", "2001:db8:1::12").endswith("already exists")


def test_concurrent_edits_by_eight_clients_lose_no_backend(town: IncusSite):
    """Eight processes add a backend each: who comes too late is told, and says it again."""
    names = [f"b{number}" for number in range(8)]

    def add(name: str) -> int:
        for late in range(100):
            said = town.incus.run(*LB, "backend", "add", "net1", listen, name, FIRST[4])
            if said.code == 0:
                return late
            assert "ETag doesn't match" in said.error
        raise AssertionError("never in time")

    with town.balancer("198.51.100.12") as listen, ThreadPoolExecutor(8) as pool:
        late = list(pool.map(add, names))
        shown = json.loads(town.incus.run_ok(*LB, "list", "net1", "-f", "json"))
        assert sorted(backend["name"] for backend in shown[0]["backends"]) == names
        print(f"who was too late how often: {late}")
        assert sum(late) > 0, "they did not meet"


@pytest.mark.parametrize("version", [4, 6])
def test_dns_over_udp_and_tcp_is_balanced_over_both_backends(town: IncusSite, version: int):
    listen = {4: "198.51.100.53", 6: "2001:db8:1::53"}[version]
    lines = (
        f"backend add c1 {FIRST[version]} 53",
        f"backend add c2 {SECOND[version]} 53",
        "port add udp 53 c1,c2",
        "port add tcp 53 c1,c2",
    )
    lxd_clients.require("dig")
    with ExitStack() as stack:
        for name, address in (("c1", FIRST[4]), ("c2", SECOND[4])):
            stack.enter_context(name_server(town.lab, name, address))
        stack.enter_context(town.balancer(listen, *lines))
        for place in ("asker", "outside"):
            for way in ("+notcp", "+tcp"):
                said = town.lab.exec(place, ["dig", f"@{listen}", "+short", "+tries=3", "+time=2", way, *PROMPTS])
                # A datagram may be lost while the gateway learns its neighbour: dig says so, and asks again.
                answers = [line for line in said.splitlines() if not line.startswith(";")]
                assert (len(answers), set(answers)) == (len(PROMPTS), {FIRST[4], SECOND[4]}), (place, way, said)


@pytest.mark.parametrize("version", [4, 6])
def test_port_ranges_are_reached_from_inside_and_outside(town: IncusSite, version: int):
    """Each port of a list leads to the backend's port of the same place; one port is for all."""
    listen = {4: "198.51.100.20", 6: "2001:db8:1::20"}[version]
    lines = (
        f"backend add c1 {FIRST[version]} 8080,8081",
        f"backend add c2 {SECOND[version]} 8080",
        "port add tcp 80-81 c1,c2",
        "port add udp 7000-7001 c1,c2",
    )
    with town.balancer(listen, *lines):
        for place in ("asker", "outside"):
            for protocol, ports in ((Protocol.TCP, (80, 81)), (Protocol.UDP, (7000, 7001))):
                for port in ports:
                    traffic = Traffic(to=listen, port=port, protocol=protocol, count=20, concurrency=5, timeout=10)
                    result = town.lab.traffic(place, traffic)
                    assert (result.errors, set(result.answers)) == ({}, {"c1", "c2"}), (place, protocol, port)


def test_info_reports_health_by_backend_and_port(town: IncusSite):
    lines = (f"backend add c1 {FIRST[4]} 8080", f"backend add c2 {SECOND[4]} 9", "port add tcp 80 c1,c2")
    with town.balancer("198.51.100.21", *lines) as listen:
        town.incus.run_ok(
            *LB, "set", "net1", listen, "healthcheck=true", "healthcheck.interval=1", "healthcheck.timeout=1"
        )
        healthy = f"  c1 ({FIRST[4]}):\n    - tcp/8080: online\n"
        ill = f"  c2 ({SECOND[4]}):\n    - tcp/9: offline\n"

        def info() -> str:
            return town.incus.run_ok(*LB, "info", "net1", listen)

        wait_until(lambda: healthy in info() and ill in info())
        assert info() == f"Backend health:\n{healthy}\n{ill}\n"


@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.extended)])
def test_load_balancer_may_listen_at_the_address_of_the_networks_router(town: IncusSite, version: int):
    """It is reached from inside and outside, by TCP and UDP, and machines are translated to it all the same."""
    volatile = f"volatile.network.ipv{version}.address"
    listen = town.incus.run_ok("network", "get", "net1", volatile).strip()
    routes = town.incus.run_ok("network", "get", "uplink", f"ipv{version}.routes").strip()
    length = {4: 32, 6: 128}[version]
    town.incus.run_ok("network", "set", "uplink", f"ipv{version}.routes={routes},{listen}/{length}")
    lines = (f"backend add c1 {FIRST[version]} 8080", "port add tcp 80-81 c1", "port add udp 7000 c1")
    with town.balancer(listen, *lines):
        assert listen in town.incus.run_ok(*LB, "list", "net1", "-f", "csv")
        assert town.incus.run_error("network", "forward", "create", "net1", listen).endswith("already exists")
        for place in ("asker", "outside"):
            for protocol, port in ((Protocol.TCP, 80), (Protocol.TCP, 81), (Protocol.UDP, 7000)):
                traffic = Traffic(to=listen, port=port, protocol=protocol, count=8, concurrency=2, timeout=10)
                result = town.lab.traffic(place, traffic)
                assert (result.errors, set(result.answers)) == ({}, {"c1"}), (place, protocol, port)
        if version == 4:  # IPv6 of net1 is not translated
            town.lab.exec("asker", ["ping", "-c", "2", "-W", "5", "203.0.113.1"])
        town.lab.exec("outside", ["ping", "-c", "2", "-W", "5", listen])
    forward = ("network", "forward")
    assert "router" in town.incus.run_error(*forward, "create", "net1", listen, f"target_address={FIRST[version]}")
    town.incus.run_ok(*forward, "create", "net1", listen, "-q")
    town.incus.run_ok(*forward, "port", "add", "net1", listen, "tcp", "8080", FIRST[version], "-q")
    town.settle()
    for place in ("asker", "outside"):
        result = town.lab.traffic(place, Traffic(to=listen, port=8080, count=4, concurrency=2, timeout=10))
        assert (result.errors, set(result.answers)) == ({}, {"c1"}), place
    town.incus.run_ok(*forward, "delete", "net1", listen, "-q")
    town.incus.run_ok("network", "set", "uplink", f"ipv{version}.routes={routes}")


STORED = "the change is stored and is applied once OVN accepts it"
STATUS = "volatile.fairlead.status"
NET4 = (
    "--type=ovn",
    "network=uplink",
    "ipv4.address=10.24.0.1/24",
    "ipv4.nat=true",
    "ipv6.address=fd00:24::1/64",
    "ipv6.nat=true",
)


@pytest.mark.parametrize("version", [pytest.param(4, marks=pytest.mark.extended), 6])
def test_ovn_rows_are_written_and_deleted_before_the_client_returns(town: IncusSite, version: int):
    """Each of them, each time: nothing of this test waits."""
    listen = {4: "198.51.100.70", 6: "2001:db8:1::70"}[version]
    before = rows_of(town.lab, "town")
    for _ in range(5):
        town.incus.run_ok(*LB, "create", "net1", listen)
        town.incus.run_ok(*LB, "backend", "add", "net1", listen, "c1", FIRST[version])
        town.incus.run_ok(*LB, "port", "add", "net1", listen, "udp", "53", "c1")
        assert any(key.endswith("-udp") for key in rows_of(town.lab, "town")["Load_Balancer"])
        town.incus.run_ok(*LB, "delete", "net1", listen)
        assert rows_of(town.lab, "town") == before
    for _ in range(3):
        town.incus.run_ok("network", "create", "net4", *NET4)
        assert rows_of(town.lab, "town") != before
        town.incus.run_ok("network", "delete", "net4")
        assert rows_of(town.lab, "town") == before


@pytest.mark.parametrize("version", [4, pytest.param(6, marks=pytest.mark.extended)])
@pytest.mark.parametrize("fails", ["kill", pytest.param("freeze", marks=pytest.mark.extended)])
def test_change_that_ovn_does_not_accept_fails_and_its_status_is_shown(town: IncusSite, fails: str, version: int):
    listen, new = {4: ("198.51.100.71", "198.51.100.72"), 6: ("2001:db8:1::71", "2001:db8:1::72")}[version]
    before = rows_of(town.lab, "town")
    with town.balancer(listen, f"backend add c1 {FIRST[version]}", "port add tcp 80 c1"):
        with unreliable_northbound(town.lab) as northbound:
            getattr(northbound, fails)()
            for words, doing in (
                (("create", "net1", new), "creating"),
                (("port", "add", "net1", listen, "tcp", "81", "c1"), "updating"),
                (("delete", "net1", listen), "deleting"),
            ):
                said = town.incus.run_error(*LB, *words)
                assert said.startswith(f"Failed {doing} load balancer: Failed applying OVN load balancer: "), said
                assert said.endswith(f"; {STORED}")
            shown = town.incus.run_ok(*LB, "show", "net1", new)
            assert f"  {STATUS}: Errored\n" in shown or f"  {STATUS}: Pending\n" in shown
            refused = town.incus.run_error("network", "create", "net4", *NET4)
            assert refused.startswith("Failed applying OVN network: "), refused
            rows = town.incus.run_ok("network", "list", "-f", "csv").splitlines()
            assert next(row for row in rows if row.startswith("net4,")).endswith((",ERRORED", ",PENDING")), rows
        wait_until(town.server.is_idle)
        assert STATUS not in town.incus.run_ok(*LB, "show", "net1", new)
        town.incus.run_ok(*LB, "create", "net1", listen, "-q")  # it was deleted all the same
    town.incus.run_ok(*LB, "delete", "net1", new)
    town.incus.run_ok("network", "delete", "net4")
    assert rows_of(town.lab, "town") == before


def test_octavia_api_shows_incus_load_balancers_and_rejects_new_listeners(town: IncusSite):
    with town.balancer("198.51.100.22", f"backend add c1 {FIRST[4]}", "port add tcp 80-82 c1"):
        (seen,) = town.server.balancers().values()
        assert (seen["vip_address"], seen["provisioning_status"]) == ("198.51.100.22", "ACTIVE")
        refused = town.server.client.post(
            "/load-balancer/v2.0/lbaas/listeners",
            json={"listener": {"loadbalancer_id": seen["id"], "protocol": "TCP", "protocol_port": 90}},
        )
        assert refused.status_code == 409, refused.text
    assert town.server.balancers() == {}


def test_incus_lists_and_deletes_octavia_load_balancers_but_cannot_edit_them(town: IncusSite):
    """What Octavia's clients made is listed and shown; only they change it, but anybody may delete it."""
    network = town.server.client.get("/network/v2.0/networks?name=net1").json()["networks"][0]["id"]
    made = town.server.create(LBS, "loadbalancer", name="octavia", vip_network_id=network, vip_address="10.20.0.200")
    town.server.wait_for(made["id"], "ACTIVE")
    assert town.incus.run_ok(*LB, "list", "net1", "-f", "csv", "-c", "lp") == "10.20.0.200,0\n"
    assert town.incus.run_error(*LB, "backend", "add", "net1", "10.20.0.200", "c1", FIRST[4])
    assert town.incus.run_ok(*LB, "delete", "net1", "10.20.0.200") == "Network load balancer 10.20.0.200 deleted\n"
    wait_equal(town.server.balancers, {})


def test_deleting_a_network_deletes_its_load_balancers(town: IncusSite):
    town.incus.run_ok(
        "network", "create", "net2", "--type=ovn", "network=uplink", "ipv4.address=10.22.0.1/24", "ipv4.nat=true"
    )
    town.incus.run_ok(
        *LB, "create", "net2", "198.51.100.40", stdin="backends: [{name: a, target_address: 10.22.0.9}]\n"
    )
    town.incus.run_ok(*LB, "create", "net2", "10.22.0.50")
    assert len(town.server.balancers()) == 2
    assert town.incus.run_ok("network", "delete", "net2") == "Network net2 deleted\n"
    assert town.server.balancers() == {}
    wait_until(town.server.is_idle)
    assert town.incus.run_error(*LB, "list", "net2") == "Failed loading network: Network not found"


def test_incus_and_lxc_clients_manage_networks(town: IncusSite):
    old = lxd_clients.lxc(town.home("lxc-networks"), town.socket)
    for client in (town.incus, old):
        assert "net3" not in client.run_ok("network", "list", "-f" if client is town.incus else "--format", "csv")
        assert client.run_ok(
            "network", "create", "net3", "--type=ovn", "network=uplink", "ipv4.address=10.23.0.1/24", "ipv4.nat=true"
        ) == ("Network net3 created\n")
        rows = client.run_ok("network", "list", "--format", "csv").splitlines()
        assert [row.split(",")[:4] for row in rows] == [
            ["net1", "ovn", "YES", "10.20.0.1/24"],
            ["net3", "ovn", "YES", "10.23.0.1/24"],
            ["uplink", "physical", "YES", ""],
        ]
        client.run_ok("network", "set", "net3", "user.a=b")
        assert client.run_ok("network", "get", "net3", "user.a") == "b\n"
        assert "ipv4.address: 10.23.0.1/24\n" in client.run_ok("network", "show", "net3")
        assert client.run_ok("network", "info", "net3").startswith("Name: net3\n")
        assert client.run_ok("network", "delete", "net3") == "Network net3 deleted\n"


def test_lxc_manages_load_balancers_by_query_and_network_forwards(town: IncusSite):
    """LXD 5.0's client has no words for load balancers: it has `query`, and forwards."""
    old = lxd_clients.lxc(town.home("lxc"), town.socket)
    base, listen = "/1.0/networks/net1/load-balancers", "198.51.100.30"
    old.run_ok("query", "-X", "POST", base, "-d", json.dumps({"listen_address": listen, "description": "by query"}))
    assert json.loads(old.run_ok("query", base)) == [f"{base}/{listen}"]
    old.run_ok("query", "-X", "PATCH", f"{base}/{listen}", "-d", json.dumps({"config": {"user.a": "b"}}))
    shown = json.loads(old.run_ok("query", f"{base}/{listen}"))
    assert (shown["description"], shown["config"], shown["backends"], shown["ports"]) == (
        "by query",
        {"user.a": "b"},
        [],
        [],
    )
    assert old.run("network", "forward", "create", "net1", listen).code == 1, "the address is in use"
    old.run_ok("query", "-X", "DELETE", f"{base}/{listen}")
    assert json.loads(old.run_ok("query", base)) == []

    forward = ("network", "forward")
    said = old.run_ok(*forward, "create", "net1", listen, f"target_address={FIRST[4]}")
    assert said == f"Network forward {listen} created\n"
    old.run_ok(*forward, "port", "add", "net1", listen, "tcp", "80-81", SECOND[4], "8080-8081")
    assert old.run_ok(*forward, "list", "net1", "-f", "csv") == f"{listen},,{FIRST[4]},1\n"
    assert "target_port: 8080-8081\n" in old.run_ok(*forward, "show", "net1", listen)
    assert town.incus.run(*LB, "create", "net1", listen).code == 1, "the address is in use"
    town.settle()
    for place in ("asker", "outside"):
        for port, name in ((81, "c2"), (8080, "c1")):
            result = town.lab.traffic(place, Traffic(to=listen, port=port, count=4, concurrency=2, timeout=10))
            assert (result.errors, dict(result.answers)) == ({}, {name: 4}), (place, port)
    assert old.run_ok(*forward, "delete", "net1", listen) == f"Network forward {listen} deleted\n"


def test_lxc_joins_with_a_token_that_is_valid_for_one_client(town: IncusSite):
    old = lxd_clients.lxc(town.home("lxc-https"))
    token = town.token("old")
    old.run_ok("remote", "add", "town", f"https://{town.https}", "--accept-certificate", "--password", token)
    assert "net1" in old.run_ok("network", "list", "town:", "--format", "csv")
    again = lxd_clients.incus(town.home("again"))
    assert again.run("remote", "add", "town", token).code == 1, "a token is for one client"


def test_incus_monitor_prints_lifecycle_events(town: IncusSite):
    old = lxd_clients.lxc(town.home("lxc-monitor"), town.socket)
    for client in (town.incus, old):
        with monitoring(client) as heard, town.balancer("198.51.100.60") as listen:
            for number in itertools.count():  # who has just begun to listen hears the next one
                town.incus.run_ok(*LB, "set", "net1", listen, f"user.number={number}")
                if select.select([heard], [], [], 0.2)[0]:
                    break
            town.incus.run_ok(*LB, "set", "net1", listen, "user.number=last")
            town.incus.run_ok(*LB, "delete", "net1", listen)
            town.incus.run_ok(*LB, "create", "net1", listen, "-q")
            actions = list[str]()
            while actions[-2:] != ["network-load-balancer-deleted", "network-load-balancer-created"]:
                event = json.loads(next(line for line in heard if line.strip()))
                actions.append(event["metadata"]["action"])
                assert event["metadata"]["source"] == f"/1.0/networks/net1/load-balancers/{listen}"
                assert event["metadata"]["requestor"]["protocol"] == "unix"
            assert actions[-3] == "network-load-balancer-updated"


@contextmanager
def monitoring(client: LxdCommand) -> Iterator[IO[str]]:
    """Its events, a line of JSON each."""
    argv = [client.program, "monitor", "--type=lifecycle", "--format=json"]
    environment = {**os.environ, **client.environment}
    with subprocess.Popen(
        argv, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout
            yield process.stdout
        finally:
            process.kill()
