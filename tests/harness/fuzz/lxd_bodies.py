"""Valid bodies for the LXD front end: parts drawn at random would never fit together."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from random import Random
from typing import Any

PROJECTS = ["default", "p1", "p2", "p3"]
USERS: Sequence[Mapping[str, str]] = ({}, {"user.a": "b"}, {"user.a": ""})
TEXTS = ["", "web", "ü"]


def body(method: str, template: str, cidrs: Sequence[str], random: Random) -> Any:
    """Body of a request, or None if there is no generator for it. `cidrs` are those of the network in the path."""
    common = {"description": random.choice(TEXTS), "config": random.choice(USERS)}
    match template.split("/")[1:]:
        case ["networks"]:
            return _network(common, random)
        case ["networks", "{network}"]:
            return {"name": f"n{random.randrange(1000)}"} if method == "post" else common
        case ["networks", "{network}", "load-balancers" | "forwards" as plural, *_] if cidrs:
            return _balancer(common, plural, random.choice(cidrs), random)
        case ["projects", *_]:
            return {**common, "name": random.choice(PROJECTS)}
    return None


def _network(common: Mapping[str, Any], random: Random) -> Any:
    address = f"10.{random.randrange(250)}.{random.randrange(250)}.1/24"
    config = {"network": random.choice(["none", "outside"]), "ipv4.address": address, **common["config"]}
    return {**common, "name": f"n{random.randrange(1000)}", "type": "ovn", "config": config}


def _balancer(common: Mapping[str, Any], plural: str, cidr: str, random: Random) -> Any:
    """A load balancer or a forward; each ignores the keys that only the other has."""
    inside = ip_network(cidr)
    targets = {f"b{number}": str(inside[number]) for number in random.sample(range(100, 110), 3)}
    ports = [
        {
            "protocol": random.choice(["tcp", "udp"]),
            "listen_port": random.choice(["80", "81-89", f"{port},{port + 2}"]),
            "target_backend": random.sample(sorted(targets), random.randrange(1, 3)),
            "target_address": random.choice(sorted(targets.values())),
        }
        for port in random.sample(range(100, 60000), random.randrange(3))
    ]
    probed = {"healthcheck": "true"} if plural == "load-balancers" and random.random() < 0.3 else {}
    return {
        **common,
        "config": {**common["config"], **probed},
        "listen_address": str(inside[random.randrange(20, 60)]),
        "backends": [{"name": name, "target_address": address} for name, address in targets.items()],
        "ports": ports,
    }
