"""Rows of the OVN Northbound database (ovn-nb(5)), and single elements of its shared columns.

A value is canonical when its compiler builds it: sets sorted, maps as sorted pairs, addresses in their shortest text.
Only backend lists keep their order, because they are slot tables.

Row names are stable: they are derived from ids of the model, so `ovn-nbctl` shows the ids that the API shows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from fairlead.dataplane.backends import render_backends
from fairlead.dataplane.ovn_chassis import ChassisVariable
from fairlead.dataplane.ovn_rules import Acl, LogicalRouterPolicy, PortGroup, PortGroupPort, Qos
from fairlead.dataplane.rows import Key
from fairlead.runtime.steps import Steps, run_to_completion

Pairs: TypeAlias = tuple[tuple[str, str], ...]


def pairs(mapping: Mapping[str, str]) -> Pairs:
    """Return a map as sorted pairs."""
    return tuple(sorted(mapping.items()))


SOURCE_IPV6 = "ipv6_src"
"""Ability name: value of Load_Balancer:selection_fields for IPv6 sources, which OVN 23.03 lacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalSwitch:
    name: str
    title: str = ""
    """The tenant's name for it, in `external_ids` for readers of the database. OVN ignores it."""
    other_config: Pairs = ()

    @property
    def key(self) -> Key:
        return ("Logical_Switch", self.name)

    def __str__(self) -> str:
        config = _render_pairs("other_config", self.other_config)
        return _line(f"Logical_Switch {self.name}", _render_title(self.title), *config)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalSwitchPort:
    """Switch port. `switch` is the row with the `ports` column that holds it; OVN has no port outside a switch.

    `addresses` are the port's own; `SwitchPortAddress` rows may add elements.
    """

    name: str
    switch: str
    title: str = ""
    type: str = ""
    addresses: tuple[str, ...] = ()
    port_security: tuple[str, ...] = ()
    options: Pairs = ()
    tag: int | None = None
    """VLAN of a `localnet` port."""
    tag_request: int | None = None
    """Same as `tag`. ovn-northd copies tag_request to tag, and some versions clear a tag without a request."""
    enabled: bool = True

    @property
    def key(self) -> Key:
        return ("Logical_Switch_Port", self.name)

    def __str__(self) -> str:
        return _line(
            f"Logical_Switch_Port {self.name} switch={self.switch}",
            _render_title(self.title),
            f"type={self.type}" if self.type else "",
            *(f"addresses={text!r}" for text in self.addresses),
            *(f"port_security={text!r}" for text in self.port_security),
            *_render_pairs("options", self.options),
            "" if self.tag is None else f"tag={self.tag}",
            "" if self.tag_request is None else f"tag_request={self.tag_request}",
            "" if self.enabled else "disabled",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRouter:
    name: str
    title: str = ""
    enabled: bool = True
    options: Pairs = ()

    @property
    def key(self) -> Key:
        return ("Logical_Router", self.name)

    def __str__(self) -> str:
        state = "" if self.enabled else "disabled"
        options = _render_pairs("options", self.options)
        return _line(f"Logical_Router {self.name}", _render_title(self.title), state, *options)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRouterPort:
    """Router port. `networks` are its own; `PortAddress` rows may add elements."""

    name: str
    router: str
    mac: str
    networks: tuple[str, ...]
    enabled: bool = True
    options: Pairs = ()

    @property
    def key(self) -> Key:
        return ("Logical_Router_Port", self.name)

    def __str__(self) -> str:
        return _line(
            f"Logical_Router_Port {self.name} router={self.router} mac={self.mac} networks={','.join(self.networks)}",
            "" if self.enabled else "disabled",
            *_render_pairs("options", self.options),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayChassis:
    """Chassis that may host a router port. The live one with the highest priority does."""

    port: str
    chassis: str
    priority: int

    @property
    def key(self) -> Key:
        return ("Gateway_Chassis", self.port, self.chassis)

    @property
    def name(self) -> str:
        return f"{self.port}_{self.chassis}"

    def __str__(self) -> str:
        return f"Gateway_Chassis {self.port} {self.chassis} priority={self.priority}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nat:
    """NAT entry. `snat` translates a network's outgoing traffic; `dnat_and_snat` maps two addresses both ways."""

    name: str
    router: str
    type: str
    external_ip: str
    logical_ip: str

    @property
    def key(self) -> Key:
        return ("NAT", self.name)

    def __str__(self) -> str:
        return f"NAT {self.name} router={self.router} {self.type} {self.external_ip} {self.logical_ip}"


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticRoute:
    """Static route. With policy `src-ip` the prefix matches the source address, otherwise the destination."""

    router: str
    ip_prefix: str
    nexthop: str
    policy: str = ""

    @property
    def key(self) -> Key:
        return ("Logical_Router_Static_Route", self.router, self.ip_prefix, self.nexthop)

    def __str__(self) -> str:
        return _line(f"Logical_Router_Static_Route {self.router}", self.policy, f"{self.ip_prefix} via {self.nexthop}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VirtualService:
    """Entry of Load_Balancer:vips. Backends are slots, in order; an empty list is rejected (`options:reject`)."""

    vip: str
    backends: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.vip}={render_backends(self.backends)}"


class StockRows(NamedTuple):
    """Rows of one load balancer of Octavia's stock provider `ovn`: all with this name and VIP."""

    name: str
    vip: str

    def __str__(self) -> str:
        return f"{self.name}/{self.vip}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancer:
    name: str
    title: str = ""
    protocol: str = ""
    """Empty if no service has a port."""
    services: tuple[VirtualService, ...]
    selection_fields: tuple[str, ...] = ()
    options: Pairs = ()
    ip_port_mappings: Pairs = ()
    """Backend -> `logical port:source address of probes`."""
    instead_of: StockRows | None = None
    """Rows of the stock provider that are deleted in the transaction that creates this row, and never checked later."""

    @property
    def key(self) -> Key:
        return ("Load_Balancer", self.name)

    def __str__(self) -> str:
        return _line(
            f"Load_Balancer {self.name}",
            f"protocol={self.protocol}" if self.protocol else "",
            _render_title(self.title),
            *(str(service) for service in self.services),
            f"selection_fields={','.join(self.selection_fields)}" if self.selection_fields else "",
            *_render_pairs("options", self.options),
            *_render_pairs("ip_port_mappings", self.ip_port_mappings),
            f"instead_of={self.instead_of}" if self.instead_of else "",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerHealthCheck:
    """Health check of one VIP. `load_balancer` is the row with the `health_check` column that holds it."""

    load_balancer: str
    vip: str
    options: Pairs

    @property
    def key(self) -> Key:
        return ("Load_Balancer_Health_Check", self.load_balancer, self.vip)

    def __str__(self) -> str:
        head = f"Load_Balancer_Health_Check {self.vip} load_balancer={self.load_balancer}"
        return _line(head, *_render_pairs("options", self.options))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadBalancerGroup:
    name: str

    @property
    def key(self) -> Key:
        return ("Load_Balancer_Group", self.name)

    def __str__(self) -> str:
        return f"Load_Balancer_Group {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMember:
    """Element of Load_Balancer_Group:load_balancer."""

    group: str
    load_balancer: str

    @property
    def key(self) -> Key:
        return ("in group", self.group, self.load_balancer)

    def __str__(self) -> str:
        return f"Load_Balancer_Group {self.group} += {self.load_balancer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchGroup:
    """Element of Logical_Switch:load_balancer_group."""

    switch: str
    group: str

    @property
    def key(self) -> Key:
        return ("on switch", self.switch, self.group)

    def __str__(self) -> str:
        return f"Logical_Switch {self.switch} += {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterGroup:
    """Element of Logical_Router:load_balancer_group."""

    router: str
    group: str

    @property
    def key(self) -> Key:
        return ("on router", self.router, self.group)

    def __str__(self) -> str:
        return f"Logical_Router {self.router} += {self.group}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortAddress:
    """Element of Logical_Router_Port:networks: an address that the router answers for (ARP, ND, ICMP echo)."""

    port: str
    network: str

    @property
    def key(self) -> Key:
        return ("on port", self.port, self.network)

    def __str__(self) -> str:
        return f"Logical_Router_Port {self.port} += {self.network}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchPortAddress:
    """Element of Logical_Switch_Port:addresses: a MAC and an address that every chassis answers ARP and ND for."""

    port: str
    address: str

    @property
    def key(self) -> Key:
        return ("on switch port", self.port, self.address)

    def __str__(self) -> str:
        return f"Logical_Switch_Port {self.port} += {self.address}"


Exclusive: TypeAlias = (
    LogicalSwitch
    | LogicalSwitchPort
    | LogicalRouter
    | LogicalRouterPort
    | GatewayChassis
    | Nat
    | StaticRoute
    | LoadBalancer
    | LoadBalancerHealthCheck
    | LoadBalancerGroup
    | LogicalRouterPolicy
    | PortGroup
    | Acl
    | Qos
)
"""A managed row that is a row of the database."""
Element: TypeAlias = (
    GroupMember | SwitchGroup | RouterGroup | PortAddress | SwitchPortAddress | PortGroupPort | ChassisVariable
)
"""A managed row that is one element of a column."""
OvnRow: TypeAlias = Exclusive | Element


def by_key(rows: Iterable[OvnRow]) -> dict[Key, OvnRow]:
    """Return the rows by key. Raises ValueError for two rows with one key, which is a bug in the compiler."""
    return run_to_completion(by_key_in_steps(rows))


def by_key_in_steps(rows: Iterable[OvnRow]) -> Steps[dict[Key, OvnRow]]:
    """Return the rows by key, in steps of one row."""
    result: dict[Key, OvnRow] = {}
    for row in rows:
        if row.key in result:
            raise ValueError(f"two rows of one key: {row} and {result[row.key]}")
        result[row.key] = row
        yield
    return result


def _render_title(title: str) -> str:
    return f"title={title!r}" if title else ""


def _render_pairs(column: str, mapping: Pairs) -> list[str]:
    return [f"{column}:{key}={value}" for key, value in mapping]


def _line(*words: str) -> str:
    return " ".join(word for word in words if word)
