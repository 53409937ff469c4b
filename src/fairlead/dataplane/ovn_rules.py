"""Rules of the OVN Northbound database: ACLs (in port groups) and QoS on switches, policies on routers.

A match is an expression of ovn-sb(5), Logical_Flow:match.
"""

from dataclasses import dataclass

from fairlead.dataplane.rows import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGroup:
    """Port group. Its ACLs apply on every switch that has one of its ports."""

    name: str

    @property
    def key(self) -> Key:
        return ("Port_Group", self.name)

    def __str__(self) -> str:
        return f"Port_Group {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGroupPort:
    """Element of Port_Group:ports."""

    group: str
    port: str

    @property
    def key(self) -> Key:
        return ("in port group", self.group, self.port)

    def __str__(self) -> str:
        return f"Port_Group {self.group} += {self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """Action for matching packets. `group` is the port group or logical switch whose `acls` column lists the ACL."""

    name: str
    group: str
    match: str
    priority: int
    direction: str = "from-lport"
    """`from-lport`: packets entering a switch from a port; `to-lport`: packets leaving it to a port."""
    action: str = "drop"
    options: tuple[tuple[str, str], ...] = ()

    @property
    def key(self) -> Key:
        return ("ACL", self.name)

    def __str__(self) -> str:
        head = f"ACL {self.name} group={self.group} priority={self.priority} {self.direction} {self.action}"
        options = "".join(f" options:{key}={value}" for key, value in self.options)
        return f"{head} {self.match!r}{options}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Qos:
    """Rate limit of matching packets on a switch. Of several matching rows the one with the highest priority
    applies."""

    name: str
    switch: str
    match: str
    priority: int
    rate: int
    """Kilobits per second; packets above it are dropped."""
    direction: str = "to-lport"

    @property
    def key(self) -> Key:
        return ("QoS", self.name)

    def __str__(self) -> str:
        head = f"QoS {self.name} switch={self.switch} priority={self.priority} {self.direction} rate={self.rate}"
        return f"{head} {self.match!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRouterPolicy:
    """Policy route, which overrides the router's routes. Of several matching policies the one with the highest priority
    applies (ovn-nb(5))."""

    name: str
    router: str
    priority: int
    match: str
    action: str
    nexthops: tuple[str, ...] = ()
    """Next hops of a `reroute`."""

    @property
    def key(self) -> Key:
        return ("Logical_Router_Policy", self.name)

    def __str__(self) -> str:
        head = f"Logical_Router_Policy {self.name} router={self.router} priority={self.priority} {self.action}"
        return " ".join([head, *self.nexthops, repr(self.match)])
