"""Fixtures of end-to-end tests: a Fairlead server beside the lab, networks made through its API, and machines."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import httpx
import openstack
import openstack.connection
from openstack.exceptions import ConflictException

from fairlead.lab import Lab, agents
from fairlead.lab.layout import PHYSICAL_NETWORK
from fairlead.lab.port_workloads import Placement, workload_of_port
from fairlead.lab.server import ServerProcess, start, stop
from harness.pools import upper_half
from harness.ports import free_port
from harness.waiting import wait_until

MARKED_TABLES = (
    "Logical_Switch",
    "Logical_Switch_Port",
    "Logical_Router",
    "Logical_Router_Port",
    "Logical_Router_Static_Route",
    "Gateway_Chassis",
    "NAT",
    "Load_Balancer",
    "Load_Balancer_Group",
)
PORT = 8080
ACTIVE_TIMEOUT = 60
"""Seconds to wait for an expected event. The value is generous, because a busy machine is no defect."""
CURL_FORMAT = (
    r"'%{http_code} %{exitcode} port=%{local_port} connected=%{time_connect} took=%{time_total} %{errormsg}\n'"
)
CURL = f"curl -g -s -o /dev/null -m 15 -w {CURL_FORMAT}"
"""Shell command without the URL."""


def codes(said: str) -> Counter[str]:
    """Number of responses of `CURL` by status code; a failed request has curl's error instead."""
    parts = (line.split(maxsplit=2) for line in said.splitlines())
    return Counter(code if failed == "0" else f"{code} {failed} {more}" for code, failed, more in parts)


@dataclass(frozen=True)
class CreatedBalancer:
    id: str
    vip: str
    pool: str
    listener: str


@dataclass(frozen=True)
class LabSite:
    lab: Lab
    service: ServerProcess
    cloud: openstack.connection.Connection
    url: str

    def close(self) -> None:
        self.cloud.close()
        stop(self.lab.layout, self.service)

    def network(self, name: str, *cidrs: str, **attributes: Any) -> Any:
        network = self.cloud.network.create_network(name=name, **attributes)
        for cidr in cidrs:
            version = 6 if ":" in cidr else 4
            self.cloud.network.create_subnet(
                name=f"{name}-v{version}",
                network_id=network.id,
                cidr=cidr,
                ip_version=version,
                allocation_pools=upper_half(cidr),
            )
        return network

    def outside(self) -> Any:
        """The external network on the lab's physical network, of which there is one, so all tests of a lab share it."""
        found = self.cloud.network.find_network("public")
        if found is not None:
            return found
        wire = {"provider_network_type": "flat", "provider_physical_network": PHYSICAL_NETWORK}
        return self.network("public", "203.0.113.0/24", "2001:db8::/64", is_router_external=True, **wire)

    def router(self, name: str, *subnets: str) -> Any:
        router = self.cloud.network.create_router(name=name)
        for subnet in subnets:
            self.add_interface(router, subnet)
        return router

    def add_interface(self, router: Any, subnet: str) -> None:
        self.cloud.network.add_interface_to_router(router, subnet_id=self.subnet(subnet).id)

    def remove_interface(self, router: Any, subnet: str) -> None:
        self.cloud.network.remove_interface_from_router(router, subnet_id=self.subnet(subnet).id)

    def subnet(self, name: str) -> Any:
        return self.cloud.network.find_subnet(name, ignore_missing=False)

    def machines(
        self,
        network: str,
        places: Mapping[str, str],
        *,
        serve: Sequence[int] = (),
        at: Mapping[str, Sequence[str]] = {},
    ) -> None:
        """Create a port and a workload for each name, on the chassis of its value, with the addresses in `at`."""
        network_id = self.cloud.network.find_network(network, ignore_missing=False).id
        for name, chassis in places.items():
            fixed = {"fixed_ips": [{"ip_address": each} for each in at[name]]} if name in at else {}
            port = self.cloud.network.create_port(name=name, network_id=network_id, **fixed)
            placement = Placement(name=name, chassis=chassis, serve=tuple(serve))
            self.lab.add_workload(workload_of_port(self.url, port.id, placement))
        self.lab.wait_bound(*places)
        self.lab.wait_synced()

    def address(self, machine: str, version: int = 4) -> str:
        addresses = (str(each.ip) for each in self.lab.workload(machine).interfaces if each.version == version)
        return next(addresses)

    def settle(self, balancer_id: str) -> None:
        """Wait until the API returns ACTIVE and every chassis has the flows."""
        balancer = self.cloud.load_balancer.get_load_balancer(balancer_id)
        self.cloud.load_balancer.wait_for_load_balancer(balancer.id, interval=0.05, wait=ACTIVE_TIMEOUT)
        self.lab.wait_synced()

    def await_applied(self) -> None:
        """Wait until all changes and dependent rows are written, and every chassis has the flows."""
        applied = re.compile(
            r'^fairlead_oldest_unapplied_change_timestamp_seconds\{dataplane="ovn"\} 0\.0$', re.MULTILINE
        )
        wait_until(
            lambda: applied.search(httpx.get(f"{self.url}/metrics").text),
            "all is written",
        )
        self.lab.wait_synced()

    @contextmanager
    def balancer(
        self, subnet: str, members: Sequence[str], *, protocol: str = "TCP", version: int = 4, **pool: Any
    ) -> Iterator[CreatedBalancer]:
        """A load balancer on port 80 with these members, created in one call and deleted at the end."""
        weights, more = pool.pop("weights", {}), {"additional_vips": pool.pop("additional_vips", [])}
        more |= {name: pool.pop(name) for name in ("vip_address",) if name in pool}
        bodies = [
            {
                "name": name,
                "address": self.address(name, version),
                "protocol_port": PORT,
                "weight": weights.get(name, 1),
            }
            for name in members
        ]
        made = self.cloud.load_balancer.create_load_balancer(
            name="lb",
            vip_subnet_id=self.subnet(subnet).id,
            **more,
            listeners=[
                {
                    "name": "listener",
                    "protocol": protocol,
                    "protocol_port": 80,
                    "default_pool": {
                        "name": "pool",
                        "protocol": protocol,
                        "lb_algorithm": "ROUND_ROBIN",
                        "members": bodies,
                        **pool,
                    },
                }
            ],
        )
        try:
            self.settle(made.id)
            yield CreatedBalancer(
                id=made.id, vip=made.vip_address, pool=made.pools[0]["id"], listener=made.listeners[0]["id"]
            )
        finally:
            self.cloud.load_balancer.delete_load_balancer(made.id, cascade=True)

    @contextmanager
    def counting(self) -> Iterator[dict[str, agents.LabAgent]]:
        """Run an agent on each chassis, once all of them report counters."""
        started = {agent.chassis: agent for agent in agents.start(self.lab.layout, self.url)}
        try:
            telling = f"fairlead_counting_agents {len(started)}.0"
            wait_until(lambda: telling in httpx.get(f"{self.url}/metrics").text, "every node tells")
            yield started
        finally:
            for agent in started.values():
                agent.stop()

    def set_member(self, balancer: CreatedBalancer, name: str, **attributes: Any) -> None:
        self.cloud.load_balancer.update_member(self.member(balancer, name), balancer.pool, **attributes)
        self.settle(balancer.id)

    def member(self, balancer: CreatedBalancer, name: str) -> str:
        return next(member.id for member in self.cloud.load_balancer.members(balancer.pool, name=name))

    def our_rows(self) -> set[str]:
        """All rows of Fairlead in the Northbound database.

        Groups have no external_ids; all of this lab's are Fairlead's.
        """
        rows = set()
        for table in MARKED_TABLES:
            which = ["find", table, "external_ids:fairlead=fairlead"]
            if table == "Load_Balancer_Group":
                which = ["list", table]
            found = self.lab.exec("central", ["ovn-nbctl", "--bare", "--columns=_uuid", *which])
            rows |= {f"{table} {line}" for line in found.split()}
        return rows


def open_site(lab: Lab, **environment: str) -> LabSite:
    quotas = {"FAIRLEAD_QUOTA_ROUTER": "100"}  # tests that share a lab share its store, and leave routers behind
    service = start(lab.layout, f"127.0.0.1:{free_port()}", {**quotas, **environment})
    cloud = connect(service.url)
    remove_gateways(cloud)
    return LabSite(lab=lab, service=service, cloud=cloud, url=service.url)


def connect(url: str, user: str = "", password: str = "") -> openstack.connection.Connection:
    """Connect as this user, or without authentication."""
    who = {"username": user, "password": password} if user else {}
    return openstack.connection.Connection(
        auth_type="http_basic" if user else "none",
        auth={"endpoint": url, **who},
        network_endpoint_override=f"{url}/network",
        load_balancer_endpoint_override=f"{url}/load-balancer",
    )


def remove_gateways(cloud: openstack.connection.Connection) -> None:
    """Remove the gateways of routers that earlier tests left, because a new VIP would use the oldest router."""
    for router in cloud.network.routers():
        if router.external_gateway_info:
            with suppress(ConflictException):
                cloud.network.update_router(router, external_gateway_info={})
