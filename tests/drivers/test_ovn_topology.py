"""The reader of unmanaged networks against a real ovsdb-server."""

import json
import random
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from ipaddress import ip_address
from itertools import chain
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from fairlead.drivers.ovn.southbound.reader import MAX_LOGGED_REASONS
from fairlead.drivers.ovn.unmanaged.documents import MAX_NAME_LENGTH, MAX_ROUTES, MAX_SUBNETS
from fairlead.drivers.ovn.unmanaged.evidence import OwnerProject, PortProject, RouterEnd, traces_of_port
from fairlead.drivers.ovn.unmanaged.reader import DATABASE, REPORT_SIZE, TopologyReader, TopologySettings
from fairlead.drivers.ovn.unmanaged.rows import TABLES, RouterPortRow, SwitchPortRow
from fairlead.drivers.ovn.unmanaged.tables import UnmanagedTables
from fairlead.drivers.ovsdb.client import Client, Settings
from fairlead.drivers.ovsdb.errors import TransactionError
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.drivers.ovsdb.values import Json, encode_map
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import ExternalGateway, FixedIP, PortUse, Segment, SegmentType
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.documents.unmanaged import UnmanagedObject, UnmanagedPort, Writer, is_unmanaged
from fairlead.model.registry.facts import UNMANAGED, Fact, with_facts
from fairlead.model.snapshot import Snapshot
from fairlead.runtime.steps import run_to_completion
from harness.neutron import (
    NeutronNetwork,
    NeutronRouter,
    delete,
    external_ids_mutation,
    insert,
    lxd,
    mac_of,
    update,
    uuid_of,
)
from harness.ovsdb_server import FAST_TIMING, SCHEMA, OvsdbServer
from harness.step_counter import longest_between_yields
from harness.waiting import DEADLINE, eventually, run_ready_tasks

N1, N2, OUT = (
    NeutronNetwork(name="n1"),
    NeutronNetwork(name="n2"),
    NeutronNetwork(name="out", project="admin", external=True, physnet="wire", mtu=1500),
)
R1 = NeutronRouter(name="r1")
RECORDED = Path(__file__).parent.parent / "neutron_lab" / "northbound.json"
KINDS = (Kind.NETWORK, Kind.ROUTER, Kind.PORT, Kind.FLOATING_IP)


@pytest.fixture(params=["create", pytest.param("create-cluster", marks=pytest.mark.slow)])
def northbound(tmp_path: Path, servers: list[OvsdbServer], request: pytest.FixtureRequest) -> OvsdbServer:
    """Start a database: after a reconnect a cluster sends only changes, a standalone server all contents."""
    here = [f"unix:{tmp_path}/raft"] if request.param == "create-cluster" else []
    subprocess.run(["ovsdb-tool", request.param, tmp_path / "db", SCHEMA, *here], check=True)
    servers.append(OvsdbServer(tmp_path))
    servers[0].start()
    return servers[0]


class Neutron:
    """A client that writes as Neutron does, and a reader with its snapshot."""

    def __init__(self, server: OvsdbServer) -> None:
        self.server = server
        remotes = parse_remotes(server.remote)
        self.client = Client(
            Settings(remotes=remotes, database=DATABASE, tables={}, timing=FAST_TIMING), lambda event: None
        )
        self.settings = TopologySettings(remotes=remotes, timing=FAST_TIMING, mark="test, 1")
        self.snapshot = Snapshot()
        self.told: list[dict[Owner, UnmanagedObject | None]] = []
        self.reader = TopologyReader(self.settings, self.observe)

    async def __aenter__(self) -> "Neutron":
        self.client.start()
        self.reader.start()
        await self.client.wait_connected(DEADLINE)
        await self.reader.wait_connected(DEADLINE)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.reader.close()
        await self.client.close()

    def observe(self, fact: Fact[Any], news: Any) -> None:
        if fact is UNMANAGED:
            self.told.append(dict(news))
        self.snapshot = with_facts(self.snapshot, fact, news)

    async def write(self, *operations: Json | Iterator[Json]) -> None:
        flat = [each for part in operations for each in ([part] if isinstance(part, dict) else part)]
        results = await self.client.transact(flat, DEADLINE)
        assert all("error" not in result for result in results)
        await self.notified_owners()

    async def notified_owners(self) -> None:
        """Wait for all earlier writes: a marker row that is written last has arrived."""
        name = f"mark-{random.random()}"
        await self.client.transact([insert("Logical_Switch", {"name": name})], DEADLINE)
        await eventually(lambda: any(row.name == name for row in self.reader._tables._rows["Logical_Switch"].values()))
        await eventually(lambda: self.reader._client._link is not None and self.reader._client._link._work is None)

    def documents(self) -> dict[Owner, UnmanagedObject]:
        """Return the unmanaged documents of the snapshot."""
        return {
            Owner(kind, identity): document
            for kind in KINDS
            for identity, document in self.snapshot.documents(kind).items()
            if is_unmanaged(document)
        }

    async def reread(self) -> dict[Owner, UnmanagedObject]:
        other = Neutron(self.server)
        async with other:
            assert other.reader._tables.registry.documents == other.documents()
            return other.documents()
        raise AssertionError


def basics() -> Iterator[Json]:
    """Yield N1 with IPv4 and IPv6, a machine, a router with a gateway, and a floating IP."""
    yield from N1.create()
    yield N1.subnet("10.1.0.0/24", router="10.1.0.1")
    yield from N1.port("vm", "10.1.0.11/24", "fd01::b/64", device=uuid_of("vm"), host="node1")
    yield from OUT.create()
    yield from R1.create()
    yield from R1.insert_port(N1, "10.1.0.1/24")
    yield from R1.insert_port(N1, "fd01::1/64")
    yield from R1.insert_port(OUT, "192.0.2.9/24", gateway=True)
    yield from R1.default_route(OUT, "192.0.2.1", "192.0.2.0/24")
    yield from R1.snat("192.0.2.9")
    yield from R1.floating_ip("192.0.2.77", OUT, N1.port_id("vm"), "10.1.0.11")


async def test_network_subnets_and_ports_are_imported(northbound: OvsdbServer) -> None:
    async with Neutron(northbound) as neutron:
        await neutron.write(basics())
        network = neutron.snapshot.networks[N1.id]
        assert ("n1", "a", 1442, False, False) == (
            network.name,
            network.project_id,
            network.mtu,
            network.shared,
            network.external,
        )
        four, six = network.subnets
        assert (N1.subnet_id("10.1.0.0/24"), parse_network("10.1.0.0/24"), parse_address("10.1.0.1"), True) == (
            four.id,
            four.cidr,
            four.gateway,
            four.enable_dhcp,
        )
        assert (N1.subnet_id("fd01::/64"), parse_network("fd01::/64"), parse_address("fd01::1"), False) == (
            six.id,
            six.cidr,
            six.gateway,
            six.enable_dhcp,
        )
        port = neutron.snapshot.ports[N1.port_id("vm")]
        assert port.mac_address == mac_of("n1-vm")
        assert port.fixed_ips == (
            FixedIP(subnet_id=four.id, address=parse_address("10.1.0.11")),
            FixedIP(subnet_id=six.id, address=parse_address("fd01::b")),
        )
        assert (port.project_id, port.device_owner, port.device_id, port.host) == (
            "a",
            "compute:nova",
            uuid_of("vm"),
            "node1",
        )
        row = next(
            uuid for uuid, row in neutron.reader._tables._rows["Logical_Switch"].items() if row.name == N1.switch
        )
        assert (network.row, network.writer) == (f"{N1.switch}@{row}", Writer.NEUTRON)


async def test_router_interfaces_gateway_and_floating_ips_are_imported(northbound: OvsdbServer) -> None:
    async with Neutron(northbound) as neutron:
        await neutron.write(basics(), R1.route("10.9.0.0/16", "10.1.0.99"))
        router, outside = neutron.snapshot.routers[R1.id], neutron.snapshot.networks[OUT.id]
        gateway_port = OUT.port_id(R1.port_name(OUT, "192.0.2.9/24"))
        assert router.gateway == ExternalGateway(network_id=OUT.id, port_id=gateway_port, enable_snat=True)
        assert ("a", "r1", ["10.9.0.0/16"]) == (
            router.project_id,
            router.name,
            [str(route.destination) for route in router.routes],
        )
        assert set(neutron.snapshot.router_interfaces[R1.id]) == {
            N1.port_id(R1.port_name(N1, each)) for each in ("10.1.0.1/24", "fd01::1/64")
        }
        interface = neutron.snapshot.ports[N1.port_id(R1.port_name(N1, "10.1.0.1/24"))]
        assert (interface.use, interface.mac_address) == (
            PortUse.ROUTER_INTERFACE,
            mac_of(f"n1-{R1.port_name(N1, '10.1.0.1/24')}"),
        )
        assert neutron.snapshot.ports[gateway_port].use is PortUse.ROUTER_GATEWAY
        assert (outside.external, outside.project_id) == (False, "admin")
        assert outside.segment == Segment(type=SegmentType.FLAT, physical_network="wire")
        assert [(each.id, each.gateway) for each in outside.subnets] == [
            (OUT.subnet_id("192.0.2.0/24"), parse_address("192.0.2.1"))
        ]
        floating = neutron.snapshot.floating_ips[uuid_of("fip-192.0.2.77")]
        assert (floating.port_id, floating.router_id, str(floating.fixed_address), floating.project_id) == (
            N1.port_id("vm"),
            R1.id,
            "10.1.0.11",
            "a",
        )


async def test_only_changed_resources_are_reported(northbound: OvsdbServer) -> None:
    async with Neutron(northbound) as neutron:
        await neutron.write(basics())
        neutron.told.clear()
        vm = N1.port_id("vm")
        await neutron.write(external_ids_mutation("Logical_Switch_Port", vm, port_name="web", revision_number="2"))
        assert [[*part] for part in neutron.told] == [[Owner(Kind.PORT, vm)]]
        assert neutron.snapshot.ports[vm].name == "web"
        neutron.told.clear()
        await neutron.write(external_ids_mutation("Logical_Switch", N1.switch, revision_number="9"))
        assert neutron.told == []
        await neutron.write(N1.port("vm2", "10.1.0.12/24"))
        assert [[*part] for part in neutron.told] == [[Owner(Kind.PORT, N1.port_id("vm2"))]]
        neutron.told.clear()
        await neutron.write(update("Logical_Switch_Port", vm, enabled=False))
        assert [each and each.admin_state_up for part in neutron.told for each in part.values()] == [False]


async def test_router_port_appears_once_the_router_has_attached_the_port(northbound: OvsdbServer) -> None:
    """A router's port appears when both of its rows exist, which Neutron writes in two transactions."""

    async with Neutron(northbound) as neutron:
        await neutron.write(N1.create(), R1.create(), R1.insert_port(N1, "10.1.0.1/24", attached=False))
        port = N1.port_id(R1.port_name(N1, "10.1.0.1/24"))
        assert port not in neutron.snapshot.ports
        assert neutron.snapshot.routers[R1.id].project_id == ""
        await neutron.write(R1.attach(N1, "10.1.0.1/24"))
        assert neutron.snapshot.ports[port].use is PortUse.ROUTER_INTERFACE
        assert neutron.snapshot.routers[R1.id].project_id == "a"
        assert neutron.documents() == await neutron.reread()


async def test_deleted_resources_are_reported(northbound: OvsdbServer) -> None:
    async with Neutron(northbound) as neutron:
        await neutron.write(basics())
        await neutron.write(delete("Logical_Router", "name", R1.row))
        assert not neutron.snapshot.routers
        assert not neutron.snapshot.floating_ips
        assert {port.use for port in neutron.snapshot.ports.values()} == {PortUse.MACHINE}
        await neutron.write(*(delete("Logical_Switch", "name", each.switch) for each in (N1, OUT)))
        assert not neutron.documents()
        assert neutron.reader.document_counts == {}


async def test_last_state_holds_until_a_reconnect_reports_deletions(northbound: OvsdbServer) -> None:
    async with Neutron(northbound) as neutron:
        await neutron.write(basics())
        known = neutron.documents()
        northbound.stop()
        await eventually(lambda: not neutron.reader.connected)
        assert neutron.documents() == known
        assert neutron.reader.disconnected_seconds > 0
        await neutron.reader.close()  # the other write is then part of the initial contents
        northbound.start()
        await neutron.client.wait_connected(DEADLINE)
        flat = [delete("Logical_Router", "name", R1.row), *N2.create()]
        await neutron.client.transact(flat, DEADLINE)
        neutron.told.clear()
        neutron.reader.start()
        await neutron.reader.wait_connected(DEADLINE)
        assert R1.id not in neutron.snapshot.routers
        assert N2.id in neutron.snapshot.networks
        assert Owner(Kind.PORT, N1.port_id("meta")) not in {owner for part in neutron.told for owner in part}
        assert neutron.documents() == await neutron.reread()


@pytest.mark.parametrize(
    ("metadata", "projects", "owner", "shared"),
    [
        (True, [], "a", False),
        (True, ["a"], "a", False),
        (True, ["a", "b"], "a", True),
        (True, ["b"], "a", True),
        (False, [], "", False),
        (False, ["b"], "b", False),
        (False, ["a", "b"], "", True),
    ],
)
async def test_network_project_is_derived_from_its_ports(
    server: OvsdbServer, *, metadata: bool, projects: list[str], owner: str, shared: bool
) -> None:
    """The project of a network is that of its metadata port, or otherwise the one of all ports, or none if they
    differ."""

    async with Neutron(server) as neutron:
        await neutron.write(replace(N1, metadata=metadata).create())
        for number, project in enumerate(projects):
            await neutron.write(N1.port(f"vm{number}", f"10.1.0.{10 + number}/24", project=project))
        network = neutron.snapshot.networks[N1.id]
        assert (owner, shared) == (network.project_id, network.shared)


async def test_router_with_interfaces_of_two_projects_has_no_project(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        await neutron.write(N1.create(), N2.create(), R1.create(), R1.insert_port(N1, "10.1.0.1/24"))
        assert neutron.snapshot.routers[R1.id].project_id == "a"
        await neutron.write(R1.insert_port(N2, "10.2.0.1/24"))
        port = N2.port_id(R1.port_name(N2, "10.2.0.1/24"))
        assert neutron.snapshot.routers[R1.id].project_id == "a"
        await neutron.write(external_ids_mutation("Logical_Switch_Port", port, project_id="b"))
        assert neutron.snapshot.routers[R1.id].project_id == ""


async def test_subnet_id_is_derived_until_a_row_has_one(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        await neutron.write(N1.create(), N1.port("vm", "10.1.0.11/24"), N1.port("other", "10.7.0.11/24"))
        first, second = neutron.snapshot.networks[N1.id].subnets
        assert N1.subnet_id("10.1.0.0/24") not in (first.id, second.id)
        assert first.gateway is None
        neutron.told.clear()
        await neutron.write(N1.subnet("10.1.0.0/24"))
        known = neutron.snapshot.networks[N1.id].subnets
        assert [N1.subnet_id("10.1.0.0/24"), second.id] == [subnet.id for subnet in known]
        assert neutron.snapshot.ports[N1.port_id("vm")].fixed_ips[0].subnet_id == N1.subnet_id("10.1.0.0/24")
        assert Owner(Kind.PORT, N1.port_id("other")) not in {owner for part in neutron.told for owner in part}


async def test_subnets_of_a_router_port_are_matched_by_address_order(server: OvsdbServer) -> None:
    """IPv6 subnets of a network share one router port, and only the order of addresses relates them to ids."""

    async with Neutron(server) as neutron:
        await neutron.write(N1.create(), R1.create(), R1.insert_port(N1, "fd05::1/64", "fd01::1/64", "fd03::1/64"))
        subnets = neutron.snapshot.networks[N1.id].subnets
        assert [(N1.subnet_id(f"fd0{each}::/64"), f"fd0{each}::1") for each in (1, 3, 5)] == [
            (subnet.id, str(subnet.gateway)) for subnet in subnets
        ]


async def test_port_security_host_and_vlan_are_imported(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        wired = replace(N1, physnet="wire", vlan=77)
        await neutron.write(wired.create(), N1.port("vm", "10.1.0.11/24", secured=False))
        await neutron.write(N1.port("bound", "10.1.0.12/24", options={"requested-chassis": "node1,node2"}))
        segment = Segment(type=SegmentType.VLAN, physical_network="wire", id=77)
        assert neutron.snapshot.networks[N1.id].segment == segment
        ports = neutron.snapshot.ports
        assert (False, mac_of("n1-vm")) == (
            ports[N1.port_id("vm")].port_security_enabled,
            ports[N1.port_id("vm")].mac_address,
        )
        assert (True, "node1") == (
            ports[N1.port_id("bound")].port_security_enabled,
            ports[N1.port_id("bound")].host,
        )
        await neutron.write(update("Logical_Switch_Port", N1.port_id("vm"), addresses="unknown"))
        assert ports is not neutron.snapshot.ports
        assert neutron.snapshot.ports[N1.port_id("vm")].mac_address == ""


async def test_rows_of_a_real_neutron_are_parsed(server: OvsdbServer) -> None:
    """Rows of a real Neutron 29 are parsed; `neutron_lab/rows.py` lists their contents."""

    async with Neutron(server) as neutron:
        await neutron.write(*json.loads(RECORDED.read_text())[1:])
        assert neutron.reader.document_counts == {
            ("neutron", "network"): 6,
            ("neutron", "router"): 1,
            ("neutron", "port"): 24,
            ("neutron", "floatingip"): 2,
        }
        assert neutron.reader.unreadable == 0
        networks = {network.name: network for network in neutron.snapshot.networks.values()}
        assert {"shared": "b", **dict.fromkeys(("n1", "n2", "n3", "vlan", "public"), "a")} == {
            name: network.project_id[0] for name, network in networks.items()
        }
        assert [("10.2.0.0/24", "10.2.0.1"), ("fd02::/64", "fd02::")] == [
            (str(subnet.cidr), str(subnet.gateway)) for subnet in networks["n2"].subnets
        ]
        named = [subnet for network in networks.values() for subnet in network.subnets]
        assert {UUID(subnet.id).version for subnet in named} == {4}  # Neutron's own ids: none had to be derived
        (router,) = neutron.snapshot.routers.values()
        assert router.gateway is not None
        assert router.gateway.network_id == networks["public"].id
        joined = {neutron.snapshot.ports[each].network_id for each in neutron.snapshot.router_interfaces[router.id]}
        assert joined == {networks["n1"].id, networks["n2"].id}
        ports = {port.name: port for port in neutron.snapshot.ports.values()}
        assert {ports["m1"].id, ports["octavia-lb-11111111-2222-3333-4444-555555555555"].id} == {
            floating.port_id for floating in neutron.snapshot.floating_ips.values()
        }
        assert neutron.documents() == await neutron.reread()


@pytest.mark.parametrize("brand", ["lxd", "incus"])
async def test_networks_of_lxd_and_incus_are_imported(server: OvsdbServer, brand: str) -> None:
    async with Neutron(server) as neutron:
        await neutron.write(lxd(brand=brand))
        networks = {network.name: network for network in neutron.snapshot.networks.values()}
        inside, outside = networks[f"{brand}-net9-ls-int"], networks[f"{brand}-net9-ls-ext"]
        assert {Writer(brand)} == {each.writer for each in neutron.documents().values()}
        assert [("10.3.0.0/24", "10.3.0.1"), ("fd03::/64", "fd03::1")] == [
            (str(subnet.cidr), str(subnet.gateway)) for subnet in inside.subnets
        ]
        assert 1400 == inside.mtu
        assert outside.segment == Segment(type=SegmentType.FLAT, physical_network="uplink")
        (router,) = neutron.snapshot.routers.values()
        assert router.gateway is not None
        assert (f"{brand}-net9-lr", outside.id) == (router.name, router.gateway.network_id)
        (port,) = (port for port in neutron.snapshot.ports.values() if port.use is PortUse.MACHINE)
        assert (uuid_of("c1"), "node2", "00:16:3e:00:00:02") == (port.device_id, port.host, port.mac_address)
        assert ["10.3.0.2", "fd03::216:3eff:fe00:2"] == [str(fixed.address) for fixed in port.fixed_ips]
        assert neutron.documents() == await neutron.reread()


@pytest.mark.parametrize("brand", ["lxd", "incus"])
async def test_external_addresses_of_other_writers_are_imported(server: OvsdbServer, brand: str) -> None:
    """External addresses of others are known: gateways, load balancers and forwards of LXD and Incus, floating IPs of
    Neutron."""
    async with Neutron(server) as neutron:
        await neutron.write(lxd(brand=brand), basics())
        assert ip_address("192.0.2.33") in neutron.snapshot.given_elsewhere
        floating = {each.address for each in neutron.snapshot.floating_ips.values()}
        assert floating
        assert floating <= set(neutron.snapshot.given_elsewhere)
        before = neutron.snapshot.given_elsewhere
        listens = {"192.0.2.40": "tcp", "2001:db8::40": "udp"}
        for address, protocol in listens.items():
            await neutron.write(insert("Load_Balancer", {"name": f"{brand}-net9-lb-{address}-{protocol}"}))
        await neutron.write(insert("Load_Balancer", {"name": "somebody's"}))
        assert set(map(ip_address, listens)) == set(neutron.snapshot.given_elsewhere) - set(before)
        await neutron.write({"op": "delete", "table": "Load_Balancer", "where": []})
        assert neutron.snapshot.given_elsewhere == before


async def test_own_rows_and_rows_of_unknown_writers_are_skipped(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        ours = {"name": N1.switch, "external_ids": encode_map({"fairlead": "test, 1"})}
        await neutron.write(insert("Logical_Switch", ours), insert("Logical_Switch", {"name": "somebody's"}))
        await neutron.write(insert("Logical_Router", {"name": "GR_node1"}))
        assert not neutron.documents()
        assert neutron.reader.unreadable == 0
        assert not any(row.name == N1.switch for row in neutron.reader._tables._rows["Logical_Switch"].values())


async def test_unreadable_rows_are_skipped_and_counted(server: OvsdbServer, caplog: pytest.LogCaptureFixture) -> None:
    async with Neutron(server) as neutron:
        await neutron.write(basics())
        vm = N1.port_id("vm")
        await neutron.write(external_ids_mutation("Logical_Switch_Port", vm, cidrs="10.1.0.300/24"))
        assert vm not in neutron.snapshot.ports
        assert neutron.reader.unreadable == 1
        floating = neutron.snapshot.floating_ips[uuid_of("fip-192.0.2.77")]
        assert floating.port_id is None
        await neutron.write(external_ids_mutation("Logical_Switch_Port", vm, cidrs=" ".join(["10.1.0.5/24"] * 101)))
        assert vm not in neutron.snapshot.ports
        await neutron.write(external_ids_mutation("Logical_Switch_Port", vm, cidrs="10.1.0.11/24"))
        assert vm in neutron.snapshot.ports
        assert neutron.reader.unreadable == 0
        await neutron.write(insert("Logical_Switch", {"name": "neutron-\u202eevil\nline"}))
        assert neutron.reader.unreadable == 1
        assert neutron.documents() == await neutron.reread()
    assert "'10.1.0.300/24' is not an address with a prefix length" in caplog.text
    assert "evil\nline" not in caplog.text


async def test_ovn_replies_for_unplugged_ports_are_detected(server: OvsdbServer) -> None:
    """OVN's answering for unplugged ports is detected; it does unless Neutron's maintenance worker has disabled it."""

    async with Neutron(server) as neutron:
        await neutron.write(insert("NB_Global", {"options": encode_map({"mac_prefix": "0a:00:00"})}))
        assert not neutron.reader.answers_for_unplugged  # there is no Neutron network
        await neutron.write(N1.create())
        assert neutron.reader.answers_for_unplugged
        for value, answers in (("false", False), ("true", True)):
            options = encode_map({"ignore_lsp_down": value})
            await neutron.write({"op": "update", "table": "NB_Global", "where": [], "row": {"options": options}})
            assert neutron.reader.answers_for_unplugged is answers


async def test_names_are_truncated_and_on_one_line(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        await neutron.write(N1.create())
        long = "x" * 5000
        await neutron.write(external_ids_mutation("Logical_Switch", N1.switch, network_name=f"{long}1"))
        before = neutron.snapshot.networks[N1.id].name
        assert len(before) == MAX_NAME_LENGTH
        await neutron.write(external_ids_mutation("Logical_Switch", N1.switch, network_name=f"{long}2"))
        await neutron.write(external_ids_mutation("Logical_Switch", N1.switch, network_name="a\nb"))
        assert neutron.snapshot.networks[N1.id].name == "a?b"


async def test_subnets_of_a_network_and_routes_of_a_router_are_bounded(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        await neutron.write(N1.create(), R1.create(), R1.insert_port(N1, "10.1.0.1/24"))
        await neutron.write(*(N1.subnet(f"10.{each // 200 + 2}.{each % 200}.0/24") for each in range(MAX_SUBNETS)))
        assert len(neutron.snapshot.networks[N1.id].subnets) == MAX_SUBNETS
        await neutron.write(*(R1.route("10.99.0.0/16", f"10.1.{each // 200}.{each % 200}") for each in range(501)))
        assert len(neutron.snapshot.routers[R1.id].routes) == MAX_ROUTES
        assert neutron.documents() == await neutron.reread()


async def test_warnings_about_unreadable_rows_are_bounded(
    server: OvsdbServer, caplog: pytest.LogCaptureFixture
) -> None:
    async with Neutron(server) as neutron:
        bad = (insert("Logical_Switch", {"name": f"neutron-{each}"}) for each in range(MAX_LOGGED_REASONS + 20))
        await neutron.write(*bad)
        assert neutron.reader.unreadable == MAX_LOGGED_REASONS + 20
    assert MAX_LOGGED_REASONS == sum("skipping unreadable rows" in record.message for record in caplog.records)


@pytest.mark.slow
async def test_updates_arrive_in_parts_with_complete_references(server: OvsdbServer) -> None:
    async with Neutron(server) as neutron:
        nets = [NeutronNetwork(name=f"net{each}") for each in range(REPORT_SIZE)]
        routers = [NeutronRouter(name=f"router{each}") for each in range(REPORT_SIZE)]
        await neutron.write(OUT.create(), *(net.create() for net in nets), *(router.create() for router in routers))
        for each, (net, router) in enumerate(zip(nets, routers, strict=True)):
            address = f"192.0.{each}.9/24"
            await neutron.client.transact(
                [*router.insert_port(net, "10.1.0.1/24"), *router.insert_port(OUT, address, gateway=True)], DEADLINE
            )
        await neutron.notified_owners()
        assert neutron.documents() == await neutron.reread()
        assert len(neutron.documents()) == 1 + len(nets) + 1 + len(nets) + 3 * len(routers)
        assert max(map(len, neutron.told)) <= REPORT_SIZE + 1


async def test_rows_may_arrive_in_any_order(server: OvsdbServer) -> None:
    """Rows may arrive in any order, also within one update of the database, which is unordered."""

    async with Neutron(server) as neutron:
        await neutron.write(basics(), lxd())
        rows = [
            (table, uuid, change)
            for table, changes in (await whole(neutron)).items()
            for uuid, change in changes.items()
        ]
        for seed in range(50):
            await run_ready_tasks(1)  # yield to the loop, because these tables run outside a reader
            random.Random(seed).shuffle(rows)
            tables = UnmanagedTables()
            for table, uuid, change in rows:
                run_to_completion(tables.take({table: {uuid: change}}))
                if random.Random(uuid).random() < 0.3:
                    run_to_completion(tables.settle())
            run_to_completion(tables.settle())
            assert neutron.documents() == tables.registry.documents
            for table, uuid, _ in random.Random(seed).sample(rows, len(rows)):
                run_to_completion(tables.take({table: {uuid: {"delete": None}}}))
                run_to_completion(tables.settle())
            assert not tables.registry.documents
            assert not tables._evidence
            assert not tables._index._found
            assert not tables._placed
            assert not tables.unreadable


def test_networks_of_any_size_are_processed_in_short_steps() -> None:
    """Networks of any size are processed in short steps: the network arrives, its subnet gets its id, and all is
    deleted."""
    ports = [next(N1.port(f"vm{each}", f"10.{each >> 8}.{each & 255}.9/8"))["row"] for each in range(2000)]
    rows = {uuid_of(f"row{each}"): {"initial": row} for each, row in enumerate(ports)}
    held = {"name": N1.switch, "ports": ["set", [["uuid", uuid] for uuid in rows]]}
    tables = UnmanagedTables()
    for change in (
        {"Logical_Switch": {"s": {"initial": held}}, "Logical_Switch_Port": rows},
        {"DHCP_Options": {"d": {"insert": N1.subnet("10.0.0.0/8")["row"]}}},
        {"Logical_Switch": {"s": {"delete": None}}, "Logical_Switch_Port": {uuid: {"delete": None} for uuid in rows}},
    ):
        _, steps = longest_between_yields(chain(tables.take(change), tables.settle()))
        assert steps < 25_000
        known = [document for document in tables.registry.documents.values() if isinstance(document, UnmanagedPort)]
        assert len(known) in (0, 2000)
    assert not tables.registry.documents


async def whole(neutron: Neutron) -> dict[str, dict[str, Json]]:
    """Return the initial contents that a reader receives."""
    operations = [{"op": "select", "table": name, "where": []} for name in TABLES]
    found = await neutron.client.transact(operations, DEADLINE)
    return {
        name: {row["_uuid"][1]: {"initial": row} for row in result["rows"]}
        for name, result in zip(TABLES, found, strict=True)
    }


class RandomChanges:
    """Random writer of valid Neutron rows and of invalid ones."""

    def __init__(self, seed: int, neutron: Neutron) -> None:
        self.chance = random.Random(seed)
        self.neutron = neutron
        self.nets = [N1, N2, OUT]
        self.routers = [R1, NeutronRouter(name="r2", project="b")]
        self.cidrs = {N1.name: "10.1.0", N2.name: "10.2.0", OUT.name: "192.0.2"}

    async def find(self, table: str, column: str, value: Json) -> str | None:
        where = {"op": "select", "table": table, "where": [[column, "==", value]], "columns": ["_uuid"]}
        rows = (await self.neutron.client.transact([where], DEADLINE))[0]["rows"]
        return rows[0]["_uuid"][1] if rows else None

    async def step(self) -> None:
        """Run one transaction; one that is impossible in the current state has no effect."""
        kinds = [
            self.network,
            self.router,
            self.subnet,
            self.port,
            self.interface,
            self.interface,
            self.more,
            self.apply_random_change,
        ]
        operations: list[Json] = []
        for _ in range(self.chance.randint(1, 3)):
            operations += [each async for each in self.chance.choice(kinds)()]
        with suppress(TransactionError):
            await self.neutron.client.transact(operations, DEADLINE)

    async def network(self) -> AsyncIterator[Json]:
        net = self.chance.choice(self.nets)
        if await self.find("Logical_Switch", "name", net.switch):
            if self.chance.random() < 0.3:
                yield delete("Logical_Switch", "name", net.switch)
            else:
                yield external_ids_mutation(
                    "Logical_Switch", net.switch, network_name=self.chance.choice("xyz"), mtu="1400"
                )
        else:
            for each in replace(net, metadata=self.chance.random() < 0.5).create():
                yield each

    async def router(self) -> AsyncIterator[Json]:
        router = self.chance.choice(self.routers)
        if not await self.find("Logical_Router", "name", router.row):
            for each in router.create():
                yield each
        elif self.chance.random() < 0.2:
            yield delete("Logical_Router", "name", router.row)
        else:
            yield update("Logical_Router", router.row, enabled=self.chance.random() < 0.5)

    async def subnet(self) -> AsyncIterator[Json]:
        net = self.chance.choice(self.nets)
        cidr = self.chance.choice([f"{self.cidrs[net.name]}.0/24", f"fd0{self.nets.index(net)}::/64"])
        if await self.find("DHCP_Options", "cidr", cidr):
            yield delete("DHCP_Options", "cidr", cidr)
        else:
            router = f"{self.cidrs[net.name]}.1" if "." in cidr and self.chance.random() < 0.7 else ""
            yield net.subnet(cidr, router)

    async def port(self) -> AsyncIterator[Json]:
        net, name = self.chance.choice(self.nets), self.chance.choice("pqrst")
        uuid = await self.find("Logical_Switch_Port", "name", net.port_id(name))
        if uuid is None:
            addresses = [f"{self.cidrs[net.name]}.{self.chance.randint(10, 14)}/24"]
            addresses += [f"fd0{self.nets.index(net)}::{self.chance.randint(10, 14)}/64"] * self.chance.randint(0, 1)
            project, secured = self.chance.choice("ab"), self.chance.random() < 0.9
            for each in net.port(name, *addresses, project=project, secured=secured):
                yield each
            return
        match self.chance.randint(0, 3):
            case 0:
                for each in await self.remove(uuid):
                    yield each
            case 1:
                for each in await self.remove(uuid):
                    yield each
                where = [["name", "==", self.chance.choice(self.nets).switch]]
                mutation = ["ports", "insert", ["set", [["uuid", uuid]]]]
                yield {"op": "mutate", "table": "Logical_Switch", "where": where, "mutations": [mutation]}
            case 2:
                yield external_ids_mutation(
                    "Logical_Switch_Port", net.port_id(name), project_id=self.chance.choice(["a", "b", ""])
                )
            case _:
                cidrs = f"{self.cidrs[net.name]}.{self.chance.randint(10, 14)}/24"
                yield external_ids_mutation("Logical_Switch_Port", net.port_id(name), cidrs=cidrs)

    async def remove(self, *uuids: str) -> list[Json]:
        columns = (("Logical_Switch", "ports"), ("Logical_Router", "ports"), ("Logical_Router", "nat"))
        gone = ["set", [["uuid", uuid] for uuid in uuids]]
        return [
            {"op": "mutate", "table": table, "where": [], "mutations": [[column, "delete", gone]]}
            for table, column in columns
        ]

    async def interface(self) -> AsyncIterator[Json]:
        router, net = self.chance.choice(self.routers), self.chance.choice(self.nets)
        address = f"{self.cidrs[net.name]}.{self.routers.index(router) + 1}/24"
        addresses = [address] if self.chance.random() < 0.7 else [address, f"fd0{self.nets.index(net)}::1/64"]
        port_id = net.port_id(router.port_name(net, *addresses))
        uuid = await self.find("Logical_Switch_Port", "name", port_id)
        end = await self.find("Logical_Router_Port", "name", f"lrp-{port_id}")
        gateway = net is OUT
        if uuid is None:
            for each in router.insert_port(net, *addresses, gateway=gateway, attached=self.chance.random() < 0.6):
                yield each
        elif end is None:
            for each in router.attach(net, *addresses, gateway=gateway):
                yield each
        else:
            for each in await self.remove(*self.chance.choice([[uuid, end], [end], [uuid]])):
                yield each

    async def more(self) -> AsyncIterator[Json]:
        router = self.chance.choice(self.routers)
        outside = f"192.0.2.{70 + self.routers.index(router)}"
        floating = await self.find("NAT", "external_ip", outside)
        match self.chance.randint(0, 3):
            case 0 if floating is not None:
                for each in await self.remove(floating):
                    yield each
            case 0 | 1:
                net = self.chance.choice([N1, N2])
                inside = f"{self.cidrs[net.name]}.{self.chance.randint(10, 14)}"
                for each in router.floating_ip(outside, OUT, net.port_id(self.chance.choice("pqrst")), inside):
                    yield each
            case 2:
                nexthop = f"192.0.2.{self.chance.randint(1, 2)}"
                for each in router.default_route(OUT, nexthop, "192.0.2.0/24"):
                    yield each
            case _:
                for each in self.chance.choice([router.snat(outside), router.route("10.9.0.0/16", "10.1.0.99")]):
                    yield each

    async def apply_random_change(self) -> AsyncIterator[Json]:
        net, name = self.chance.choice(self.nets), self.chance.choice("pqrst")
        match self.chance.randint(0, 5):
            case 0:
                yield external_ids_mutation("Logical_Switch_Port", net.port_id(name), cidrs="rubbish")
            case 1:
                yield insert("Logical_Switch", {"name": net.switch})
            case 2:
                yield insert("Logical_Switch", {"name": "neutron-rubbish"})
            case 3:
                yield update("DHCP_Options", "", cidr="rubbish") | {"where": []}
            case 4:
                yield update("Logical_Router_Port", "", mac="rubbish") | {"where": []}
            case _:
                yield delete("Logical_Switch", "name", "neutron-rubbish")


@pytest.mark.parametrize("seed", range(6))
async def test_random_changes_end_in_the_state_of_a_fresh_read(server: OvsdbServer, seed: int) -> None:
    async with Neutron(server) as neutron:
        chaos = RandomChanges(seed, neutron)
        for number in range(60):
            await chaos.step()
            if number % 10 == 9:
                await neutron.notified_owners()
                assert neutron.documents() == await neutron.reread(), number
        assert neutron.documents()


def test_unreadable_port_still_counts_for_the_project_of_its_network() -> None:
    """A network with a second project's port is not owned by one project, whatever that port's project column
    contains."""
    wrong = SwitchPortRow(name="port", project_id="b", cidrs="10.1.0.300/24")
    assert traces_of_port(wrong, None) == (PortProject("b"),)
    end = RouterEnd(router="r", port=RouterPortRow(networks=frozenset({"nonsense"})))
    assert traces_of_port(replace(wrong, type="router"), end) == (PortProject("b"),)
    assert traces_of_port(replace(wrong, device_owner="network:distributed"), None) == (OwnerProject("b"),)
