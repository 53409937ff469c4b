"""Rows as elements of our sets and maps, and back. A number that a host computes with is in its own byte order."""

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import TypeAlias

from fairlead.dataplane.flow_slot import PROTOCOLS
from fairlead.dataplane.native import Here, NativeRow, Own, Service, There, Vip
from fairlead.drivers.native.elements import Elements, Shape
from fairlead.drivers.native.ruleset import FAMILIES, SECOND, THERE
from fairlead.model.addresses import IPAddress, IPNetwork

Clients: TypeAlias = tuple[IPNetwork, ...]
ByShape: TypeAlias = dict[Shape, dict[bytes, bytes]]
NOBODY = 0
"""The number of the table of slots that has none."""
_MOST = 1 << 20
"""No number of ours is larger: there are not as many services."""
_ORDER = sys.byteorder


@lru_cache(maxsize=8192)
def word(number: int) -> bytes:
    return struct.pack("=I", number)


def vip_elements(row: Vip, owner: str) -> ByShape:
    return {FAMILIES[row.address.version].vips: {row.address.packed: owner.encode()}}


def own_elements(row: Own, owner: str) -> ByShape:
    return {FAMILIES[row.address.version].own: {row.address.packed: owner.encode()}}


def service_key(row: Service) -> bytes:
    return row.vip.packed + word(PROTOCOLS[row.transport]) + struct.pack(">Hxx", row.port)


def asked_key(key: bytes) -> bytes:
    """The same service as rules note it, which know protocols as one byte."""
    return key[:-8] + bytes([int.from_bytes(key[-8:-4], _ORDER), 0, 0, 0]) + key[-4:]


def service_elements(row: Service, patterns: Mapping[bytes, int], lists: Mapping[Clients, int]) -> ByShape:
    """With these numbers of tables and lists."""
    family, key = FAMILIES[row.vip.version], service_key(row)
    found: ByShape = {
        family.service: {key: word(patterns[row.slots] if row.slots else NOBODY)},
        family.owner: {},
        family.member: {},
    }
    owner, member = found[family.owner], found[family.member]
    for place, target in enumerate(row.targets):
        if isinstance(target, There):
            owner[key + word(place)] = word(THERE + target.host)
        else:
            member[key + word(place)] = target.address.packed + struct.pack(">Hxx", target.port)
    if row.by_source:
        found[family.sourced] = {key: b""}
    if row.before:
        found[family.before] = {key + word(slot): word(SECOND + host) for slot, host in row.before}
    if row.clients is not None:
        found[family.limited] = {key: word(lists[row.clients])}
    return found


def hairpins(rows: Iterable[NativeRow]) -> ByShape:
    """Members here, with whose VIPs they may be reached by themselves."""
    found: ByShape = {}
    for row in rows:
        if isinstance(row, Service):
            shape = FAMILIES[row.vip.version].hairpin
            for target in row.targets:
                if isinstance(target, Here):
                    its = target.address.packed
                    found.setdefault(shape, {})[row.vip.packed + its + its] = b""
    return found


def pattern_elements(number: int, slots: bytes) -> Elements:
    head = word(number)
    return {head + word(slot): word(place) for slot, place in enumerate(slots)}


def client_elements(number: int, clients: Clients) -> ByShape:
    head, found = struct.pack(">I", number), ByShape()  # nft has ranges in the order of the network
    for network in clients:
        first, last = network.network_address.packed, network.broadcast_address.packed
        found.setdefault(FAMILIES[network.version].clients, {})[head + first + head + last] = b""
    return found


def read_patterns(elements: Elements) -> dict[int, bytes]:
    """Whole ones."""
    found: dict[int, bytearray] = {}
    counts: dict[int, int] = {}
    read = struct.Struct("=II")
    for key, data in elements.items():
        number, slot = read.unpack(key)
        slots = found.setdefault(number, bytearray(256))
        place = int.from_bytes(data, _ORDER)
        if slot < len(slots) and place < 256:
            slots[slot] = place
            counts[number] = counts.get(number, 0) + 1
    return {number: bytes(slots) for number, slots in found.items() if counts.get(number) == len(slots)}


def read_clients(tables: Mapping[Shape, Elements]) -> dict[int, Clients]:
    found: dict[int, list[IPNetwork]] = {}
    for family in FAMILIES.values():
        for key in tables[family.clients]:
            half = len(key) // 2
            number = int.from_bytes(key[:4])
            found.setdefault(number, []).append(_network(key[4:half], key[half + 4 :]))
    return {number: tuple(sorted(networks, key=str)) for number, networks in found.items()}


def _network(first: bytes, last: bytes) -> IPNetwork:
    bits = 8 * len(first) - (int.from_bytes(first) ^ int.from_bytes(last)).bit_length()
    return IPv4Network((first, bits)) if len(first) == 4 else IPv6Network((first, bits))


def read_services(
    tables: Mapping[Shape, Elements], patterns: Mapping[int, bytes], lists: Mapping[int, Clients]
) -> Iterator[tuple[Service, int, int | None]]:
    """Those that are whole, with the numbers of their tables and lists."""
    transports = {number: transport for transport, number in PROTOCOLS.items()}
    for family in FAMILIES.values():
        size = 4 if family.version == 4 else 16
        targets: dict[bytes, dict[int, Here | There]] = {}
        hosts = {data: There(host=int.from_bytes(data, _ORDER) - THERE) for data in set(tables[family.owner].values())}
        for key, data in tables[family.owner].items():
            targets.setdefault(key[:-4], {})[int.from_bytes(key[-4:], _ORDER)] = hosts[data]
        for key, data in tables[family.member].items():
            here = Here(address=address(data[:size]), port=int.from_bytes(data[size : size + 2]))
            targets.setdefault(key[:-4], {})[int.from_bytes(key[-4:], _ORDER)] = here
        before: dict[bytes, list[tuple[int, int]]] = {}
        for key, data in tables[family.before].items():
            moved = int.from_bytes(key[-4:], _ORDER), int.from_bytes(data, _ORDER) - SECOND
            before.setdefault(key[:-4], []).append(moved)
        for key, data in tables[family.service].items():
            number = int.from_bytes(data, _ORDER)
            slots = patterns.get(number) if number != NOBODY else b""
            its = targets.get(key, {})
            limited = tables[family.limited].get(key)
            transport = transports.get(int.from_bytes(key[size : size + 4], _ORDER))
            if (
                transport is None
                or slots is None
                or number > _MOST
                or sorted(its) != list(range(max(slots, default=-1) + 1))
            ):
                continue
            listed = None if limited is None else int.from_bytes(limited, _ORDER)
            row = Service(
                vip=address(key[:size]),
                transport=transport,
                port=int.from_bytes(key[size + 4 : size + 6]),
                by_source=key in tables[family.sourced],
                slots=slots,
                targets=tuple(its[place] for place in range(len(its))),
                before=tuple(sorted(before.get(key, ()))),
                clients=None if listed is None else lists.get(listed, ()),
            )
            yield row, number, listed


@lru_cache(maxsize=16384)
def address(packed: bytes) -> IPAddress:
    return ip_address(packed)
