"""Requests that Kubernetes' cloud provider sends for a Service."""

from typing import Any

from harness.front_ends.octavia_world import SUBNET

NAME = "kube_service_kubernetes_default_web"
TIMEOUTS = {
    "timeout_client_data": 50000,
    "timeout_member_connect": 5000,
    "timeout_member_data": 50000,
    "timeout_tcp_inspect": 0,
}


def members(*numbers: int) -> list[dict[str, Any]]:
    return [
        {"address": f"10.0.0.{number}", "protocol_port": 30080, "name": f"node{number}", "subnet_id": SUBNET}
        for number in numbers
    ]


def service(provider: str, **listener: object) -> dict[str, Any]:
    """Load balancer for a Service with one port, on nodes 11 and 12."""
    monitor = {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 1, "max_retries_down": 3}
    pool = {
        "name": f"pool_0_{NAME}",
        "protocol": "TCP",
        "lb_algorithm": "ROUND_ROBIN",
        "session_persistence": {"type": "SOURCE_IP"},
        "members": members(11, 12),
        "healthmonitor": {"name": f"monitor_0_{NAME}", **monitor},
    }
    whole = {
        "name": f"listener_0_{NAME}",
        "protocol": "TCP",
        "protocol_port": 80,
        "connection_limit": -1,
        "tags": [NAME],
        "default_pool": pool,
        **listener,
    }
    words = "Kubernetes external service default/web from cluster kubernetes"
    balancer = {"name": NAME, "description": words, "provider": provider, "tags": [NAME], "vip_subnet_id": SUBNET}
    return {"loadbalancer": {**balancer, "listeners": [whole]}}
