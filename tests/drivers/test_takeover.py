"""Takeover from Octavia's stock provider: its rows are deleted in the transaction that creates Fairlead's rows."""

import asyncio
import csv
import io
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairlead.compilers.ovn import OVN
from fairlead.dataplane.rows import NO_ROWS, diff
from fairlead.drivers.interface import DriverError
from fairlead.drivers.ovn.northbound.driver import OvnDriver, OvnSettings
from fairlead.drivers.ovsdb.remotes import parse_remotes
from fairlead.model.documents.owner import Kind, Owner
from fairlead.model.registry.changeset import Changes, apply_changes, owners_with_rows
from fairlead.model.snapshot import Snapshot
from harness.language import parse_model
from harness.ovsdb_server import OvsdbServer
from harness.waiting import DEADLINE

WEB = Owner(Kind.LOAD_BALANCER, "web")
PREPARED = """network net1 10.0.0.0/24 fd00::/64
web vip=10.0.0.10,fd00::10 on=net1 prepared tcp:80=a/10.0.0.11:8080,b/[fd00::11]:8080 udp:53=a/10.0.0.11:53 sctp:9=-"""
TAKEN = PREPARED.replace("prepared", "taken")
STOCK = """
ls-add neutron-net1
lr-add neutron-r1
lb-add web 10.0.0.10:80 10.0.0.11:8080 tcp
lb-add web-of-others 10.0.0.20:80 10.0.0.11:8080 tcp
"""
"""`web` has a row for each protocol, a health check, a floating IP and a second VIP, as ovn_octavia_provider writes
it."""
THEIRS = ("name=web", "external_ids:neutron\\:vip=10.0.0.10", "external_ids:neutron\\:vip_port_id=p1")
MORE = (
    (*THEIRS, "protocol=udp", 'vips={"10.0.0.10:53"="10.0.0.11:53", "172.24.4.9:53"="10.0.0.11:53"}'),
    (*THEIRS, "protocol=sctp", 'vips={"10.0.0.10:9"="", "[fd00::10]:9"=""}', "external_ids:enabled=True"),
)
OTHERS = (
    ("name=api", "protocol=tcp", "external_ids:neutron\\:vip=10.0.0.10"),
    ("name=vpn", "external_ids:neutron\\:vip=10.0.0.99"),
)


class Northbound:
    """Northbound database as other clients see and write it."""

    def __init__(self, server: OvsdbServer) -> None:
        self._server = server

    def control(self, *words: str) -> str:
        command = ["ovn-nbctl", f"--db={self._server.remote}", "--no-leader-only", *words]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout

    def rows(self, table: str, *columns: str) -> list[list[str]]:
        told = self.control("--format=csv", "--no-headings", f"--columns={','.join(columns)}", "list", table)
        return sorted(csv.reader(io.StringIO(told)))

    def names(self) -> list[str]:
        return [name for (name,) in self.rows("Load_Balancer", "name")]

    def write_stock(self) -> None:
        for line in STOCK.strip().splitlines():
            self.control(*line.split())
        self.control("set", "Load_Balancer", "web", *THEIRS[1:])
        check = ("create", "Load_Balancer_Health_Check", 'vip="10.0.0.10:80"', "options:interval=5")
        self.control("--id=@c", *check, "--", "add", "Load_Balancer", "web", "health_check", "@c")
        first = self.control("--bare", "--columns=_uuid", "find", "Load_Balancer", "name=web").strip()
        made = [self.control("create", "Load_Balancer", *row).strip() for row in (*MORE, *OTHERS)]
        other = self.control("--bare", "--columns=_uuid", "find", "Load_Balancer", "name=web-of-others").strip()
        for table, name in (("Logical_Switch", "neutron-net1"), ("Logical_Router", "neutron-r1")):
            self.control("add", table, name, "load_balancer", first, *made, other)

    def dump(self) -> dict[str, object]:
        """Return all rows without Fairlead's mark."""
        command = ["ovsdb-client", "dump", "--format=json", self._server.remote, "OVN_Northbound"]
        told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=DEADLINE).stdout
        tables = [json.loads(line) for line in told.splitlines() if line.startswith("{")]
        return {
            table["caption"]: sorted(row for row in map(json.dumps, table["data"]) if "fairlead" not in row)
            for table in tables
        }


def snapshot_of(text: str) -> Snapshot:
    documents, _ = parse_model(text, {})
    return apply_changes(Snapshot(), Changes(puts=tuple(documents.values())), 1)


async def put(driver: OvnDriver, snapshot: Snapshot) -> None:
    for owner in owners_with_rows(snapshot):
        change = diff(OVN.compile(snapshot, owner), await driver.read(owner))
        await driver.apply(owner, change)


@pytest.fixture
def northbound(server: OvsdbServer) -> Northbound:
    """Return a database with the stock provider's rows."""
    made = Northbound(server)
    made.write_stock()
    return made


@pytest.fixture
async def driver(server: OvsdbServer) -> AsyncIterator[OvnDriver]:
    async with opened(server) as made:
        yield made


@asynccontextmanager
async def opened(server: OvsdbServer) -> AsyncIterator[OvnDriver]:
    async with OvnDriver(OvnSettings(remotes=parse_remotes(server.remote), mark="test")) as made:
        await made.wait_ready(DEADLINE)
        yield made


async def test_octavia_rows_stay_until_the_migration_and_then_are_deleted(northbound: Northbound, driver: OvnDriver):
    await put(driver, snapshot_of(PREPARED))
    assert northbound.names() == ["api", "vpn", "web", "web", "web", "web-of-others"]
    assert await driver.read(WEB) == NO_ROWS
    await put(driver, snapshot_of(TAKEN))
    names = ["api", "vpn", "web-of-others", "web-sctp", "web-taken", "web-tcp", "web-udp"]
    assert northbound.names() == names
    assert northbound.rows("Load_Balancer_Health_Check", "vip") == []
    for table, name in (("Logical_Switch", "neutron-net1"), ("Logical_Router", "neutron-r1")):
        left = northbound.control("--bare", "--columns=load_balancer", "find", table, f"name={name}").split()
        assert len(left) == len(OTHERS) + 1
    assert await driver.read(WEB) == OVN.compile(snapshot_of(TAKEN), WEB)


async def test_migration_is_one_transaction(server: OvsdbServer, northbound: Northbound, driver: OvnDriver):
    """The takeover is one transaction: an observer never sees both sets of rows, nor none."""

    await put(driver, snapshot_of(PREPARED))
    command = ["ovsdb-client", "monitor", "--format=csv", server.remote, "OVN_Northbound", "Load_Balancer", "name"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout is not None
        first = [await asyncio.to_thread(watching.stdout.readline) for _ in range(7)]
        assert first[0] == "row,action,name\n"
        await put(driver, snapshot_of(TAKEN))
        blank, head, *seen = [await asyncio.to_thread(watching.stdout.readline) for _ in range(9)]
        watching.kill()
    assert (blank, head) == ("\n", "row,action,name\n")
    assert sorted(line.strip().split(",")[1:] for line in seen) == [
        *[["delete", "web"]] * 3,
        *[["insert", f"web-{what}"] for what in ("sctp", "taken", "tcp", "udp")],
    ]


async def test_migration_is_idempotent_and_later_rows_of_the_same_name_stay(
    server: OvsdbServer, northbound: Northbound
):
    async with opened(server) as driver:
        await put(driver, snapshot_of(TAKEN))
    northbound.control("create", "Load_Balancer", *MORE[0])
    before = northbound.dump()

    async with opened(server) as driver:
        assert not diff(OVN.compile(snapshot_of(TAKEN), WEB), await driver.read(WEB))
        renamed = snapshot_of(TAKEN.replace("taken", "taken name=shop"))
        await put(driver, renamed)
        assert await driver.read(WEB) == OVN.compile(renamed, WEB)
        await driver.apply(WEB, diff(NO_ROWS, await driver.read(WEB)))

    assert northbound.dump() == before
    assert "web" in northbound.names()


@pytest.mark.parametrize("vip", ["10.0.0.98", None])
async def test_row_of_the_same_name_not_of_the_stock_provider_is_not_touched(
    northbound: Northbound, driver: OvnDriver, vip: str | None
):
    """A row with the load balancer's name that is not the stock provider's is not touched, and the provider's rows stay
    too, because two rows would have the VIP."""
    northbound.control("create", "Load_Balancer", "name=web", *([f"external_ids:neutron\\:vip={vip}"] if vip else []))
    before = northbound.dump()

    with pytest.raises(DriverError, match="Load_Balancer web exists and is not a row of Octavia's ovn provider"):
        await put(driver, snapshot_of(TAKEN))
    assert await driver.read(WEB) == NO_ROWS
    assert northbound.dump() == before
