"""The HAProxy processes of a node, one for each network that has a proxy there."""

from fairlead.drivers.haproxy.driver import HAProxy
from fairlead.drivers.haproxy.namespaces import Nowhere, Places
from fairlead.drivers.haproxy.secrets import Fetch
from fairlead.drivers.haproxy.supervisor import Serving

__all__ = ["Fetch", "HAProxy", "Nowhere", "Places", "Serving"]
