"""Many load balancers made through the API of a Fairlead server, with two listeners and ten members for each listener.

They are on twenty unconnected networks. Each has its own members, so no two share a group of the switch. The first load
balancer is the one that is changed, and its network the one with bound ports.
"""

import sys
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import httpx

from fairlead.model.documents.quota import BALANCING, NETWORKING, UNLIMITED

NETWORKS = 20
MEMBERS = 10
LBS = "/load-balancer/v2.0/lbaas/loadbalancers"
POOLS = "/load-balancer/v2.0/lbaas/pools"
STATISTICS = "/operator/statistics"
ACTIVE_TIMEOUT = 120
PROJECT = "default"
"""Project of callers without authentication."""


@dataclass
class Population:
    """The objects made so far. `client` is that of the current server."""

    client: httpx.Client
    networks: list[str] = field(default_factory=list)
    subnets: list[str] = field(default_factory=list)
    first: Any = None
    size: int = 0

    def make_networks(self) -> None:
        """Create the networks, with an unlimited quota of the project."""
        for door, names in (("load-balancer/v2.0/lbaas", BALANCING), ("network/v2.0", NETWORKING)):
            quota = {"quota": {what.value: UNLIMITED for what in names}}
            self.client.put(f"/{door}/quotas/{PROJECT}", json=quota).raise_for_status()
        for number in range(NETWORKS):
            network = post(self.client, "/network/v2.0/networks", "network", name=f"net{number}")
            cidr = f"10.{number}.0.0/16"
            vips = {"start": f"10.{number}.0.2", "end": f"10.{number}.127.254"}  # members have the upper half
            body = {"network_id": network["id"], "cidr": cidr, "ip_version": 4, "allocation_pools": [vips]}
            self.networks.append(network["id"])
            self.subnets.append(post(self.client, "/network/v2.0/subnets", "subnet", **body)["id"])

    def grow(self, size: int) -> float:
        """Create load balancers up to this number; return the rate per second."""
        began, before = monotonic(), self.size
        while self.size < size:
            made = self.create(self.size)
            self.first = self.first or made
            self.size += 1
            if self.size % 1000 == 0:
                print(f"scale: {self.size:,} load balancers", file=sys.stderr, flush=True)
        wait_idle(self.client)
        return (size - before) / (monotonic() - began)

    def create(self, number: int) -> Any:
        network, place = number % NETWORKS, number // NETWORKS
        addresses = [
            f"10.{network}.{128 + place // 25}.{place % 25 * MEMBERS + member + 1}" for member in range(MEMBERS)
        ]
        body = {"name": f"lb{number}", "vip_subnet_id": self.subnets[network]}
        return post(self.client, LBS, "loadbalancer", **body, listeners=[tcp(addresses), udp(addresses)])

    def delete(self, identity: str) -> None:
        self.client.delete(f"{LBS}/{identity}", params={"cascade": "true"}).raise_for_status()


def tcp(addresses: list[str]) -> dict[str, object]:
    return listener("TCP", 80, [{"address": address, "protocol_port": 8080} for address in addresses])


def udp(addresses: list[str]) -> dict[str, object]:
    return listener("UDP", 53, [{"address": address, "protocol_port": 5353} for address in addresses])


def listener(protocol: str, port: int, members: list[dict[str, object]]) -> dict[str, object]:
    pool = {"name": f"pool-{port}", "protocol": protocol, "lb_algorithm": "ROUND_ROBIN", "members": members}
    return {"protocol": protocol, "protocol_port": port, "default_pool": pool}


def post(client: httpx.Client, path: str, root: str, **body: Any) -> Any:
    answer = client.post(path, json={root: body})
    answer.raise_for_status()
    return answer.json()[root]


def wait_active(client: httpx.Client, identity: str) -> None:
    """Poll until the load balancer is ACTIVE, without a pause, because the interval limits the resolution."""
    while (status := client.get(f"{LBS}/{identity}").json()["loadbalancer"]["provisioning_status"]) != "ACTIVE":
        if status == "ERROR":
            raise SystemExit(f"scale: load balancer {identity} is in ERROR")


def wait_idle(client: httpx.Client) -> None:
    deadline = monotonic() + ACTIVE_TIMEOUT
    while client.get(STATISTICS).json()["waiting"]:
        if monotonic() > deadline:
            raise SystemExit("scale: the reconciler does not come to rest")
        sleep(0.01)


class MemberChange:
    """Changes the weight of each member in turn, so that every change modifies the row."""

    def __init__(self, client: httpx.Client, pool: str) -> None:
        self._client = client
        self._path = f"{POOLS}/{pool}/members"
        members = client.get(self._path).json()["members"]
        self._weights = {member["id"]: member["weight"] for member in members}
        self._turn = 0

    def do(self) -> None:
        member = list(self._weights)[self._turn % len(self._weights)]
        self._turn += 1
        self._weights[member] = 3 if self._weights[member] == 1 else 1
        body = {"member": {"weight": self._weights[member]}}
        self._client.put(f"{self._path}/{member}", json=body).raise_for_status()
