"""The load-balancer front end for tests, with a tree of every kind of object, and a provider that supports all."""

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from fairlead.api.octavia import make_front_end
from fairlead.dataplane.interface import Compile
from fairlead.drivers.fake import Fault
from fairlead.model.documents.addresses import parse_address, parse_network
from fairlead.model.documents.network import AllocationPool, FixedIP, Network, Port, Subnet
from fairlead.model.registry.changeset import Changes
from harness.api import NOON, PLAIN, Deployment, compile_anything, in_process_server

NET = "11111111-0000-4000-8000-000000000001"
SUBNET = "22222222-0000-4000-8000-000000000001"
UNKNOWN_ID = "99999999-0000-4000-8000-000000000009"
ROOT = "/v2.0/lbaas"
PATHS = {
    "lb": ("loadbalancer", "/loadbalancers"),
    "listener": ("listener", "/listeners"),
    "pool": ("pool", "/pools"),
    "member": ("member", "/pools/{pool}/members"),
    "monitor": ("healthmonitor", "/healthmonitors"),
    "policy": ("l7policy", "/l7policies"),
    "rule": ("rule", "/l7policies/{policy}/rules"),
}
"""Root element and path of each kind."""
MONITOR = {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
TREE = {
    "name": "web",
    "vip_subnet_id": SUBNET,
    "vip_address": "10.0.0.10",
    "listeners": [
        {
            "name": "front",
            "protocol": "HTTP",
            "protocol_port": 80,
            "default_pool": {"name": "app"},
            "l7policies": [
                {
                    "name": "static",
                    "action": "REDIRECT_TO_POOL",
                    "redirect_pool": {"name": "files", "protocol": "HTTP", "lb_algorithm": "ROUND_ROBIN"},
                    "rules": [{"type": "PATH", "compare_type": "STARTS_WITH", "value": "/static"}],
                }
            ],
        },
        {"name": "other", "protocol": "TCP", "protocol_port": 81},
    ],
    "pools": [
        {
            "name": "app",
            "protocol": "HTTP",
            "lb_algorithm": "ROUND_ROBIN",
            "healthmonitor": MONITOR,
            "members": [
                {"name": name, "address": f"10.0.0.{n}", "protocol_port": 80} for n, name in ((11, "a"), (12, "b"))
            ],
        }
    ],
}


def network() -> Network:
    common: dict[str, Any] = {"project_id": "demo", "created_at": NOON}
    subnet = Subnet(
        id=SUBNET,
        cidr=parse_network("10.0.0.0/24"),
        gateway=parse_address("10.0.0.1"),
        allocation_pools=(AllocationPool(start=parse_address("10.0.0.2"), end=parse_address("10.0.0.254")),),
        **common,
    )
    return Network(id=NET, mtu=1442, subnets=(subnet,), **common)


def machine(number: int) -> str:
    """Id of the port with the address 10.0.0.<number>."""
    return f"33333333-0000-4000-8000-{number:012}"


def machines() -> Iterator[Port]:
    """Ports of possible members, so that they can be probed."""
    for number in (9, *range(11, 20), *range(100, 140)):
        yield Port(
            id=machine(number),
            network_id=NET,
            mac_address=f"02:00:00:00:00:{number:02x}",
            fixed_ips=(FixedIP(subnet_id=SUBNET, address=parse_address(f"10.0.0.{number}")),),
            project_id="demo",
            created_at=NOON,
        )


class OctaviaFrontEnd:
    """Client whose calls return before the dataplane is reconciled; `rest` reconciles it."""

    def __init__(self, folder: Path, compile_owner: Compile = compile_anything, deployment: Deployment = PLAIN) -> None:
        self._runner = asyncio.Runner()
        self._stack = AsyncExitStack()
        opened = in_process_server(make_front_end, folder, "/load-balancer", compile_owner, deployment)
        self.server = self.run(self._stack.enter_async_context(opened))
        self.run(self.server.model.write(lambda _: Changes(puts=(network(), *machines()))))
        self.reconcile()
        self.ids: dict[str, str] = {}

    def run(self, work: Any) -> Any:
        async def wait() -> Any:
            return await work

        return self._runner.run(wait())

    def close(self) -> None:
        self.run(self._stack.aclose())
        self._runner.close()

    def reconcile(self) -> None:
        self.run(self.server.reconcile())

    def break_dataplane(self) -> None:
        """Make every later apply of the dataplane fail."""
        self.server.driver._fault = lambda: Fault.REJECTED

    def call(self, method: str, path: str, body: object = None) -> httpx.Response:
        """Send a request. `path` is relative to the root, with names of `ids` in braces."""
        answer: httpx.Response = self.run(self.server.call(method, ROOT + path.format(**self.ids), body))
        return answer

    def call_ok(self, method: str, path: str, body: object = None) -> Any:
        answer = self.call(method, path, body)
        assert answer.status_code < 300, answer.text
        return answer.json() if answer.content else None

    def call_error(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        answer = self.call(method, path, body)
        return answer.status_code, answer.json()["faultstring"]

    def create(self, kind: str, **attributes: object) -> dict[str, Any]:
        root, path = PATHS[kind]
        made: dict[str, Any] = self.call_ok("POST", path, {root: attributes})[root]
        self.reconcile()
        return made

    def update(self, kind: str, identity: str, **attributes: object) -> dict[str, Any]:
        root, path = PATHS[kind]
        changed: dict[str, Any] = self.call_ok("PUT", f"{path}/{identity}", {root: attributes})[root]
        self.reconcile()
        return changed

    def show(self, kind: str, identity: str) -> dict[str, Any]:
        root, path = PATHS[kind]
        shown: dict[str, Any] = self.call_ok("GET", f"{path}/{identity}")[root]
        return shown

    def create_tree(self, **more: object) -> dict[str, Any]:
        """Create the tree, and set `ids` to the id of each of its objects, by kind and by name."""
        tree: dict[str, Any] = self.call_ok("POST", "/loadbalancers", {"loadbalancer": {**TREE, **more}})[
            "loadbalancer"
        ]
        self.ids = {"lb": tree["id"]}
        for listener in tree["listeners"]:
            self.ids[listener["name"]] = listener["id"]
            for policy in listener["l7policies"]:
                self.ids |= {"policy": policy["id"], "rule": policy["rules"][0]["id"]}
        for pool in tree["pools"]:
            self.ids[pool["name"]] = pool["id"]
            self.ids |= {member["name"]: member["id"] for member in pool["members"]}
            self.ids |= {"monitor": pool["healthmonitor"]["id"]} if pool["healthmonitor"] else {}
        self.ids["pool"] = self.ids["app"]
        return tree
