"""Values of the facts `PROXIES` and `PROXY_PORT_CHANGES` (`model/registry/facts.py`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Proxy:
    """State of a running proxy, as reported by the agent of its node. A proxy that is not running has no entry."""

    serving: frozenset[int] = frozenset()
    """Ports where the proxy accepts connections, one per listener."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyPortChanges:
    """Differences between the existing and the wanted ports of proxies, for one place on an unmanaged network."""

    create_on: tuple[str, ...] = ()
    """Chassis that need a port."""
    delete: tuple[str, ...] = ()
    """Ids of ports to delete."""
