"""End to end: a port's status and binding in the network API follow OVN's port binding."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import bcrypt
import pytest

from fairlead.lab import Lab
from fairlead.lab.layout import workload_device
from fairlead.lab.workload import Workload
from harness.lab.servers import NETWORKS, SUBNETS, FairleadProcess, serving
from harness.waiting import wait_equal, wait_until

pytestmark = [pytest.mark.lab, pytest.mark.ovn]

PORTS = "/network/v2.0/ports"
USERS = {"root": "city:admin", "alice": "alice:member,reader", "bob": "bob:member,reader"}


@contextmanager
def server(lab: Lab, folder: Path) -> Iterator[FairleadProcess]:
    """A server next to others in this OVN, with a user for each project and one for all."""
    secret = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    (folder / "users").touch(mode=0o600)
    (folder / "users").write_text("".join(f"{name}:{secret}:{rest}\n" for name, rest in USERS.items()))
    options = {
        "FAIRLEAD_SERVER_AUTHENTICATION": "http_basic",
        "FAIRLEAD_SERVER_PASSWORD_FILE": str(folder / "users"),
        "FAIRLEAD_OVN_SOUTHBOUND": lab.southbound,
        "FAIRLEAD_OVN_OWNER_TAG": "plugged",
    }
    with serving(lab, folder, **options) as started:
        started.client.auth = ("root", "secret")
        yield started


def make(server: FairleadProcess, user: str, cidr: str) -> Any:
    """A port on a new network of the user."""
    server.client.auth = (user, "secret")
    network = server.create(NETWORKS, "network", name=user)
    server.create(SUBNETS, "subnet", network_id=network["id"], cidr=cidr, ip_version=6 if ":" in cidr else 4)
    made = server.create(PORTS, "port", name=user, network_id=network["id"])
    server.client.auth = ("root", "secret")
    return made


def seen(server: FairleadProcess, port: Any) -> tuple[str, str, str]:
    found = server.client.get(f"{PORTS}/{port['id']}").json()["port"]
    return found["status"], found["binding:host_id"], found["binding:vif_type"]


def status(server: FairleadProcess, user: str) -> dict[str, str]:
    """Status of the ports visible to the user, by name."""
    return {each["name"]: each["status"] for each in server.client.get(PORTS, auth=(user, "secret")).json()["ports"]}


def plug(lab: Lab, name: str, chassis: str, port: Any) -> None:
    [fixed] = port["fixed_ips"]
    length = 64 if ":" in fixed["ip_address"] else 24
    addresses = (f"{fixed['ip_address']}/{length}",)
    added = Workload(name=name, chassis=chassis, port_id=port["id"], mac=port["mac_address"], addresses=addresses)
    lab.add_workload(added)


def test_port_status_and_host_follow_the_ovn_port_binding(lab: Lab, tmp_path: Path):
    with server(lab, tmp_path) as first:
        ports = {user: make(first, user, cidr) for user, cidr in (("alice", "10.7.0.0/24"), ("bob", "fd00:7::/64"))}
        alice, bob = ports.values()
        lab.wait_synced()
        assert [seen(first, port) for port in ports.values()] == [("DOWN", "", "unbound")] * 2
        plug(lab, "plug-a", "chassis1", alice)
        wait_equal(lambda: seen(first, alice), ("ACTIVE", "chassis1", "ovs"))
        assert [status(first, user) for user in USERS] == [
            {"alice": "ACTIVE", "bob": "DOWN"},
            {"alice": "ACTIVE"},
            {"bob": "DOWN"},
        ]
        device = workload_device("plug-a")
        lab.exec("chassis1", ["ovs-vsctl", "remove", "Interface", device, "external_ids", "iface-id"])
        wait_equal(lambda: seen(first, alice), ("DOWN", "", "unbound"))
        plug(lab, "plug-b", "chassis2", bob)
        wait_equal(lambda: seen(first, bob), ("ACTIVE", "chassis2", "ovs"))
        plug(lab, "plug-c", "chassis2", alice)
        wait_equal(lambda: seen(first, alice), ("ACTIVE", "chassis2", "ovs"))
    with server(lab, tmp_path) as second:
        assert [seen(second, port)[:2] for port in ports.values()] == [("ACTIVE", "chassis2")] * 2, "after a restart"
        lab.exec("chassis1", ["ovs-vsctl", "set", "Interface", device, f"external_ids:iface-id={alice['id']}"])
        migrate(lab, second, alice)
        for name in ("plug-a", "plug-b", "plug-c"):
            lab.remove_workload(name)
        for port in ports.values():
            wait_equal(lambda port=port: seen(second, port)[0], "DOWN")
            assert second.client.delete(f"{PORTS}/{port['id']}").status_code == 204
            assert second.client.delete(f"{NETWORKS}/{port['network_id']}").status_code == 204
        wait_until(second.is_idle)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"


def migrate(lab: Lab, server: FairleadProcess, port: Any) -> None:
    """Both nodes have an interface for the port; OVN binds it to the requested one (`requested-chassis`)."""
    for node in ("chassis1", "chassis2", "chassis1"):
        body = {"port": {"binding:host_id": node}}
        assert server.client.put(f"{PORTS}/{port['id']}", json=body).status_code == 200
        find = ["ovn-sbctl", "--bare", "--columns=up", "find", "Port_Binding", f"logical_port={port['id']}"]
        uuid = ["ovn-sbctl", "--bare", "--columns=_uuid", "find", "Chassis", f"name={node}"]
        there = [*find, f"chassis={lab.exec('central', uuid).strip()}"]
        wait_equal(lambda there=there: lab.exec("central", there).strip(), "true")
        wait_equal(lambda: seen(server, port), ("ACTIVE", node, "ovs"))
