"""Compiler for plain Linux hosts."""

from fairlead.compilers.native.compiler import rows_of
from fairlead.compilers.native.flow_lookup import explain
from fairlead.compilers.native.views import views
from fairlead.dataplane.interface import Dataplane, DataplaneScope, row_by_row
from fairlead.dataplane.native import references
from fairlead.model.documents.owner import Kind

NATIVE = Dataplane(
    name="native",
    title="Linux",
    scope=DataplaneScope.NODE,
    kinds=frozenset({Kind.HOST, Kind.LOAD_BALANCER}),
    compile_in_steps=row_by_row(rows_of),
    references=references,
    explain=explain,
    views=views,
)

__all__ = ["NATIVE"]
