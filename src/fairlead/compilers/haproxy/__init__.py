"""Model to rows of the HAProxy on a node."""

from fairlead.compilers.haproxy.compiler import compile_in_steps
from fairlead.dataplane.haproxy import references
from fairlead.dataplane.interface import Dataplane, Place
from fairlead.model.owner import Kind

HAPROXY = Dataplane(
    name="haproxy",
    title="HAProxy",
    place=Place.NODE,
    kinds=frozenset({Kind.NETWORK, Kind.ROUTER, Kind.LOAD_BALANCER}),
    compile_in_steps=compile_in_steps,
    references=references,
)

__all__ = ["HAPROXY"]
