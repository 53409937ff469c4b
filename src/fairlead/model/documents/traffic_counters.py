"""Traffic counters of a listener."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
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

    def raised(self, newer: "Figures") -> "Figures":
        """Merge newer counters: monotonic ones never decrease, `active` is replaced."""
        return Figures(
            connections=max(self.connections, newer.connections),
            errors=max(self.errors, newer.errors),
            bytes_in=max(self.bytes_in, newer.bytes_in),
            bytes_out=max(self.bytes_out, newer.bytes_out),
            active=newer.active,
        )

    def grown(self, since: "Figures") -> "Figures":
        """Return the increase of the monotonic counters since an earlier sample; `active` is 0."""
        return Figures(
            connections=self.connections - since.connections,
            errors=self.errors - since.errors,
            bytes_in=self.bytes_in - since.bytes_in,
            bytes_out=self.bytes_out - since.bytes_out,
        )

    def __add__(self, other: "Figures") -> "Figures":
        return Figures(
            connections=self.connections + other.connections,
            errors=self.errors + other.errors,
            bytes_in=self.bytes_in + other.bytes_in,
            bytes_out=self.bytes_out + other.bytes_out,
            active=self.active + other.active,
        )
