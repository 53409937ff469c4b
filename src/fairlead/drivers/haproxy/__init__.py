"""The HAProxy processes of a node, one for each network that has a proxy there."""

from fairlead.drivers.haproxy.driver import HAProxy
from fairlead.drivers.haproxy.keeping import Serving
from fairlead.drivers.haproxy.places import Nowhere, Places
from fairlead.drivers.haproxy.secrets import Fetch

__all__ = ["Fetch", "HAProxy", "Nowhere", "Places", "Serving"]
