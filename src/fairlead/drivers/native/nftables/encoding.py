"""Codec between rows and elements of sets and maps. Numbers that the kernel computes with are in host byte order."""

import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import NamedTuple, TypeAlias

from fairlead.dataplane.flow_slot import PROTOCOLS
from fairlead.dataplane.native import LocalMember, LocalMemberAddress, NativeRow, OtherHost, Service, Target, Vip
from fairlead.drivers.native.nftables.elements import Elements, Shape
from fairlead.drivers.native.nftables.ruleset import FAMILIES, OWNER_MARK, OWNERS, PREVIOUS_OWNERS, SECOND_MARK
from fairlead.model.documents.addresses import IPAddress, IPNetwork
from fairlead.model.documents.loadbalancer import Transport

Clients: TypeAlias = tuple[IPNetwork, ...]
ByShape: TypeAlias = dict[Shape, dict[bytes, bytes]]
NO_NUMBER = 0
"""Number for a missing slot table, target list or client list."""
_MOST = 1 << 20
"""Upper bound of valid numbers: there are never that many services."""
_ORDER = sys.byteorder


@lru_cache(maxsize=8192)
def word(number: int) -> bytes:
    return struct.pack("=I", number)


def vip_elements(row: Vip, owner: str) -> ByShape:
    return {FAMILIES[row.address.version].vips: {row.address.packed: owner.encode()}}


def own_elements(row: LocalMemberAddress, owner: str) -> ByShape:
    return {FAMILIES[row.address.version].own: {row.address.packed: owner.encode()}}


def service_key(row: Service) -> bytes:
    return row.vip.packed + word(PROTOCOLS[row.transport]) + struct.pack(">Hxx", row.port)


def connection_key(vip: IPAddress, transport: Transport, port: int) -> bytes:
    """Key of a service as conntrack has it (`connections.py`)."""
    return vip.packed + struct.pack(">B3xHxx", PROTOCOLS[transport], port)


def queried_key(key: bytes) -> bytes:
    """Key of a service as rules record it, with the protocol in one byte."""
    return key[:-8] + bytes([int.from_bytes(key[-8:-4], _ORDER), 0, 0, 0]) + key[-4:]


class TargetList(NamedTuple):
    """Targets of a service, shared by all ports of a pool, at all VIPs of one IP version."""

    targets: tuple[bytes, ...]
    """Element value of each target."""
    previous_owners: tuple[tuple[int, int], ...]
    """As in `dataplane.native.Service`."""


class Numbers(NamedTuple):
    """Numbers of the shared parts of a service."""

    slots: int
    targets: int
    clients: int


def target_value(target: Target) -> bytes:
    if isinstance(target, OtherHost):
        return word(OWNER_MARK + target.host)
    return target.address.packed + struct.pack(">Hxx", target.port)


def service_elements(row: Service, numbers: Numbers) -> ByShape:
    family, key = FAMILIES[row.vip.version], service_key(row)
    found: ByShape = {family.service: {key: word(numbers.slots)}}
    if row.targets:
        found[family.served] = {key: word(numbers.targets)}
    if row.by_source:
        found[family.sourced] = {key: b""}
    if row.clients is not None:
        found[family.limited] = {key: word(numbers.clients)}
    return found


_OF_VALUES = {4: OWNERS, 8: FAMILIES[4].member, 20: FAMILIES[6].member}
"""Shapes by the length of their values."""


def target_elements(number: int, served: TargetList | None) -> ByShape:
    found: ByShape = {shape: {} for shape in (*_OF_VALUES.values(), PREVIOUS_OWNERS)}
    if served is not None:
        head = word(number)
        for place, value in enumerate(served.targets):
            found[_OF_VALUES[len(value)]][head + word(place)] = value
        found[PREVIOUS_OWNERS] = {head + word(slot): word(SECOND_MARK + host) for slot, host in served.previous_owners}
    return found


def hairpins(rows: Iterable[NativeRow]) -> ByShape:
    """Elements for members on this host that connect to themselves through a VIP (hairpin)."""
    found: ByShape = {}
    for row in rows:
        if isinstance(row, Service):
            shape = FAMILIES[row.vip.version].hairpin
            for target in row.targets:
                if isinstance(target, LocalMember):
                    its = target.address.packed
                    found.setdefault(shape, {})[row.vip.packed + its + its] = b""
    return found


def pattern_elements(number: int, slots: bytes) -> Elements:
    head = word(number)
    return {head + word(slot): word(place) for slot, place in enumerate(slots)}


def client_elements(number: int, clients: Clients) -> ByShape:
    head, found = struct.pack(">I", number), ByShape()  # nft has ranges in network byte order
    for network in clients:
        first, last = network.network_address.packed, network.broadcast_address.packed
        found.setdefault(FAMILIES[network.version].clients, {})[head + first + head + last] = b""
    return found


def read_patterns(elements: Elements) -> dict[int, bytes]:
    """Return the complete slot tables."""
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


class DecodedTargets(NamedTuple):
    """Targets as in rows, and as in the kernel."""

    targets: tuple[Target, ...]
    target_list: TargetList


def read_targets(tables: Mapping[Shape, Elements]) -> dict[int, DecodedTargets]:
    """Return the complete target lists."""
    values: dict[int, dict[int, bytes]] = {}
    read = struct.Struct("=II")
    for shape in _OF_VALUES.values():
        for key, data in tables[shape].items():
            number, place = read.unpack(key)
            values.setdefault(number, {})[place] = data
    before: dict[int, list[tuple[int, int]]] = {}
    for key, data in tables[PREVIOUS_OWNERS].items():
        number, slot = read.unpack(key)
        before.setdefault(number, []).append((slot, int.from_bytes(data, _ORDER) - SECOND_MARK))
    found: dict[int, DecodedTargets] = {}
    for number, its in values.items():
        if number <= _MOST and max(its) < len(its):
            listed = tuple(its[place] for place in range(len(its)))
            served = TargetList(listed, tuple(sorted(before.get(number, ()))))
            found[number] = DecodedTargets(tuple(map(_target, listed)), served)
    return found


@lru_cache(maxsize=16384)
def _target(value: bytes) -> Target:
    if len(value) == 4:
        return OtherHost(host=int.from_bytes(value, _ORDER) - OWNER_MARK)
    return LocalMember(address=address(value[:-4]), port=int.from_bytes(value[-4:-2]))


_NO_TARGETS = DecodedTargets((), TargetList((), ()))


def read_services(
    tables: Mapping[Shape, Elements],
    patterns: Mapping[int, bytes],
    serving: Mapping[int, DecodedTargets],
    lists: Mapping[int, Clients],
) -> Iterator[tuple[Service, Numbers]]:
    """Yield the complete services."""
    transports = {number: transport for transport, number in PROTOCOLS.items()}
    for family in FAMILIES.values():
        size = 4 if family.version == 4 else 16
        for key, data in tables[family.service].items():
            number, served = (int.from_bytes(each, _ORDER) for each in (data, tables[family.served].get(key, b"")))
            slots = patterns.get(number) if number != NO_NUMBER else b""
            its = serving.get(served) if served != NO_NUMBER else _NO_TARGETS
            limited = tables[family.limited].get(key)
            transport = transports.get(int.from_bytes(key[size : size + 4], _ORDER))
            if transport is None or slots is None or its is None or number > _MOST:
                continue
            if len(its.targets) != max(slots, default=-1) + 1:
                continue
            listed = None if limited is None else int.from_bytes(limited, _ORDER)
            row = Service(
                vip=address(key[:size]),
                transport=transport,
                port=int.from_bytes(key[size + 4 : size + 6]),
                by_source=key in tables[family.sourced],
                slots=slots,
                targets=its.targets,
                previous_owners=its.target_list.previous_owners,
                clients=None if listed is None else lists.get(listed, ()),
            )
            yield row, Numbers(number, served, listed or NO_NUMBER)


@lru_cache(maxsize=16384)
def address(packed: bytes) -> IPAddress:
    return ip_address(packed)
