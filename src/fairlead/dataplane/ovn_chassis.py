"""What depends on the chassis in the OVN Northbound database: values of template variables (ovn-nb(5)).

A load balancer with `options:template` names variables, and each chassis puts its own values in their place. A chassis
without a value has no flow of that load balancer. All values of a chassis are one map in one row, which all users of
OVN share: it is made by whoever has the first.
"""

from dataclasses import dataclass

from fairlead.dataplane.backends import render_backends
from fairlead.dataplane.rows import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class ChassisVariable:
    """One element of Chassis_Template_Var:variables."""

    chassis: str
    name: str
    """Letters, digits and underscores: the lexer of OVN's expressions takes no others."""
    values: tuple[str, ...]
    """In order, as a slot table is; the database has a comma between."""

    @property
    def key(self) -> Key:
        return ("for chassis", self.chassis, self.name)

    @property
    def text(self) -> str:
        return ",".join(self.values)

    def __str__(self) -> str:
        return f"Chassis_Template_Var {self.chassis} += {self.name}={render_backends(self.values)}"
