"""TCP segments in Ethernet frames."""

import struct

from fairlead.model.documents.addresses import parse_address

CLIENT_MAC, OWN_MAC = bytes.fromhex("0200000000aa"), bytes.fromhex("0e0000000009")
ENDS = {4: ("10.0.0.20", "10.0.0.2"), 6: ("fd00:a::20", "fd00:a::2")}


def frame(version: int, flags: int, data: bytes = b"", number: int = 1000, acknowledged: int = 7000) -> bytes:
    source, target = (parse_address(each).packed for each in ENDS[version])
    segment = struct.pack("!HHIIBBHHH", 40000, 9, number, acknowledged, 5 << 4, flags, 1000, 0, 0) + data
    ethernet = OWN_MAC + CLIENT_MAC
    if version == 4:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(segment), 1, 0x4000, 64, 6, 0)
        return ethernet + b"\x08\x00" + header + source + target + segment
    return ethernet + b"\x86\xdd" + struct.pack("!IHBB", 6 << 28, len(segment), 6, 64) + source + target + segment
