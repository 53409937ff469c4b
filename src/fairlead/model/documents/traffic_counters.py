"""Traffic counters of a listener."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficCounters:
    """Counters of one listener on one node. All except `active` are monotonic."""

    connections: int = 0
    """Connections opened; for UDP, datagrams up to the first reply."""
    errors: int = 0
    """Connections rejected because no member is up."""
    bytes_in: int = 0
    """Bytes from clients to members, with headers: Ethernet and IP on a switch, IP on a plain host."""
    bytes_out: int = 0
    """Bytes from members to clients, with the same headers; 0 where they are not counted."""
    active: int = 0
    """Connections open now."""

    def merge(self, newer: "TrafficCounters") -> "TrafficCounters":
        """Merge newer counters: monotonic ones never decrease, `active` is replaced."""
        return TrafficCounters(
            connections=max(self.connections, newer.connections),
            errors=max(self.errors, newer.errors),
            bytes_in=max(self.bytes_in, newer.bytes_in),
            bytes_out=max(self.bytes_out, newer.bytes_out),
            active=newer.active,
        )

    def increase_since(self, since: "TrafficCounters") -> "TrafficCounters":
        """Return the increase of the monotonic counters since an earlier sample; `active` is 0."""
        return TrafficCounters(
            connections=self.connections - since.connections,
            errors=self.errors - since.errors,
            bytes_in=self.bytes_in - since.bytes_in,
            bytes_out=self.bytes_out - since.bytes_out,
        )

    def __add__(self, other: "TrafficCounters") -> "TrafficCounters":
        return TrafficCounters(
            connections=self.connections + other.connections,
            errors=self.errors + other.errors,
            bytes_in=self.bytes_in + other.bytes_in,
            bytes_out=self.bytes_out + other.bytes_out,
            active=self.active + other.active,
        )
