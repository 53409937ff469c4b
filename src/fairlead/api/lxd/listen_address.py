"""Addresses as LXD reads them: in any form that Go's net.ParseIP takes, an IPv4 address inside an IPv6 one included."""

from fairlead.model.addresses import IPAddress, parse_address


def read_address(text: str) -> IPAddress:
    """Raises ValueError."""
    found = parse_address(text)
    return found.ipv4_mapped or found if found.version == 6 else found


def canonical(text: str) -> str:
    """The one form of the address; a text that is none stays as it is."""
    try:
        return str(read_address(text))
    except ValueError:
        return text
