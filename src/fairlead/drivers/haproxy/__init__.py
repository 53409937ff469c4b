"""The HAProxy processes of a node, one for each network that has a proxy there."""

from fairlead.drivers.haproxy.driver import HAProxy
from fairlead.drivers.haproxy.namespaces import HostNamespace, Namespaces
from fairlead.drivers.haproxy.secrets import Fetch
from fairlead.drivers.haproxy.supervisor import ReportPorts

__all__ = ["Fetch", "HAProxy", "HostNamespace", "Namespaces", "ReportPorts"]
