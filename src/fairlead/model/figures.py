"""What was counted of a listener."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one listener on one node; all but `active` only grow."""

    connections: int = 0
    """Opened; over UDP, datagrams until the first answer."""
    errors: int = 0
    """Turned away, because no member lived."""
    bytes_in: int = 0
    """From clients to members, with headers: a switch counts those of frames too, a plain host those of IP."""
    bytes_out: int = 0
    """From members to clients, likewise; where somebody counts them."""
    active: int = 0
    """Connections that are open now."""

    def raised(self, newer: "Figures") -> "Figures":
        """What has grown, at its newest; nothing falls but what is open."""
        return Figures(
            connections=max(self.connections, newer.connections),
            errors=max(self.errors, newer.errors),
            bytes_in=max(self.bytes_in, newer.bytes_in),
            bytes_out=max(self.bytes_out, newer.bytes_out),
            active=newer.active,
        )

    def grown(self, since: "Figures") -> "Figures":
        """Without what is open."""
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
