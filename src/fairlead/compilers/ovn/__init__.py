"""Compiler for the OVN Northbound database."""

from fairlead.compilers.ovn.compiler import compile_in_steps, compile_owner
from fairlead.dataplane.interface import Dataplane, DataplaneScope
from fairlead.dataplane.ovn_tables import references
from fairlead.model.documents.owner import Kind
from fairlead.model.registry.kinds import has_rows

OVN = Dataplane(
    name="ovn",
    title="OVN",
    scope=DataplaneScope.CENTRAL,
    kinds=frozenset(filter(has_rows, Kind)),
    compile_in_steps=compile_in_steps,
    references=references,
)

__all__ = ["OVN", "compile_owner"]
