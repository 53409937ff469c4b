"""Objects that exist on the server under test, and requests that refer to them.

Requests drawn from the OpenAPI document alone have unknown ids and unsuitable addresses, so every response would be a
404. Therefore most requests get real ids and values that fit together; some stay as they were drawn.
"""

from collections.abc import Callable, Mapping
from ipaddress import ip_network
from random import Random
from typing import Any
from uuid import UUID

import httpx

from harness.fuzz import lxd_bodies
from harness.fuzz.machine import CHASSIS

LISTS = {
    "network": "/network/v2.0/networks",
    "subnet": "/network/v2.0/subnets",
    "port": "/network/v2.0/ports",
    "router": "/network/v2.0/routers",
    "floatingip": "/network/v2.0/floatingips",
    "local_ip": "/network/v2.0/local_ips",
    "loadbalancer": "/load-balancer/v2.0/lbaas/loadbalancers",
    "listener": "/load-balancer/v2.0/lbaas/listeners",
    "pool": "/load-balancer/v2.0/lbaas/pools",
    "flavor": "/load-balancer/v2.0/lbaas/flavors",
    "flavorprofile": "/load-balancer/v2.0/lbaas/flavorprofiles",
    "availability_zone": "/load-balancer/v2.0/lbaas/availabilityzones",
    "availability_zone_profile": "/load-balancer/v2.0/lbaas/availabilityzoneprofiles",
    "quota": "/load-balancer/v2.0/lbaas/quotas",
    "healthmonitor": "/load-balancer/v2.0/lbaas/healthmonitors",
    "l7policy": "/load-balancer/v2.0/lbaas/l7policies",
}
KEYS = {"availability_zone": "name", "quota": "project_id"}
"""Attribute that identifies an object, if it is not its id."""
KINDS = {path.rsplit("/", 1)[1]: kind for kind, path in LISTS.items()} | {
    "network-ip-availabilities": "network",
    "local-ips": "local_ip",
}
TAGS = ["a", "b c", "d/e", "ü"]
REFERENCES = {
    "network_id": "network",
    "vip_network_id": "network",
    "subnet_id": "subnet",
    "vip_subnet_id": "subnet",
    "floating_network_id": "outside",
    "port_id": "port",
    "local_port_id": "port",
    "fixed_port_id": "port",
    "vip_port_id": "port",
    "loadbalancer_id": "loadbalancer",
    "listener_id": "listener",
    "default_pool_id": "pool",
    "flavor_id": "flavor",
    "flavor_profile_id": "flavorprofile",
    "availability_zone": "availability_zone",
    "availability_zone_profile_id": "availability_zone_profile",
    "redirect_pool_id": "pool",
    "pool_id": "pool",
}
OMITTED_ATTRIBUTES = frozenset(
    {"vip_qos_policy_id", "vip_sg_ids",
     "client_authentication", "client_ca_tls_container_ref", "client_crl_container_ref", "default_tls_container_ref",
     "hsts_include_subdomains", "hsts_max_age", "hsts_preload", "insert_headers", "l7policies", "sni_container_refs",
     "alpn_protocols", "tls_ciphers", "tls_versions", "ca_tls_container_ref", "crl_container_ref", "healthmonitor",
     "tls_container_ref", "tls_enabled", "tenant_id", "project_id", "request_sriov", "connection_limit",
     "gateway_ip", "allocation_pools", "host_routes", "dns_nameservers", "ipv6_ra_mode", "ipv6_address_mode",
     "ip_version", "mtu", "persistence_granularity", "vip_address", "domain_name", "expected_codes", "http_method",
     "http_version", "url_path", "local_port_id", "local_ip_address"}
)  # fmt: skip
"""Attributes that OVN rejects, or that rarely fit if drawn alone; they are mostly left out."""
REJECTED_PATH = "/l7policies"
"""Part of the path of requests that OVN always rejects; they are rarely sent."""
KEEP_WILD_PROBABILITY, KEEP_ODD_PROBABILITY, KEEP_ID_PROBABILITY = 0.2, 0.1, 0.05
"""Probabilities with which a body, an attribute and an id stay as they were drawn."""

MONITOR = {"type": "TCP", "delay": 5, "timeout": 3, "max_retries": 2}
MIN_BALANCERS = 3
"""Minimum number of load balancers."""
HOSTS = [f"host{number}" for number in range(1, 7)]
"""Names of plain hosts, some of which are declared. Members are behind the first one."""


class FuzzObjects:
    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.ids: Mapping[str, list[str]] = {}
        self.announced: list[str] = []
        """Announced VIPs, each with the port of a listener."""
        self.members: list[tuple[str, str]] = []
        """(pool, member)"""
        self.associations: list[tuple[str, str]] = []
        """(Local IP, port)"""
        self.interfaces: Mapping[str, str] = {}
        """One port of each router."""
        self.cidrs: list[tuple[str, str]] = []
        """(network, prefix)"""
        self.listening: list[str] = []
        """Paths of LXD's load balancers and forwards."""
        self._generators: Mapping[str, Callable[[Random], Any]] = {
            "cidr": lambda random: f"10.{random.randrange(250)}.{random.randrange(250)}.0/24",
            "address": lambda random: f"10.0.{random.randrange(4)}.{random.randrange(1, 250)}",
            "ip_address": lambda random: f"10.0.{random.randrange(4)}.{random.randrange(1, 250)}",
            "local_ip_address": lambda random: f"10.0.{random.randrange(2)}.{random.randrange(200, 250)}",
            "fixed_ip": lambda random: None,
            "protocol": lambda random: random.choice(["TCP", "UDP", "TCP", "HTTPS"]),
            "lb_algorithm": lambda random: random.choice(["ROUND_ROBIN", "SOURCE_IP", "SOURCE_IP_PORT"]),
            "provider": lambda random: "ovn",
            "provider_name": lambda random: "ovn",
            "flavor_data": lambda random: "{}",
            "availability_zone_data": lambda random: "{}",
            "type": lambda random: random.choice(["TCP", "UDP-CONNECT"]),
            "session_persistence": lambda random: random.choice([None, {"type": "SOURCE_IP"}]),
            "name": lambda random: random.choice(["a", "b", "", "web", "ü", "x" * 255]),
            "mac_address": lambda random: f"02:00:00:00:00:{random.randrange(256):02x}",
            "destination": lambda random: f"172.16.{random.randrange(4)}.0/24",
            "nexthop": lambda random: f"10.0.{random.randrange(4)}.{random.randrange(1, 250)}",
            "tags": lambda random: random.sample(TAGS, random.randrange(len(TAGS) + 1)),
            "chassis": lambda random: CHASSIS,
            "number": lambda random: random.choice([None, None, random.randrange(1, 4096)]),
            "addresses": _host_addresses,
            "prefixes": _host_prefixes,
            "loadbalancer": self._tree,
        }

    def refresh(self) -> None:
        found = {}
        for kind, path in LISTS.items():
            key = KEYS.get(kind, "id")
            answer = self._client.get(path, params={"fields": key, "limit": 200}).raise_for_status().json()
            items = next(value for name, value in answer.items() if not name.endswith("_links"))
            found[kind] = [item[key] for item in items]
        query = {"router:external": True, "fields": "id"}
        outside = self._client.get(LISTS["network"], params=query).raise_for_status().json()["networks"]
        self.ids = found | {"outside": [network["id"] for network in outside]}
        query = {"device_owner": "network:router_interface"}
        ports = self._client.get(LISTS["port"], params=query).raise_for_status().json()["ports"]
        self.interfaces = {port["device_id"]: port["id"] for port in ports}
        answer = self._client.get(LISTS["subnet"], params={"fields": ["network_id", "cidr"], "limit": 200}).json()
        self.cidrs = [(subnet["network_id"], subnet["cidr"]) for subnet in answer["subnets"]]
        self.listening = []
        for network in found["network"][:20]:
            for plural in ("load-balancers", "forwards"):
                answer = self._client.get(f"/1.0/networks/{network}/{plural}").json()
                self.listening += answer["metadata"] or ()
        self.associations = []
        for local_ip in found["local_ip"][:20]:
            answer = self._client.get(f"{LISTS['local_ip']}/{local_ip}/port_associations", params={"limit": 20}).json()
            self.associations += [(local_ip, each["fixed_port_id"]) for each in answer["port_associations"]]
        kept = self._client.get("/plugin/statuses").json()["loadbalancers"]
        self.ids = {**self.ids, "kept": [each["id"] for each in kept]}
        self.members = []
        for pool in found["pool"][:20]:
            answer = self._client.get(f"{LISTS['pool']}/{pool}/members", params={"limit": 20}).json()
            self.members += [(pool, member["id"]) for member in answer.get("members", ())]

    def seed(self) -> None:
        """Create one object of each kind, and a node that reports counters."""
        told = {"interval": 3600, "listeners": {}}
        self._client.put(f"/agent/chassis/{CHASSIS}", json=told).raise_for_status()
        for number, cidrs in enumerate((["10.0.0.0/24"], ["10.0.1.0/24", "fd00:1::/64"])):
            network = self._post("network", name=f"seed{number}")["id"]
            for cidr in cidrs:
                prefix = ip_network(cidr)
                pool = {"start": str(prefix[2]), "end": str(prefix[200])}
                about = {"cidr": cidr, "ip_version": prefix.version, "allocation_pools": [pool]}
                self._post("subnet", network_id=network, **about)
            self._post("port", network_id=network)
            self._post("local_ip", network_id=network)
            self._post("router", name=f"seed{number}")
            self.refresh()
            self._post("loadbalancer", **self._tree(Random(number)))
            for root, profile in (("flavor", "flavorprofile"), ("availability_zone", "availability_zone_profile")):
                body = {"name": f"seed{number}", "provider_name": "ovn", f"{root}_data": "{}"}
                made = self._post(profile, **body)["id"]
                self._post(root, name=f"seed{number}", **{f"{root}_profile_id": made})
        wire = {"router:external": True, "provider:network_type": "flat", "provider:physical_network": "physnet"}
        outside = self._post("network", name="outside", **wire)["id"]
        self._post("subnet", network_id=outside, cidr="203.0.113.0/24", ip_version=4)
        self._post("router", name="gate", external_gateway_info={"network_id": outside})
        self._create_announced_vip()
        self.refresh()

    def _create_announced_vip(self) -> None:
        """Create a VIP of both IP versions that a plain host announces."""
        told = {"addresses": ["192.0.2.1"], "prefixes": [{"cidr": "10.254.0.0/24"}]}
        self._client.put(f"/operator/hosts/{HOSTS[0]}", json=told).raise_for_status()
        pool = self._post("network", name="pool", **{"provider:network_type": "announced"})["id"]
        subnets = [
            self._post("subnet", network_id=pool, cidr=cidr, ip_version=version)["id"]
            for cidr, version in (("198.51.100.0/24", 4), ("2001:db8:f::/64", 6))
        ]
        member = {"address": "10.254.0.9", "protocol_port": 80}
        app = {"name": "app", "protocol": "TCP", "lb_algorithm": "SOURCE_IP_PORT", "members": [member]}
        front = {"protocol": "TCP", "protocol_port": 443, "default_pool": app}
        more = [{"subnet_id": subnets[1]}]
        wanted = {"provider": "native", "vip_subnet_id": subnets[0], "additional_vips": more, "listeners": [front]}
        made = self._post("loadbalancer", **wanted)
        found = made["vip_address"], f"[{made['additional_vips'][0]['ip_address']}]"
        self.announced = [f"{vip}:443" for vip in found]

    def recreate_missing(self, random: Random) -> None:
        """Create load balancers and Local IPs again if too few are left, because most requests need one."""
        if len(self.associations) < MIN_BALANCERS and self.ids["port"]:
            self._associate(self._client.get(f"{LISTS['port']}/{self._random_id('port', random)}").json()["port"])
        if len(self.ids["loadbalancer"]) < MIN_BALANCERS and self.ids["subnet"]:
            body = {"loadbalancer": self._tree(random)}
            if self._client.post(LISTS["loadbalancer"], json=body).is_success:
                self.refresh()

    def _associate(self, port: Mapping[str, Any]) -> None:
        """Associate the port with a new Local IP. The server rejects ports that are not a machine's."""
        made = self._client.post(LISTS["local_ip"], json={"local_ip": {"network_id": port["network_id"]}})
        if made.is_success:
            path = f"{LISTS['local_ip']}/{made.json()['local_ip']['id']}/port_associations"
            self._client.post(path, json={"port_association": {"fixed_port_id": port["id"]}})

    def _post(self, kind: str, **attributes: Any) -> Any:
        answer = self._client.post(LISTS[kind], json={kind: attributes})
        assert answer.is_success or answer.status_code == 409, answer.text
        return answer.json().get(kind)

    def path(self, template: str, drawn: Mapping[str, Any], random: Random) -> dict[str, Any]:
        """Parameters of a path with ids of existing objects."""
        if not drawn or random.random() < KEEP_ID_PROBABILITY:
            return dict(drawn)
        kind = KINDS.get(template.split("/{", maxsplit=1)[0].rsplit("/", 1)[1], "")
        known: dict[str, Any] = {"id": self._random_id(kind, random), "alias": "router", "tag": random.choice(TAGS)}
        if template.startswith(("/loadbalancers/", "/statuses/")):  # paths of the plug-in front end
            known["id"] = self._random_id("kept", random)
        if "{pool_id}" in template:
            pool, member = random.choice(self.members or [("", "")])
            known |= {"pool_id": pool or self._random_id("pool", random), "id": member}
        if "{port_id}" in template:
            local_ip, port = random.choice(self.associations or [("", "")])
            known |= {"id": local_ip or known["id"], "port_id": port or self._random_id("port", random)}
        if "{l7policy_id}" in template:
            known["l7policy_id"] = self._random_id("l7policy", random)
        if "{owner}" in template:
            kind = random.choice(["network", "router", "port", "loadbalancer"])
            known["owner"] = f"{kind}/{self._random_id(kind, random)}"
        if "{name}" in template:
            known["name"] = "ovn" if "/providers/" in template else self._random_id("availability_zone", random)
        if template.startswith("/projects/"):
            known["name"] = random.choice(lxd_bodies.PROJECTS)
        if "{project_id}" in template:
            known["project_id"] = self._random_id("quota", random)
        if "{chassis}" in template:
            known["chassis"] = CHASSIS
        if "{host}" in template:
            known["host"] = random.choice(HOSTS)
        if "{network}" in template:
            with_subnets = "{network}/" in template and self.cidrs
            known["network"] = random.choice(self.cidrs)[0] if with_subnets else self._random_id("network", random)
        if "{listen_address}" in template:
            there = [path for path in self.listening if path.split("/")[4] == template.split("/")[3]]
            if there:
                _, _, _, known["network"], _, known["listen_address"] = random.choice(there).split("/")
        if template.endswith("remove_router_interface") and self.interfaces:
            known["id"] = random.choice(sorted(self.interfaces))
        return {name: known.get(name) or value for name, value in drawn.items()}

    def flow(self, random: Random) -> dict[str, str]:
        """A flow to an announced VIP, or to an address near it."""
        to = random.choice(self.announced)
        port = random.randrange(1, 65536)
        client = f"[2001:db8:1::{port:x}]:{port}" if "[" in to else f"198.51.100.{port % 256}:{port}"
        asked = {"client": client, "to": to, "protocol": random.choice(["tcp", "tcp", "udp", "sctp"])}
        odd = {
            "client": random.choice(["", "x" * 5000, "10.0.0.1:0", "[::1]:99999"]),
            "to": random.choice(["::", client]),
        }
        return {
            name: odd.get(name, said) if random.random() < KEEP_ODD_PROBABILITY else said
            for name, said in asked.items()
        }

    def remove_interface_body(self, router: str) -> Any:
        """Body that removes an interface from the router."""
        return {"port_id": self.interfaces.get(router)}

    def lxd_body(self, operation: Any, network: str, random: Random) -> Any:
        """Body for the LXD front end, or None if there is no generator for it."""
        cidrs = [cidr for each, cidr in self.cidrs if each == network and ip_network(cidr).num_addresses > 200]
        return lxd_bodies.body(operation.method, operation.path, cidrs, random)

    def plugin_body(self, path: str, parameters: Mapping[str, Any], random: Random) -> Any:
        """A load balancer in the plug-in front end's format, with new ids or those of an existing one."""
        tree = self._tree(random)
        pools = [self._with_id(pool, random) for pool in tree["pools"]]
        for pool in pools:
            if "healthmonitor" in pool:
                pool["healthmonitor"] = self._with_id(pool["healthmonitor"], random)
        listeners = []
        for listener in tree["listeners"]:
            pool = self._with_id(listener["default_pool"], random)
            pool["members"] = [self._with_id(member, random) for member in pool["members"]]
            pools.append(pool)
            rest = {name: value for name, value in listener.items() if name != "default_pool"}
            listeners.append(self._with_id({**rest, "default_pool_id": pool["id"]}, random))
        whole = {"project_id": "fuzz", "vip_subnet_id": tree["vip_subnet_id"], "name": tree["name"]}
        whole = self._with_id({**whole, "listeners": listeners, "pools": pools}, random)
        return {"loadbalancer": {**whole, "id": parameters["id"]} if "{id}" in path else whole}

    def _with_id(self, value: Mapping[str, Any], random: Random) -> dict[str, Any]:
        return {**value, "id": str(UUID(int=random.getrandbits(128), version=4))}

    def body(self, drawn: Any, random: Random) -> Any:
        return drawn if random.random() < KEEP_WILD_PROBABILITY else self._replace_values(drawn, random)

    def _replace_values(self, value: Any, random: Random) -> Any:
        match value:
            case list():
                return [self._replace_values(item, random) for item in value]
            case dict():
                kept = {name: item for name, item in value.items() if self._keeps_value(name, item, random)}
                return {name: self._attribute(name, item, random) for name, item in kept.items()}
            case _:
                return value

    def _keeps_value(self, name: str, value: Any, random: Random) -> bool:
        return name not in OMITTED_ATTRIBUTES or value is None or random.random() < KEEP_ODD_PROBABILITY

    def _attribute(self, name: str, value: Any, random: Random) -> Any:
        if random.random() < KEEP_ODD_PROBABILITY:
            return value
        if name in REFERENCES and not isinstance(value, dict):
            return self._random_id(REFERENCES[name], random) or value
        if name in self._generators:
            return self._generators[name](random)
        return self._replace_values(value, random)

    def _random_id(self, kind: str, random: Random) -> str | None:
        found = self.ids.get(kind)
        return random.choice(found) if found else None

    def _tree(self, random: Random) -> Any:
        """A valid load balancer with all its parts."""
        ports = random.sample(range(1, 65536), random.randrange(4))
        return {
            "name": f"lb{random.randrange(100)}",
            "vip_subnet_id": self._random_id("subnet", random),
            "flavor_id": self._random_id("flavor", random) if random.random() < 0.2 else None,
            "availability_zone": self._random_id("availability_zone", random) if random.random() < 0.2 else None,
            "listeners": [
                {
                    "protocol": protocol,
                    "protocol_port": port,
                    "default_pool": {
                        "name": f"pool{port}",
                        "protocol": protocol,
                        "lb_algorithm": random.choice(["SOURCE_IP", "SOURCE_IP_PORT"]),
                        "members": [
                            {"address": f"10.0.0.{number}", "protocol_port": 80, "weight": random.randrange(257)}
                            for number in range(230, 230 + random.randrange(1, 7))  # never allocated to VIPs
                        ],
                    },
                }
                for port in ports
                for protocol in [random.choice(["TCP", "UDP"])]
            ],
            "pools": [
                {"name": name, "protocol": "TCP", "lb_algorithm": "SOURCE_IP", **more}
                for name, more in (("bare", {}), ("watched", {"healthmonitor": MONITOR}))
            ],
        }


def _host_addresses(random: Random) -> list[str]:
    number = random.randrange(1, 40)
    return [f"192.0.2.{number}", *([f"2001:db8:2::{number:x}"] if random.random() < 0.3 else [])]


def _host_prefixes(random: Random) -> list[dict[str, Any]]:
    """Prefixes of a host, sometimes more than the limit."""
    count = random.choice([0, 1, 2, 2, 64, 65])
    first, whose = random.randrange(60), random.choice([None, None, "fuzz"])
    return [{"cidr": f"10.253.{first + each}.0/24", "project_id": whose} for each in range(count)]
