"""Fixtures for tests of Local IPs: three chassis, with clients on each of them on two networks, and one outside."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from fairlead.lab import Lab, take_down
from harness.lab.gateway import ping, set_gateway
from harness.lab.labs import lab_name
from harness.lab.reachability_client import Answers, ReachabilityClient, mark_hops, reachability_client
from harness.lab.site import PORT, LabSite, open_site
from harness.waiting import wait_equal

CHASSIS = ("chassis1", "chassis2", "chassis3")
OWNER = "owner"
"""Machine on chassis3. Its port has the addresses of most Local IPs in these tests."""
REPLICAS = {"one": "chassis1", "two": "chassis2", "other": "chassis1"}
LOCAL_CLIENTS = {"oak1": "chassis1", "oak2": "chassis2", "oak3": "chassis3"}
"""Clients on the network of the Local IPs."""
ROUTED_CLIENTS = {"fir1": "chassis1", "fir2": "chassis2", "fir3": "chassis3"}
MACHINES = {OWNER: "chassis3", **REPLICAS, **LOCAL_CLIENTS, **ROUTED_CLIENTS}
CLIENTS = (*LOCAL_CLIENTS, *ROUTED_CLIENTS, "outside")
UNREACHABLE_RESULTS = {"refused", "unreachable"}

Wanted = Mapping[str, str | set[str]]
"""Expected answer of each client, over each protocol and at each address: a name, or the set of acceptable results."""
Wrong = dict[str, tuple[str, set[str]]]


@dataclass(frozen=True)
class LocalIPs:
    """A Local IP of each IP version, with the same replicas."""

    site: LabSite
    ids: Mapping[int, str]
    addresses: Sequence[str]

    def associate(self, replica: str) -> None:
        """Associate a replica, as the most recent one."""
        for version, identity in self.ids.items():
            body = {"fixed_port_id": port_id(self.site, replica), "fixed_ip": self.site.address(replica, version)}
            _post(self.site, f"{identity}/port_associations", port_association=body)
        self.site.lab.wait_synced()

    def dissociate(self, replica: str) -> None:
        for identity in self.ids.values():
            path = f"{identity}/port_associations/{port_id(self.site, replica)}"
            httpx.delete(_url(self.site, path)).raise_for_status()
        self.site.lab.wait_synced()

    def change(self, **attributes: Any) -> None:
        for identity in self.ids.values():
            httpx.put(_url(self.site, identity), json={"local_ip": attributes}).raise_for_status()
        self.site.lab.wait_synced()


@contextmanager
def create_local_ips(site: LabSite, *bodies: Mapping[str, Any]) -> Iterator[LocalIPs]:
    """Create Local IPs, and delete them with their associations at the end."""
    items = [_post(site, "", local_ip=body)["local_ip"] for body in bodies]
    addresses = [item["local_ip_address"] for item in items]
    site.lab.wait_synced()
    try:
        yield LocalIPs(site, {6 if ":" in item["local_ip_address"] else 4: item["id"] for item in items}, addresses)
    finally:
        for item in items:
            httpx.delete(_url(site, item["id"]), params={"force": True}).raise_for_status()
        site.lab.wait_synced()


def port_id(site: LabSite, name: str) -> str:
    found: str = site.cloud.network.find_port(name, ignore_missing=False).id
    return found


def _url(site: LabSite, path: str) -> str:
    return f"{site.url}/network/v2.0/local_ips/{path}".rstrip("/")


def _post(site: LabSite, path: str, **body: Any) -> Any:
    answer = httpx.post(_url(site, path), json=body)
    assert answer.status_code == httpx.codes.CREATED, answer.text
    return answer.json()


@dataclass(frozen=True)
class LocalIPSite:
    site: LabSite
    clients: Mapping[str, ReachabilityClient]

    @property
    def lab(self) -> Lab:
        return self.site.lab

    def addresses(self, name: str) -> list[str]:
        return [self.site.address(name, version) for version in (4, 6)]

    @contextmanager
    def owner_local_ips(self, *replicas: str, **attributes: Any) -> Iterator[LocalIPs]:
        """Local IPs at the owner's addresses, with these replicas, the oldest first."""
        port = port_id(self.site, OWNER)
        bodies = [{"local_port_id": port, "local_ip_address": each, **attributes} for each in self.addresses(OWNER)]
        with create_local_ips(self.site, *bodies) as local_ips:
            for replica in replicas:
                local_ips.associate(replica)
            self.forget_neighbours()
            yield local_ips
        self.forget_neighbours()

    @contextmanager
    def assign_addresses(self, local_ips: LocalIPs, *replicas: str) -> Iterator[None]:
        """Assign the addresses to the machines themselves, as the mode pass-through requires."""
        lines = [(name, f"{each}/{128 if ':' in each else 32}") for name in replicas for each in local_ips.addresses]
        for name, address in lines:
            self.lab.exec(name, ["ip", "address", "add", address, "dev", "lo"])
        try:
            yield
        finally:
            for name, address in lines:
                self.lab.exec(name, ["ip", "address", "delete", address, "dev", "lo"])

    def move(self, name: str, chassis: str) -> None:
        self.lab.move_workload(name, chassis)
        self.lab.wait_bound(name)

    def forget_neighbours(self) -> None:
        """Flush the neighbour caches of clients, because no agent announces the new MAC address to them."""
        for client in LOCAL_CLIENTS:
            for family in ("-4", "-6"):
                self.lab.exec(client, ["ip", family, "neigh", "flush", "dev", "eth0"])

    def expect(self, addresses: Sequence[str], wanted: Wanted) -> None:
        """Wait until each client has the expected answers.

        A change is in the switches when its request returns; revalidators (`max-revalidator` in
        ovs-vswitchd.conf.db(5)) then replace cached flows gradually.
        """
        wait_equal(lambda: self._wrong_answers(addresses, wanted), {})

    def _wrong_answers(self, addresses: Sequence[str], wanted: Wanted) -> Wrong:
        """Wrong answers, each with the expected ones."""
        told = self.query_all([*wanted], addresses)
        sets = {client: {names} if isinstance(names, str) else names for client, names in wanted.items()}
        return {
            f"{client} {address} {how}": (word, names)
            for client, names in sets.items()
            for address, seen in told[client].items()
            for how, word in seen.items()
            if word not in names
        }

    def query_all(self, clients: Sequence[str], addresses: Sequence[str]) -> Mapping[str, Answers]:
        """Answers to all clients, requested concurrently."""
        for client in clients:
            self.clients[client].send(addresses)
        return {client: self.clients[client].receive() for client in clients}


@contextmanager
def with_clients(site: LabSite, *machines: str) -> Iterator[LocalIPSite]:
    """Run a client on each machine. Each answer is from one of them."""
    hops = mark_hops(site.lab, machines)
    with ExitStack() as stack:
        yield LocalIPSite(
            site, {each: stack.enter_context(reachability_client(site.lab, each, hops)) for each in machines}
        )


@contextmanager
def open_local_ip_site(name: str = "") -> Iterator[LocalIPSite]:
    """Run these machines in a lab of their own."""
    name = name or lab_name("wood")
    take_down(name)
    with ExitStack() as stack:
        stack.callback(take_down, name)
        lab = Lab.up(name, chassis=len(CHASSIS))
        site = open_site(lab)
        stack.callback(site.close)
        _create_machines(site)
        yield stack.enter_context(with_clients(site, *MACHINES, "outside"))
        assert lab.status().is_healthy, "a daemon of the lab ended by itself"


def _create_machines(site: LabSite) -> None:
    public = site.outside()
    site.network("oaks", "10.0.0.0/24", "fd00:a::/64")
    site.network("firs", "10.0.1.0/24", "fd00:b::/64")
    router = site.router("path", "oaks-v4", "oaks-v6", "firs-v4", "firs-v6")
    set_gateway(site, router, public, snat=False)
    site.machines("oaks", {OWNER: MACHINES[OWNER], **REPLICAS, **LOCAL_CLIENTS}, serve=[PORT])
    site.machines("firs", ROUTED_CLIENTS, serve=[PORT])
    for host in ("203.0.113.1", "2001:db8::1"):  # the gateway learns the host's MAC address
        ping(site, "fir2", host)
