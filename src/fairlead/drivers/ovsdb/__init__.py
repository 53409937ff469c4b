"""Client of the OVSDB management protocol (RFC 7047)."""
