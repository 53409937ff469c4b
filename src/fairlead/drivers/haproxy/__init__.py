"""The HAProxy processes of a node, one for each network that has a proxy there."""

from fairlead.drivers.haproxy.driver import HAProxy, Serving
from fairlead.drivers.haproxy.places import Places

__all__ = ["HAProxy", "Places", "Serving"]
