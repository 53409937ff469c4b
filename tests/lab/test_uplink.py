"""End to end: VIPs that are addresses of an external network, and what is sent to such an address whatever its port."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from fairlead.cli.main import DIFFERENT, main
from fairlead.lab import Lab, Protocol, Traffic, TrafficResult
from harness.lab.site import LabSite, open_site
from harness.waiting import wait_until

pytestmark = pytest.mark.lab

MEMBERS = {"u1": "chassis1", "u2": "chassis2"}
PROTOCOLS = [Protocol.TCP, Protocol.UDP]
ROUTED = {4: "198.18.7.0/24", 6: "2001:db8:77::/64"}
"""Prefixes that are led to the external network, and are in no subnet of the wire."""
BEHIND = {"quay": ["10.7.0.0/24", "fd00:7::/64"], "lake": ["fd00:c::/64"]}
"""What the host outside sends to each gateway; of IPv4 it sees no address of the lake."""
LISTEN = """
import socket, sys
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
wire.bind(("eth0", 0))
wire.settimeout(10)
wanted = socket.inet_pton(socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET, sys.argv[1])
print("listening", flush=True)
while True:
    frame = wire.recv(2048)
    kind = frame[12:14]
    if kind == b"\\x08\\x06" and frame[20:22] == b"\\0\\2" and frame[28:32] == wanted:
        break
    if kind == b"\\x86\\xdd" and frame[20] == 58 and frame[54] == 136 and frame[62:78] == wanted:
        break
print(":".join(f"{octet:02x}" for octet in frame[6:12]), flush=True)
"""
"""Waits on the wire for an answer of ARP (RFC 826) or a neighbour advertisement (RFC 4861) that tells of an address."""


@pytest.fixture(scope="module")
def site(lab: Lab) -> Iterator[LabSite]:
    """Members and beach on quay behind one router; fox behind another one, with its gateway on the same wire. Others of
    the same project may be there from other tests: no other one reaches the members, for they have other addresses."""
    site = open_site(lab, FAIRLEAD_OVN_COUNT_REPLY_BYTES="yes")
    public = site.outside()
    routed = [
        site.cloud.network.create_subnet(
            name=f"routed-v{version}", network_id=public.id, cidr=cidr, ip_version=version, gateway_ip=None
        )
        for version, cidr in ROUTED.items()
    ]
    for cidr in ROUTED.values():
        lab.exec("outside", ["ip", "route", "replace", cidr, "dev", "eth0"])
    site.network("quay", "10.7.0.0/24", "fd00:7::/64")
    site.network("lake", "10.9.0.0/24", "fd00:c::/64")
    for name, inside in (("quay-gate", "quay"), ("lake-gate", "lake")):
        router = site.router(name, f"{inside}-v4", f"{inside}-v6")
        set_gateway(site, router, public, BEHIND[inside])
    lab.exec("outside", ["sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"])
    site.machines("quay", MEMBERS, serve=[8080])
    site.machines("quay", {"beach": "chassis1"})
    site.machines("lake", {"fox": "chassis2"})
    for client in ("u1", "fox"):  # the gateways learn where the host is
        for host in ("203.0.113.1", "2001:db8::1"):
            ping(site, client, host)
    yield site
    for name in (*MEMBERS, "beach", "fox"):
        lab.remove_workload(name)
    assert lab.status().is_healthy, "a daemon of the lab ended by itself"
    for subnet in routed:
        site.cloud.network.delete_subnet(subnet)
    for cidr in (*ROUTED.values(), *(cidr for inside in BEHIND.values() for cidr in inside)):
        lab.exec("outside", ["ip", "-6" if ":" in cidr else "-4", "route", "delete", cidr])
    site.close()


def set_gateway(site: LabSite, router: Any, public: Any, inside: list[str]) -> None:
    """Only the router of others translates."""
    info = {"network_id": public.id, "enable_snat": router.name == "lake-gate"}
    subnets = [site.subnet(f"public-v{version}") for version in (4, 6)]
    info["external_fixed_ips"] = [{"subnet_id": subnet.id} for subnet in subnets]
    updated = site.cloud.network.update_router(router, external_gateway_info=info)
    for fixed in updated.external_gateway_info["external_fixed_ips"]:
        for cidr in inside:
            if (":" in cidr) == (":" in fixed["ip_address"]):
                site.lab.exec("outside", ["ip", "route", "replace", cidr, "via", fixed["ip_address"], "dev", "eth0"])
    site.lab.wait_synced()


def ask(
    site: LabSite, client: str, to: str, protocol: Protocol = Protocol.TCP, port: int = 80, count: int = 12
) -> TrafficResult:
    traffic = Traffic(to=to, port=port, protocol=protocol, count=count, concurrency=4, timeout=10)
    return site.lab.traffic(client, traffic)


def ping(site: LabSite, client: str, to: str) -> None:
    """Raises CommandFailed."""
    site.lab.exec(client, ["ping", "-6" if ":" in to else "-4", "-c1", "-w30", to])


@contextmanager
def seen_on_the_wire(site: LabSite, address: str) -> Iterator[list[str]]:
    """Who answers for the address there: a MAC, when the block has ended. Nobody outside knows it before."""
    site.lab.exec("outside", ["ip", "-6" if ":" in address else "-4", "neigh", "flush", "all"])
    seen: list[str] = []
    command = site.lab.command("outside", [sys.executable, "-c", LISTEN, address])
    pipe, environment = subprocess.PIPE, command.full_environment()
    with subprocess.Popen(command.argv, env=environment, stdout=pipe, text=True) as listening:
        assert listening.stdout is not None
        assert listening.stdout.readline() == "listening\n"
        yield seen
        seen.append(listening.stdout.readline().strip())


def gateway_mac(site: LabSite, router: str) -> str:
    found = site.cloud.network.find_router(router, ignore_missing=False)
    [port] = site.cloud.network.ports(device_id=found.id, device_owner="network:router_gateway")
    mac: str = port.mac_address
    return mac


PLACES = [(version, where) for version in (4, 6) for where in ("public", "routed")]


@pytest.mark.ovn
@pytest.mark.parametrize(("version", "where"), PLACES)
def test_external_network_vip_is_reached_from_outside_and_behind_each_router(site: LabSite, version: int, where: str):
    """One router answers for it; clients outside, inside and behind another router are led to members."""
    with site.balancer(f"{where}-v{version}", [*MEMBERS], version=version) as balancer:
        with seen_on_the_wire(site, balancer.vip) as answered:
            ping(site, "outside", balancer.vip)
        assert answered == [gateway_mac(site, "quay-gate")]
        for client in ("outside", "beach", "fox", "u1"):
            ping(site, client, balancer.vip)
            result = ask(site, client, balancer.vip, count=36)  # by hash: of twelve all may go to one
            assert (result.errors, set(result.answers)) == ({}, set(MEMBERS)), client
            assert ask(site, client, balancer.vip, port=81).errors == {"refused": 12}, client
        for name in MEMBERS:
            site.set_member(balancer, name, is_admin_state_up=False)
        for client in ("outside", "beach", "fox"):
            assert ask(site, client, balancer.vip).errors == {"refused": 12}, client


@pytest.mark.ovn
@pytest.mark.parametrize("version", [4, 6])
def test_udp_and_allowed_cidrs_work_on_an_external_network_vip(site: LabSite, version: int):
    """Rules hold for clients outside by their own addresses, and for those inside."""
    outside = {4: "203.0.113.1/32", 6: "2001:db8::1/128"}[version]
    with site.balancer(f"routed-v{version}", [*MEMBERS], protocol="UDP", version=version) as balancer:
        for client in ("outside", "beach", "fox"):
            result = ask(site, client, balancer.vip, Protocol.UDP, count=36)
            assert (result.errors, set(result.answers)) == ({}, set(MEMBERS)), client
        site.cloud.load_balancer.update_listener(balancer.listener, allowed_cidrs=[outside])
        site.settle(balancer.id)
        assert ask(site, "outside", balancer.vip, Protocol.UDP).errors == {}
        few = Traffic(to=balancer.vip, port=80, protocol=Protocol.UDP, count=3, concurrency=3, timeout=1)
        for client in ("beach", "fox"):
            assert site.lab.traffic(client, few).errors == {"timeout": 3}, client


@pytest.mark.ovn
@pytest.mark.parametrize("version", [4, 6])
def test_connections_to_an_external_network_vip_are_counted_once(site: LabSite, version: int):
    """Outside on the chassis of the gateway, inside on the client's own; bytes, too."""
    figures = site.cloud.load_balancer.get_load_balancer_statistics
    with site.counting(), site.balancer(f"public-v{version}", [*MEMBERS], version=version) as balancer:
        for number, client in enumerate(("outside", "beach", "fox"), 1):
            sent = Traffic(to=balancer.vip, port=80, count=12, concurrency=4, timeout=30, size=1000)
            assert site.lab.traffic(client, sent).errors == {}

            def is_counted(number: int = number) -> bool:
                found = figures(balancer.id)
                bytes_both = (found.bytes_in, found.bytes_out)
                return found.total_connections == 12 * number and all(
                    1000 < each / (12 * number) < 2000 for each in bytes_both
                )

            wait_until(is_counted, f"{client} is counted once; {figures(balancer.id)}")


@pytest.mark.ovn
@pytest.mark.parametrize("version", [4, 6])
def test_network_forward_sends_all_ports_without_a_rule_to_its_target(site: LabSite, version: int):
    """It goes to one machine, ping too; but what has a port of its own. The machine goes on speaking for itself."""
    address = {4: "198.18.7.200", 6: "2001:db8:77::200"}[version]
    port = {
        "protocol": "tcp",
        "listen_port": "80",
        "target_port": "8080",
        "target_address": site.address("u2", version),
    }
    body = {"listen_address": address, "config": {"target_address": site.address("u1", version)}, "ports": [port]}
    door = httpx.HTTPTransport(uds=str(site.service.socket))
    with httpx.Client(transport=door, base_url="http://lxd", timeout=30) as lxd:
        made = lxd.post("/1.0/networks/quay/forwards", json=body)
        assert made.status_code == 201, made.text
        site.lab.wait_synced()
        for client in ("outside", "beach", "fox"):
            ping(site, client, address)
            for protocol in PROTOCOLS:
                assert ask(site, client, address, protocol, 8080).answers == {"u1": 12}, (client, protocol)
            assert ask(site, client, address).answers == {"u2": 12}, client
        ping(site, "u1", {4: "203.0.113.1", 6: "2001:db8::1"}[version])
        assert lxd.delete(f"/1.0/networks/quay/forwards/{address}").status_code == 200


def test_trace_names_the_load_balancer_of_an_external_network_vip(site: LabSite, capsys: pytest.CaptureFixture[str]):
    """For a client inside: the load balancer; and nobody for a port without a listener."""
    with site.balancer("public-v4", [*MEMBERS]) as balancer:
        sender = site.lab.workload("beach").port_id
        databases = ["--northbound", site.lab.northbound, "--southbound", site.lab.southbound]
        for port, outcome, code in ((80, "balanced", 0), (81, "no listener", DIFFERENT)):
            words = ["trace", "--from", sender, "--to", f"{balancer.vip}:{port}", "--json", *databases]
            assert main([*words, "--url", site.service.url]) == code
            found = json.loads(capsys.readouterr().out)
            assert (found["outcome"], found["load_balancer"]["id"]) == (outcome, balancer.id), found["trace"]
