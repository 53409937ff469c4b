"""Per-chassis values in the OVN Northbound database: template variables (ovn-nb(5), Chassis_Template_Var).

A load balancer with `options:template` names variables, and each chassis substitutes its own values. A chassis without
a value has no flows for that load balancer. All values of a chassis are one map in one row, shared by all users of OVN
and created by the first of them.
"""

from dataclasses import dataclass

from fairlead.dataplane.backends import render_backends
from fairlead.dataplane.rows import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class ChassisVariable:
    """Element of Chassis_Template_Var:variables."""

    chassis: str
    name: str
    """Letters, digits and underscores: the lexer of OVN expressions accepts no others."""
    values: tuple[str, ...]
    """Values in order, like a slot table; separated by commas in the database."""

    @property
    def key(self) -> Key:
        return ("for chassis", self.chassis, self.name)

    @property
    def text(self) -> str:
        return ",".join(self.values)

    def __str__(self) -> str:
        return f"Chassis_Template_Var {self.chassis} += {self.name}={render_backends(self.values)}"
