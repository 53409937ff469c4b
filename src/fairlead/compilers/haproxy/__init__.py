"""Compiler of the model to rows of the HAProxy processes on a node."""

from fairlead.compilers.haproxy.compiler import rows_of
from fairlead.dataplane.haproxy import references
from fairlead.dataplane.interface import Dataplane, DataplaneScope, row_by_row
from fairlead.model.documents.owner import Kind

HAPROXY = Dataplane(
    name="haproxy",
    title="HAProxy",
    scope=DataplaneScope.NODE,
    kinds=frozenset({Kind.NETWORK, Kind.ROUTER, Kind.LOAD_BALANCER}),
    compile_in_steps=row_by_row(rows_of),
    references=references,
    separates_projects=True,
)

__all__ = ["HAPROXY"]
