"""End to end on plain hosts: two tenants, addresses announced for one of them, and members of both."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import bcrypt
import openstack
import pytest
from openstack.exceptions import HttpException

from fairlead.http.server_client import ApiClient
from fairlead.lab import Protocol, Traffic, agents
from fairlead.lab.native import NativeLab
from fairlead.lab.server import start, stop
from harness.addresses import holds_address
from harness.lab.native_hosts import HOSTS, ROUTERS, machine
from harness.lab.native_served import (
    AGENT,
    CLIENTS,
    MEMBER_PORT,
    MEMBERS,
    NUMBER,
    PORT,
    announced,
    record_changes,
    remove,
)
from harness.lab.site import connect
from harness.ports import free_port
from harness.waiting import wait_until

pytestmark = pytest.mark.lab

SECRET = "secret"
USERS = {
    "root": "default:admin",
    "alice": "alice:member",
    "bob": "bob:member",
    "node": f"ops:service:{','.join(HOSTS)}",
}
POOLS = {"alice": ("203.0.113.128/26", "2001:db8:f:a::/64"), "bob": ("203.0.113.192/26", "2001:db8:f:b::/64")}
VIPS = {"alice": ("203.0.113.140", "2001:db8:f:a::140"), "bob": ("203.0.113.210", "2001:db8:f:b::210")}
BOTH = "n1"
OWN = {"alice": "n2", "bob": "n3"}
"""Members: a common one with the same port, and for each tenant one behind a host whose prefix is the tenant's."""


@dataclass(frozen=True, kw_only=True)
class Tenants:
    lab: NativeLab
    clouds: Mapping[str, openstack.connection.Connection]
    """Connections by user."""

    def subnet(self, network: str, version: int) -> str:
        admin = self.clouds["root"].network
        found = admin.find_network(network, ignore_missing=False)
        return next(each.id for each in admin.subnets(network_id=found.id) if each.ip_version == version)

    def tree(self, network: str, addresses: tuple[str, str], members: tuple[str, ...], **more: Any) -> dict[str, Any]:
        """A load balancer with TCP and UDP listeners at these addresses of a network."""
        four, six = addresses
        bodies = [
            {"name": name, "address": address, "protocol_port": MEMBER_PORT}
            for name in members
            for address in self.lab.workload(name).addresses
        ]
        listeners = [
            {
                "protocol": protocol,
                "protocol_port": PORT,
                "default_pool": {
                    "name": protocol,
                    "protocol": protocol,
                    "lb_algorithm": "SOURCE_IP_PORT",
                    "members": bodies,
                },
            }
            for protocol in ("TCP", "UDP")
        ]
        return {
            "name": "web",
            "provider": "native",
            "vip_subnet_id": self.subnet(network, 4),
            "vip_address": four,
            "additional_vips": [{"subnet_id": self.subnet(network, 6), "ip_address": six}],
            "listeners": listeners,
            **more,
        }

    def refuse(self, user: str, tree: Mapping[str, Any]) -> str:
        api = self.clouds[user].load_balancer
        return refusal(lambda: api.create_load_balancer(**tree))

    def await_served(self) -> None:
        """Wait until each host forwards connections to its own member."""
        for member, host in MEMBERS.items():
            for address in self.lab.workload(member).addresses:
                wait_until(lambda of=host, to=address: holds_address(self.ruleset(of), to), f"{host} serves {member}")

    def ruleset(self, host: str) -> str:
        return self.lab.exec(host, ("nft", "-s", "list", "table", "inet", "fairlead"))

    def answers(self, vip: str, protocol: Protocol) -> set[str]:
        asked = Traffic(to=vip, port=PORT, protocol=protocol, count=40, concurrency=10)
        found = self.lab.traffic("far", asked)
        return {*found.answers, *found.errors}


@pytest.fixture(scope="module")
def tenants(native: NativeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tenants]:
    folder = tmp_path_factory.mktemp("users")
    listen = f"127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        service = start(native.layout, listen, known(folder))
        stack.callback(stop, native.layout, service)
        native.forward_port(listen)
        clouds = {user: connect(service.url, user, SECRET) for user in ("root", "alice", "bob")}
        declare(native, ApiClient(url=service.url, user="root", password=SECRET), clouds["root"])
        places = {**MEMBERS, "far": CLIENTS["far"]}
        for name, place in places.items():
            native.add_workload(machine(native, name, place, NUMBER, MEMBER_PORT))
            stack.callback(native.remove_workload, name)
        identity = {"FAIRLEAD_AGENT_USER": "node", "FAIRLEAD_AGENT_PASSWORD_FILE": str(folder / "password")}
        for host in HOSTS:
            stack.callback(remove, native, host)
            stack.callback(agents.start_one(native.layout, service.url, host, {**AGENT, **identity}).stop)
        yield Tenants(lab=native, clouds=clouds)


def known(folder: Path) -> Mapping[str, str]:
    """Options of a server with the tenants' users."""
    hashed = bcrypt.hashpw(SECRET.encode(), bcrypt.gensalt(4)).decode()
    for name in ("users", "password"):
        (folder / name).touch(mode=0o600)
    (folder / "users").write_text("".join(f"{user}:{hashed}:{rest}\n" for user, rest in USERS.items()))
    (folder / "password").write_text(SECRET)
    return {"FAIRLEAD_SERVER_AUTHENTICATION": "http_basic", "FAIRLEAD_SERVER_PASSWORD_FILE": str(folder / "users")}


def declare(lab: NativeLab, operator: ApiClient, cloud: openstack.connection.Connection) -> None:
    """Declare hosts, two of them with a prefix of one tenant, and announced networks for all tenants and for each."""
    whose = {MEMBERS[member]: tenant for tenant, member in OWN.items()}
    for site in lab.record.chassis:
        prefixes = [{"cidr": cidr, "project_id": whose.get(site.name)} for cidr in site.prefixes]
        operator.request(
            "PUT", f"/operator/hosts/{site.name}", {"addresses": list(site.loopback_addresses), "prefixes": prefixes}
        )
    announced(cloud)
    for tenant, cidrs in POOLS.items():
        made = cloud.network.create_network(name=tenant, project_id=tenant, provider_network_type="announced")
        for cidr in cidrs:
            version = 6 if ":" in cidr else 4
            cloud.network.create_subnet(network_id=made.id, cidr=cidr, ip_version=version, name=f"{tenant}{version}")


@pytest.fixture(scope="module")
def both(tenants: Tenants) -> Iterator[None]:
    """A load balancer of each tenant, with the same name and a common member."""
    with ExitStack() as stack:
        for tenant in POOLS:
            api = tenants.clouds[tenant].load_balancer
            made = api.create_load_balancer(**tenants.tree(tenant, VIPS[tenant], (BOTH, OWN[tenant])))
            stack.callback(api.delete_load_balancer, made.id, cascade=True)
        for tenant, vips in VIPS.items():
            for vip in vips:
                for router in ROUTERS:
                    tenants.lab.wait_next_hops(router, vip, MEMBERS[BOTH], MEMBERS[OWN[tenant]])
        tenants.await_served()
        yield


@pytest.mark.usefixtures("both")
@pytest.mark.parametrize("tenant", POOLS)
def test_vips_of_each_tenant_reach_the_tenants_member_and_the_shared_one(tenants: Tenants, tenant: str):
    for vip in VIPS[tenant]:
        for protocol in Protocol:
            assert tenants.answers(vip, protocol) == {BOTH, OWN[tenant]}, (vip, protocol)


def refusal(call: Callable[[], Any]) -> str:
    """Error message of the front end."""
    with pytest.raises(HttpException) as error:
        call()
    return f"{error.value.status_code} {error.value.details}"


EVERYBODYS = "203.0.113.7", "2001:db8:f::7"
FREE = "203.0.113.211", "2001:db8:f:b::211"


@pytest.mark.usefixtures("both")
def test_tenant_cannot_use_addresses_or_members_of_another_tenant(tenants: Tenants) -> None:
    """Rejected are addresses of another network, an allocated address, and a member in another tenant's prefix."""
    alices, hers, his = VIPS["alice"], (BOTH, OWN["alice"]), (BOTH, OWN["bob"])
    trees = {name: tenants.tree(name, alices, his) for name in POOLS}
    root, bob = (tenants.clouds[user].network for user in ("root", "bob"))
    network = root.find_network("bob", ignore_missing=False).id
    before = [each.id for each in tenants.clouds["root"].load_balancer.load_balancers()]
    tenants.await_served()  # an earlier test may have restarted an agent
    with ExitStack() as stack:
        lines = [stack.enter_context(record_changes(tenants.lab, host)) for host in HOSTS]
        said = [
            tenants.refuse("bob", trees["alice"]),
            tenants.refuse("bob", trees["bob"]),
            tenants.refuse("root", {**trees["alice"], "project_id": "bob"}),
            tenants.refuse("bob", tenants.tree("pool", EVERYBODYS, his)),
            tenants.refuse("bob", tenants.tree("bob", FREE, hers)),
            refusal(lambda: bob.create_network(provider_network_type="announced")),
            refusal(lambda: root.create_subnet(network_id=network, cidr=POOLS["alice"][0], ip_version=4)),
        ]
    print("\n".join(said))
    for found, wanted in zip(said, WORDS, strict=True):
        assert re.search(wanted, found), found
    assert lines == [[]] * len(HOSTS)
    assert [each.id for each in tenants.clouds["root"].load_balancer.load_balancers()] == before


WORDS = (
    r"400 Subnet \S+ not found",
    r"400 .* VIP address 203\.0\.113\.140 is not a valid IP for subnet",
    r"409 The VIP IP address is already in use: 203\.0\.113\.140",
    r"403 .*create_port:fixed_ips:ip_address.* is disallowed by policy",
    r"400 .* Member address 10\.102\.0\.31 is not routed by a host of provider",
    r"403 .*create_network:provider:network_type.* is disallowed by policy",
    r"400 .* overlaps with a subnet of announced network",
)
