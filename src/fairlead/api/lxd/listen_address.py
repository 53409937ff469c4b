"""Parser of addresses with the semantics of Go's net.ParseIP, which accepts IPv4-mapped IPv6 addresses as IPv4."""

from fairlead.model.documents.addresses import IPAddress, parse_address


def read_address(text: str) -> IPAddress:
    """Parse an address. Raises ValueError."""
    found = parse_address(text)
    return found.ipv4_mapped or found if found.version == 6 else found


def canonical(text: str) -> str:
    """Return an address in canonical form; any other text is returned unchanged."""
    try:
        return str(read_address(text))
    except ValueError:
        return text
