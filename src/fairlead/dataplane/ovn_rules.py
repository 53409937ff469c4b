"""Rules of the OVN Northbound database: what becomes of a packet that matches, on switches (ACLs, which port groups
hold, and QoS) and on routers (policies). A match is an expression of ovn-sb(5), Logical_Flow:match.
"""

from dataclasses import dataclass

from fairlead.dataplane.rows import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGroup:
    """What is in its `acls` holds on every switch that has one of its ports."""

    name: str

    @property
    def key(self) -> Key:
        return ("Port_Group", self.name)

    def __str__(self) -> str:
        return f"Port_Group {self.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PortGroupPort:
    """One element of Port_Group:ports."""

    group: str
    port: str

    @property
    def key(self) -> Key:
        return ("in port group", self.group, self.port)

    def __str__(self) -> str:
        return f"Port_Group {self.group} += {self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Acl:
    """What becomes of a packet that matches. `group` is the row whose `acls` column holds this one."""

    name: str
    group: str
    match: str
    priority: int
    direction: str = "from-lport"
    """As it comes into a switch from a port; `to-lport`: as it leaves."""
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
    """How fast packets that match may go on a switch. Of several rows only the one with the highest priority holds."""

    name: str
    switch: str
    match: str
    priority: int
    rate: int
    """Kilobits per second; what is beyond is dropped."""
    direction: str = "to-lport"

    @property
    def key(self) -> Key:
        return ("QoS", self.name)

    def __str__(self) -> str:
        head = f"QoS {self.name} switch={self.switch} priority={self.priority} {self.direction} rate={self.rate}"
        return f"{head} {self.match!r}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalRouterPolicy:
    """Where a router sends a packet that matches, whatever its routes say. Of several the one with the highest priority
    decides (ovn-nb(5))."""

    name: str
    router: str
    priority: int
    match: str
    action: str
    nexthops: tuple[str, ...] = ()
    """Of a `reroute`."""

    @property
    def key(self) -> Key:
        return ("Logical_Router_Policy", self.name)

    def __str__(self) -> str:
        head = f"Logical_Router_Policy {self.name} router={self.router} priority={self.priority} {self.action}"
        return " ".join([head, *self.nexthops, repr(self.match)])
