"""A lab of plain Linux hosts without Open vSwitch: hosts, two routers, machines behind hosts and outside."""

from fairlead.lab.native.lab import NativeLab
from fairlead.lab.native.machine import Machine
from fairlead.lab.native.plan import Site

__all__ = ["Machine", "NativeLab", "Site"]
