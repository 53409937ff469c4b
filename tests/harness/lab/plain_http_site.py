"""A Fairlead server beside a lab, called by plain HTTP: in an emulated machine a stock client takes minutes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from signal import SIGCONT, SIGSTOP
from typing import Any

import httpx

from fairlead.lab import Lab, server
from fairlead.lab.layout import PHYSICAL_NETWORK
from fairlead.lab.port_workloads import Placement, workload_of_port
from fairlead.lab.server import ServerProcess
from fairlead.lab.workload import Link
from harness.pools import upper_half
from harness.ports import free_port
from harness.waiting import wait_until

TIMEOUT = 120.0  # seconds
NETWORKING = "/network/v2.0"
BALANCING = "/load-balancer/v2/lbaas"


@dataclass(frozen=True)
class LeanSite:
    lab: Lab
    service: ServerProcess
    http: httpx.Client

    def create(self, path: str, **body: Any) -> Any:
        (what,) = body
        return self._call("POST", path, body)[what]

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PUT", path, body)

    def delete(self, path: str) -> None:
        self._call("DELETE", path, None)

    def get(self, path: str) -> Any:
        return self._call("GET", path, None)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        answer = self.http.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def network(self, name: str, *cidrs: str, **attributes: Any) -> tuple[str, list[str]]:
        """The ids of the network and its subnets."""
        network = self.create(f"{NETWORKING}/networks", network={"name": name, **attributes})["id"]
        subnets = []
        for cidr in cidrs:
            pools = {"allocation_pools": upper_half(cidr), "ip_version": 6 if ":" in cidr else 4}
            subnet = {"network_id": network, "cidr": cidr, **pools}
            subnets.append(self.create(f"{NETWORKING}/subnets", subnet=subnet)["id"])
        return network, subnets

    def external_network(self) -> str:
        wire = {"provider:network_type": "flat", "provider:physical_network": PHYSICAL_NETWORK}
        return self.network("public", "203.0.113.0/24", "2001:db8::/64", **wire, **{"router:external": True})[0]

    def router(self, subnets: Sequence[str], external: str) -> list[str]:
        """Its addresses on the external network. What goes out keeps its own address."""
        gateway = {"network_id": external, "enable_snat": False}
        router = self.create(f"{NETWORKING}/routers", router={"name": "r", "external_gateway_info": gateway})
        for subnet in subnets:
            self.put(f"{NETWORKING}/routers/{router['id']}/add_router_interface", {"subnet_id": subnet})
        return [fixed["ip_address"] for fixed in router["external_gateway_info"]["external_fixed_ips"]]

    def machine(self, network: str, name: str, chassis: str, link: Link = Link.VETH, serve: Sequence[int] = ()) -> None:
        port = self.create(f"{NETWORKING}/ports", port={"network_id": network, "name": name})["id"]
        placement = Placement(name=name, chassis=chassis, serve=tuple(serve))
        self.lab.add_workload(replace(workload_of_port(self.service.url, port, placement), link=link))

    def address(self, machine: str, version: int) -> str:
        return next(str(each.ip) for each in self.lab.workload(machine).interfaces if each.version == version)

    def pause(self) -> None:
        """Let the server's process stand still."""
        assert self.service.process is not None
        self.service.process.send_signal(SIGSTOP)

    def resume(self) -> None:
        assert self.service.process is not None
        self.service.process.send_signal(SIGCONT)

    def settle(self, balancer: str) -> None:
        """Until the load balancer is ACTIVE and every chassis has its flows."""
        path = f"{BALANCING}/loadbalancers/{balancer}"
        wait_until(
            lambda: self.get(path)["loadbalancer"]["provisioning_status"],
            "ACTIVE",
            is_enough=lambda status: status == "ACTIVE",
        )
        self.lab.wait_synced()


@contextmanager
def lean_site(lab: Lab) -> Iterator[LeanSite]:
    started = server.start(lab.layout, f"127.0.0.1:{free_port()}")
    with httpx.Client(base_url=started.url, timeout=TIMEOUT) as http:
        try:
            yield LeanSite(lab=lab, service=started, http=http)
        finally:
            server.stop(lab.layout, started)
