"""Requests of Kubernetes' cloud provider for OpenStack for a Service, in its order and in gophercloud's encoding.

It follows cloud-provider-openstack (pkg/openstack/loadbalancer.go): `ensureOctaviaLoadBalancer`, which creates a load
balancer in one call, and updates listener, pool, members and monitor of each port of an existing one;
`updateOctaviaLoadBalancer`, for added and removed nodes; `ensureLoadBalancerDeleted`, which cascades by default. After
each call it waits until the load balancer is ACTIVE.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from harness.waiting import wait_equal

FLOATING_IPS, SECURITY_GROUPS = "/network/v2.0/floatingips", "/network/v2.0/security-groups"
ROOT = "/load-balancer/v2.0/lbaas"
_FORWARDED = "X-Forwarded-For"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    port: int = 80
    node_port: int = 30080


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """Annotations of a Service, with the provider's defaults, and the relevant parts of its specification."""

    name: str
    ports: tuple[ServicePort, ...] = (ServicePort(),)
    x_forwarded_for: bool = False
    proxy_protocol: str = ""
    tls_container: str = ""
    connection_limit: int = -1
    source_ranges: tuple[str, ...] = ()
    timeouts: tuple[int, int, int, int] = (50000, 5000, 50000, 0)
    health_check_node_port: int = 0
    """Not 0 with `externalTrafficPolicy: Local`."""
    client_affinity: bool = False

    @property
    def balancer(self) -> str:
        return f"kube_service_lab_default_{self.name}"

    @property
    def listener_protocol(self) -> str:
        return "TERMINATED_HTTPS" if self.tls_container else "HTTP" if self.x_forwarded_for else "TCP"

    @property
    def pool_protocol(self) -> str:
        if self.proxy_protocol:
            return self.proxy_protocol
        return "HTTP" if self.x_forwarded_for or self.tls_container else "TCP"


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudProvider:
    client: httpx.Client
    subnet: str

    def ensure(self, service: Service, nodes: Mapping[str, str]) -> Any:
        """Load balancer of a new or changed Service."""
        found = self._find(service)
        balancer = self._create(service, nodes) if found is None else found
        if found is not None:
            self._ensure_parts(balancer["id"], service, nodes)
        self._get(FLOATING_IPS, port_id=balancer["vip_port_id"])
        self._get(SECURITY_GROUPS, name=f"lb-sg-{service.name}")
        return self._await(balancer["id"])

    def update(self, service: Service, nodes: Mapping[str, str]) -> None:
        """Update the members after nodes (name -> address) were added or removed."""
        balancer = self._find(service)
        listeners = self._get(f"{ROOT}/listeners", loadbalancer_id=balancer["id"])["listeners"]
        for index, port in enumerate(service.ports):
            (listener,) = [each for each in listeners if _is_of(each, service, port)]
            self._ensure_pool(balancer["id"], listener, service, index, nodes)

    def delete(self, service: Service) -> None:
        balancer = self._find(service)
        self._get(FLOATING_IPS, port_id=balancer["vip_port_id"])
        self._ask("DELETE", f"{ROOT}/loadbalancers/{balancer['id']}?cascade=true")
        path = f"{ROOT}/loadbalancers/{balancer['id']}"
        wait_equal(lambda: self.client.get(path).status_code, 404)

    def _find(self, service: Service) -> Any:
        found = self._get(f"{ROOT}/loadbalancers", name=service.balancer)["loadbalancers"]
        assert len(found) < 2
        return found[0] if found else None

    def _create(self, service: Service, nodes: Mapping[str, str]) -> Any:
        listeners = [
            {**_listener(service, index), "default_pool": _whole_pool(service, index, nodes, self.subnet)}
            for index in range(len(service.ports))
        ]
        words = f"Kubernetes external service default/{service.name} from cluster lab"
        named = {"name": service.balancer, "description": words, "provider": "fairlead", "tags": [service.balancer]}
        asked = {**named, "vip_subnet_id": self.subnet, "listeners": listeners}
        made = self._ask("POST", f"{ROOT}/loadbalancers", {"loadbalancer": asked})["loadbalancer"]
        return self._await(made["id"])

    def _ensure_parts(self, balancer: str, service: Service, nodes: Mapping[str, str]) -> None:
        """Update the parts of each port; at the end, delete listeners of removed ports with their pools."""
        left = self._get(f"{ROOT}/listeners", loadbalancer_id=balancer)["listeners"]
        for index, port in enumerate(service.ports):
            mine = next((each for each in left if _is_of(each, service, port)), None)
            listener = self._ensure_listener(balancer, mine, service, index)
            self._ensure_pool(balancer, listener, service, index, nodes)
            left = [each for each in left if each["id"] != listener["id"]]
        for listener in left:
            assert service.balancer in listener["tags"]
            if pool := self._pool_of(balancer, listener):
                self._change(balancer, "DELETE", f"pools/{pool['id']}")
            self._change(balancer, "DELETE", f"listeners/{listener['id']}")

    def _ensure_listener(self, balancer: str, listener: Any, service: Service, index: int) -> Any:
        wanted = _listener(service, index)
        if listener is None:
            body = {"listener": {**wanted, "loadbalancer_id": balancer}}
            return self._change(balancer, "POST", "listeners", body)["listener"]
        changes = {
            name: wanted.get(name, empty)
            for name, empty in _UPDATED.items()
            if wanted.get(name, empty) != (listener[name] or empty)
        }
        if changes:
            self._change(balancer, "PUT", f"listeners/{listener['id']}", {"listener": changes})
        return listener

    def _ensure_pool(
        self, balancer: str, listener: Any, service: Service, index: int, nodes: Mapping[str, str]
    ) -> None:
        pool = self._pool_of(balancer, listener)
        if pool and pool["protocol"] != service.pool_protocol:
            self._change(balancer, "DELETE", f"pools/{pool['id']}")
            pool = None
        if pool is None:
            body = {"pool": {**_pool(service, index), "listener_id": listener["id"]}}
            pool = self._change(balancer, "POST", "pools", body)["pool"]
        path = f"pools/{pool['id']}/members"
        here = {_member_key(each) for each in self._get(f"{ROOT}/{path}")["members"]}
        wanted = _members(service, index, nodes, self.subnet)
        if here != {_member_key(each) for each in wanted}:
            self._change(balancer, "PUT", path, {"members": wanted})
        self._ensure_monitor(balancer, pool, service, index)

    def _ensure_monitor(self, balancer: str, pool: Any, service: Service, index: int) -> None:
        wanted, known = _monitor(service, index), pool.get("healthmonitor_id")
        if known:
            found = self._get(f"{ROOT}/healthmonitors/{known}")["healthmonitor"]
            if found["type"] == wanted["type"]:
                return
            self._change(balancer, "DELETE", f"healthmonitors/{known}")
        self._change(balancer, "POST", "healthmonitors", {"healthmonitor": {**wanted, "pool_id": pool["id"]}})

    def _pool_of(self, balancer: str, listener: Any) -> Any:
        pools = self._get(f"{ROOT}/pools", loadbalancer_id=balancer)["pools"]
        return next((each for each in pools if {"id": listener["id"]} in each["listeners"]), None)

    def _change(self, balancer: str, method: str, path: str, body: object = None) -> Any:
        answer = self._ask(method, f"{ROOT}/{path}", body)
        self._await(balancer)
        return answer

    def _await(self, balancer: str) -> Any:
        path = f"{ROOT}/loadbalancers/{balancer}"
        wait_equal(lambda: self._get(path)["loadbalancer"]["provisioning_status"], "ACTIVE")
        return self._get(path)["loadbalancer"]

    def _get(self, path: str, **query: str) -> Any:
        return self.client.get(path, params=query).raise_for_status().json()

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        answer = self.client.request(method, path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None


_UPDATED: Mapping[str, Any] = {
    "connection_limit": -1,
    "insert_headers": {},
    "default_tls_container_ref": "",
    "timeout_client_data": 0,
    "timeout_member_connect": 0,
    "timeout_member_data": 0,
    "timeout_tcp_inspect": 0,
    "allowed_cidrs": [],
}
"""Attributes of a listener that an update sets, each with its default."""


def _is_of(listener: Any, service: Service, port: ServicePort) -> bool:
    return (listener["protocol"], listener["protocol_port"]) == (service.listener_protocol, port.port)


def _listener(service: Service, index: int) -> dict[str, Any]:
    names = ("timeout_client_data", "timeout_member_connect", "timeout_member_data", "timeout_tcp_inspect")
    return {
        "name": f"listener_{index}_{service.balancer}",
        "protocol": service.listener_protocol,
        "protocol_port": service.ports[index].port,
        "connection_limit": service.connection_limit,
        "tags": [service.balancer],
        **dict(zip(names, service.timeouts, strict=True)),
        **({"insert_headers": {_FORWARDED: "true"}} if service.x_forwarded_for else {}),
        **({"default_tls_container_ref": service.tls_container} if service.tls_container else {}),
        **({"allowed_cidrs": list(service.source_ranges)} if service.source_ranges else {}),
    }


def _pool(service: Service, index: int) -> dict[str, Any]:
    persistence = {"session_persistence": {"type": "SOURCE_IP"}} if service.client_affinity else {}
    named = {"name": f"pool_{index}_{service.balancer}", "protocol": service.pool_protocol}
    return {**named, "lb_algorithm": "ROUND_ROBIN", **persistence}


def _whole_pool(service: Service, index: int, nodes: Mapping[str, str], subnet: str) -> dict[str, Any]:
    members = _members(service, index, nodes, subnet)
    return {**_pool(service, index), "members": members, "healthmonitor": _monitor(service, index)}


def _members(service: Service, index: int, nodes: Mapping[str, str], subnet: str) -> Sequence[dict[str, Any]]:
    """One member per node."""
    more = {"monitor_port": service.health_check_node_port} if service.health_check_node_port else {}
    known = {"protocol_port": service.ports[index].node_port, "subnet_id": subnet, **more}
    return [{"name": name, "address": address, **known} for name, address in nodes.items()]


def _member_key(member: Any) -> tuple[str, str, int, int]:
    return member["name"], member["address"], member["protocol_port"], member.get("monitor_port") or 0


def _monitor(service: Service, index: int) -> dict[str, Any]:
    """Monitor with the shortest delay and the fewest retries that annotations allow."""
    often = {"delay": 1, "timeout": 1, "max_retries": 1, "max_retries_down": 1}
    asks = {"type": "HTTP", "url_path": "/healthz", "http_method": "GET", "expected_codes": "200"}
    kind = asks if service.health_check_node_port else {"type": "TCP"}
    return {"name": f"monitor_{index}_{service.balancer}", **often, **kind}
