"""Parser of port lists: `80,81,8080-8090`."""

from collections.abc import Iterator

from fairlead.api.lxd.go_texts import parse_int, quote
from fairlead.model.documents.port_ranges import PortRange


class BadRange(Exception):
    """Invalid range; `place` is its index in the list, `reason` LXD's text."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place
        self.reason = reason


def tidy(text: str) -> str:
    """Remove blanks and empty items."""
    return ",".join(_items(text))


def parse_ports(text: str) -> tuple[PortRange, ...]:
    """Parse a port list without checking port numbers, which the rules do. Raises BadRange."""
    found = list[PortRange]()
    for place, item in enumerate(_items(text)):
        try:
            found.append(_parse_range(item))
        except ValueError as error:
            raise BadRange(place, str(error)) from None
    return tuple(found)


def _items(text: str) -> Iterator[str]:
    return (item for part in text.split(",") if (item := part.strip()))


def _parse_range(text: str) -> PortRange:
    ends = text.split("-")
    if len(ends) > 2:
        raise ValueError(f"Invalid port range {quote(text)}")
    first = parse_int(ends[0])
    if len(ends) == 1:
        return PortRange(first, first)
    last = parse_int(ends[1])
    if last <= first:
        raise ValueError("End port should be higher than start port")
    return PortRange(first, last)
