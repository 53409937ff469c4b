"""Rows that Neutron (ML2/OVN) and LXD write to the Northbound database, as operations of a transaction (RFC 7047).

Columns and values are those of Neutron 29 with OVN 23.03, as recorded.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_interface
from uuid import UUID, uuid5

from fairlead.drivers.ovsdb.values import Json, encode_map

UUID_NAMESPACE = UUID(int=0)
METADATA = "network:distributed"
INTERFACE, GATEWAY = "network:router_interface", "network:router_gateway"


def uuid_of(name: str) -> str:
    return str(uuid5(UUID_NAMESPACE, name))


def _row(*parts: str) -> str:
    """Name of a row inside a transaction: an <id> (RFC 7047, section 3.1)."""
    return f"row_{uuid_of('/'.join(parts)).replace('-', '_')}"


def mac_of(name: str) -> str:
    number = UUID(uuid_of(name)).int
    return "fa:16:3e:" + ":".join(f"{number >> shift & 255:02x}" for shift in (16, 8, 0))


def insert(table: str, row: Mapping[str, Json], name: str = "") -> Json:
    return {"op": "insert", "table": table, "row": dict(row), **({"uuid-name": name} if name else {})}


def add_to(table: str, name: str, column: str, new: str) -> Json:
    mutations = [[column, "insert", ["set", [["named-uuid", new]]]]]
    return {"op": "mutate", "table": table, "where": [["name", "==", name]], "mutations": mutations}


def external_ids_mutation(table: str, name: str, **changed: str) -> Json:
    """Mutation that sets external_ids. Each keyword is the key without its prefix `neutron:`."""
    pairs = {f"neutron:{word}": text for word, text in changed.items()}
    mutations = [["external_ids", "delete", ["set", sorted(pairs)]], ["external_ids", "insert", encode_map(pairs)]]
    return {"op": "mutate", "table": table, "where": [["name", "==", name]], "mutations": mutations}


def update(table: str, name: str, **columns: Json) -> Json:
    return {"op": "update", "table": table, "where": [["name", "==", name]], "row": columns}


def delete(table: str, column: str, value: Json) -> Json:
    return {"op": "delete", "table": table, "where": [[column, "==", value]]}


def delete_referenced(table: str, holder: str, column: str, uuid: str) -> Json:
    mutations = [[column, "delete", ["set", [["uuid", uuid]]]]]
    return {"op": "mutate", "table": table, "where": [["name", "==", holder]], "mutations": mutations}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutronNetwork:
    """A network of Neutron, and the operations that write it."""

    name: str
    project: str = "a"
    mtu: int = 1442
    external: bool = False
    physnet: str = ""
    vlan: int | None = None
    metadata: bool = True

    @property
    def id(self) -> str:
        return uuid_of(f"net-{self.name}")

    @property
    def switch(self) -> str:
        return f"neutron-{self.id}"

    def create(self) -> Iterator[Json]:
        kind = "geneve" if not self.physnet else "flat" if self.vlan is None else "vlan"
        external_ids = {
            "neutron:availability_zone_hints": "",
            "neutron:mtu": str(self.mtu),
            "neutron:network_name": self.name,
            "neutron:provnet-network-type": kind,
            "neutron:revision_number": "1",
            **({"neutron:provnet-physical-network": self.physnet} if self.physnet else {}),
        }
        other_config = {
            "mcast_snoop": "false",
            "mcast_flood_unregistered": "false",
            "vlan-passthru": "false",
            **({"broadcast-arps-to-all-routers": "true"} if self.external else {}),
        }
        row = {"name": self.switch, "external_ids": encode_map(external_ids), "other_config": encode_map(other_config)}
        yield insert("Logical_Switch", row)
        if self.physnet:
            yield from self._localnet_port()
        if self.metadata:
            yield from self.port(
                "meta", project=self.project, owner=METADATA, device=f"ovnmeta-{self.id}", kind="localport"
            )

    def _localnet_port(self) -> Iterator[Json]:
        row = {
            "name": f"provnet-{uuid_of(f'segment-{self.name}')}",
            "type": "localnet",
            "addresses": "unknown",
            "external_ids": encode_map({"neutron:provnet-physical-network": self.physnet}),
            "options": encode_map(
                {"network_name": self.physnet, "mcast_flood": "false", "mcast_flood_reports": "true"}
            ),
            **({} if self.vlan is None else {"tag_request": self.vlan, "tag": self.vlan}),
        }
        yield insert("Logical_Switch_Port", row, _row("wire", self.name))
        yield add_to("Logical_Switch", self.switch, "ports", _row("wire", self.name))

    def subnet(self, cidr: str, router: str = "") -> Json:
        """Insert the DHCP options of a subnet."""
        options = {"server_mac": mac_of(cidr), "lease_time": "43200", "mtu": str(self.mtu)}
        external_ids = {
            "subnet_id": self.subnet_id(cidr),
            "neutron:network_id": self.id,
            "neutron:revision_number": "0",
        }
        row = {
            "cidr": cidr,
            "options": encode_map({**options, **({"router": router} if router else {})}),
            "external_ids": encode_map(external_ids),
        }
        return insert("DHCP_Options", row)

    def subnet_id(self, cidr: str) -> str:
        return uuid_of(f"subnet-{self.name}-{cidr}")

    def port_id(self, name: str) -> str:
        return uuid_of(f"port-{self.name}-{name}")

    def port(
        self,
        name: str,
        *addresses: str,
        project: str = "a",
        owner: str = "compute:nova",
        device: str = "",
        kind: str = "",
        enabled: bool = True,
        host: str = "",
        options: Mapping[str, str] | None = None,
        secured: bool = True,
    ) -> Iterator[Json]:
        """Insert a port. `addresses` have prefix lengths, such as `10.0.0.5/24`."""
        mac = mac_of(f"{self.name}-{name}")
        texts = [" ".join([mac, *(str(ip_interface(each).ip) for each in addresses)])]
        external_ids = {
            "neutron:cidrs": " ".join(addresses),
            "neutron:device_id": device,
            "neutron:device_owner": owner,
            "neutron:network_name": self.switch,
            "neutron:mtu": "",
            "neutron:port_capabilities": "",
            "neutron:port_name": name,
            "neutron:project_id": project,
            "neutron:revision_number": "1",
            "neutron:security_group_ids": uuid_of("default"),
            "neutron:subnet_pool_addr_scope4": "",
            "neutron:subnet_pool_addr_scope6": "",
            "neutron:vnic_type": "normal",
            **({"neutron:host_id": host} if host else {}),
        }
        row = {
            "name": self.port_id(name),
            "type": kind,
            "enabled": enabled,
            "addresses": ["set", texts if secured else [*texts, "unknown"]],
            "port_security": ["set", texts if secured else []],
            "options": encode_map(dict(options or {})),
            "external_ids": encode_map(external_ids),
        }
        if kind == "router":
            row |= {"addresses": "router", "port_security": ["set", []]}
        yield insert("Logical_Switch_Port", row, _row("port", self.name, name))
        yield add_to("Logical_Switch", self.switch, "ports", _row("port", self.name, name))

    def delete_port(self, name: str) -> Iterator[Json]:
        """Delete a port by its name. `delete_referenced` removes one by the UUID of its row."""
        yield delete("Logical_Switch_Port", "name", self.port_id(name))

    def options(self, cidr: str, **changed: str) -> Json:
        mutations = [["options", "delete", ["set", sorted(changed)]], ["options", "insert", encode_map(changed)]]
        return {"op": "mutate", "table": "DHCP_Options", "where": [["cidr", "==", cidr]], "mutations": mutations}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutronRouter:
    name: str
    project: str = "a"

    @property
    def id(self) -> str:
        return uuid_of(f"router-{self.name}")

    @property
    def row(self) -> str:
        return f"neutron-{self.id}"

    def create(self) -> Iterator[Json]:
        external_ids = {
            "neutron:availability_zone_hints": "",
            "neutron:revision_number": "1",
            "neutron:router_name": self.name,
        }
        options = {"always_learn_from_arp_request": "false", "dynamic_neigh_routers": "true"}
        row = {
            "name": self.row,
            "enabled": True,
            "external_ids": encode_map(external_ids),
            "options": encode_map(options),
        }
        yield insert("Logical_Router", row)

    def port_name(self, net: NeutronNetwork, *addresses: str) -> str:
        return f"{self.name}-{'-'.join(addresses)}"

    def insert_port(
        self, net: NeutronNetwork, *addresses: str, gateway: bool = False, attached: bool = True
    ) -> Iterator[Json]:
        """Insert a router's port: first like any other port, then, when the router takes it (`attached`), both ends."""
        port = self.port_name(net, *addresses)
        port_id = net.port_id(port)
        yield from net.port(
            port,
            *addresses,
            project="" if gateway else self.project,
            owner=GATEWAY if gateway else INTERFACE,
            device=self.id,
            kind="router" if attached else "",
            options={"router-port": f"lrp-{port_id}"} if attached else {},
        )
        if attached:
            yield from self._both_ends(net, addresses, gateway=gateway)

    def _both_ends(self, net: NeutronNetwork, addresses: Sequence[str], *, gateway: bool) -> Iterator[Json]:
        port = self.port_name(net, *addresses)
        port_id = net.port_id(port)
        ids = [net.subnet_id(str(ip_interface(each).network)) for each in addresses]
        external_ids = {
            "neutron:is_ext_gw": str(gateway),
            "neutron:network_name": net.switch,
            "neutron:revision_number": "2",
            "neutron:router_name": self.row,
            "neutron:subnet_ids": " ".join(ids),
        }
        row = {
            "name": f"lrp-{port_id}",
            "mac": mac_of(f"{net.name}-{port}"),
            "networks": ["set", list(addresses)],
            "external_ids": encode_map(external_ids),
            "options": encode_map({"gateway_mtu": "1442"} if gateway else {}),
        }
        yield insert("Logical_Router_Port", row, _row("end", port))
        yield add_to("Logical_Router", self.row, "ports", _row("end", port))

    def attach(self, net: NeutronNetwork, *addresses: str, gateway: bool = False) -> Iterator[Json]:
        port_id = net.port_id(self.port_name(net, *addresses))
        yield from self._both_ends(net, addresses, gateway=gateway)
        options = encode_map({"router-port": f"lrp-{port_id}"})
        yield update("Logical_Switch_Port", port_id, type="router", addresses="router", options=options)

    def default_route(self, net: NeutronNetwork, nexthop: str, cidr: str) -> Iterator[Json]:
        external_ids = {
            "neutron:is_ext_gw": "true",
            "neutron:is_static_route": "true",
            "neutron:subnet_id": net.subnet_id(cidr),
        }
        prefix = "0.0.0.0/0" if "." in nexthop else "::/0"
        row = {"ip_prefix": prefix, "nexthop": nexthop, "external_ids": encode_map(external_ids)}
        yield insert("Logical_Router_Static_Route", row, _row("route", self.name, nexthop))
        yield add_to("Logical_Router", self.row, "static_routes", _row("route", self.name, nexthop))

    def route(self, prefix: str, nexthop: str) -> Iterator[Json]:
        external_ids = {"neutron:is_static_route": "true"}
        row = {"ip_prefix": prefix, "nexthop": nexthop, "external_ids": encode_map(external_ids)}
        yield insert("Logical_Router_Static_Route", row, _row("route", self.name, nexthop))
        yield add_to("Logical_Router", self.row, "static_routes", _row("route", self.name, nexthop))

    def snat(self, outside: str) -> Iterator[Json]:
        yield insert(
            "NAT", {"type": "snat", "logical_ip": "0.0.0.0/0", "external_ip": outside}, _row("snat", self.name)
        )
        yield add_to("Logical_Router", self.row, "nat", _row("snat", self.name))

    def floating_ip(self, outside: str, net: NeutronNetwork, port_id: str, inside: str) -> Iterator[Json]:
        external_ids = {
            "neutron:fip_external_mac": mac_of(outside),
            "neutron:fip_id": uuid_of(f"fip-{outside}"),
            "neutron:fip_network_id": net.id,
            "neutron:fip_port_id": port_id,
            "neutron:revision_number": "3",
            "neutron:router_name": self.row,
        }
        row = {
            "type": "dnat_and_snat",
            "external_ip": outside,
            "logical_ip": inside,
            "logical_port": port_id,
            "options": encode_map({"stateless": "false"}),
            "external_ids": encode_map(external_ids),
        }
        yield insert("NAT", row, _row("fip", outside))
        yield add_to("Logical_Router", self.row, "nat", _row("fip", outside))


def lxd(number: int = 9, brand: str = "lxd") -> Iterator[Json]:
    """A network of LXD with its uplink, its router, and an instance with addresses chosen by OVN."""
    prefix = f"{brand}-net{number}"
    inside, outside, router = f"{prefix}-ls-int", f"{prefix}-ls-ext", f"{prefix}-lr"
    yield insert("Logical_Switch", {"name": inside, "other_config": encode_map({"subnet": "10.3.0.0/24"})})
    yield insert("Logical_Switch", {"name": outside})
    yield insert("Logical_Router", {"name": router})
    for cidr in ("10.3.0.0/24", "fd03::/64"):
        row = {"cidr": cidr, "external_ids": encode_map({f"{brand}_switch": inside})}
        options = {"router": "10.3.0.1", "mtu": "1400"} if "." in cidr else {"dns_server": "{fd03::1}"}
        yield insert("DHCP_Options", {**row, "options": encode_map(options)})
    ends = {
        f"{router}-lrp-int": (inside, ["10.3.0.1/24", "fd03::1/64"]),
        f"{router}-lrp-ext": (outside, ["192.0.2.33/24"]),
    }
    for name, (switch, networks) in ends.items():
        end, port = _row(name), _row("peer", name)
        mac = "00:16:3e:00:00:01"
        yield insert("Logical_Router_Port", {"name": name, "mac": mac, "networks": ["set", networks]}, end)
        yield add_to("Logical_Router", router, "ports", end)
        row = {"name": f"{switch}-lsp-router", "type": "router", "addresses": "router"}
        yield insert("Logical_Switch_Port", {**row, "options": encode_map({"router-port": name})}, port)
        yield add_to("Logical_Switch", switch, "ports", port)
    wire = {"name": f"{outside}-lsp-provider", "type": "localnet", "options": encode_map({"network_name": "uplink"})}
    yield insert("Logical_Switch_Port", wire, "provider")
    yield add_to("Logical_Switch", outside, "ports", "provider")
    instance = {
        "name": f"{prefix}-instance-{uuid_of('c1')}-eth0",
        "addresses": "00:16:3e:00:00:02 dynamic",
        "dynamic_addresses": "00:16:3e:00:00:02 10.3.0.2 fd03::216:3eff:fe00:2",
        "external_ids": encode_map({f"{brand}_switch": inside, f"{brand}_location": "node2"}),
    }
    yield insert("Logical_Switch_Port", instance, "instance")
    yield add_to("Logical_Switch", inside, "ports", "instance")
