"""Networks that a test creates through LXD's API."""

from typing import Any

from harness.front_ends.lxd_world import LxdFrontEnd

UPLINK = {
    "parent": "physnet",
    "ipv4.gateway": "203.0.113.1/24",
    "ipv4.ovn.ranges": "203.0.113.10-203.0.113.99",
    "ipv4.routes": "198.51.100.0/24,203.0.113.128/25",
    "ipv6.gateway": "2001:db8::1/64",
    "ipv6.ovn.ranges": "2001:db8::10-2001:db8::ff",
    "ipv6.routes": "2001:db8:1::/48",
}


def make(door: LxdFrontEnd, name: str, config: Any, *, kind: str = "ovn", **more: Any) -> None:
    body = {"name": name, "type": kind, "config": config, "description": ""}
    project = f"?project={more.pop('project')}" if "project" in more else ""
    assert door.send("POST", f"/1.0/networks{project}", body, **more).status_code == 201
